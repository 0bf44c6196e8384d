//! The plan of a generation request: each prompt is matched once, and its records become the sequences of one answer.

use std::sync::Arc;

use http::HeaderMap;
use tokio::time::Instant;

use crate::{
    api::{
        AnswerHead, AnswerNames, Api, ApiError, CacheUse, CachedTokens, GenerationRequest, MaxTokens, Position,
        answers::Encoder,
    },
    base::stats::StreamClass,
    play::{
        ServerState,
        answer::{AnswerParts, AnswerSequence, AnswerStream},
        config::DEFAULT_RANDOM_TOKENS,
        engine::RequestParameters,
        generate::{
            begun::{BegunAnswer, ShownText},
            choice::{OpenChoice, OutputLimits},
            guided::{self, GuidedRules},
            logprobs::{Scorer, SequenceLogprobs, prompt_logprobs_json},
            parse::{ParsedBy, SequenceParser},
            stop::StopStrings,
        },
        http::unix_seconds,
        load::account::TraceSession,
        metrics::RequestMetrics,
        recorded::{errors::RefusedRequest, failure::RecordedFailure},
        request::{
            admitted::{AdmittedPrompt, most_tokens},
            blocking::check_cancelled,
            budget::{self, MemoryReservation},
            model::RequestedModel,
        },
        selection::{
            query::{PromptQuery, PromptScripts, headers_of},
            select::scripts_of,
        },
    },
    replay::timing::Pacing,
};

/// The most tokens that a step waits for: a step is made in one go.
const LONGEST_INTERVAL: u32 = 1024;

/// The most choices of a request, over all of its prompts.
const MOST_CHOICES: usize = 65_536;

/// Bytes of one token beside its place in memory, with its number and its text.
const SCORED: usize = 64;

/// The answer to a request, or the error that was recorded instead of one.
pub(in crate::play) enum AnswerPlan {
    Answer(Box<PlannedAnswer>),
    Failure(Box<Failing>),
    /// What the engine refuses once a stream has begun, and the stream that has nothing but that.
    Refused(ApiError, Box<PlannedAnswer>),
}

/// A recorded error before it is due.
pub(in crate::play) struct Failing {
    pub(in crate::play) failure: RecordedFailure,
    /// The engine's id of the request.
    pub(in crate::play) id: String,
    pub(in crate::play) headers: HeaderMap,
}

/// An answer before any of it is due.
pub(in crate::play) struct PlannedAnswer {
    pub(in crate::play) answer: AnswerStream,
    pub(in crate::play) class: StreamClass,
    /// The engine's id of the request.
    pub(in crate::play) id: String,
    /// The answer's headers about its origin.
    pub(in crate::play) headers: HeaderMap,
    /// The most output tokens that the last prompt leaves room for.
    pub(in crate::play) max_tokens: u32,
    pub(in crate::play) cached: CacheUse,
}

/// Id, session and time of a request, and its recorded errors.
pub(in crate::play) struct RequestOrigin {
    pub(in crate::play) request_id: Option<String>,
    /// Of the header, for KV events.
    pub(in crate::play) session_id: Option<String>,
    /// The data parallel rank of the header.
    pub(in crate::play) rank: Option<i128>,
    pub(in crate::play) session: Option<Arc<TraceSession>>,
    pub(in crate::play) errors: Vec<usize>,
    pub(in crate::play) at: Instant,
    /// Choices of the same request that were requested before, as requests of their own.
    pub(in crate::play) choices_before: usize,
    /// True where log probabilities are wanted as values, not as JSON.
    pub(in crate::play) wants_values: bool,
    /// What was refused of its prompts once its stream had begun.
    pub(in crate::play) refused: Option<ApiError>,
}

