//! Log probabilities as they were recorded, for a request that asks for no more than was recorded.
//!
//! A request for fewer alternatives gets the first of them, as the engine would. Limits: of two tokens with the same text a
//! completion sends one, and with equal log probabilities the engine's order decides; a request for fewer than were
//! recorded may get the other one. Tokens that were sent as text have no ids.

use api::{Api, CandidateToken, LogprobsOptions, Position, Spelling};
use recording::trace::{Logprobs, PromptLogprobs, RankedLogprob, SpelledToken, TokenLogprobs};
use text::prompt::{SkipSpecial, Tokenizer};

/// The request, and the number of ranks of which everything was recorded.
#[derive(Debug)]
pub(in super::super) struct LogprobsQuery<'a> {
    pub(in super::super) api: Api,
    pub(in super::super) logprobs: &'a LogprobsOptions,
    pub(in super::super) top: u32,
}

/// Ranks of which a request wants all; a chat counts the token itself among those that it gets.
fn ranks(api: Api, requested: &LogprobsOptions) -> usize {
    let sample = requested.sample.unwrap_or(0);
    match api {
        Api::Chat => sample.saturating_sub(1),
        Api::Completions => sample,
    }
}

/// Checks whether all that a request asks for was recorded.
pub(in super::super) fn is_enough(recorded: &Logprobs, api: Api, requested: &LogprobsOptions) -> bool {
    let ranks = ranks(api, requested);
    if recorded.named != requested.token_ids
        || (requested.token_ids.is_empty() && u32::try_from(ranks).is_ok_and(|ranks| ranks > recorded.top))
    {
        return false;
    }
    let shows_others = ranks > 0 || !requested.token_ids.is_empty();
    let mut others = recorded.prompt.iter().chain(&recorded.tokens).flat_map(|token| &token.others);
    let has_ids = requested.spelling != Spelling::Id || others.all(|(other, _)| matches!(other, SpelledToken::Id(_)));
    has_ids || !shows_others
}

/// A recorded token after its context.
pub(in super::super) fn position(
    requested: &LogprobsQuery<'_>,
    recorded: &TokenLogprobs,
    id: u32,
    context: &[u32],
    tokenizer: &Tokenizer,
) -> Position {
    let text = recorded.text.clone().unwrap_or_else(|| tokenizer.token_text(id, context));
    let Some(logprob) = recorded.logprob else { return Position { id, text, scored: Vec::new() } };
    let mut scored = vec![CandidateToken { id, text: text.clone(), logprob, rank: 0 }];
    for (other, logprob) in recorded.others.iter().take(others(requested, recorded, logprob)) {
        let (other, text) = match other {
            SpelledToken::Id(other) => (*other, tokenizer.token_text(*other, context)),
            SpelledToken::Text(other) if *other == text => (id, other.clone()),
            SpelledToken::Text(other) => (u32::MAX, other.clone()),
        };
        scored.push(CandidateToken { id: other, text, logprob: *logprob, rank: 0 });
    }
    Position { id, text, scored }
}

/// Counts the others among the ranks that are requested: one fewer where the token itself is.
fn others(requested: &LogprobsQuery<'_>, recorded: &TokenLogprobs, own: f64) -> usize {
    let ranks = ranks(requested.api, requested.logprobs);
    let top = usize::try_from(requested.top).unwrap_or(usize::MAX);
    if requested.api == Api::Chat || ranks >= top || !requested.logprobs.token_ids.is_empty() {
        return usize::MAX;
    }
    let better = recorded.others.iter().filter(|(_, logprob)| *logprob > own).count();
    let is_among = recorded.others.len() < top && better < ranks;
    ranks - usize::from(is_among)
}

/// The positions of a prompt, with so many ranks each; `None` where another prompt or less was recorded.
pub(in super::super) fn prompt(
    recorded: &PromptLogprobs,
    prompt: &[u32],
    ranks: usize,
    tokenizer: &Tokenizer,
) -> Option<Vec<Position>> {
    let ranks = u32::try_from(ranks).ok()?;
    if recorded.top < ranks || recorded.tokens.len() != prompt.len() {
        return None;
    }
    let place = |(id, place): (&u32, &Vec<RankedLogprob>)| {
        let Some(own) = place.first() else {
            let text = tokenizer.decode(&[*id], SkipSpecial::Keep).unwrap_or_default();
            return Some(Position { id: *id, text, scored: Vec::new() });
        };
        if own.id != *id {
            return None;
        }
        let others = place.iter().skip(1).filter(|other| other.rank <= ranks);
        let scored = std::iter::once(own).chain(others).map(scored).collect();
        Some(Position { id: *id, text: own.text.clone().unwrap_or_default(), scored })
    };
    prompt.iter().zip(recorded.tokens.iter().map(|tokens| &tokens.0)).map(place).collect()
}

fn scored(recorded: &RankedLogprob) -> CandidateToken {
    let RankedLogprob { id, logprob, rank, text } = recorded;
    CandidateToken { id: *id, text: text.clone().unwrap_or_default(), logprob: *logprob, rank: *rank }
}
