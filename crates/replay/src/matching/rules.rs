//! How records are found: ways, how much has to match, and what exhausted records give.

use std::{fmt, num::NonZeroU32, str::FromStr};

use xxhash_rust::xxh3::xxh3_64;

base::named! {
    /// A way to find a record.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum MatchBy {
        /// By index where the request id has the form `replay-<i>`, and by prefix otherwise.
        Auto = "auto",
        /// By the number after the last `-` of the request id: `replay-7` is record 7, as often as it is requested.
        Index = "index",
        /// By the prompt: the records with the same whole prompt ([`Record::prompt_hash`](recording::trace::Record::prompt_hash)), else
        /// those that share the most leading blocks, if they are enough ([`MinMatch`]). The first unconsumed one of them answers.
        Prefix = "prefix",
        /// The next unconsumed record; when all are consumed, each in turn again.
        Next = "next",
    }
}

impl MatchBy {
    /// Returns whether any of these ways looks at what is asked for: the prompt, or the request in canonical form.
    #[must_use]
    pub fn any_by_prompt(order: &[Self]) -> bool {
        order.iter().any(|by| matches!(by, Self::Prefix | Self::Auto))
    }
}

/// Extent of a request that a record has to share for a match by prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinMatch {
    /// All of it. Of a record without a hash of its whole prompt, every full block.
    Whole,
    /// So many leading blocks, or all of it.
    Blocks(NonZeroU32),
    /// So many hundredths of its full blocks, 1 to 100, or all of it.
    Percent(u8),
}

impl Default for MinMatch {
    /// One block.
    fn default() -> Self {
        Self::Blocks(NonZeroU32::MIN)
    }
}

impl MinMatch {
    /// Returns whether leading blocks are enough, where the whole prompt is not the same.
    pub(super) fn is_reached(self, blocks: usize, total: usize) -> bool {
        match self {
            Self::Whole => false,
            Self::Blocks(least) => blocks >= least.get() as usize,
            Self::Percent(least) => blocks.saturating_mul(100) >= total.saturating_mul(least.into()),
        }
    }
}

impl fmt::Display for MinMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("whole"),
            Self::Blocks(blocks) => write!(f, "{blocks}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// A text that is no extent of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of: whole, a number of blocks from 1, or 1% to 100% of the prompt's blocks")]
pub struct MinMatchError(String);

impl FromStr for MinMatch {
    type Err = MinMatchError;

    fn from_str(text: &str) -> Result<Self, MinMatchError> {
        let wrong = || MinMatchError(text.to_owned());
        match text.strip_suffix('%') {
            _ if text == "whole" => Ok(Self::Whole),
            None => text.parse().map(Self::Blocks).map_err(|_| wrong()),
            Some(percent) => {
                let percent = percent.parse().ok().filter(|percent| (1..=100).contains(percent));
                percent.map(Self::Percent).ok_or_else(wrong)
            }
        }
    }
}

/// Response to a request whose records are all consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExhausted {
    /// A miss.
    Error,
    /// The last one again.
    Last,
    /// From the first one again.
    Cycle,
}

impl OnExhausted {
    /// Chooses among matching records that were all served, given how often each was; `None` for a miss.
    pub fn choose<C: Ord>(self, records: impl IntoIterator<Item = usize>, times: impl Fn(usize) -> C) -> Option<usize> {
        match self {
            Self::Error => None,
            Self::Last => records.into_iter().last(),
            Self::Cycle => records.into_iter().min_by_key(|record| times(*record)),
        }
    }
}

/// Rules by which the records of a trace are found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MatchRules {
    /// The ways, tried in order.
    pub order: Vec<MatchBy>,
    /// How much of a prompt has to match.
    pub least: MinMatch,
    /// What exhausted records give; `None` for the last one where they were found by prefix, and for each in turn otherwise.
    pub on_exhausted: Option<OnExhausted>,
    /// Whether the later ways follow one whose records are all consumed, before any record is served again.
    pub loose_after_exhausted: bool,
    /// Whether only records of the model that is asked match by prefix.
    pub by_model: bool,
}

impl MatchRules {
    /// The usual rules, with these ways.
    #[must_use]
    pub fn by(order: &[MatchBy]) -> Self {
        Self { order: order.to_vec(), ..Self::default() }
    }

    /// Changes the hashes of a model's prompts, so that those of others are not met; 0 where models do not count.
    pub(super) fn salt(&self, model: Option<&str>) -> u64 {
        model.filter(|_| self.by_model).map_or(0, |model| xxh3_64(model.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_read_and_written() {
        for text in ["whole", "1", "12", "1%", "85%", "100%"] {
            assert_eq!(text.parse::<MinMatch>().unwrap().to_string(), text);
        }
        for text in ["", "0", "-1", "0%", "101%", "%", "half", "1.5%", "Whole"] {
            assert!(text.parse::<MinMatch>().is_err(), "{text}");
        }
        assert_eq!(MinMatch::default().to_string(), "1");
    }

    #[test]
    fn exhausted_records_give_a_miss_the_last_or_the_least_served() {
        let choose =
            |on_exhausted: OnExhausted| on_exhausted.choose([4, 7, 9], |record| if record == 7 { 1 } else { 2 });
        assert_eq!([OnExhausted::Error, OnExhausted::Last, OnExhausted::Cycle].map(choose), [None, Some(9), Some(7)]);
        assert_eq!(OnExhausted::Cycle.choose([4, 7], |_| 1), Some(4), "the first of equally served ones");
        assert_eq!(OnExhausted::Last.choose([], |_| 1), None);
    }

    #[test]
    fn shares_are_of_the_prompt_that_is_asked() {
        assert!(MinMatch::Percent(85).is_reached(12, 14) && !MinMatch::Percent(86).is_reached(12, 14));
        assert!(!MinMatch::Whole.is_reached(14, 14), "the rest of the prompt may differ");
        assert!(MinMatch::default().is_reached(1, 100));
    }
}
