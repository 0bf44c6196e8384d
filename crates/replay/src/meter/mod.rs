//! What TTFT, ITL, TPOT and E2E mean: defined here once, for every tool.
//!
//! | metric | from | to |
//! |---|---|---|
//! | first event | request sent | first event of any kind (in chat streams the role event) |
//! | TTFT | request sent | first token-bearing chunk |
//! | chunk gap | a token-bearing chunk | the next one, however many tokens it holds |
//! | ITL | a token after the first chunk | the next one: the gap before a chunk of n tokens is n values of an nth of it |
//! | TPOT | (E2E − TTFT) / (output tokens − those of the first chunk) | |
//! | E2E | request sent | last byte of the answer |
//!
//! ITL and TPOT do not depend on how tokens are put together into chunks: what a stream of one token each has, a stream of the same tokens in
//! chunks of eight has too. The tokens of the first chunk are in the TTFT.
//!
//! Limits: an answer that was not streamed came in one piece, so it has an E2E and none of the others.
//!
//! See docs/decisions/0001-ttft-from-complete-request.md and docs/decisions/0121-gaps-are-between-tokens.md.

mod observe;
mod response;
mod slo;

use std::time::Duration;

use recording::trace::{Chunk, Record};

pub use observe::ChoiceMeter;
pub use response::{chunks_of, event_data};
pub use slo::Slo;

/// Request sent to first token-bearing chunk; `None` when no token came or the answer was not streamed.
#[must_use]
pub fn ttft(record: &Record) -> Option<Duration> {
    record.ttft().filter(|_| is_streamed(record))
}

/// Request sent to first event of any kind; `None` when it was not recorded.
#[must_use]
pub fn first_event(record: &Record) -> Option<Duration> {
    record.first_event.filter(|_| is_streamed(record))
}

/// Times between tokens that came in one chunk: all the same, because when each was made is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenGaps {
    /// Time to each from the token before it.
    pub each: Duration,
    /// Number of tokens, at least 1.
    pub tokens: u32,
}

/// The gaps between tokens, by chunk and in order; none for an answer that was not streamed. Summarised gaps count one by one at their mean.
pub fn itl(record: &Record) -> impl Iterator<Item = TokenGaps> + '_ {
    let chunks = record.emissions().skip(1).filter(move |_| is_streamed(record));
    chunks.map(|Chunk { gap, tokens, .. }| TokenGaps {
        each: gap.checked_div(tokens).unwrap_or(gap),
        tokens: tokens.max(1),
    })
}

/// The gaps between token-bearing chunks, however many tokens these hold; none for an answer that was not streamed.
pub fn chunk_gaps(record: &Record) -> impl Iterator<Item = Duration> + '_ {
    record.emissions().skip(1).filter(move |_| is_streamed(record)).map(|chunk| chunk.gap)
}

/// Request sent to last byte; where only tokens were timed (public files), to the last token. `None` when neither is
/// known.
#[must_use]
pub fn e2e(record: &Record) -> Option<Duration> {
    record.e2e.or_else(|| {
        record.ttft()?;
        Some(record.emissions().fold(Duration::ZERO, |sum, chunk| sum.saturating_add(chunk.gap)))
    })
}

/// (E2E − TTFT) / (output tokens − those of the first chunk); `None` where no token came after the first chunk, or either time is unknown.
#[must_use]
pub fn tpot(record: &Record) -> Option<Duration> {
    let first = record.chunks.first().map_or(1, |chunk| chunk.tokens);
    let later = record.output_tokens.checked_sub(first).filter(|later| *later > 0)?;
    Some(e2e(record)?.saturating_sub(ttft(record)?) / later)
}

fn is_streamed(record: &Record) -> bool {
    record.stream != Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use recording::trace::ItlSummary;

    const MS: Duration = Duration::from_millis(1);

    fn record(chunks: &[(u32, u32)]) -> Record {
        let chunk = |(gap, tokens): &(u32, u32)| Chunk { gap: MS * *gap, tokens: *tokens, step: None };
        let output_tokens = chunks.iter().map(|(_, tokens)| tokens).sum();
        Record { output_tokens, chunks: chunks.iter().map(chunk).collect(), ..Record::default() }
    }

    #[test]
    fn a_stream_has_every_metric() {
        let mut record = record(&[(50, 1), (10, 2), (20, 1)]);
        assert_eq!(ttft(&record), Some(MS * 50));
        let gaps = |each, tokens| TokenGaps { each, tokens };
        assert_eq!(itl(&record).collect::<Vec<_>>(), [gaps(MS * 5, 2), gaps(MS * 20, 1)]);
        assert_eq!(chunk_gaps(&record).collect::<Vec<_>>(), [MS * 10, MS * 20]);
        assert_eq!(e2e(&record), Some(MS * 80));
        assert_eq!(tpot(&record), Some(MS * 10));
        record.e2e = Some(MS * 110);
        assert_eq!(tpot(&record), Some(MS * 20));
    }

    #[test]
    fn tokens_of_the_same_times_have_the_same_figures_in_chunks_of_any_size() {
        for size in [1, 2, 4, 8] {
            let chunks: Vec<(u32, u32)> = (0..64 / size).map(|_| (10 * size, size)).collect();
            let record = record(&chunks);
            assert!(itl(&record).all(|gaps| gaps == TokenGaps { each: MS * 10, tokens: size }));
            assert_eq!(itl(&record).map(|gaps| gaps.tokens).sum::<u32>(), 64 - size);
            assert_eq!((tpot(&record), e2e(&record)), (Some(MS * 10), Some(MS * 640)), "{size}");
        }
        assert_eq!(tpot(&record(&[(30, 8)])), None);
    }

    #[test]
    fn what_is_undefined_is_none() {
        let nothing = record(&[]);
        assert_eq!((ttft(&nothing), e2e(&nothing), tpot(&nothing)), (None, None, None));
        let one = record(&[(5, 1)]);
        assert_eq!((e2e(&one), tpot(&one)), (Some(MS * 5), None));
        let whole = Record { stream: Some(false), ..record(&[(90, 7)]) };
        assert_eq!((ttft(&whole), tpot(&whole), e2e(&whole)), (None, None, Some(MS * 90)));
    }

    #[test]
    fn summarised_gaps_count_at_their_mean() {
        let mut record = record(&[(50, 1)]);
        record.output_tokens = 4;
        record.itl_summary = Some(ItlSummary { mean_ms: 2.0, count: 3 });
        assert_eq!(itl(&record).collect::<Vec<_>>(), [TokenGaps { each: MS * 2, tokens: 1 }; 3]);
        assert_eq!(e2e(&record), Some(MS * 56));
    }
}
