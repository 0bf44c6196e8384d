//! The life of a generation request: judge, tokenize, match once, then stream or collect.

use std::{sync::Arc, time::Duration};

use axum::{extract, response::Response};
use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, StatusCode};
use tokio::time::Instant;

use super::{
    State,
    account::Slot,
    answer::{Answer, AnswerParts, Sequence},
    blocking::off_the_loop,
    choice::{Choice, LastToken, Limits},
    config::DEFAULT_RANDOM_TOKENS,
    delivery::{Clock, Wait, collect, stream_of},
    dialect::Dialect,
    failure::Failure,
    guided,
    http::{events, json},
    info,
    logprobs::{Scorer, SequenceLogprobs, told_of_prompt},
    metrics::Group,
    output::{Ending, OutputText},
    parse::{ParsedBy, SequenceParser},
    prompts::{Judged, Prompt, judged, judged_or_known, most_tokens},
    recorded::request_id_in,
    recorded_errors::RefusedRequest,
    select::{Chosen, Wanted, choose, headers_of},
};
use crate::{
    api::{AnswerNames, Api, ApiError, CacheUse, CachedTokens, GenerationRequest, Head, MaxTokens, UsageEvents},
    base::stats::StreamClass,
    replay::timing::Pacing,
    text::prompt::SkipSpecial,
};

/// A request that came in.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// The session of the trace whose records it consumes; `None` for the default one.
    pub(super) session: Option<Arc<Slot>>,
    /// The recorded errors of the same request, in replay order.
    pub(super) errors: Vec<usize>,
    /// When its body was complete: the zero of every deadline.
    pub(super) at: Instant,
    pub(super) clock: Clock,
}

impl Arrival {
    /// The error of a request that this server refuses before it looks for a record: the recorded one of the same request,
    /// when it is due, where there is one.
    async fn refused(self, state: &State, error: ApiError) -> ApiError {
        let header = self.headers.get("x-request-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let request_id = header.or_else(|| request_id_in(&self.body));
        let request = RefusedRequest {
            error,
            request_id: request_id.as_deref(),
            session: self.session.as_deref(),
            errors: &self.errors,
        };
        let (error, due) = request.replayed(state);
        if due > Duration::ZERO {
            Wait { clock: self.clock, class: StreamClass::Whole, hold: None }.for_failure(self.at, due).await;
        }
        error
    }
}

/// An answer that is ready to be sent.
pub(super) struct Started {
    answer: Answer,
    at: Instant,
    wait: Wait,
    keep_alive: Option<Duration>,
    dialect: &'static Dialect,
    /// Whether the request asked for a stream.
    pub(super) stream: bool,
    /// The answer's headers about its origin.
    pub(super) headers: HeaderMap,
    /// The most output tokens that the last prompt leaves room for.
    pub(super) max_tokens: u32,
    /// How the prefix cache took part.
    pub(super) cached: CacheUse,
}

/// `/v1/chat/completions`
///
/// # Errors
/// As [`generate`].
pub(super) async fn chat(
    extract::State(state): extract::State<Arc<State>>,
    arrival: Arrival,
) -> Result<Response, ApiError> {
    generate(&state, Api::Chat, arrival).await
}

/// `/v1/completions`
///
/// # Errors
/// As [`generate`].
pub(super) async fn completions(
    extract::State(state): extract::State<Arc<State>>,
    arrival: Arrival,
) -> Result<Response, ApiError> {
    generate(&state, Api::Completions, arrival).await
}

/// Answers a generation request.
///
/// # Errors
/// Everything that the engine refuses before the first byte, and a miss where those are errors.
async fn generate(state: &Arc<State>, api: Api, arrival: Arrival) -> Result<Response, ApiError> {
    let read = move |state: &State, body: &[u8]| {
        let mut request = GenerationRequest::parse(api, body)?;
        if state.config.server.force_usage.is_some() && request.stream {
            request.usage_events = UsageEvents::EveryEvent;
        }
        Ok((request, ()))
    };
    let judged = match judged_or_known(state, api, arrival.body.clone(), read).await {
        Ok(judged) => judged,
        Err(refused) => return Err(arrival.refused(state, refused).await),
    };
    respond(begin(state, arrival, judged).await?).await
}

/// Encodes an answer as its own family does.
///
/// # Errors
/// 500 where the record ended in a failure of the engine.
pub(super) async fn respond(started: Started) -> Result<Response, ApiError> {
    let extra = started.headers.clone();
    let dialect = started.dialect;
    if started.stream {
        let stream = futures_util::StreamExt::map(started.into_events(), |event| dialect.event(event));
        Ok(events(stream, extra))
    } else {
        Ok(json(StatusCode::OK, dialect.body(started.into_body().await?), extra))
    }
}

/// Reads a request of any family, matches it once and makes its answer ready. `read` gives the generation request and
/// whatever else its family needs to know later.
///
/// # Errors
/// Everything that the engine refuses before the first byte, and a miss where those are errors.
pub(super) async fn start<T: Send + 'static>(
    state: &Arc<State>,
    arrival: Arrival,
    read: impl FnOnce(&State, &[u8]) -> Result<(GenerationRequest, T), ApiError> + Send + 'static,
) -> Result<(Started, T), ApiError> {
    let (judged, rest) = match judged(state, arrival.body.clone(), read).await {
        Ok(judged) => judged,
        Err(refused) => return Err(arrival.refused(state, refused).await),
    };
    Ok((begin(state, arrival, judged).await?, rest))
}

