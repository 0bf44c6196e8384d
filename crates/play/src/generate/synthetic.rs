//! Scripts of answers that nothing was recorded of: how many tokens, how they end, what of them is reasoning.
//!
//! An answer that ends by itself has no end token: all of its tokens are text, so that a client counts as many.

use std::sync::Arc;

use rand::RngExt;
use xxhash_rust::xxh3::Xxh3Default;

use crate::{
    ServerState,
    config::{DEFAULT_RANDOM_TOKENS, Synthetic},
    generate::{
        choice::{ChoiceFinish, ChoiceScript, ChoiceTokens},
        guided, made_up_again,
    },
    request::admitted::most_tokens,
    selection::query::{PromptQuery, PromptScripts},
};
use ::engine::synthetic::{MadeUpText, RandomTokens, SyntheticKey, SyntheticReasoning};
use api::MaxTokens;
use replay::timing::Schedule;
use text::prompt::SpecialTokens;

/// Records that are drawn to find one with output.
const DRAWS: usize = 64;

/// Tokens that no engine made: due one by one at a fixed or the trace's pace, or all at once.
pub(crate) fn made_up(state: &ServerState, wanted: &PromptQuery<'_>) -> PromptScripts {
    let synthetic = state.synthetic();
    if let Some(rest) = (synthetic == Synthetic::Random).then(|| made_up_again::rest(state, wanted)).flatten() {
        return rest;
    }
    let request = request_key(wanted, sample(state, wanted));
    let script = |choice: usize| {
        let key = SyntheticKey { seed: state.config.seed, request, choice: u32::try_from(choice).unwrap_or(u32::MAX) };
        let (ids, finish) = match synthetic {
            Synthetic::Random => random(state, wanted, key),
            Synthetic::Echo => echo(wanted),
        };
        let schedule = Schedule::uniform(u32::try_from(ids.len()).ok(), state.made_up_pacing());
        ChoiceScript { ids, schedule, finish, logprobs: None, begun: None, breaks_off: false }
    };
    let scripts = (0..wanted.choices()).map(script).collect();
    PromptScripts { scripts, by: synthetic.name().to_owned(), ..PromptScripts::default() }
}

/// Random tokens in the place of recorded ones that are not known; the same whenever the record is served for a prompt.
pub(crate) fn in_place_of(
    state: &ServerState,
    wanted: &PromptQuery<'_>,
    prompt: &[u32],
    choice: usize,
    count: usize,
) -> ChoiceTokens {
    let choice = u32::try_from(choice).unwrap_or(u32::MAX);
    let key = SyntheticKey { seed: state.config.seed, request: keyed(hashed(prompt), wanted, 0), choice };
    ChoiceTokens::MadeUp(MadeUpText::new(RandomTokens::new(key, state.model.tokenizer.words()), None, count))
}

/// The same server seed, request seed, prompt, sample and choice give the same tokens, whatever else the server does. A
/// greedy request has no seed.
fn request_key(wanted: &PromptQuery<'_>, sample: u32) -> u64 {
    keyed(hashed(&wanted.prompt.ids), wanted, sample)
}

/// The tokens of a prompt, to be [keyed].
pub(super) fn hashed(prompt: &[u32]) -> Xxh3Default {
    let mut hash = Xxh3Default::new();
    for id in prompt {
        hash.update(&id.to_le_bytes());
    }
    hash
}

/// The key of one of a prompt's answers.
pub(super) fn keyed(mut hash: Xxh3Default, wanted: &PromptQuery<'_>, sample: u32) -> u64 {
    hash.update(&wanted.request.seed.filter(|_| !wanted.is_greedy).unwrap_or(-1).to_le_bytes());
    if sample > 0 {
        hash.update(&sample.to_le_bytes());
    }
    hash.digest()
}

/// Which of a prompt's answers it is: another one each time, where the request samples and has no seed.
fn sample(state: &ServerState, wanted: &PromptQuery<'_>) -> u32 {
    if wanted.is_greedy || wanted.request.seed.is_some() {
        return 0;
    }
    let prompt = request_key(wanted, 0);
    match &state.replay {
        Some(replay) => {
            let session = wanted.session.unwrap_or(replay.account.default_session());
            session.with(|session| session.samples.next(prompt))
        }
        None => state.samples.next(prompt),
    }
}

/// Text that conforms to the request's rules, or words.
fn random(state: &ServerState, wanted: &PromptQuery<'_>, key: SyntheticKey) -> (ChoiceTokens, ChoiceFinish) {
    let marks = ReasoningTokens::of(state, wanted);
    let around = marks.as_ref().map_or(0, ReasoningTokens::len);
    let (least, most) = (wanted.request.min_tokens.saturating_sub(around), wanted.prompt.max_tokens.less(around));
    let conforming = wanted.rules.and_then(|rules| guided::conforming(state, rules, key, least, most));
    let words = RandomTokens::new(key, state.model.tokenizer.words());
    if let Some((ids, finish)) = conforming {
        let free = if finish.reason == "stop" { size(most_tokens(most)).saturating_sub(ids.len()) } else { 0 };
        let share = state.config.synthetic.reasoning_share.min(0.9);
        let thought = part(ids.len(), share / (1.0 - share)).min(free);
        let known = match marks {
            Some(marks) if finish.reason != "error" => marks.around(thought).before(words, ids),
            _ => ids,
        };
        return (ChoiceTokens::Known(known), finish);
    }
    let (count, reason) = length(state, wanted, wanted.prompt.max_tokens, key);
    let thought = marks.and_then(|marks| marks.within(count, state.config.synthetic.reasoning_share));
    let text = MadeUpText::new(words, thought, count);
    (ChoiceTokens::MadeUp(text), ChoiceFinish::of(reason))
}