/// Matches every prompt once and makes the answer ready.
///
/// # Errors
/// The engine's last checks, and a miss where those are errors.
pub(in crate::play) fn plan(
    state: &ServerState,
    request: &GenerationRequest,
    prompts: Vec<AdmittedPrompt>,
    from: RequestOrigin,
) -> Result<AnswerPlan, ApiError> {
    let RequestOrigin { request_id, session_id, session, errors, at, choices_before, wants_values, .. } = from;
    let refused = |error| {
        // No record of an error is consumed for a client that has left.
        check_cancelled().err().unwrap_or_else(|| {
            let (request_id, session) = (request_id.as_deref(), session.as_deref());
            RefusedRequest { error, request_id, session, errors: &errors }.replayed(state).0
        })
    };
    let checked = from.refused.map_or_else(|| last_checks(state, request, from.rank), Err).map_err(refused);
    let (rank, rules) = match checked {
        Ok(checked) => checked,
        // A recorded error has its own form.
        Err(error) if request.stream && error.recorded.is_none() => {
            let id = request_id.unwrap_or_else(|| state.fresh_id());
            return Ok(refused_stream(state, request, &prompts, &id, error));
        }
        Err(error) => return Err(error),
    };
    let memory = reserve(request, &prompts).map_err(refused)?;
    let parsed = ParsedBy::of(&state.model.parsers, request);
    let is_greedy = request.is_greedy(state.model.sampling.temperature);
    let requested = RequestedModel::of(state, request.model.as_deref());
    let mut chosen = Vec::with_capacity(prompts.len());
    for (at, prompt) in prompts.iter().enumerate() {
        check_cancelled()?;
        let wanted = wanted(request, request_id.as_deref(), prompt);
        let choices_before = at.saturating_mul(wanted.choices).saturating_add(choices_before);
        let model = state.asked_model(requested.recorded);
        let (rules, parsed, session) = (rules.as_ref(), parsed.as_ref(), session.as_deref());
        let errors = if at == 0 { errors.as_slice() } else { &[] };
        let takes_any_model = state.takes_any_model(requested.recorded);
        let wanted =
            PromptQuery { rules, parsed, is_greedy, choices_before, model, takes_any_model, session, errors, ..wanted };
        chosen.push(scripts_of(state, &wanted)?);
    }
    let max_tokens = most_of_last(&prompts);
    let headers = headers_of(&chosen, session.as_deref());
    let id = request_id.unwrap_or_else(|| state.fresh_id());
    if let Some(failure) = chosen.iter_mut().find_map(|chosen| chosen.failure.take()) {
        return Ok(AnswerPlan::Failure(Box::new(Failing { failure, id: engine_id(request.api, &id), headers })));
    }
    let tokens = chosen.iter().zip(&prompts).map(|(chosen, prompt)| tokens_of(chosen, prompt)).sum();
    let shows_logprobs = parsed.as_ref().is_none_or(ParsedBy::sends_reasoning);
    budget::check_whole(request, tokens, shows_logprobs)?;
    let class = class_of(state, &chosen);
    let cached = cache_use(state, request, &prompts, &chosen);
    let named = AnswerIdentity { id, model: requested.shown(state), at, cached, parsed, wants_values };
    let records: Vec<usize> = chosen.iter().flat_map(|chosen| &chosen.records).copied().collect();
    let mut answer = answer(state, request, prompts, chosen, &named).with_memory(memory);
    if let Some(engine) = &state.engine {
        let parameters = RequestParameters {
            data_parallel_rank: rank,
            arrived: Some(at),
            concurrency: state.replay.as_ref().map_or(1, |replay| replay.concurrency(records.first().copied())),
            ..parameters(state, request, &named.id, session_id.as_deref(), &requested)
        };
        answer = answer.submit(engine, &parameters)?;
    }
    let id = engine_id(request.api, &named.id);
    Ok(AnswerPlan::Answer(Box::new(PlannedAnswer { answer, class, id, headers, max_tokens, cached })))
}

