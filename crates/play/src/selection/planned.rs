//! The answer of a plan: a sequence for each script that was chosen, with what the request wants to know of it.

use std::sync::Arc;

use tokio::time::Instant;

use crate::{
    ServerState,
    answer::{AnswerParts, AnswerSequence, AnswerStream, created},
    generate::{
        begun::{BegunAnswer, ShownText},
        choice::{OpenChoice, OutputLimits},
        logprobs::{Scorer, SequenceLogprobs, prompt_logprobs_json},
        parse::{ParsedBy, SequenceParser},
        stop::StopStrings,
    },
    http::unix_seconds,
    metrics::RequestMetrics,
    request::admitted::{AdmittedPrompt, most_tokens},
    selection::query::PromptScripts,
};
use api::{
    AnswerHead, AnswerNames, Api, CacheUse, CachedTokens, GenerationRequest, MaxTokens, Position, answers::Encoder,
};

/// The most tokens that a step waits for: a step is made in one go.
const LONGEST_INTERVAL: u32 = 1024;

/// Id and model of an answer, the time of its request, its use of the prefix cache, and the parser of its text.
pub(super) struct AnswerIdentity<'a> {
    pub(super) id: String,
    pub(super) model: &'a str,
    pub(super) at: Instant,
    pub(super) cached: CacheUse,
    pub(super) parsed: Option<ParsedBy>,
    pub(super) wants_values: bool,
}

/// Builds the answer of these prompts from the scripts that were chosen for them.
pub(super) fn answer(
    state: &ServerState,
    request: &GenerationRequest,
    prompts: Vec<AdmittedPrompt>,
    chosen: Vec<PromptScripts>,
    named: &AnswerIdentity<'_>,
) -> AnswerStream {
    let encoder = encoder(state, request, &named.id, named.model);
    let each = prompts.iter().zip(&chosen).map(|(prompt, chosen)| prompt_tokens(prompt, chosen));
    let mut parts = parts(state, request, &chosen, each.fold(0, u32::saturating_add), named.cached);
    let mut stop_token_ids = request.stop_token_ids.clone();
    stop_token_ids.sort_unstable();
    let stop_token_ids: Arc<[u32]> = stop_token_ids.into();
    let stop = Arc::new(StopStrings::new(&request.stop));
    let scorer = Scorer::new(&state.model.tokenizer, state.config.seed, &request.logprobs);
    let parsed = named.parsed.as_ref();
    let repeats_prompt = request.echo && request.api == Api::Completions;
    let mut sequences = Vec::with_capacity(chosen.iter().map(|chosen| chosen.scripts.len()).sum());
    for (prompt, chosen) in prompts.into_iter().zip(chosen) {
        let prompt_tokens = prompt_tokens(&prompt, &chosen);
        let AdmittedPrompt { read: prompt, permit } = prompt;
        if request.api == Api::Chat {
            parts.prompt_text.clone_from(&prompt.shown.text);
        }
        let echo = prompt.shown.text.filter(|_| repeats_prompt);
        let request_metrics = RequestMetrics::new(&state.metrics, named.at, request.choices, permit);
        let positions: Arc<[Position]> = scorer.prompt(&prompt.ids, chosen.prompt_logprobs.as_ref()).into();
        let wants_values = named.wants_values && request.logprobs.prompt.is_some();
        let prompt_positions = wants_values.then(|| Arc::clone(&positions));
        let prompt_logprobs = if wants_values { None } else { prompt_logprobs_json(&scorer, &positions) };
        let prompt_logprobs: Option<Arc<str>> = prompt_logprobs.map(Into::into);
        let echoed = if repeats_prompt { positions } else { Arc::default() };
        for mut script in chosen.scripts {
            let limits = limits(state, request, prompt.max_tokens, &stop_token_ids);
            let fresh = || Box::new(ShownText::new(state, request, parsed, &stop, &prompt.ids).after(&[]));
            let BegunAnswer { ids: delivered, shown, skipped } = *script.begun.take().unwrap_or_else(fresh);
            let ShownText { detokenizer, output, parser } = shown;
            let hides_tokens = parser.as_ref().is_some_and(SequenceParser::hides_tokens);
            let logprobs = SequenceLogprobs::new(&scorer, request, &echoed).filter(|_| !hides_tokens);
            sequences.push(AnswerSequence {
                logprobs: logprobs
                    .map(|sequence| sequence.after(&delivered).with_recorded(script.logprobs.as_ref(), &prompt.ids)),
                choice: OpenChoice::new(script, limits, detokenizer, output).skipping(skipped),
                prompt: Arc::clone(&prompt.ids),
                prompt_tokens,
                echo: echo.clone(),
                only_echoes: request.only_echoes(),
                role: prompt.shown.role.clone(),
                repeated: prompt.shown.message.clone(),
                parser,
                prompt_logprobs: prompt_logprobs.clone(),
                prompt_positions: prompt_positions.clone(),
                produced: 0,
                opened: false,
                metrics: request_metrics.start(prompt_tokens, chosen.cached, most_tokens(prompt.max_tokens)),
            });
        }
    }
    AnswerStream::new(encoder, parts, sequences)
}