/// Matches a request once and makes its answer ready.
///
/// # Errors
/// The engine's last checks, and a miss where those are errors.
async fn begin(state: &Arc<State>, arrival: Arrival, judged: Judged) -> Result<Started, ApiError> {
    let Arrival { headers, session, errors, at, clock, .. } = arrival;
    let Judged { request, prompts } = judged;
    let sent_id = headers.get("x-request-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let from = Origin { request_id: sent_id.or_else(|| request.request_id.clone()), session, errors, at };
    let weight = weight_of(&request, &prompts);
    let _draw = if request.is_constrained() { state.draws.acquire().await.ok() } else { None };
    let planner = Arc::clone(state);
    let plan = move || plan(&planner, &request, prompts, from).map(|planned| (planned, request.stream));
    let (planned, stream) = off_the_loop(weight, plan).await?;
    let planned = match planned {
        Plan::Answer(planned) => *planned,
        Plan::Failure(failing) => {
            let Failing { failure, id, headers } = *failing;
            let wait = Wait { clock, class: StreamClass::Whole, hold: state.hold(id, 1) };
            wait.for_failure(at, failure.due).await;
            return Err(failure.into_error(&headers));
        }
    };
    let Planned { answer, class, id, headers, max_tokens, cached } = planned;
    let keep_alive = state.config.server.keep_alive;
    let class = if stream { class } else { StreamClass::Whole };
    let wait = Wait { clock, class, hold: state.hold(id, answer.choices()) };
    let dialect = state.config.vllm_version.dialect();
    Ok(Started { answer, at, wait, keep_alive, dialect, stream, headers, max_tokens, cached })
}

/// What a request gets: an answer, or the error that was recorded instead of one.
enum Plan {
    Answer(Box<Planned>),
    Failure(Box<Failing>),
}

/// A recorded error before it is due.
struct Failing {
    failure: Failure,
    /// What the engine would call the request.
    id: String,
    headers: HeaderMap,
}

/// An answer before any of it is due.
struct Planned {
    answer: Answer,
    class: StreamClass,
    /// What the engine would call the request.
    id: String,
    headers: HeaderMap,
    max_tokens: u32,
    cached: CacheUse,
}

/// Who asks, and when.
struct Origin {
    request_id: Option<String>,
    session: Option<Arc<Slot>>,
    errors: Vec<usize>,
    at: Instant,
}

/// Matches every prompt once and makes the answer ready.
fn plan(state: &State, request: &GenerationRequest, prompts: Vec<Prompt>, from: Origin) -> Result<Plan, ApiError> {
    let Origin { request_id, session, errors, at } = from;
    let refused = |error| {
        let (request_id, session) = (request_id.as_deref(), session.as_deref());
        RefusedRequest { error, request_id, session, errors: &errors }.replayed(state).0
    };
    let rules = guided::rules(state, request).map_err(refused)?;
    check_thinking(state, request).map_err(refused)?;
    let parsed = ParsedBy::of(&state.parsers, request);
    let is_greedy = request.is_greedy(state.sampling.temperature);
    let mut chosen = Vec::with_capacity(prompts.len());
    for (at, prompt) in prompts.iter().enumerate() {
        let wanted = wanted(request, request_id.as_deref(), prompt);
        let choices_before = at.saturating_mul(wanted.choices);
        let model = state.asked_model(request.model.as_deref());
        let (rules, parsed, session) = (rules.as_ref(), parsed.as_ref(), session.as_deref());
        let errors = if at == 0 { errors.as_slice() } else { &[] };
        let takes_any_model = state.takes_any_model(request.model.as_deref());
        let wanted =
            Wanted { rules, parsed, is_greedy, choices_before, model, takes_any_model, session, errors, ..wanted };
        chosen.push(choose(state, &wanted)?);
    }
    let max_tokens = prompts.last().map_or(0, |prompt| most_tokens(prompt.read.max_tokens));
    let headers = headers_of(&chosen, session.as_deref());
    let id = request_id.unwrap_or_else(|| state.fresh_id());
    if let Some(failure) = chosen.iter_mut().find_map(|chosen| chosen.failure.take()) {
        let id = engine_id(request.api, &id);
        return Ok(Plan::Failure(Box::new(Failing { failure, id, headers })));
    }
    let class = class_of(state, &chosen);
    let cached = cache_use(state, request, &prompts, &chosen);
    let named = Named { id, at, cached, parsed };
    let answer = answer(state, request, prompts, chosen, &named);
    let id = engine_id(request.api, &named.id);
    Ok(Plan::Answer(Box::new(Planned { answer, class, id, headers, max_tokens, cached })))
}

/// Where the deadlines of a stream come from; made-up tokens have none of their own.
fn class_of(state: &State, chosen: &[Chosen]) -> StreamClass {
    let is_recorded = chosen.iter().any(|chosen| !chosen.records.is_empty());
    match if is_recorded { state.config.pacing } else { state.made_up_pacing() } {
        Pacing::Fixed { .. } => StreamClass::Fixed,
        Pacing::Recorded { .. } if is_recorded => StreamClass::Recorded,
        Pacing::Recorded { .. } | Pacing::Instant => StreamClass::Instant,
    }
}

/// The engine's last check: thinking ends only where something knows its end.
fn check_thinking(state: &State, request: &GenerationRequest) -> Result<(), ApiError> {
    if request.thinking_budget.is_none() || state.parsers.formats.reasoning.is_some() {
        return Ok(());
    }
    Err(ApiError::bad_request(
        "thinking_token_budget is set but reasoning_config is not configured. Please set --reasoning-parser and/or \
         --reasoning-config to use thinking_token_budget.",
    ))
}

/// What the engine calls the request.
fn engine_id(api: Api, id: &str) -> String {
    match api {
        Api::Chat => format!("chatcmpl-{id}"),
        Api::Completions => format!("cmpl-{id}-0"),
    }
}

/// How many tokens may have to be made up before the first one is sent.
fn weight_of(request: &GenerationRequest, prompts: &[Prompt]) -> usize {
    if request.is_constrained() {
        return usize::MAX;
    }
    let tokens = |prompt: &Prompt| match prompt.read.max_tokens {
        MaxTokens::Asked(tokens) => tokens,
        MaxTokens::Left(left) => left.min(DEFAULT_RANDOM_TOKENS),
    };
    let scored = |prompt: &Prompt| if request.logprobs.prompt.is_some() { prompt.read.ids.len() } else { 0 };
    let choices = usize::try_from(request.choices).unwrap_or(usize::MAX);
    prompts
        .iter()
        .map(|prompt| choices.saturating_mul(tokens(prompt) as usize).saturating_add(scored(prompt)))
        .fold(0, usize::saturating_add)
}

impl Started {
    /// The events of the answer, each at its deadline. Dropping the stream, as when the client leaves, frees everything.
    pub(super) fn into_events(self) -> impl Stream<Item = Bytes> + Send + 'static {
        stream_of(self.answer, self.at, self.wait, self.keep_alive)
    }

    /// The body of an answer that is no stream, at the deadline of its last token.
    ///
    /// # Errors
    /// 500 where the record ended in a failure of the engine.
    pub(super) async fn into_body(self) -> Result<String, ApiError> {
        collect(self.answer, self.at, self.wait).await
    }
}

