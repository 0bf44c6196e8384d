//! The emission schedule of one answer.
//!
//! See docs/decisions/0002-time-scale-is-a-speed.md.

use std::{
    iter::FusedIterator,
    sync::{PoisonError, RwLock},
    time::Duration,
    vec,
};

use base::units::TimeScale;
use recording::trace::Record;

/// Source of the times of an answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pacing {
    /// From the record. Where there is none, everything is due at once.
    Recorded {
        /// How many times faster than recorded.
        scale: TimeScale,
    },
    /// The same for every answer; a record keeps its framing only.
    Fixed {
        /// Request to first chunk.
        ttft: Duration,
        /// Time per token after the first chunk: a chunk of k tokens is due k times this after the previous one, so that
        /// tokens come at the same rate however they are framed.
        itl: Duration,
    },
    /// Everything is due at once; a record keeps its framing.
    Instant,
}

impl Default for Pacing {
    /// As recorded, in real time.
    fn default() -> Self {
        Self::Recorded { scale: TimeScale::REAL }
    }
}

/// A pacing that takes the place of a configured one while a server runs.
#[derive(Debug, Default)]
pub struct ChangedPacing(RwLock<Option<Pacing>>);

impl ChangedPacing {
    /// Changes the pacing of what begins from now on; `None` for the configured one.
    pub fn set(&self, pacing: Option<Pacing>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = pacing;
    }

    /// The pacing now, where this one is configured.
    #[must_use]
    pub fn or(&self, configured: Pacing) -> Pacing {
        self.0.read().unwrap_or_else(PoisonError::into_inner).unwrap_or(configured)
    }
}

/// One chunk to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// When, from the request's arrival.
    pub due: Duration,
    /// How many tokens; at least 1.
    pub tokens: u32,
}

/// The chunks of one answer in order, as an iterator; due times never decrease.
#[derive(Debug, Clone)]
pub struct Schedule {
    steps: ScheduleSteps,
    end: Option<Duration>,
}

#[derive(Debug, Clone)]
enum ScheduleSteps {
    Listed(vec::IntoIter<Due>),
    Uniform { next: Duration, gap: Duration, left: Option<u32> },
}

impl Schedule {
    /// The schedule of `record`, of at most `limit` tokens: a limit inside a chunk shortens that chunk.
    ///
    /// The gaps of a record that was not streamed are unknown: as recorded, all of its tokens are due at its end, each by
    /// itself; at a fixed pace they are due one by one.
    #[must_use]
    pub fn of(record: &Record, pacing: Pacing, limit: Option<u32>) -> Self {
        let streamed = record.stream != Some(false);
        if let (Pacing::Fixed { .. }, false) = (pacing, streamed) {
            let tokens = record.output_tokens;
            return Self::uniform(Some(limit.map_or(tokens, |limit| tokens.min(limit))), pacing);
        }
        let last: Duration = record.emissions().map(|chunk| chunk.gap).fold(Duration::ZERO, Duration::saturating_add);
        let end = record.e2e.map_or(last, |e2e| e2e.max(last));
        let mut clock = PacingClock::new(pacing);
        let (mut dues, mut left) = (Vec::with_capacity(record.chunks.len()), limit.unwrap_or(u32::MAX));
        let mut cut = false;
        for chunk in record.emissions() {
            let tokens = chunk.tokens.min(left);
            cut |= tokens < chunk.tokens;
            if tokens == 0 {
                break;
            }
            left -= tokens;
            let offset = clock.advance(chunk.gap, tokens);
            match (streamed, record.chunks.as_slice()) {
                (true, _) => dues.push(Due { due: offset, tokens }),
                (false, [_whole]) => dues.extend((0..tokens).map(|_| Due { due: clock.at(end), tokens: 1 })),
                (false, _) => dues.push(Due { due: clock.at(end), tokens }),
            }
        }
        let last = dues.last().map_or(Duration::ZERO, |chunk| chunk.due);
        let end = Some(clock.at(end)).filter(|end| !cut && *end > last);
        Self { steps: ScheduleSteps::Listed(dues.into_iter()), end }
    }

    /// Single tokens that no record stands behind: `tokens` of them, or without an end. Takes no memory per token.
    #[must_use]
    pub fn uniform(tokens: Option<u32>, pacing: Pacing) -> Self {
        let (next, gap) = match pacing {
            Pacing::Fixed { ttft, itl } => (ttft, itl),
            Pacing::Recorded { .. } | Pacing::Instant => (Duration::ZERO, Duration::ZERO),
        };
        Self { steps: ScheduleSteps::Uniform { next, gap, left: tokens }, end: None }
    }

