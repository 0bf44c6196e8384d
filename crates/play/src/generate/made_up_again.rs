//! Made-up answers that go on where another server left off: words are a function of seed and prompt, so the beginning of an answer
//! is recognised by making it up again.
//!
//! Of a chat, the prompt is known: its messages but the last. Behind a prompt of ids or text, each place among the words at its end may be where
//! the answer begins, and a few words have to be the same, since one or two are so by chance.
//!
//! Limits: answers with reasoning around them depend on their whole length and are not recognised, nor are echoes and answers under a constraint. Of
//! sampled answers without a seed, the first ones to a prompt are. Behind a prompt of text, its tokens are compared, not its text.

use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3Default;

use crate::{
    ServerState,
    generate::{
        begun::{BegunAnswer, ShownText},
        choice::{ChoiceFinish, ChoiceScript, ChoiceTokens},
        parse::ParsedBy,
        stop::StopStrings,
        synthetic::{ReasoningTokens, hashed, keyed, length},
    },
    request::admitted::AnswerBeginning,
    selection::query::{PromptQuery, PromptScripts},
};
use ::engine::synthetic::{RandomTokens, SyntheticKey};
use api::MaxTokens;
use replay::timing::Schedule;

/// Answers to one prompt that are made up again.
const SAMPLES: u32 = 4;

/// Fewest tokens by which an answer behind its prompt is recognised.
const FEWEST: usize = 4;

/// The most beginnings of answers that are made up for one request.
const MOST: usize = 4096;

/// The rest of a made-up answer that the request has the beginning of; `None` for any other request.
pub(super) fn rest(state: &ServerState, wanted: &PromptQuery<'_>) -> Option<PromptScripts> {
    let is_asked = !matches!(wanted.prompt.beginning, AnswerBeginning::None);
    if !is_asked || !wanted.may_continue() || ReasoningTokens::of(state, wanted).is_some() {
        return None;
    }
    let samples = if wanted.is_greedy || wanted.request.seed.is_some() { 1 } else { SAMPLES };
    let stop = Arc::new(StopStrings::new(&wanted.request.stop));
    let parsed = wanted.parsed.map(ParsedBy::stepwise);
    let fresh = |prompt: &[u32]| ShownText::new(state, wanted.request, parsed.as_ref(), &stop, prompt);
    let (key, begun) = match &wanted.prompt.beginning {
        AnswerBeginning::None => return None,
        AnswerBeginning::Message(open) => (0..samples).find_map(|sample| {
            let key = key_of(state, hashed(&open.prompt), wanted, sample);
            // A token is a byte of text at least, and one more has to be left.
            let ids: Vec<u32> = words(state, key).take(open.content.len().saturating_add(1)).collect();
            Some((key, ShownText::after_text(|| fresh(&open.prompt), &ids, &open.content)?))
        })?,
        AnswerBeginning::Behind => {
            let (key, at) = behind(state, wanted, samples)?;
            let (prompt, delivered) = wanted.prompt.ids.split_at_checked(at)?;
            (key, fresh(prompt).after(delivered))
        }
    };
    script(state, wanted, key, begun)
}

/// The key of the answer that the prompt ends with the beginning of, and where that begins.
fn behind(state: &ServerState, wanted: &PromptQuery<'_>, samples: u32) -> Option<(SyntheticKey, usize)> {
    let vocabulary = state.model.tokenizer.words();
    // The first word of a text is another token than those after it, which are in order.
    let is_word = |id: &&u32| vocabulary.next.binary_search(id).is_ok();
    let most = MOST / usize::try_from(samples).unwrap_or(1).max(1);
    let tail = wanted.prompt.ids.iter().rev().take(most).take_while(is_word).count();
    let last = wanted.prompt.ids.len().checked_sub(FEWEST)?;
    let start = wanted.prompt.ids.len().saturating_sub(tail + 1).max(1);
    let mut hash = hashed(wanted.prompt.ids.get(..start)?);
    for at in start..=last {
        for sample in 0..samples {
            let key = key_of(state, hash.clone(), wanted, sample);
            let delivered = wanted.prompt.ids.get(at..)?;
            if words(state, key).zip(delivered).all(|(word, id)| word == *id) {
                return Some((key, at));
            }
        }
        hash.update(&wanted.prompt.ids.get(at)?.to_le_bytes());
    }
    None
}

fn key_of(state: &ServerState, prompt: Xxh3Default, wanted: &PromptQuery<'_>, sample: u32) -> SyntheticKey {
    SyntheticKey { seed: state.config.seed, request: keyed(prompt, wanted, sample), choice: 0 }
}

fn words(state: &ServerState, key: SyntheticKey) -> RandomTokens {
    RandomTokens::new(key, state.model.tokenizer.words())
}

fn script(
    state: &ServerState,
    wanted: &PromptQuery<'_>,
    key: SyntheticKey,
    begun: BegunAnswer,
) -> Option<PromptScripts> {
    let delivered = begun.ids.len();
    let more = u32::try_from(delivered).ok()?;
    let max_tokens = match wanted.prompt.max_tokens {
        MaxTokens::Requested(most) => MaxTokens::Requested(most.saturating_add(more)),
        MaxTokens::Left(left) => MaxTokens::Left(left.saturating_add(more)),
    };
    let (count, reason) = length(state, wanted, max_tokens, key);
    let ids: Vec<u32> = words(state, key).take(count).skip(delivered).collect();
    if ids.is_empty() {
        return None;
    }
    let schedule = Schedule::uniform(u32::try_from(ids.len()).ok(), state.made_up_pacing());
    let (ids, finish, begun) = (ChoiceTokens::Known(ids), ChoiceFinish::of(reason), Some(Box::new(begun)));
    let scripts = vec![ChoiceScript { ids, schedule, finish, logprobs: None, begun, breaks_off: false }];
    Some(PromptScripts { scripts, by: format!("random;from={delivered}"), ..PromptScripts::default() })
}
