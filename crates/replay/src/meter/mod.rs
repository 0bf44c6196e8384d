//! What TTFT, ITL, TPOT and E2E mean: defined here once, for every tool.
//!
//! | metric | from | to |
//! |---|---|---|
//! | first event | request sent | first event of any kind (in chat streams the role event) |
//! | TTFT | request sent | first token-bearing chunk |
//! | ITL | a token-bearing chunk | the next one (one value per gap, however many tokens a chunk holds) |
//! | TPOT | (E2E − TTFT) / (output tokens − 1) | |
//! | E2E | request sent | last byte of the answer |
//!
//! Limits: an answer that was not streamed came in one piece, so it has an E2E and none of the others.
//!
//! See docs/decisions/0001-ttft-from-complete-request.md.

mod observe;
mod response;
mod slo;

use std::time::Duration;

use recording::trace::Record;

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

/// The gaps between token-bearing chunks in order; none for an answer that was not streamed. Summarised gaps count one
/// by one at their mean.
pub fn itl(record: &Record) -> impl Iterator<Item = Duration> + '_ {
    let streamed = is_streamed(record);
    record.emissions().skip(1).filter(move |_| streamed).map(|chunk| chunk.gap)
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

/// (E2E − TTFT) / (output tokens − 1); `None` below two tokens or where either time is unknown.
#[must_use]
pub fn tpot(record: &Record) -> Option<Duration> {
    let later = record.output_tokens.checked_sub(1).filter(|later| *later > 0)?;
    Some(e2e(record)?.saturating_sub(ttft(record)?) / later)
}

fn is_streamed(record: &Record) -> bool {
    record.stream != Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use recording::trace::{Chunk, ItlSummary};

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
        assert_eq!(itl(&record).collect::<Vec<_>>(), [MS * 10, MS * 20]);
        assert_eq!(e2e(&record), Some(MS * 80));
        assert_eq!(tpot(&record), Some(MS * 10));
        record.e2e = Some(MS * 110);
        assert_eq!(tpot(&record), Some(MS * 20));
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
        assert_eq!(itl(&record).collect::<Vec<_>>(), [MS * 2; 3]);
        assert_eq!(e2e(&record), Some(MS * 56));
    }
}
