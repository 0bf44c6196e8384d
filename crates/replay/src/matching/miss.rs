//! A request without a record.

use super::Query;

/// A request without a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Miss {
    /// Why.
    pub reason: MissReason,
    /// The record whose prompt shares the most blocks with the request's, where any shares one.
    pub nearest: Option<Nearest>,
    /// Full blocks of the prompt.
    pub total_blocks: usize,
}

impl Miss {
    pub(super) fn new(reason: MissReason, nearest: Option<Nearest>, query: &Query<'_>) -> Self {
        Self { reason, nearest, total_blocks: query.hashes.blocks.len() }
    }
}

/// Reason for which no record answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissReason {
    /// None matches.
    NoMatch,
    /// All that match were served before.
    Exhausted,
}

impl MissReason {
    /// Its name in headers and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoMatch => "no_match",
            Self::Exhausted => "exhausted",
        }
    }
}

/// The record that comes nearest to a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nearest {
    /// Its index; of several that share as much, the first one's.
    pub record: usize,
    /// Leading blocks that it shares with the prompt.
    pub matched_blocks: usize,
}
