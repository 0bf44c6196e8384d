//! Records made from other tools' files.

use std::time::Duration;

use serde_json::json;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use base::units::Millis;

use crate::trace::{AGENT, Chunk, ItlSummary, Record, THINK_MS};

/// More output tokens than any answer has; the same as in a trace.
const MOST_OUTPUT: u32 = 1 << 22;

/// More prompt tokens than any prompt has: the hashes of so many are held at once.
pub(super) const MOST_PROMPT: u32 = 1 << 24;

/// Times of a request, as far as they are known.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RowTimes {
    pub(super) ttft: Option<Duration>,
    pub(super) e2e: Option<Duration>,
    /// Mean gap between tokens, in milliseconds.
    pub(super) itl_ms: Option<f64>,
}

/// Makes a record of lengths. Without times its tokens are one chunk at time 0.
pub(super) fn record(prompt_tokens: u32, output_tokens: u32, times: RowTimes) -> Result<Record, String> {
    if output_tokens > MOST_OUTPUT {
        return Err(format!("{output_tokens} output tokens are more than {MOST_OUTPUT}; no answer is that long"));
    }
    if prompt_tokens > MOST_PROMPT {
        return Err(format!("{prompt_tokens} prompt tokens are more than {MOST_PROMPT}; no prompt is that long"));
    }
    let mut record = Record { prompt_tokens, output_tokens, e2e: times.e2e, ..Record::default() };
    let ttft = times.ttft.map(|ttft| times.e2e.map_or(ttft, |e2e| ttft.min(e2e)));
    let later = output_tokens.saturating_sub(1);
    let mean_ms = match (ttft, times.e2e) {
        (Some(ttft), Some(e2e)) => Some(Millis::from(e2e - ttft).0 / f64::from(later.max(1))),
        _ => times.itl_ms.filter(|gap| ttft.is_some() && Millis(*gap).duration().is_some() && *gap >= 0.0),
    };
    let first = ttft.or(times.e2e).unwrap_or_default();
    match mean_ms {
        _ if output_tokens == 0 => record.ttft_without_tokens = first,
        Some(mean_ms) if later > 0 => {
            record.chunks = vec![Chunk { gap: first, tokens: 1, step: None }];
            record.itl_summary = Some(ItlSummary { mean_ms, count: later });
        }
        _ => record.chunks = vec![Chunk { gap: first, tokens: output_tokens, step: None }],
    }
    Ok(record)
}

/// Folds ids with those before them, so that each names a whole prefix; `of` names what they are local to, 0 for nothing.
pub(super) fn chained(ids: &[u64], of: u64) -> Vec<u64> {
    let mut parent = of;
    let mut fold = |id: &u64| {
        parent = xxh3_64_with_seed(&id.to_le_bytes(), parent);
        parent
    };
    ids.iter().map(&mut fold).collect()
}

/// Treatment of the hash of a last block that is not full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tail {
    /// It names the whole prompt.
    Kept,
    /// It knows nothing about the tokens after the last full block.
    Dropped,
}

/// Gives a record the hashes of its prompt's blocks; returns whether one was dropped. `field` is where they come from.
pub(super) fn set_blocks(
    record: &mut Record,
    mut blocks: Vec<u64>,
    block_size: u32,
    (tail, field): (Tail, &str),
) -> Result<bool, String> {
    let (tokens, block_size) = (record.prompt_tokens, block_size.max(1));
    if blocks.len() as u64 > u64::from(tokens.div_ceil(block_size)) {
        let ids = blocks.len();
        return Err(format!(
            "{ids} `{field}` are more than {tokens} tokens have blocks of {block_size} (--hash-block-size)"
        ));
    }
    let full = usize::try_from(tokens / block_size).unwrap_or(usize::MAX);
    let last = blocks.last().copied().filter(|_| blocks.len() > full);
    let is_whole = blocks.len() == full && tokens % block_size == 0;
    blocks.truncate(full);
    record.prompt_hash = match (last, tail) {
        (Some(last), Tail::Kept) => Some(last),
        _ => blocks.last().copied().filter(|_| is_whole),
    };
    record.block_hashes = blocks.into();
    Ok(last.is_some() && tail == Tail::Dropped)
}

/// Sets the time that the client waited after the turns before.
pub(super) fn set_think(record: &mut Record, think: Duration) {
    record.extra.insert(THINK_MS.to_owned(), json!(Millis::from(think).0));
}

/// Sets the sub-agent that sent it.
pub(super) fn set_agent(record: &mut Record, agent: &str) {
    record.extra.insert(AGENT.to_owned(), json!(agent));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{of_line, to_line};

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn every_record_keeps_the_rules_of_a_trace() {
        for (output, ttft, e2e, itl_ms) in [
            (0, None, None, None),
            (0, None, Some(5), None),
            (1, Some(3), Some(5), None),
            (9, Some(3), Some(11), None),
            (9, Some(30), Some(11), None),
            (9, None, Some(11), None),
            (9, Some(3), None, Some(2.5)),
            (9, Some(3), None, Some(-2.5)),
            (9, None, None, None),
        ] {
            let times = RowTimes { ttft: ttft.map(|ms| MS * ms), e2e: e2e.map(|ms| MS * ms), itl_ms };
            let made = record(100, output, times).unwrap();
            let mut line = Vec::new();
            to_line(&made, &mut line).unwrap();
            assert!(!String::from_utf8_lossy(&line).contains("repaired"), "{}", String::from_utf8_lossy(&line));
            assert_eq!(of_line(&line), Some(made), "{times:?}");
        }
        assert!(record(1, u32::MAX, RowTimes::default()).unwrap_err().contains("no answer is that long"));
    }

    #[test]
    fn blocks_that_are_not_full_name_the_whole_prompt_or_nothing() {
        let blocks = |tokens, ids: &[u64], tail| {
            let mut record = Record { prompt_tokens: tokens, ..Record::default() };
            let dropped = set_blocks(&mut record, ids.to_vec(), 64, (tail, "hash_ids"))?;
            Ok::<_, String>((record.block_hashes.to_vec(), record.prompt_hash, dropped))
        };
        assert_eq!(blocks(130, &[1, 2, 3], Tail::Kept), Ok((vec![1, 2], Some(3), false)));
        assert_eq!(blocks(130, &[1, 2, 3], Tail::Dropped), Ok((vec![1, 2], None, true)));
        assert_eq!(blocks(130, &[1, 2], Tail::Dropped), Ok((vec![1, 2], None, false)));
        assert_eq!(blocks(128, &[1, 2], Tail::Dropped), Ok((vec![1, 2], Some(2), false)));
        assert_eq!(blocks(130, &[1], Tail::Kept), Ok((vec![1], None, false)));
        assert_eq!(blocks(0, &[], Tail::Kept), Ok((vec![], None, false)));
        assert!(blocks(128, &[1, 2, 3], Tail::Kept).unwrap_err().contains("--hash-block-size"));
    }

    #[test]
    fn an_id_stands_for_what_is_before_it_and_for_its_conversation() {
        let (one, other) = (chained(&[1, 2, 3], 0), chained(&[7, 2, 3], 0));
        assert!(one.iter().zip(&other).all(|(one, other)| one != other));
        assert_eq!(chained(&[1, 2, 9], 0)[..2], one[..2]);
        assert_ne!(chained(&[1], 5), chained(&[1], 6));
    }
}
