//! Which record answers a request.
//!
//! One [`Selection`] per request decides content and timing. Records are named by their index in replay order
//! ([`crate::trace::replay_order`]). A record is consumed by its first match, whichever way found it, and is served again
//! only by its index or when every record that matches as well is consumed.
//!
//! Limits: only records with output take part. The others keep their place in the numbering, and a request for the index
//! of one has no match. At most 4 billion records. Prefixes are compared by the block hashes that prompt and trace
//! share; a trace whose hashes were made another way never matches by prefix.
//!
//! Selecting takes no lock: N requests for one prompt at once get N different records, the earlier call the earlier one.

mod family;
pub mod requests;
#[cfg(test)]
mod tests;
mod trie;
mod unused;

use std::{
    fmt,
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::{
    prompt::PromptHashes,
    trace::{Kept, Record},
};
use family::Families;
use trie::{Builder, Trie};
use unused::Unused;

/// A way to find a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatchBy {
    /// By the number after the last `-` of the request id: `replay-7` is record 7, as often as it is asked for.
    Index,
    /// By the prompt: the records with the same whole prompt ([`Record::prompt_hash`]), else those that share the most
    /// leading blocks, at least one. The first unconsumed one of them answers, or the first one again.
    Prefix,
    /// The next unconsumed record; when all are consumed, each in turn again.
    Next,
}

impl MatchBy {
    /// Its name in flags, headers and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Prefix => "prefix",
            Self::Next => "next",
        }
    }
}

impl fmt::Display for MatchBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is known of one prompt of a request.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// The id that the client gave.
    pub request_id: Option<&'a str>,
    /// The prompt, hashed as the trace's meta says.
    pub hashes: &'a PromptHashes,
    /// Answers that are wanted for it (`n`); 0 counts as 1.
    pub choices: usize,
}

/// The records that answer one prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// One index in replay order per choice. Records of one group keep their order of choices.
    pub records: Vec<usize>,
    /// How they were found.
    pub by: MatchBy,
    /// Leading blocks that the prompt shares with them; 0 unless found by prefix.
    pub matched_blocks: usize,
    /// Full blocks of the prompt.
    pub total_blocks: usize,
    /// Whether the record was consumed before.
    pub again: bool,
}

/// What a record is found by.
#[derive(Debug, Clone, Copy)]
pub struct Keys<'a> {
    /// Whether it holds output, so that it can be served.
    pub servable: bool,
    /// Chained hashes of the prompt's full blocks.
    pub chain: &'a [u64],
    /// Chained hash of the whole prompt.
    pub prompt_hash: Option<u64>,
    /// Shared by the choices of one request.
    pub group: Option<&'a str>,
    /// The choice's index in its request.
    pub choice: Option<u32>,
}

impl<'a> From<&'a Record> for Keys<'a> {
    fn from(record: &'a Record) -> Self {
        Self {
            servable: record.output_tokens > 0 && !record.chunks.is_empty(),
            chain: &record.block_hashes,
            prompt_hash: record.prompt_hash,
            group: record.group.as_deref(),
            choice: record.choice,
        }
    }
}

impl<'a> From<Kept<'a>> for Keys<'a> {
    fn from(record: Kept<'a>) -> Self {
        Self {
            servable: record.output_tokens() > 0 && record.chunk_count() > 0,
            chain: record.chain(),
            prompt_hash: record.prompt_hash(),
            group: record.group(),
            choice: record.choice(),
        }
    }
}

/// Finds the record for each request, and knows which ones are consumed.
#[derive(Debug)]
pub struct Matcher {
    order: Box<[MatchBy]>,
    trie: Trie,
    unused: Unused,
    families: Families,
    /// Every record that can be served, in replay order.
    turns: Box<[u32]>,
    /// Turns taken since all were consumed.
    turn: AtomicUsize,
}

