//! The deadlines of a response that is sent as it was recorded: of its events, or of its body, and of the tokens in it.
//!
//! The same rules as for [`Schedule`](super::Schedule): recorded times are scaled; at a fixed pace the first chunk of a choice
//! is due at the TTFT, and one of k tokens k times the ITL after the one before it. An event without tokens is due with the
//! chunk before it, one before the first chunk with that. Events of a response without known tokens count as a token each.

use std::{collections::BTreeMap, iter, time::Duration};

use super::{Pacing, schedule::PacingClock};

/// Maximum number of groups of tokens that a body is divided into: a number of tokens in a file takes no memory of its size.
const MOST_SINGLES: u64 = 1 << 16;

/// Tokens of a choice that one event brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenChunk {
    /// The event, from 0.
    pub event: usize,
    /// Its recorded time, from the request's arrival.
    pub at: Duration,
    /// The choice, from 0.
    pub choice: usize,
    /// How many tokens.
    pub tokens: u32,
}

/// Tokens of a choice and their deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokensDue {
    /// When, from the request's arrival.
    pub due: Duration,
    /// The choice, from 0.
    pub choice: usize,
    /// How many tokens.
    pub tokens: u32,
}

/// The deadlines of a recorded response. Neither list decreases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseSchedule {
    /// One for each event; a body has one.
    pub events: Vec<Duration>,
    /// The tokens in them.
    pub tokens: Vec<TokensDue>,
}

impl ResponseSchedule {
    /// When each of so many tokens of a choice is due; those of no chunk come with the last event.
    #[must_use]
    pub fn token_times(&self, choice: usize, count: usize) -> Vec<Duration> {
        let of_choice = self.tokens.iter().filter(|tokens| tokens.choice == choice);
        let known = of_choice
            .flat_map(|tokens| iter::repeat_n(tokens.due, usize::try_from(tokens.tokens).unwrap_or(usize::MAX)));
        let last = self.events.last().copied().unwrap_or_default();
        known.chain(iter::repeat(last)).take(count).collect()
    }

    /// The deadlines of a stream whose events came at these times and brought these chunks, in the order of their events.
    #[must_use]
    pub fn stream(times: &[Duration], chunks: &[TokenChunk], pacing: Pacing) -> Self {
        if chunks.is_empty() {
            let mut clock = PacingClock::new(pacing);
            let mut last = Duration::ZERO;
            let events = times.iter().map(|at| latest(&mut last, clock.advance_to(*at, 1))).collect();
            return Self { events, tokens: Vec::new() };
        }
        let mut tokens = dues(chunks, pacing);
        let mut coming = chunks.iter().zip(&tokens).map(|(chunk, due)| (chunk.event, due.due)).peekable();
        let first = coming.peek().map_or(Duration::ZERO, |(_, due)| *due);
        let (clock, mut last) = (PacingClock::new(pacing), Duration::ZERO);
        let mut of_event = |(event, at): (usize, &Duration)| {
            let mut paced = first;
            while let Some((_, due)) = coming.next_if(|(of, _)| *of <= event) {
                paced = due;
            }
            let due = if matches!(pacing, Pacing::Fixed { .. }) { paced } else { clock.at(*at) };
            latest(&mut last, due)
        };
        let events = times.iter().enumerate().map(&mut of_event).collect();
        tokens.sort_by_key(|tokens| tokens.due);
        Self { events, tokens }
    }

    /// The deadlines of a body that was complete at `end`. It was recorded as a stream of these chunks; without any, its choices
    /// have so many tokens, whose gaps are unknown.
    #[must_use]
    pub fn body(end: Duration, chunks: &[TokenChunk], totals: &[u32], pacing: Pacing) -> Self {
        let mut tokens = if chunks.is_empty() { dues(&singles(end, totals), pacing) } else { dues(chunks, pacing) };
        tokens.sort_by_key(|tokens| tokens.due);
        let last = tokens.last().map_or(Duration::ZERO, |tokens| tokens.due);
        let body = match pacing {
            Pacing::Recorded { .. } | Pacing::Instant => PacingClock::new(pacing).at(end),
            Pacing::Fixed { ttft, .. } => ttft,
        };
        Self { events: vec![body.max(last)], tokens }
    }
}