    /// Returns when the answer is complete, where the record has it later than its last chunk. `None` where the
    /// answer ends with its last chunk: nothing later was recorded, the limit cut it, or the pacing is not the recorded one.
    #[must_use]
    pub fn end(&self) -> Option<Duration> {
        self.end
    }
}

impl Iterator for Schedule {
    type Item = Due;

    fn next(&mut self) -> Option<Due> {
        match &mut self.steps {
            ScheduleSteps::Listed(dues) => dues.next(),
            ScheduleSteps::Uniform { next, gap, left } => {
                if let Some(left) = left {
                    *left = left.checked_sub(1)?;
                }
                let due = *next;
                *next = next.saturating_add(*gap);
                Some(Due { due, tokens: 1 })
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.steps {
            ScheduleSteps::Listed(dues) => dues.size_hint(),
            ScheduleSteps::Uniform { left: None, .. } => (usize::MAX, None),
            ScheduleSteps::Uniform { left: Some(left), .. } => (*left as usize, Some(*left as usize)),
        }
    }
}

impl FusedIterator for Schedule {}

/// Adds gaps up and turns the sums into offsets.
pub(super) struct PacingClock {
    pacing: Pacing,
    recorded: Duration,
    /// The offset of the previous chunk at a fixed pace; `None` before the first one.
    paced: Option<Duration>,
}

impl PacingClock {
    pub(super) fn new(pacing: Pacing) -> Self {
        Self { pacing, recorded: Duration::ZERO, paced: None }
    }

    fn advance(&mut self, gap: Duration, tokens: u32) -> Duration {
        self.advance_to(self.recorded.saturating_add(gap), tokens)
    }

    /// Returns when a chunk of so many tokens is due that was recorded at this offset.
    pub(super) fn advance_to(&mut self, recorded: Duration, tokens: u32) -> Duration {
        self.recorded = recorded;
        match self.pacing {
            Pacing::Fixed { ttft, itl } => {
                let next = self.paced.map_or(ttft, |previous| previous.saturating_add(itl.saturating_mul(tokens)));
                *self.paced.insert(next)
            }
            Pacing::Recorded { .. } | Pacing::Instant => self.at(self.recorded),
        }
    }

    /// Returns when a recorded offset is due; zero unless the pacing is the recorded one.
    pub(super) fn at(&self, recorded: Duration) -> Duration {
        match self.pacing {
            Pacing::Recorded { scale } => scale.apply(recorded),
            Pacing::Fixed { .. } | Pacing::Instant => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use recording::trace::{Chunk, ItlSummary};

    const MS: Duration = Duration::from_millis(1);

    fn record(chunks: &[(Duration, u32)]) -> Record {
        Record {
            output_tokens: chunks.iter().map(|(_, tokens)| tokens).sum(),
            chunks: chunks.iter().map(|(gap, tokens)| Chunk { gap: *gap, tokens: *tokens, step: None }).collect(),
            ..Record::default()
        }
    }

    fn times(factor: &str) -> Pacing {
        Pacing::Recorded { scale: factor.parse().unwrap() }
    }

    fn dues(schedule: Schedule) -> Vec<(Duration, u32)> {
        schedule.map(|chunk| (chunk.due, chunk.tokens)).collect()
    }

    #[test]
    fn recorded_gaps_add_up_to_offsets() {
        let record = record(&[(50 * MS, 1), (10 * MS, 4), (20 * MS, 1)]);
        let schedule = Schedule::of(&record, Pacing::default(), None);
        assert_eq!(schedule.end(), None);
        assert_eq!(dues(schedule), [(50 * MS, 1), (60 * MS, 4), (80 * MS, 1)]);
    }

    #[test]
    fn a_sum_is_scaled_not_its_parts() {
        let record = record(&vec![(Duration::from_nanos(10), 1); 1000]);
        let last = Schedule::of(&record, times("3"), None).last().unwrap();
        assert_eq!(last.due, Duration::from_nanos(3333));
    }

    #[test]
    fn a_limit_may_cut_inside_a_chunk() {
        let record = Record { e2e: Some(90 * MS), ..record(&[(50 * MS, 2), (10 * MS, 4), (20 * MS, 1)]) };
        let cut = |limit| Schedule::of(&record, Pacing::default(), Some(limit));
        assert_eq!(dues(cut(3)), [(50 * MS, 2), (60 * MS, 1)]);
        assert_eq!(dues(cut(2)), [(50 * MS, 2)]);
        assert_eq!(dues(cut(0)), []);
        assert_eq!((cut(6).end(), cut(7).end()), (None, Some(90 * MS)));
    }

    #[test]
    fn the_end_is_later_than_the_last_chunk_or_absent() {
        let with_e2e = |e2e| Record { e2e: Some(e2e), ..record(&[(50 * MS, 1)]) };
        assert_eq!(Schedule::of(&with_e2e(60 * MS), times("2"), None).end(), Some(30 * MS));
        assert_eq!(Schedule::of(&with_e2e(50 * MS), Pacing::default(), None).end(), None);
        assert_eq!(Schedule::of(&with_e2e(60 * MS), Pacing::Instant, None).end(), None);
        let fixed = Pacing::Fixed { ttft: 5 * MS, itl: MS };
        assert_eq!(Schedule::of(&with_e2e(60 * MS), fixed, None).end(), None);
    }

    #[test]
    fn what_was_not_streamed_is_due_at_its_end() {
        let whole = Record { stream: Some(false), e2e: Some(70 * MS), ..record(&[(50 * MS, 2), (10 * MS, 1)]) };
        assert_eq!(dues(Schedule::of(&whole, Pacing::default(), None)), [(70 * MS, 2), (70 * MS, 1)]);
        assert_eq!(dues(Schedule::of(&whole, Pacing::default(), Some(1))), [(70 * MS, 1)]);
        let fixed = Pacing::Fixed { ttft: 5 * MS, itl: MS };
        assert_eq!(dues(Schedule::of(&whole, fixed, Some(2))), [(5 * MS, 1), (6 * MS, 1)]);
        let without_e2e = Record { e2e: None, ..whole };
        assert_eq!(dues(Schedule::of(&without_e2e, Pacing::default(), None)), [(60 * MS, 2), (60 * MS, 1)]);
    }

    #[test]
    fn a_whole_answer_has_no_framing() {
        let whole = Record { stream: Some(false), e2e: Some(70 * MS), ..record(&[(60 * MS, 3)]) };
        assert_eq!(dues(Schedule::of(&whole, Pacing::default(), Some(2))), [(70 * MS, 1); 2]);
        let summary = ItlSummary { mean_ms: 0.0, count: 2 };
        let older = Record { chunks: record(&[(60 * MS, 1)]).chunks, itl_summary: Some(summary), ..whole.clone() };
        let both = [whole, older].map(|record| dues(Schedule::of(&record, Pacing::default(), None)));
        assert_eq!(both[0], both[1]);
    }

    #[test]
    fn a_fixed_pace_is_per_token_and_keeps_the_framing() {
        let record = record(&[(50 * MS, 3), (10 * MS, 4), (20 * MS, 1)]);
        let fixed = Pacing::Fixed { ttft: 100 * MS, itl: 10 * MS };
        assert_eq!(dues(Schedule::of(&record, fixed, None)), [(100 * MS, 3), (140 * MS, 4), (150 * MS, 1)]);
        assert_eq!(dues(Schedule::of(&record, fixed, Some(5))), [(100 * MS, 3), (120 * MS, 2)]);
    }

    #[test]
    fn at_once_is_at_once() {
        let record = record(&[(50 * MS, 3), (10 * MS, 1)]);
        assert_eq!(dues(Schedule::of(&record, Pacing::Instant, None)), [(Duration::ZERO, 3), (Duration::ZERO, 1)]);
    }

    #[test]
    fn summarised_gaps_are_spelled_out() {
        let summary = ItlSummary { mean_ms: 10.0, count: 3 };
        let record = Record { output_tokens: 4, itl_summary: Some(summary), ..record(&[(50 * MS, 1)]) };
        let offsets: Vec<_> = Schedule::of(&record, Pacing::default(), None).map(|chunk| chunk.due).collect();
        assert_eq!(offsets, [50 * MS, 60 * MS, 70 * MS, 80 * MS]);
    }

    #[test]
    fn uniform_schedules_are_lazy() {
        let fixed = Pacing::Fixed { ttft: 100 * MS, itl: 10 * MS };
        assert_eq!(dues(Schedule::uniform(Some(2), fixed)), [(100 * MS, 1), (110 * MS, 1)]);
        assert_eq!(dues(Schedule::uniform(Some(0), fixed)), []);
        assert_eq!(Schedule::uniform(None, fixed).nth(1000).unwrap().due, 10_100 * MS);
        assert_eq!(Schedule::uniform(None, Pacing::default()).nth(1_000_000).unwrap().due, Duration::ZERO);
        assert_eq!(Schedule::uniform(Some(u32::MAX), fixed).size_hint().0, u32::MAX as usize);
    }
}