impl Matcher {
    /// Indexes `records`, which are in replay order. The ways in `order` are tried one after the other.
    #[must_use]
    pub fn new<'a, R>(records: R, order: &[MatchBy]) -> Self
    where
        R: IntoIterator<Item: Into<Keys<'a>>, IntoIter: ExactSizeIterator + Clone>,
    {
        let records = records.into_iter();
        let count = records.len();
        let servable = || (0..u32::MAX).zip(records.clone().map(Into::into)).filter(|(_, keys)| keys.servable);
        let mut builder = Builder::new(count);
        for (number, keys) in servable() {
            builder.insert(number, keys.chain, keys.prompt_hash);
        }
        let (trie, by_position) = builder.finish();
        Self {
            order: order.into(),
            trie,
            unused: Unused::new(&by_position, count),
            families: Families::new(servable()),
            turns: servable().map(|(number, _)| number).collect(),
            turn: AtomicUsize::new(0),
        }
    }

    /// Selects the records for one prompt and consumes them; `None` when no way finds one.
    ///
    /// Siblings of the record found (same [`Record::group`] and prompt) serve the other choices. Where there are too few,
    /// the same way finds further records, and where it finds none, the chosen ones are repeated.
    pub fn select(&self, query: &Query<'_>) -> Option<Selection> {
        self.order.iter().find_map(|by| match by {
            MatchBy::Index => self.by_index(query),
            MatchBy::Prefix => self.by_prefix(query),
            MatchBy::Next => self.by_turn(query),
        })
    }

    fn by_index(&self, query: &Query<'_>) -> Option<Selection> {
        let record = index_in(query.request_id?).filter(|index| self.turns.binary_search(index).is_ok())?;
        let again = !self.unused.take(record);
        let mut choices = Choices::of(query);
        self.add_family(record, &mut choices, |_| true);
        Some(choices.selection(query, MatchBy::Index, again))
    }

    fn by_prefix(&self, query: &Query<'_>) -> Option<Selection> {
        let found = self.trie.find(query.hashes)?;
        let mut choices = Choices::of(query);
        let again = !self.add_unused(&mut choices, || self.unused.take_first(&found.positions));
        if again {
            self.add_family(found.first, &mut choices, |_| true);
        }
        let selection = choices.selection(query, MatchBy::Prefix, again);
        Some(Selection { matched_blocks: found.blocks, ..selection })
    }

    fn by_turn(&self, query: &Query<'_>) -> Option<Selection> {
        let mut choices = Choices::of(query);
        let all = 0..self.turns.len();
        let again = !self.add_unused(&mut choices, || self.unused.take_first(&all));
        while again && choices.missing > 0 {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed).checked_rem(self.turns.len())?;
            choices.add(*self.turns.get(turn)?);
        }
        Some(choices.selection(query, MatchBy::Next, again))
    }

    /// Fills `choices` with unused records, each with its unused siblings. False when there was none.
    fn add_unused(&self, choices: &mut Choices, mut take_next: impl FnMut() -> Option<u32>) -> bool {
        let missing = choices.missing;
        while choices.missing > 0 {
            let Some(record) = take_next() else { break };
            self.add_family(record, choices, |fresh| fresh);
        }
        choices.missing < missing
    }

    /// Adds a record that was taken, and those of its siblings that `wants` accepts, told whether they are fresh.
    fn add_family(&self, record: u32, choices: &mut Choices, wants: impl Fn(bool) -> bool) {
        let family = self.families.family(record);
        if family.is_empty() {
            choices.add(record);
        }
        let mut spare = choices.missing.saturating_sub(1);
        for sibling in family {
            if *sibling == record {
                choices.add(record);
            } else if spare > 0 && wants(self.unused.take(*sibling)) {
                spare -= 1;
                choices.add(*sibling);
            }
        }
    }
}

/// The number after the last `-`.
fn index_in(request_id: &str) -> Option<u32> {
    let (_, number) = request_id.rsplit_once('-')?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.parse().ok())?
}

/// The choices of a selection while they are found.
struct Choices {
    records: Vec<usize>,
    missing: usize,
}

impl Choices {
    fn of(query: &Query<'_>) -> Self {
        Self { records: Vec::new(), missing: query.choices.max(1) }
    }

    fn add(&mut self, record: u32) {
        self.records.push(record as usize);
        self.missing = self.missing.saturating_sub(1);
    }

    fn selection(mut self, query: &Query<'_>, by: MatchBy, again: bool) -> Selection {
        let wanted = self.records.len() + self.missing;
        self.records = self.records.iter().copied().cycle().take(wanted).collect();
        Selection { records: self.records, by, matched_blocks: 0, total_blocks: query.hashes.blocks.len(), again }
    }
}