/// Chooses the length of a random answer and the reason of its end: by itself, or at its limit.
pub(super) fn length(
    state: &ServerState,
    wanted: &PromptQuery<'_>,
    max_tokens: MaxTokens,
    key: SyntheticKey,
) -> (usize, &'static str) {
    let options = &state.config.synthetic;
    let (limit, is_asked) = match max_tokens {
        MaxTokens::Requested(most) => (most, true),
        MaxTokens::Left(left) => (left, false),
    };
    let usual = if is_asked { limit } else { limit.min(DEFAULT_RANDOM_TOKENS) };
    let ends = options.output_tokens.is_some() || !is_asked;
    let rate = options.stop_rate.unwrap_or(if ends { 1.0 } else { 0.0 });
    let mut generator = key.lengths();
    if wanted.request.ignore_eos || generator.random::<f64>() >= rate {
        return (size(usual), "length");
    }
    let drawn = match &options.output_tokens {
        Some(lengths) => lengths.draw(&mut generator, |generator| {
            let records = &state.replay.as_ref()?.records;
            let mut drawn = (0..DRAWS).filter_map(|_| records.get(generator.random_range(0..records.len())));
            drawn.find_map(|record| Some(record.output_tokens()).filter(|tokens| *tokens > 0))
        }),
        None if options.stop_rate.is_some() => generator.random_range(1..=usual.max(1)),
        None => DEFAULT_RANDOM_TOKENS,
    };
    let drawn = drawn.max(wanted.request.min_tokens);
    if drawn > limit { (size(limit), "length") } else { (size(drawn), "stop") }
}

/// Tokens around the reasoning of an answer.
pub(super) struct ReasoningTokens {
    open: Vec<u32>,
    close: Vec<u32>,
    may_reason: bool,
    budget: usize,
}

impl ReasoningTokens {
    /// The marks of an answer that is parsed.
    pub(super) fn of(state: &ServerState, wanted: &PromptQuery<'_>) -> Option<Self> {
        let marks = wanted.parsed?.reasoning_marks(&wanted.prompt.ids)?;
        let ids = |text: &str| match state.model.tokenizer.token_id(text) {
            Some(id) => vec![id],
            None => state.model.tokenizer.encode(text, SpecialTokens::Skip).unwrap_or_default(),
        };
        let budget =
            wanted.request.thinking_budget.and_then(|budget| usize::try_from(budget).ok()).unwrap_or(usize::MAX);
        Some(Self { open: ids(marks.open), close: ids(marks.close), may_reason: marks.may_reason, budget })
    }

    fn len(&self) -> u32 {
        u32::try_from(self.open.len() + self.close.len()).unwrap_or(u32::MAX)
    }

    /// Reasoning of so many tokens, where there may be so much.
    fn around(self, tokens: usize) -> SyntheticReasoning {
        let tokens = if self.may_reason { tokens.min(self.budget) } else { 0 };
        SyntheticReasoning { open: self.open, tokens, close: self.close }
    }

    /// Reasoning in an answer of so many tokens, one of which at least is left for what follows; `None` where there is no
    /// room, or where all of it is reasoning.
    fn within(self, count: usize, share: f64) -> Option<SyntheticReasoning> {
        let around = self.open.len() + self.close.len();
        let free = count.checked_sub(around + 1)?;
        if share >= 1.0 && self.may_reason && self.budget >= count {
            let (open, tokens) = (self.open, usize::MAX);
            return Some(SyntheticReasoning { open, tokens, close: Vec::new() });
        }
        Some(self.around(part(free + 1, share).min(free)))
    }
}

/// The prompt's tokens once; with `ignore_eos`, again and again until `max_tokens`.
fn echo(wanted: &PromptQuery<'_>) -> (ChoiceTokens, ChoiceFinish) {
    let most = size(most_tokens(wanted.prompt.max_tokens));
    let is_bounded = matches!(wanted.prompt.max_tokens, MaxTokens::Requested(_));
    let repeats = wanted.request.ignore_eos && is_bounded;
    let count = if repeats { most } else { wanted.prompt.echo.len().min(most) };
    let count = if wanted.prompt.echo.is_empty() { 0 } else { count };
    let reason = if !repeats && wanted.prompt.echo.len() <= most { "stop" } else { "length" };
    let ids = ChoiceTokens::Repeated { ids: Arc::clone(&wanted.prompt.echo), count };
    (ids, ChoiceFinish::of(reason))
}

fn size(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// A share of so many tokens.
#[allow(clippy::cast_possible_truncation)] // counts of tokens
fn part(count: usize, share: f64) -> usize {
    (count as f64 * share).round() as usize
}
