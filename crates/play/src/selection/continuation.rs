//! Requests that continue an answer: a prompt with the first tokens of what was recorded for it, of which the rest is served.
//!
//! A router that goes on elsewhere when an engine died sends the prompt and what was delivered: as token ids, as text, or as the last message
//! of a chat with `continue_final_message`. The record is that of the prompt before, found by its whole hash, whether it was
//! consumed or not; what follows has to be the beginning of its answer, token for token or by its text, and something of the answer has to
//! be left. So a next turn, which has more than the answer, is none, and a prompt that was recorded itself is that record's.
//!
//! Limits: an answer under a constraint, one of several choices (`n`), and one of which calls of tools or reasoning were delivered but no content are
//! not continued. Of several records with the same prompt whose answers begin alike, those
//! that were consumed come first. A prompt whose last characters become one token with the answer's first ones is not recognised.
//!
//! See docs/decisions/0124-a-continuation-is-the-same-record.md.

use std::{borrow::Cow, cmp::Reverse, sync::Arc, time::Duration};

use crate::{
    ServerState,
    generate::{
        begun::{BegunAnswer, ShownText},
        parse::ParsedBy,
        stop::StopStrings,
        synthetic::in_place_of,
    },
    load::trace::LoadedTrace,
    request::admitted::AnswerBeginning,
    selection::query::PromptQuery,
};
use recording::trace::{Chunk, Record, RecordRef};
use replay::matching::{BegunRecord, Consumption, MatchBy, MatchQuery, RecordSelection};
use text::prompt::SkipSpecial;

/// The most tokens that the text of one is compared as, which bounds what is decoded of a long prompt.
const MOST_PER_TOKEN: usize = 4;

/// A recorded answer of which the beginning was delivered.
#[derive(Debug)]
pub(crate) struct Continuation {
    begun: BegunAnswer,
    /// The tokens after it.
    rest: Vec<u32>,
}

impl Continuation {
    /// The answer of these tokens, without those that were delivered.
    pub(crate) fn of(ids: &[u32], begun: BegunAnswer) -> Self {
        let rest = ids.get(begun.ids.len()..).unwrap_or_default().to_vec();
        Self { begun, rest }
    }

    /// Counts the tokens that were delivered.
    pub(crate) fn delivered(&self) -> usize {
        self.begun.ids.len()
    }

    /// Leaves the record its rest; gives the tokens of that, and what was before.
    pub(crate) fn apply(self, record: &mut Record) -> (Vec<u32>, Box<BegunAnswer>) {
        drop_first(record, u32::try_from(self.delivered()).unwrap_or(u32::MAX));
        (self.rest, Box::new(self.begun))
    }
}

/// The record that a prompt continues the answer of, and the rest of that; it is consumed.
pub(super) fn find(
    state: &ServerState,
    replay: &LoadedTrace,
    wanted: &PromptQuery<'_>,
    query: &MatchQuery<'_>,
    consumption: &Consumption,
) -> Option<(RecordSelection, Continuation)> {
    let candidates = begun_records(replay, wanted, query, consumption)?;
    let by = if replay.matcher.index_of(wanted.request_id).is_some() { MatchBy::Index } else { MatchBy::Prefix };
    candidates.into_iter().find_map(|begun| {
        let kept = replay.records.get(begun.record)?;
        let continuation = AnswerSearch::new(state, wanted, kept, begun)?.continuation()?;
        Some((replay.matcher.go_on(consumption, query, begun.record, by), continuation))
    })
}

/// The records of the prompts before what may have been delivered: the longest prompt first, and the consumed before the others. `None` where the
/// request continues nothing.
fn begun_records(
    replay: &LoadedTrace,
    wanted: &PromptQuery<'_>,
    query: &MatchQuery<'_>,
    consumption: &Consumption,
) -> Option<Vec<BegunRecord>> {
    let named = replay.matcher.index_of(wanted.request_id).filter(|named| replay.matcher.is_servable(*named));
    let looks = named.is_some() || MatchBy::any_by_prompt(&replay.matcher.rules().order);
    let (prompt, hashes) = prompt_before(wanted)?;
    if !looks || !wanted.may_continue() || replay.matcher.whole_prompt(consumption, query).is_some() {
        return None;
    }
    let query = MatchQuery { hashes, ..*query };
    let is_behind = matches!(wanted.prompt.beginning, AnswerBeginning::Behind);
    if let Some(record) = named {
        // Its prompt may be another one, as long as the recorded one, whose length is certain where it was hashed.
        let kept = replay.records.get(record).filter(|kept| kept.prompt_hash().is_some())?;
        let recorded = kept.prompt_tokens() as usize;
        let prompt_tokens = if is_behind { recorded } else { prompt.len() };
        return Some(vec![BegunRecord { record, prompt_tokens }]);
    }
    let fits = |begun: &BegunRecord| (begun.prompt_tokens < prompt.len()) == is_behind;
    let begun = replay.matcher.begun(&query, |tokens| replay.hasher.whole_of_first(prompt, hashes, tokens));
    let mut candidates: Vec<BegunRecord> = begun.filter(fits).collect();
    candidates.sort_by_key(|begun| (Reverse(begun.prompt_tokens), consumption.times(begun.record) == 0));
    Some(candidates)
}

/// The prompt before an answer that may have begun, or with it.
fn prompt_before<'a>(wanted: &PromptQuery<'a>) -> Option<(&'a [u32], &'a text::prompt::PromptHashes)> {
    match &wanted.prompt.beginning {
        AnswerBeginning::None => None,
        AnswerBeginning::Behind => Some((&wanted.prompt.ids, &wanted.prompt.hashes)),
        AnswerBeginning::Message(open) => Some((&open.prompt, &open.hashes)),
    }
}