/// Parts of the answer that the request asks for.
fn parts(
    state: &ServerState,
    request: &GenerationRequest,
    chosen: &[PromptScripts],
    prompt_tokens: u32,
    cached: CacheUse,
) -> AnswerParts {
    // A beam search counts none.
    let is_hidden = !state.config.prompt_tokens_details || request.is_beam_search();
    // A response has them always, and takes them from its chat where an engine knows them last.
    let is_reported = !is_hidden || state.engine.is_some() && request.is_response();
    let cached = if is_reported { CachedTokens::Reported(cached) } else { CachedTokens::Hidden };
    AnswerParts {
        token_ids: request.return_token_ids,
        prompt_text: None,
        prompt_tokens,
        cached,
        times: state.config.answers.request_metrics,
        failing_event: chosen.iter().find_map(|chosen| chosen.failing_event.clone()),
    }
}

/// Tokens of a prompt: of one with media as many as were recorded.
fn prompt_tokens(prompt: &AdmittedPrompt, chosen: &PromptScripts) -> u32 {
    chosen.prompt_tokens.unwrap_or_else(|| u32::try_from(prompt.read.ids.len()).unwrap_or(u32::MAX))
}

/// Use of the prefix cache: the most that one of the prompts found there.
pub(super) fn cache_use(
    state: &ServerState,
    request: &GenerationRequest,
    prompts: &[AdmittedPrompt],
    chosen: &[PromptScripts],
) -> CacheUse {
    // The engine recomputes a prompt for its log probabilities.
    let reads = request.logprobs.prompt.is_none();
    let found = chosen.iter().filter(|_| reads).map(|chosen| chosen.cached).max().unwrap_or(0);
    let tokens = prompts.first().map_or(0, |prompt| u32::try_from(prompt.read.ids.len()).unwrap_or(u32::MAX));
    CacheUse { found, created: created(tokens, state.block_size, found) }
}

fn limits(
    state: &ServerState,
    request: &GenerationRequest,
    max_tokens: MaxTokens,
    stop_token_ids: &Arc<[u32]>,
) -> OutputLimits {
    let interval = state.config.stream_interval.get().max(request.stream_interval.unwrap_or(1)).min(LONGEST_INTERVAL);
    OutputLimits {
        max_tokens: most_tokens(max_tokens),
        min_tokens: request.min_tokens,
        stop_token_ids: Arc::clone(stop_token_ids),
        ignores_eos: request.ignore_eos,
        shows_stop_token: request.include_stop_str_in_output,
        interval: if request.stream { interval } else { 1 },
    }
}

/// The writer of an answer.
pub(super) fn encoder(state: &ServerState, request: &GenerationRequest, id: &str, model: &str) -> Encoder {
    let names = AnswerNames { id, model, fingerprint: state.model.fingerprint.as_deref() };
    Encoder::new(AnswerHead::new(request.api, &names, unix_seconds(), request.usage_events))
}
