//! The plan of a generation request: each prompt is matched once, and its records become the sequences of one answer.

use std::{sync::Arc, time::Duration};

use http::HeaderMap;
use tokio::time::Instant;

use crate::{
    ServerState,
    answer::{AnswerSequence, AnswerStream},
    config::DEFAULT_RANDOM_TOKENS,
    engine::RequestParameters,
    generate::{
        guided::{self, GuidedRules},
        parse::ParsedBy,
    },
    load::account::TraceSession,
    recorded::errors::RefusedRequest,
    request::{
        admitted::{AdmittedPrompt, most_tokens},
        blocking::{check_cancelled, off_the_loop},
        budget::{self, MemoryReservation},
        model::RequestedModel,
    },
    selection::{
        planned::{AnswerIdentity, answer, cache_use, encoder},
        query::{PromptQuery, PromptScripts, RequestRecords, headers_of},
        select::scripts_of,
    },
};
use ::engine::scheduler::Request;
use api::{Api, ApiError, CacheUse, GenerationRequest, MaxTokens};
use base::stats::StreamClass;
use replay::timing::Pacing;

/// The most choices of a request, over all of its prompts.
const MOST_CHOICES: usize = 65_536;

/// Bytes of one token beside its place in memory, with its number and its text.
const SCORED: usize = 64;

/// The answer to a request, or the error that was recorded instead of one.
pub(crate) enum AnswerPlan {
    Answer(Box<PlannedAnswer>),
    /// A recorded error before it is due, with the engine's id of the request.
    Failure {
        error: Box<ApiError>,
        due: Duration,
        id: String,
    },
    /// What the engine refuses once a stream has begun, and the stream that has nothing but that.
    Refused(ApiError, Box<PlannedAnswer>),
}

/// An answer before any of it is due.
pub(crate) struct PlannedAnswer {
    pub(crate) answer: AnswerStream,
    pub(crate) class: StreamClass,
    /// The engine's id of the request.
    pub(crate) id: String,
    /// The answer's headers about its origin.
    pub(crate) headers: HeaderMap,
    /// The most output tokens that the last prompt leaves room for.
    pub(crate) max_tokens: u32,
    pub(crate) cached: CacheUse,
}

/// Id, session and time of a request, and what is found by it.
pub(crate) struct RequestOrigin {
    pub(crate) request_id: Option<String>,
    /// Of the header, for KV events.
    pub(crate) session_id: Option<String>,
    /// The data parallel rank of the header.
    pub(crate) rank: Option<i128>,
    pub(crate) session: Option<Arc<TraceSession>>,
    pub(crate) recorded: RequestRecords,
    pub(crate) at: Instant,
    /// Choices of the same request that were requested before, as requests of their own.
    pub(crate) choices_before: usize,
    /// True where log probabilities are wanted as values, not as JSON.
    pub(crate) wants_values: bool,
    /// What was refused of its prompts once its stream had begun.
    pub(crate) refused: Option<ApiError>,
}

/// Plans an answer without holding up other requests; texts with a constraint take turns.
/// Errors: those of [`plan`].
pub(crate) async fn planned(
    state: &Arc<ServerState>,
    request: Arc<GenerationRequest>,
    prompts: Vec<AdmittedPrompt>,
    from: RequestOrigin,
) -> Result<AnswerPlan, ApiError> {
    let (weight, is_constrained, planner) =
        (weight_of(&request, &prompts), request.is_constrained(), Arc::clone(state));
    let plan = move || plan(&planner, &request, prompts, from);
    if is_constrained { state.work.drawing.run(plan).await } else { off_the_loop(weight, plan).await }
}