/// The later one of two deadlines, which is the last one from now on.
fn latest(last: &mut Duration, due: Duration) -> Duration {
    *last = due.max(*last);
    *last
}

/// The tokens of choices one by one, all at one time; in equal groups where there are more than [`MOST_SINGLES`].
fn singles(at: Duration, totals: &[u32]) -> Vec<TokenChunk> {
    let all: u64 = totals.iter().map(|total| u64::from(*total)).sum();
    let group = u32::try_from(all.div_ceil(MOST_SINGLES).max(1)).unwrap_or(u32::MAX);
    let of_choice = |(choice, total): (usize, &u32)| {
        let mut left = *total;
        std::iter::from_fn(move || {
            let tokens = left.min(group);
            left -= tokens;
            (tokens > 0).then_some(TokenChunk { event: 0, at, choice, tokens })
        })
    };
    totals.iter().enumerate().flat_map(of_choice).collect()
}

/// The deadlines of chunks, each choice by itself.
fn dues(chunks: &[TokenChunk], pacing: Pacing) -> Vec<TokensDue> {
    let mut clocks: BTreeMap<usize, PacingClock> = BTreeMap::new();
    let due = |chunk: &TokenChunk| {
        let clock = clocks.entry(chunk.choice).or_insert_with(|| PacingClock::new(pacing));
        TokensDue { due: clock.advance_to(chunk.at, chunk.tokens), choice: chunk.choice, tokens: chunk.tokens }
    };
    chunks.iter().map(due).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::Schedule;
    use recording::trace::{Chunk, Record};

    const MS: Duration = Duration::from_millis(1);
    const FIXED: Pacing = Pacing::Fixed { ttft: Duration::from_millis(100), itl: Duration::from_millis(10) };

    fn chunks(listed: &[(usize, u32, usize, u32)]) -> Vec<TokenChunk> {
        let chunk = |(event, at, choice, tokens): &(usize, u32, usize, u32)| TokenChunk {
            event: *event,
            at: MS * *at,
            choice: *choice,
            tokens: *tokens,
        };
        listed.iter().map(chunk).collect()
    }

    fn millis(times: &[Duration]) -> Vec<u128> {
        times.iter().map(Duration::as_millis).collect()
    }

    fn times(millis: &[u32]) -> Vec<Duration> {
        millis.iter().map(|ms| MS * *ms).collect()
    }

    /// A role, a token, three tokens, the finish reason and the end.
    const ROLE_TOKENS_END: [u32; 5] = [40, 50, 60, 60, 61];

    #[test]
    fn a_fixed_pace_is_per_token_and_other_events_come_with_the_chunk_before_them() {
        let chunks = chunks(&[(1, 50, 0, 1), (2, 60, 0, 3)]);
        let schedule = ResponseSchedule::stream(&times(&ROLE_TOKENS_END), &chunks, FIXED);
        assert_eq!(millis(&schedule.events), [100, 100, 130, 130, 130]);
        assert_eq!(schedule.tokens.iter().map(|due| due.due).collect::<Vec<_>>(), [100 * MS, 130 * MS]);
    }

    #[test]
    fn events_without_times_are_paced_by_their_tokens_too() {
        let chunks = chunks(&[(1, 0, 0, 1), (2, 0, 0, 3)]);
        let schedule = ResponseSchedule::stream(&times(&[0; 5]), &chunks, FIXED);
        assert_eq!(millis(&schedule.events), [100, 100, 130, 130, 130]);
    }

    #[test]
    fn recorded_times_are_scaled() {
        let chunks = chunks(&[(1, 50, 0, 1), (2, 60, 0, 3)]);
        let twice = Pacing::Recorded { scale: "2".parse().unwrap() };
        let schedule = ResponseSchedule::stream(&times(&ROLE_TOKENS_END), &chunks, twice);
        assert_eq!(schedule.events, [20 * MS, 25 * MS, 30 * MS, 30 * MS, 61 * MS / 2]);
        assert_eq!(schedule.tokens[1], TokensDue { due: 30 * MS, choice: 0, tokens: 3 });
        let instant = ResponseSchedule::stream(&times(&ROLE_TOKENS_END), &chunks, Pacing::Instant);
        assert_eq!(millis(&instant.events), [0; 5]);
    }

    #[test]
    fn deadlines_are_those_of_a_trace_with_the_same_chunks() {
        let listed = [(50, 3), (10, 4), (20, 1)];
        let chunk = |(gap, tokens): &(u32, u32)| Chunk { gap: MS * *gap, tokens: *tokens, step: None };
        let record = Record { chunks: listed.iter().map(chunk).collect(), output_tokens: 8, ..Record::default() };
        let whole = Record { stream: Some(false), e2e: Some(80 * MS), ..record.clone() };
        let chunks = chunks(&[(0, 50, 0, 3), (1, 60, 0, 4), (2, 80, 0, 1)]);
        for pacing in [Pacing::default(), Pacing::Recorded { scale: "3".parse().unwrap() }, FIXED, Pacing::Instant] {
            let expected: Vec<_> = Schedule::of(&record, pacing, None).map(|due| (due.due, due.tokens)).collect();
            let stream = ResponseSchedule::stream(&times(&[50, 60, 80]), &chunks, pacing);
            assert_eq!(
                stream.tokens.iter().map(|due| (due.due, due.tokens)).collect::<Vec<_>>(),
                expected,
                "{pacing:?}"
            );
            assert_eq!(stream.events, expected.iter().map(|(due, _)| *due).collect::<Vec<_>>(), "{pacing:?}");
            let last = Schedule::of(&whole, pacing, None).last().unwrap().due;
            assert_eq!(ResponseSchedule::body(80 * MS, &[], &[8], pacing).events, [last], "{pacing:?}");
        }
    }

    #[test]
    fn each_choice_has_a_pace_of_its_own_and_events_keep_their_order() {
        let chunks = chunks(&[(0, 50, 0, 1), (1, 60, 0, 1), (2, 60, 1, 1), (3, 70, 1, 2)]);
        let schedule = ResponseSchedule::stream(&times(&[50, 60, 60, 70]), &chunks, FIXED);
        assert_eq!(millis(&schedule.events), [100, 110, 110, 120]);
        let dues: Vec<_> = schedule.tokens.iter().map(|due| (due.due.as_millis(), due.choice)).collect();
        assert_eq!(dues, [(100, 0), (100, 1), (110, 0), (120, 1)]);
    }

    #[test]
    fn events_of_unknown_tokens_count_as_one_each() {
        assert_eq!(millis(&ResponseSchedule::stream(&times(&[5, 5, 9]), &[], FIXED).events), [100, 110, 120]);
        assert_eq!(millis(&ResponseSchedule::stream(&times(&[5, 4, 9]), &[], Pacing::default()).events), [5, 5, 9]);
    }

    #[test]
    fn a_body_is_due_at_its_end_or_with_its_last_token() {
        let body = |chunks: &[TokenChunk], totals: &[u32], pacing| {
            let schedule = ResponseSchedule::body(70 * MS, chunks, totals, pacing);
            let tokens: Vec<_> = schedule.tokens.iter().map(|due| (due.due.as_millis(), due.tokens)).collect();
            (millis(&schedule.events), tokens)
        };
        assert_eq!(body(&[], &[2], Pacing::default()), (vec![70], vec![(70, 1), (70, 1)]));
        assert_eq!(body(&[], &[2, 1], FIXED), (vec![110], vec![(100, 1), (100, 1), (110, 1)]));
        assert_eq!(body(&[], &[], FIXED), (vec![100], vec![]));
        let streamed = chunks(&[(1, 50, 0, 1), (2, 60, 0, 3)]);
        assert_eq!(body(&streamed, &[4], Pacing::default()), (vec![70], vec![(50, 1), (60, 3)]));
        assert_eq!(body(&streamed, &[4], FIXED), (vec![130], vec![(100, 1), (130, 3)]));
        assert_eq!(body(&streamed, &[4], Pacing::Instant), (vec![0], vec![(0, 1), (0, 3)]));
    }

    #[test]
    fn any_number_of_tokens_takes_bounded_memory() {
        let schedule = ResponseSchedule::body(MS, &[], &[u32::MAX, 7], Pacing::Instant);
        assert!(schedule.tokens.len() <= usize::try_from(MOST_SINGLES).unwrap() + 2, "{}", schedule.tokens.len());
        let all: u64 = schedule.tokens.iter().map(|tokens| u64::from(tokens.tokens)).sum();
        assert_eq!(all, u64::from(u32::MAX) + 7);
    }
}