/// Takes what a request needs before the first token.
///
/// # Errors
/// 400 for too many choices or too many log probabilities of its prompts, and those of [`MemoryReservation::try_reserve`].
fn reserve(request: &GenerationRequest, prompts: &[AdmittedPrompt]) -> Result<MemoryReservation, ApiError> {
    let choices = usize::try_from(request.choices).unwrap_or(usize::MAX).saturating_mul(prompts.len());
    if choices > MOST_CHOICES {
        return Err(ApiError::bad_request(format!(
            "The prompts and `n` make {choices} choices, and this server answers a request with at most {MOST_CHOICES}. \
             Please send fewer prompts at a time or reduce `n`."
        )));
    }
    let tokens: usize = prompts.iter().map(|prompt| prompt.read.ids.len()).sum();
    let scored = request.logprobs.prompt.map_or(0, |others| tokens.saturating_mul(others.saturating_add(1)));
    let mut memory = MemoryReservation::default();
    memory.try_reserve(
        choices.saturating_mul(size_of::<AnswerSequence>()).saturating_add(scored.saturating_mul(SCORED)),
    )?;
    Ok(memory)
}

/// Parameters that the engine's scheduler looks at.
fn parameters(
    state: &ServerState,
    request: &GenerationRequest,
    id: &str,
    session_id: Option<&str>,
    requested: &RequestedModel<'_>,
) -> RequestParameters {
    RequestParameters {
        priority: request.priority,
        cache_salt: request.cache_salt.clone(),
        session_id: request.events.session_id(session_id),
        reports_cached_blocks: request.events.reports_cached_blocks,
        scores_prompt: request.logprobs.prompt.is_some(),
        lora: requested.adapter.as_ref().map(|adapter| Arc::clone(&adapter.lora)),
        kv_transfer: request.kv_transfer.clone(),
        name: transfer_name(state, request, id),
        ..RequestParameters::default()
    }
}

/// How many tokens the choices of a prompt have at most.
fn tokens_of(chosen: &PromptScripts, prompt: &AdmittedPrompt) -> usize {
    let most = usize::try_from(most_tokens(prompt.read.max_tokens)).unwrap_or(usize::MAX);
    chosen.scripts.iter().map(|script| script.ids.len().min(most)).sum()
}

/// Origin of a stream's deadlines; made-up tokens have none of their own.
fn class_of(state: &ServerState, chosen: &[PromptScripts]) -> StreamClass {
    let is_recorded = chosen.iter().any(|chosen| !chosen.records.is_empty());
    match if is_recorded { state.pacing() } else { state.made_up_pacing() } {
        Pacing::Fixed { .. } => StreamClass::Fixed,
        Pacing::Recorded { .. } if is_recorded => StreamClass::Recorded,
        Pacing::Recorded { .. } | Pacing::Instant => StreamClass::Instant,
    }
}

/// The engine's checks behind those of the prompts: gives the rank that was requested, and the rules of the text.
fn last_checks(
    state: &ServerState,
    request: &GenerationRequest,
    rank: Option<i128>,
) -> Result<(Option<usize>, Option<GuidedRules>), ApiError> {
    let rules = guided::rules(state, request)?;
    check_thinking(state, request)?;
    Ok((state.rank(rank)?, rules))
}

/// The most output tokens that the last prompt leaves room for.
fn most_of_last(prompts: &[AdmittedPrompt]) -> u32 {
    prompts.last().map_or(0, |prompt| most_tokens(prompt.read.max_tokens))
}

fn encoder(state: &ServerState, request: &GenerationRequest, id: &str, model: &str) -> Encoder {
    let names = AnswerNames { id, model, fingerprint: state.model.fingerprint.as_deref() };
    Encoder::new(AnswerHead::new(request.api, &names, unix_seconds(), request.usage_events))
}

/// A stream of nothing but an error.
fn refused_stream(
    state: &ServerState,
    request: &GenerationRequest,
    prompts: &[AdmittedPrompt],
    id: &str,
    error: ApiError,
) -> AnswerPlan {
    let model = RequestedModel::of(state, request.model.as_deref()).shown(state);
    let planned = PlannedAnswer {
        answer: AnswerStream::failing(encoder(state, request, id, model), error.event()),
        class: StreamClass::Instant,
        id: engine_id(request.api, id),
        headers: HeaderMap::new(),
        max_tokens: most_of_last(prompts),
        cached: CacheUse::default(),
    };
    AnswerPlan::Refused(error, Box::new(planned))
}