fn wanted<'a>(request: &'a GenerationRequest, request_id: Option<&'a str>, prompt: &'a Prompt) -> Wanted<'a> {
    let prompt = &prompt.read;
    Wanted {
        request_id,
        model: None,
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
    }
}

/// What an answer is called, when its request came, how the prefix cache took part, and how its text is taken apart.
struct Named {
    id: String,
    at: Instant,
    cached: CacheUse,
    parsed: Option<ParsedBy>,
}

fn answer(
    state: &State,
    request: &GenerationRequest,
    prompts: Vec<Prompt>,
    chosen: Vec<Chosen>,
    named: &Named,
) -> Answer {
    let model = state.asked_model(request.model.as_deref()).unwrap_or_default();
    let names = AnswerNames { id: &named.id, model, fingerprint: state.fingerprint.as_deref() };
    let head = Head::new(request.api, &names, info::unix_seconds(), request.usage_events);
    let each = prompts.iter().zip(&chosen).map(|(prompt, chosen)| prompt_tokens(prompt, chosen));
    let all_prompt_tokens = each.fold(0, u32::saturating_add);
    // A beam search counts none.
    let details = state.config.prompt_tokens_details.filter(|_| !request.is_beam_search());
    let cached = details.map_or(CachedTokens::Hidden, |_| CachedTokens::Reported(named.cached));
    let mut options = AnswerParts::new(request, all_prompt_tokens, cached);
    options.times = state.config.answers.request_metrics;
    let stop_token_ids: Arc<[u32]> = request.stop_token_ids.as_slice().into();
    let scorer = Scorer::new(&state.tokenizer, state.config.seed, &request.logprobs);
    let parsed = named.parsed.as_ref();
    options.failing_event = chosen.iter().find_map(|chosen| chosen.failing_event.clone());
    let mut sequences = Vec::with_capacity(chosen.iter().map(|chosen| chosen.scripts.len()).sum());
    for (prompt, chosen) in prompts.into_iter().zip(chosen) {
        let prompt_tokens = prompt_tokens(&prompt, &chosen);
        let Prompt { read: prompt, places } = prompt;
        if request.api == Api::Chat {
            options.prompt_text.clone_from(&prompt.shown.text);
        }
        let echo = prompt.shown.text.filter(|_| request.echo && request.api == Api::Completions);
        let (role, repeated) = (prompt.shown.role, prompt.shown.message);
        let group = Group::new(&state.metrics, named.at, request.choices, places);
        let positions = scorer.prompt(&prompt.ids, chosen.prompt_logprobs.as_ref());
        let prompt_logprobs: Option<Arc<str>> = told_of_prompt(&scorer, &positions).map(Into::into);
        let echoed = if request.echo && request.api == Api::Completions { positions.as_slice() } else { &[] };
        for script in chosen.scripts {
            let limits = limits(state, request, prompt.max_tokens, &stop_token_ids);
            let output = OutputText::new(request.stop.clone(), ending(request), request.min_tokens);
            let text = detokenizer(state, request, parsed, &prompt.ids);
            let recorded = script.logprobs.clone();
            let choice = Choice::new(script, limits, text, output);
            let flight = group.start(prompt_tokens, chosen.cached, most_tokens(prompt.max_tokens));
            let parser = parsed.map(|parsed| parsed.start(&prompt.ids, state.fresh_seed()));
            let is_told = !parser.as_ref().is_some_and(SequenceParser::hides_tokens);
            let logprobs = SequenceLogprobs::new(&scorer, request, echoed).filter(|_| is_told);
            let logprobs = logprobs.map(|sequence| sequence.with_recorded(recorded.as_ref(), &prompt.ids));
            let sequence = Sequence::new(choice, Arc::clone(&prompt.ids), echo.clone(), flight).with_parser(parser);
            let sequence = sequence.with_logprobs(logprobs, prompt_logprobs.clone()).with_prompt_tokens(prompt_tokens);
            sequences.push(sequence.speaking_as(role.clone(), repeated.clone()).only_echoing(request.only_echoes()));
        }
    }
    Answer::new(head, options, sequences)
}

