//! The pace of tokens that no record stands behind: that of the trace.

use std::time::Duration;

use base::stats::quantile;
use recording::trace::{Record, Store};
use replay::timing::Pacing;

/// Records that are looked at, evenly spread over the trace.
const RECORDS: usize = 4096;

/// Gaps of each of them that are looked at, evenly spread over the record.
const GAPS: usize = 16;

/// The middle of a trace's times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TracePace {
    /// Median time to the first token.
    pub(crate) ttft: Duration,
    /// Median gap for each token after the first chunk.
    pub(crate) gap: Duration,
}

impl TracePace {
    /// The medians over a sample of the streamed records; `None` where no record has times.
    ///
    /// The tokens of an answer that was not streamed have one known time, its end: such records count, each token with its
    /// share of that, where there are no others.
    pub(crate) fn of(records: &Store) -> Option<Self> {
        let (mut ttfts, mut gaps, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        let servable: Vec<usize> = (0..records.len())
            .filter(|index| records.get(*index).is_some_and(|record| record.chunk_count() > 0))
            .collect();
        for index in spread(&servable, RECORDS) {
            let Some(record) = records.get(*index).map(|record| record.record()) else { continue };
            if record.stream == Some(false) {
                let end = record.e2e.or_else(|| record.ttft()).unwrap_or_default();
                shares.push(end / record.output_tokens.max(1));
                continue;
            }
            ttfts.extend(record.ttft());
            gaps.extend(spread(&per_token(&record), GAPS));
        }
        let share = quantile(&shares, 0.5);
        let ttft = quantile(&ttfts, 0.5).or(share)?;
        Some(Self { ttft, gap: quantile(&gaps, 0.5).or(share).unwrap_or_default() })
    }

    /// The pacing of made-up tokens on a server that paces records like this.
    pub(crate) fn pacing(self, recorded: Pacing) -> Pacing {
        match recorded {
            Pacing::Recorded { scale } => Pacing::Fixed { ttft: scale.apply(self.ttft), itl: scale.apply(self.gap) },
            Pacing::Fixed { .. } | Pacing::Instant => recorded,
        }
    }
}

/// The gaps after the first chunk, each shared among its tokens.
fn per_token(record: &Record) -> Vec<Duration> {
    record.emissions().skip(1).map(|chunk| chunk.gap / chunk.tokens.max(1)).collect()
}

/// At most so many values, evenly spread.
fn spread<T>(values: &[T], most: usize) -> impl Iterator<Item = &T> {
    values.iter().step_by(values.len().div_ceil(most).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use recording::trace::{Chunk, Trace};

    const MS: Duration = Duration::from_millis(1);

    fn record(chunks: &[(u32, u32)]) -> Record {
        Record {
            output_tokens: chunks.iter().map(|(_, tokens)| tokens).sum(),
            chunks: chunks.iter().map(|(gap, tokens)| Chunk { gap: MS * *gap, tokens: *tokens, step: None }).collect(),
            ..Record::default()
        }
    }

    fn pace(records: Vec<Record>) -> Option<TracePace> {
        TracePace::of(&Store::from(&Trace { records, ..Trace::default() }))
    }

    #[test]
    fn the_middle_of_first_tokens_and_of_gaps_is_taken() {
        let records = vec![record(&[(900, 1), (70, 1)]), record(&[(50, 1), (10, 1), (12, 1)]), record(&[(40, 1)])];
        assert_eq!(pace(records), Some(TracePace { ttft: 50 * MS, gap: 12 * MS }));
    }

    #[test]
    fn a_gap_is_shared_by_the_tokens_that_it_brought() {
        assert_eq!(pace(vec![record(&[(50, 3), (40, 4)])]), Some(TracePace { ttft: 50 * MS, gap: 10 * MS }));
    }

    #[test]
    fn answers_that_were_not_streamed_count_only_among_themselves() {
        let whole = Record { stream: Some(false), e2e: Some(80 * MS), ..record(&[(80, 1), (0, 3)]) };
        assert_eq!(pace(vec![whole.clone()]), Some(TracePace { ttft: 20 * MS, gap: 20 * MS }));
        let streamed = record(&[(5, 1), (1, 1)]);
        assert_eq!(pace(vec![whole.clone(), whole, streamed]), Some(TracePace { ttft: 5 * MS, gap: MS }));
        assert_eq!(pace(vec![Record::default()]), None);
    }

    #[test]
    fn a_large_trace_is_sampled() {
        let values: Vec<usize> = (0..10_000).collect();
        let taken: Vec<usize> = spread(&values, 4096).copied().collect();
        assert!(taken.len() <= 4096 && taken.len() > 2048 && taken.last() > Some(&9_990), "{}", taken.len());
    }

    #[test]
    fn the_scale_of_the_trace_is_that_of_its_pace() {
        let pace = TracePace { ttft: 50 * MS, gap: 10 * MS };
        let tenfold = Pacing::Recorded { scale: "10".parse().unwrap() };
        assert_eq!(pace.pacing(tenfold), Pacing::Fixed { ttft: 5 * MS, itl: MS });
        assert_eq!(pace.pacing(Pacing::Instant), Pacing::Instant);
    }
}