/// Matches every prompt once and makes the answer ready.
/// Errors: the engine's last checks, and a miss where those are errors.
fn plan(
    state: &ServerState,
    request: &GenerationRequest,
    prompts: Vec<AdmittedPrompt>,
    from: RequestOrigin,
) -> Result<AnswerPlan, ApiError> {
    let RequestOrigin { request_id, session, recorded, at, wants_values, .. } = from;
    let (request_id, session) = (request_id.as_deref(), session.as_deref());
    let id = request_id.map_or_else(|| state.fresh_id(), str::to_owned);
    let refused = |error| {
        // No record of an error is consumed for a client that has left.
        let replayed = || RefusedRequest { error, request_id, session, recorded: &recorded }.replayed(state).0;
        check_cancelled().err().unwrap_or_else(replayed)
    };
    let checked = from.refused.map_or_else(|| last_checks(state, request, from.rank), Err).map_err(refused);
    let (rank, rules) = match checked {
        Ok(checked) => checked,
        Err(error) => return refused_stream(state, request, &prompts, &id, error),
    };
    let memory = reserve(request, &prompts).map_err(refused)?;
    let parsed = ParsedBy::of(&state.model.parsers, request);
    let requested = RequestedModel::of(state, request.model.as_deref());
    let (choices, mut chosen) = (usize::try_from(request.choices).unwrap_or(usize::MAX), Vec::new());
    for (at, prompt) in prompts.iter().enumerate() {
        check_cancelled()?;
        let wanted = PromptQuery {
            request_id,
            model: requested.recorded,
            choices_before: at.saturating_mul(choices).saturating_add(from.choices_before),
            session,
            recorded: Some(&recorded).filter(|_| at == 0),
            prompt: &prompt.read,
            is_greedy: request.is_greedy(state.model.sampling.temperature),
            rules: rules.as_ref(),
            parsed: parsed.as_ref(),
            request,
        };
        chosen.push(scripts_of(state, &wanted)?);
    }
    let headers = headers_of(&chosen, session);
    if let Some(failure) = chosen.iter_mut().find_map(|chosen| chosen.failure.take()) {
        let (due, id) = (failure.due, engine_id(request.api, &id));
        return Ok(AnswerPlan::Failure { error: Box::new(failure.into_error(&headers)), due, id });
    }
    check_size(request, &chosen, &prompts, parsed.as_ref())?;
    let (class, max_tokens) = (class_of(state, &chosen), most_of_last(&prompts));
    let cached = cache_use(state, request, &prompts, &chosen);
    let record = chosen.iter().flat_map(|chosen| &chosen.records).next().copied();
    let named = AnswerIdentity { id, model: requested.shown(state), at, cached, parsed, wants_values };
    let mut answer = answer(state, request, prompts, chosen, &named);
    answer.memory = memory;
    if let Some(engine) = &state.engine {
        let concurrency = state.replay.as_ref().map_or(1, |replay| replay.concurrency(record));
        let shared = parameters(state, request, &named.id, from.session_id.as_deref(), &requested);
        let shared = RequestParameters { data_parallel_rank: rank, arrived: Some(at), concurrency, ..shared };
        answer = answer.submit(engine, &shared)?;
    }
    let id = engine_id(request.api, &named.id);
    Ok(AnswerPlan::Answer(Box::new(PlannedAnswer { answer, class, id, headers, max_tokens, cached })))
}

/// Takes what a request needs before the first token.
/// Errors: 400 for too many choices or too many log probabilities of its prompts, and those of [`MemoryReservation::try_reserve`].
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
        request: Request {
            priority: request.priority,
            cache_salt: request.cache_salt.clone(),
            session_id: request.events.session_id(session_id),
            reports_cached_blocks: request.events.reports_cached_blocks,
            skip_reading_prefix_cache: request.logprobs.prompt.is_some(),
            lora: requested.adapter.as_ref().map(|adapter| Arc::clone(&adapter.lora)),
            ..Request::default()
        },
        kv_transfer: request.kv_transfer.clone(),
        name: transfer_name(state, request, id),
        ..RequestParameters::default()
    }
}

/// Refuses a body that is certainly too large, by the most tokens that its choices have.
fn check_size(
    request: &GenerationRequest,
    chosen: &[PromptScripts],
    prompts: &[AdmittedPrompt],
    parsed: Option<&ParsedBy>,
) -> Result<(), ApiError> {
    let tokens = |(chosen, prompt): (&PromptScripts, &AdmittedPrompt)| -> usize {
        let most = usize::try_from(most_tokens(prompt.read.max_tokens)).unwrap_or(usize::MAX);
        chosen.scripts.iter().map(|script| script.ids.len().min(most)).sum()
    };
    let tokens = chosen.iter().zip(prompts).map(tokens).sum();
    budget::check_whole(request, tokens, parsed.is_none_or(ParsedBy::sends_reasoning))
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

/// A stream of nothing but an error, where one was requested.
/// Errors: it, where none was, and a recorded error, which has its own form.
fn refused_stream(
    state: &ServerState,
    request: &GenerationRequest,
    prompts: &[AdmittedPrompt],
    id: &str,
    error: ApiError,
) -> Result<AnswerPlan, ApiError> {
    if !request.stream || error.recorded.is_some() {
        return Err(error);
    }
    let model = RequestedModel::of(state, request.model.as_deref()).shown(state);
    let planned = PlannedAnswer {
        answer: AnswerStream::failing(encoder(state, request, id, model), error.event()),
        class: StreamClass::Instant,
        id: engine_id(request.api, id),
        headers: HeaderMap::new(),
        max_tokens: most_of_last(prompts),
        cached: CacheUse::default(),
    };
    Ok(AnswerPlan::Refused(error, Box::new(planned)))
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

pub(crate) fn engine_id(api: Api, id: &str) -> String {
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
fn weight_of(request: &GenerationRequest, prompts: &[AdmittedPrompt]) -> usize {
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
