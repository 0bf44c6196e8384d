//! Which request of a recording is the next turn of an earlier one, where no session is recorded.
//!
//! Two proofs count. A recorded conversation begins with all messages of an earlier one, and a message of the model follows them. Where no messages are
//! recorded, a block of the later prompt holds the first tokens of the earlier answer after all blocks of the earlier prompt: the hash of a block is
//! computed from the one before it and these tokens.
//!
//! Limits: blocks alone prove nothing, since prompts with a shared beginning look like turns. So requests are sessions of their own where neither messages
//! nor the answer's token ids are recorded, where the answer does not fill a block, where hashes are keyed, and where the next prompt tokenizes the
//! answer differently or leaves its reasoning out.

use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
};

use recording::trace::Record;
use serde_json::Value;
use text::prompt::BlockHasher;

use crate::history::{is_own, list_of};

/// Maximum number of earlier requests with the same full blocks that a prompt is compared with: the latest ones.
const MOST_COMPARED: usize = 4096;

/// Requests that later ones may go on with.
#[derive(Debug, Default)]
pub(crate) struct EarlierTurns {
    /// Sessions by a hash of all messages.
    by_messages: HashMap<u64, usize>,
    /// By the last full block of their prompts, which names all that is before it; `None` for prompts without one.
    by_last_block: HashMap<Option<u64>, VecDeque<Answered>>,
}

/// A request with a block that its answer fills.
#[derive(Debug)]
struct Answered {
    session: usize,
    /// Place of that block in a prompt that goes on with the answer.
    block: usize,
    ids: Vec<u32>,
}

impl EarlierTurns {
    /// Adds a request, in the order of arrival.
    pub(crate) fn add(&mut self, record: &Record, session: usize, hasher: &BlockHasher) {
        if let Some(all) = prefixes(messages(record)).last() {
            self.by_messages.insert(all, session);
        } else if let Some(answered) = Answered::of(record, session, hasher) {
            let known = self.by_last_block.entry(record.block_hashes.last().copied()).or_default();
            known.push_back(answered);
            if known.len() > MOST_COMPARED {
                known.pop_front();
            }
        }
    }

    /// Returns the session of the latest request that this one goes on with.
    pub(crate) fn session(&self, record: &Record, hasher: &BlockHasher) -> Option<usize> {
        let messages = messages(record);
        if !messages.is_empty() {
            let next = messages.iter().skip(1).map(is_own);
            let before = prefixes(messages).zip(next).filter(|(_, is_answered)| *is_answered);
            return before.filter_map(|(before, _)| self.by_messages.get(&before).copied()).last();
        }
        let blocks = &record.block_hashes;
        let lasts = (0..blocks.len()).rev().map(|full| full.checked_sub(1).and_then(|last| blocks.get(last).copied()));
        let known = lasts.filter_map(|last| self.by_last_block.get(&last));
        known.flat_map(|known| known.iter().rev()).find(|known| known.is_in(blocks, hasher)).map(|known| known.session)
    }
}

impl Answered {
    fn of(record: &Record, session: usize, hasher: &BlockHasher) -> Option<Self> {
        let (size, prompt) = (hasher.block_size(), usize::try_from(record.prompt_tokens).ok()?);
        let block = prompt.div_ceil(size);
        let from = block * size - prompt;
        let ids = record.output_token_ids.as_ref()?.get(from..from + size)?.to_vec();
        (prompt > 0 && record.block_hashes.len() == prompt / size).then_some(Self { session, block, ids })
    }

    /// Returns true if a prompt of these blocks has the answer in its place.
    fn is_in(&self, blocks: &[u64], hasher: &BlockHasher) -> bool {
        // Most prompts with the same beginning end before that place, and need no hash.
        let Some(own) = blocks.get(self.block) else { return false };
        let before = self.block.checked_sub(1).and_then(|before| blocks.get(before));
        before.is_some_and(|before| hasher.block_after(*before, &self.ids) == Some(*own))
    }
}

/// The messages of a recorded request; none where it has no list of them.
fn messages(record: &Record) -> &[Value] {
    let list = record.request.as_ref().and_then(|body| body.get(list_of(body)?)?.as_array());
    list.map_or(&[], Vec::as_slice)
}

/// Hashes of the first message, of the first two, and so on.
fn prefixes(messages: &[Value]) -> impl Iterator<Item = u64> {
    let mut hasher = DefaultHasher::new();
    messages.iter().map(move |message| {
        message.to_string().hash(&mut hasher);
        hasher.finish()
    })
}