/// Tokens of a prompt: of one with media as many as were recorded.
fn prompt_tokens(prompt: &Prompt, chosen: &Chosen) -> u32 {
    chosen.prompt_tokens.unwrap_or_else(|| u32::try_from(prompt.read.ids.len()).unwrap_or(u32::MAX))
}

/// How the prefix cache took part: the most that one of the prompts found there.
fn cache_use(state: &State, request: &GenerationRequest, prompts: &[Prompt], chosen: &[Chosen]) -> CacheUse {
    // The engine computes a prompt anew for its log probabilities.
    let reads = request.logprobs.prompt.is_none();
    let found = chosen.iter().filter(|_| reads).map(|chosen| chosen.cached).max().unwrap_or(0);
    let tokens = prompts.first().map_or(0, |prompt| u32::try_from(prompt.read.ids.len()).unwrap_or(u32::MAX));
    let block = state.block_size();
    let full = tokens.checked_div(block).unwrap_or(0).saturating_mul(block);
    CacheUse { found, created: full.saturating_sub(found) }
}

fn limits(state: &State, request: &GenerationRequest, max_tokens: MaxTokens, stop_token_ids: &Arc<[u32]>) -> Limits {
    let interval = state.config.stream_interval.get().max(request.stream_interval.unwrap_or(1));
    Limits {
        max_tokens: most_tokens(max_tokens),
        min_tokens: request.min_tokens,
        stop_token_ids: Arc::clone(stop_token_ids),
        stop_token_text: if request.include_stop_str_in_output { LastToken::Text } else { LastToken::Stop },
        interval: if request.stream { interval } else { 1 },
    }
}

fn ending(request: &GenerationRequest) -> Ending {
    if request.include_stop_str_in_output { Ending::Included } else { Ending::Excluded }
}

fn detokenizer(
    state: &State,
    request: &GenerationRequest,
    parsed: Option<&ParsedBy>,
    prompt: &[u32],
) -> crate::text::prompt::Detokenizer {
    let is_shown = !request.skip_special_tokens || parsed.is_some_and(ParsedBy::shows_special_tokens);
    let special = if is_shown { SkipSpecial::Keep } else { SkipSpecial::Skip };
    let detokenizer = state.tokenizer.detokenizer(prompt, special);
    if request.spaces_between_special_tokens {
        detokenizer
    } else {
        detokenizer.without_spaces_between_special_tokens()
    }
}