/// The engine's last check: a budget for thinking needs a parser that finds its end.
fn check_thinking(state: &ServerState, request: &GenerationRequest) -> Result<(), ApiError> {
    if request.thinking_budget.is_none() || state.model.parsers.formats.reasoning.is_some() {
        return Ok(());
    }
    Err(ApiError::bad_request(
        "thinking_token_budget is set but reasoning_config is not configured. Please set --reasoning-parser and/or \
         --reasoning-config to use thinking_token_budget.",
    ))
}

pub(in crate::play) fn engine_id(api: Api, id: &str) -> String {
    match api {
        Api::Chat => format!("chatcmpl-{id}"),
        Api::Completions => format!("cmpl-{id}-0"),
    }
}

/// The id of a request for engines that go on with it: the engine's, and 8 hexadecimal digits; empty where none does.
fn transfer_name(state: &ServerState, request: &GenerationRequest, id: &str) -> String {
    if request.kv_transfer.is_none() {
        return String::new();
    }
    let random = state.fresh_id();
    format!("{}-{}", engine_id(request.api, id), random.get(8..).unwrap_or(&random))
}

/// Counts the tokens that may have to be made up before the first one is sent.
pub(in crate::play) fn weight_of(request: &GenerationRequest, prompts: &[AdmittedPrompt]) -> usize {
    let tokens = |prompt: &AdmittedPrompt| match prompt.read.max_tokens {
        MaxTokens::Requested(tokens) => tokens,
        MaxTokens::Left(left) => left.min(DEFAULT_RANDOM_TOKENS),
    };
    let others = request.logprobs.prompt.map_or(0, |others| others.saturating_add(1));
    let scored = |prompt: &AdmittedPrompt| prompt.read.ids.len().saturating_mul(others);
    let stop: usize = request.stop.iter().map(String::len).sum();
    let choices = usize::try_from(request.choices).unwrap_or(usize::MAX);
    prompts
        .iter()
        .map(|prompt| choices.saturating_mul(tokens(prompt) as usize).saturating_add(scored(prompt)))
        .fold(stop, usize::saturating_add)
}

fn wanted<'a>(
    request: &'a GenerationRequest,
    request_id: Option<&'a str>,
    prompt: &'a AdmittedPrompt,
) -> PromptQuery<'a> {
    let prompt = &prompt.read;
    PromptQuery {
        request_id,
        model: "",
        takes_any_model: false,
        choices_before: 0,
        session: None,
        errors: &[],
        prompt: &prompt.ids,
        hashes: &prompt.hashes,
        media: prompt.media.as_deref(),
        echo: &prompt.echo,
        choices: usize::try_from(request.choices).unwrap_or(usize::MAX),
        max_tokens: prompt.max_tokens,
        min_tokens: request.min_tokens,
        seed: request.seed,
        ignore_eos: request.ignore_eos,
        rules: None,
        logprobs: &request.logprobs,
        parsed: None,
        is_greedy: false,
        thinking_budget: request.thinking_budget,
        request,
        beginning: &prompt.beginning,
    }
}

/// Id and model of an answer, the time of its request, its use of the prefix cache, and the parser of its text.
struct AnswerIdentity<'a> {
    id: String,
    model: &'a str,
    at: Instant,
    cached: CacheUse,
    parsed: Option<ParsedBy>,
    wants_values: bool,
}

fn answer(
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
fn cache_use(
    state: &ServerState,
    request: &GenerationRequest,
    prompts: &[AdmittedPrompt],
    chosen: &[PromptScripts],
) -> CacheUse {
    // The engine recomputes a prompt for its log probabilities.
    let reads = request.logprobs.prompt.is_none();
    let found = chosen.iter().filter(|_| reads).map(|chosen| chosen.cached).max().unwrap_or(0);
    let tokens = prompts.first().map_or(0, |prompt| u32::try_from(prompt.read.ids.len()).unwrap_or(u32::MAX));
    let block = state.block_size;
    let full = tokens.checked_div(block).unwrap_or(0).saturating_mul(block);
    CacheUse { found, created: full.saturating_sub(found) }
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
