//! What is matched: one prompt of a request, the keys of a record, and the records selected.

use super::MatchBy;
use recording::trace::{Endpoint, Record, RecordRef};
use text::prompt::PromptHashes;

/// One prompt of a request, as it is matched.
#[derive(Debug, Clone, Copy)]
pub struct MatchQuery<'a> {
    /// The id that the client gave.
    pub request_id: Option<&'a str>,
    /// The prompt, hashed as in the trace's meta.
    pub hashes: &'a PromptHashes,
    /// Answers that are wanted for it (`n`); 0 counts as 1.
    pub choices: usize,
    /// Choices of the request's prompts before this one.
    pub choices_before: u32,
    /// The model that is asked. It counts where `by_model` of the rules is set.
    pub model: Option<&'a str>,
}

/// The records that answer one prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordSelection {
    /// One index in replay order per choice. Records of one group keep their order of choices.
    pub records: Vec<usize>,
    /// How they were found.
    pub by: MatchBy,
    /// Leading blocks that the prompt shares with them; 0 unless found by prefix.
    pub matched_blocks: usize,
    /// Full blocks of the prompt.
    pub total_blocks: usize,
    /// Whether the whole prompt is that of the records; false unless found by prefix.
    pub whole: bool,
    /// Whether the record was consumed before.
    pub again: bool,
}

/// Records that share the whole of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WholePrompt {
    /// The first that was not served yet.
    pub fresh: Option<usize>,
    /// The last.
    pub last: usize,
}

/// Keys by which a record is found.
#[derive(Debug, Clone, Copy)]
pub struct Keys<'a> {
    /// Whether it holds output or an error, so that it can be served.
    pub servable: bool,
    /// Chained hashes of the prompt's full blocks.
    pub chain: &'a [u64],
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Chained hash of the whole prompt.
    pub prompt_hash: Option<u64>,
    /// Shared by the choices of one request.
    pub group: Option<&'a str>,
    /// The choice's index in its request.
    pub choice: Option<u32>,
    /// The model that was asked.
    pub model: Option<&'a str>,
}

impl<'a> From<&'a Record> for Keys<'a> {
    fn from(record: &'a Record) -> Self {
        Self {
            servable: record.endpoint.is_none_or(Endpoint::generates)
                && record.response.is_none()
                && ((record.output_tokens > 0 && !record.chunks.is_empty()) || record.is_error()),
            chain: &record.block_hashes,
            prompt_tokens: record.prompt_tokens,
            prompt_hash: record.prompt_hash,
            group: record.group.as_deref(),
            choice: record.choice,
            model: record.model.as_deref(),
        }
    }
}

impl<'a> From<RecordRef<'a>> for Keys<'a> {
    fn from(record: RecordRef<'a>) -> Self {
        Self {
            servable: record.generates()
                && record.response().is_none()
                && ((record.output_tokens() > 0 && record.chunk_count() > 0) || record.is_error()),
            chain: record.chain(),
            prompt_tokens: record.prompt_tokens(),
            prompt_hash: record.prompt_hash(),
            group: record.group(),
            choice: record.choice(),
            model: record.model(),
        }
    }
}

/// A request without a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptMiss {
    /// Why.
    pub reason: MissReason,
    /// The record whose prompt shares the most blocks with the request's, where any shares one.
    pub nearest: Option<Nearest>,
    /// Full blocks of the prompt.
    pub total_blocks: usize,
}

impl PromptMiss {
    pub(super) fn new(reason: MissReason, nearest: Option<Nearest>, query: &MatchQuery<'_>) -> Self {
        Self { reason, nearest, total_blocks: query.hashes.blocks.len() }
    }
}

base::named! {
    /// Reason for which no record answers.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum MissReason {
        /// None matches.
        NoMatch = "no_match",
        /// All that match were served before.
        Exhausted = "exhausted",
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