/// A record whose answer may have been begun.
struct AnswerSearch<'a> {
    state: &'a ServerState,
    wanted: &'a PromptQuery<'a>,
    prompt: &'a [u32],
    ids: Cow<'a, [u32]>,
}

impl<'a> AnswerSearch<'a> {
    fn new(
        state: &'a ServerState,
        wanted: &'a PromptQuery<'_>,
        kept: RecordRef<'a>,
        begun: BegunRecord,
    ) -> Option<Self> {
        let (prompt, _) = prompt_before(wanted)?;
        let prompt = prompt.get(..begun.prompt_tokens)?;
        let made = || {
            let count = usize::try_from(kept.output_tokens()).unwrap_or(usize::MAX);
            let mut tokens = in_place_of(state, wanted, prompt, 0, count);
            (0..count).map_while(|at| tokens.take(at)).collect()
        };
        let ids = kept.ids().map_or_else(|| Cow::Owned(made()), Cow::Borrowed);
        Some(Self { state, wanted, prompt, ids })
    }

    /// The rest of the answer; `None` where something else was delivered, or all of it.
    fn continuation(&self) -> Option<Continuation> {
        let stop = Arc::new(StopStrings::new(&self.wanted.request.stop));
        let parsed = self.wanted.parsed.map(ParsedBy::stepwise);
        let fresh = || ShownText::new(self.state, self.wanted.request, parsed.as_ref(), &stop, self.prompt);
        let begun = match (&self.wanted.prompt.beginning, self.behind()) {
            (AnswerBeginning::Message(open), _) => ShownText::after_text(fresh, &self.ids, &open.content)?,
            (_, []) => return None,
            (_, behind) if self.ids.starts_with(behind) => {
                if behind.len() == self.ids.len() {
                    return None;
                }
                fresh().after(behind)
            }
            (_, behind) if self.is_named() || behind.len() > self.ids.len().saturating_mul(MOST_PER_TOKEN) => {
                return None;
            }
            (_, behind) => ShownText::after_text(fresh, &self.ids, &self.text_of(behind)?)?,
        };
        Some(Continuation::of(&self.ids, begun))
    }

    /// Checks whether the request names a record, whatever its prompt is: then tokens count only.
    fn is_named(&self) -> bool {
        let replay = self.state.replay.as_ref();
        replay.is_some_and(|replay| replay.matcher.index_of(self.wanted.request_id).is_some())
    }

    /// The prompt's tokens behind that of the record.
    fn behind(&self) -> &'a [u32] {
        self.wanted.prompt.ids.get(self.prompt.len()..).unwrap_or_default()
    }

    /// The text of some tokens behind the prompt, with which they become other tokens than those that a model chose.
    fn text_of(&self, ids: &[u32]) -> Option<String> {
        let mut detokenizer = self.state.model.tokenizer.detokenizer(self.prompt, SkipSpecial::Skip);
        let mut text = String::new();
        for id in ids {
            detokenizer.push_onto(*id, &mut text).ok()?;
        }
        Some(text).filter(|text| !text.is_empty())
    }
}

/// First difference between delivered text and a recorded answer.
pub(super) struct ContinuationDifference {
    pub(super) record: usize,
    /// Characters that are the same.
    pub(super) characters: usize,
    /// All that was delivered, and all of the answer.
    pub(super) received: String,
    pub(super) recorded: String,
}

/// The first difference of a prompt that almost continues an answer: at least half of what is behind the recorded prompt is its beginning.
pub(super) fn difference(
    state: &ServerState,
    replay: &LoadedTrace,
    wanted: &PromptQuery<'_>,
    consumption: &Consumption,
) -> Option<ContinuationDifference> {
    begun_records(replay, wanted, &wanted.matched(state), consumption)?.into_iter().find_map(|begun| {
        let search = AnswerSearch::new(state, wanted, replay.records.get(begun.record)?, begun)?;
        let delivered = match &wanted.prompt.beginning {
            AnswerBeginning::Message(open) => open.content.clone(),
            AnswerBeginning::None | AnswerBeginning::Behind => {
                let most = search.ids.len().saturating_mul(MOST_PER_TOKEN);
                search.text_of(search.behind().get(..most).unwrap_or(search.behind()))?
            }
        };
        let answer = search.text_of(&search.ids)?;
        let pairs = delivered.chars().zip(answer.chars());
        let characters = pairs.take_while(|(received, recorded)| received == recorded).count();
        let is_near = characters > 0 && characters * 2 >= delivered.chars().count();
        let differs = [&delivered, &answer].iter().all(|text| text.chars().count() > characters);
        let (record, received, recorded) = (begun.record, delivered, answer);
        (is_near && differs).then_some(ContinuationDifference { record, characters, received, recorded })
    })
}

/// Takes the first tokens of a record away. The first of the others comes when the first of all did, as after a prefill, and the gaps
/// after it stay.
fn drop_first(record: &mut Record, tokens: u32) {
    let first = record.ttft().unwrap_or_default();
    let (mut left, mut shift) = (tokens, Duration::ZERO);
    let mut chunks: Vec<Chunk> = Vec::with_capacity(record.chunks.len());
    for mut chunk in record.emissions() {
        let dropped = left.min(chunk.tokens);
        (left, chunk.tokens) = (left - dropped, chunk.tokens - dropped);
        if chunks.is_empty() {
            shift = shift.saturating_add(chunk.gap);
            chunk.gap = first;
        }
        if chunk.tokens > 0 {
            chunks.push(chunk);
        }
    }
    record.e2e = record.e2e.map(|e2e| e2e.saturating_sub(shift).saturating_add(first));
    record.output_tokens = record.output_tokens.saturating_sub(tokens);
    (record.chunks, record.itl_summary) = (chunks, None);
}
