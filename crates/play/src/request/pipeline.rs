//! The life of a request, in the order in which it is answered.
//!
//! 1. [`Cassettes`](crate::cassettes::Cassettes) comes first where there are any. The cassette player reads the request, finds its session and its
//!    record, or forwards it and records the exchange, or counts a miss (`replay::player`); other requests go on.
//! 2. [`RecordedResponses`] sends what a trace holds as a response, before validation ([`recorded`]).
//! 3. The router ([`routes`](crate::routes)) calls an endpoint's handler, which takes an [`Arrival`]: body, session, clock,
//!    and the recorded errors of the same request. [`generate`] is that of chats and completions, to which the other
//!    families are translated.
//! 4. [`generate`] and [`start`] validate and tokenize ([`prompts`](crate::request::prompts)), match each prompt once and plan the answer
//!    ([`plan`](crate::selection::plan)). A miss is an error or made-up tokens ([`select`](crate::selection::select)).
//! 5. [`respond`] sends each event at its deadline, or the whole body at the last one ([`delivery`](replay::delivery)).
//!
//! No step but the first forwards or records.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::{FromRequest, Request, State},
    response::Response,
};
use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, Method, uri::PathAndQuery};
use http_body::Frame;
use tokio::time::Instant;
use tower::Service;

use crate::{
    HandlerState, Player, ServerState,
    answer::{
        AnswerStream,
        collect::{Collected, collect},
    },
    dialect::{Dialect, VllmVersion},
    endpoints,
    faults::PromptTokens,
    http::{ErrorResponse, REQUEST_ID, error, events, header_text},
    load::account::TraceSession,
    middleware::Intercept,
    recorded::{
        self, RecordedRequestFields,
        errors::{RefusedRequest, errors_of},
        responses::RequestKey,
    },
    request::{
        admission::Hold,
        admitted::ValidatedRequest,
        blocking::off_the_loop,
        budget::held_json,
        extract::{JsonBody, clock, rank_of},
        prompts::{cached_or_validated, validated},
    },
    selection::{
        plan::{AnswerPlan, PlannedAnswer, RequestOrigin, planned},
        query::RequestRecords,
    },
};
use api::{
    Api, ApiError, CacheUse, GenerationRequest,
    answers::{FromChat, ResponseForm},
};
use base::stats::StreamClass;
use net::server::BodyError;
use replay::delivery::{Clock, Wait, stream_of};

#[derive(Debug, Clone)]
pub(crate) struct RecordedResponses(pub(crate) Arc<ServerState>);

impl Intercept for RecordedResponses {
    fn takes(&self, request: &Request) -> bool {
        let path = request.uri().path();
        *request.method() == Method::POST
            && self.0.replay.as_ref().is_some_and(|replay| replay.recordings.has(path))
            && !endpoints::is_redirected(request.extensions())
    }

    async fn respond<S>(self, request: Request, inner: S) -> Response
    where
        S: Service<Request, Response = Response, Error = Infallible, Future: Send> + Send,
    {
        recorded::answer(&self.0, request, inner).await.unwrap_or_else(|refused| error(&refused))
    }
}

/// A request that came in.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The session of the trace whose records it consumes; `None` for the default one.
    pub(crate) session: Option<Arc<TraceSession>>,
    /// What is found by the request.
    pub(crate) recorded: RequestRecords,
    /// When its body was complete: the zero of every deadline.
    pub(crate) at: Instant,
    pub(crate) clock: Clock,
}

impl FromRequest<Player> for Arrival {
    type Rejection = ErrorResponse;

    async fn from_request(request: Request, player: &Player) -> Result<Self, ErrorResponse> {
        let state = &player.state;
        let session = state.session(request.extensions(), request.headers())?;
        let clock = clock(request.extensions())?;
        let target = request.uri().path_and_query().map_or("/", PathAndQuery::as_str).to_owned();
        let key = request.extensions().get::<RequestKey>().cloned();
        let JsonBody { headers, bytes } = JsonBody::from_request(request, player).await?;
        let at = Instant::now();
        let recorded = errors_of(state, key, target, &bytes).await?;
        Ok(Self { headers, body: bytes, session, recorded, at, clock })
    }
}

impl Arrival {
    /// The error of a request that this server refuses before it looks for a record: the recorded one of the same request,
    /// when it is due, where there is one.
    async fn refused(self, state: &ServerState, error: ApiError) -> ApiError {
        let (size, body) = (self.body.len(), self.body.clone());
        let in_body =
            off_the_loop(size, move || Ok(RecordedRequestFields::read(&body).request_id)).await.unwrap_or_default();
        let request = RefusedRequest {
            error,
            request_id: header_text(&self.headers, REQUEST_ID).or(in_body.as_deref()),
            session: self.session.as_deref(),
            recorded: &self.recorded,
        };
        let (error, due) = request.replayed(state);
        if due > Duration::ZERO {
            Wait::<Hold> { clock: self.clock, class: StreamClass::Whole, gate: None }.for_failure(self.at, due).await;
        }
        error
    }
}

/// An answer that is ready to be sent.
pub(crate) struct Started {
    answer: AnswerStream,
    at: Instant,
    wait: Wait<Hold>,
    keep_alive: Option<Duration>,
    dialect: &'static Dialect,
    /// True where the request asked for a stream.
    pub(crate) stream: bool,
    /// The answer's headers about its origin.
    pub(crate) headers: HeaderMap,
    /// The most output tokens that the last prompt leaves room for.
    pub(crate) max_tokens: u32,
    pub(crate) cached: CacheUse,
}

/// `/v1/chat/completions` and `/v1/completions`.
pub(crate) async fn generate(
    State(state): HandlerState,
    arrival: Arrival,
    api: Api,
) -> Result<Response, ErrorResponse> {
    let validated = match cached_or_validated(&state, api, arrival.body.clone()).await {
        Ok(validated) => validated,
        Err(refused) => return Err(arrival.refused(&state, refused).await.into()),
    };
    Ok(respond(begin(&state, arrival, validated).await?).await?)
}

/// Sends an answer in the words of its own family.
/// Errors: 500 where the record ended in a failure of the engine.
pub(crate) async fn respond(started: Started) -> Result<Response, ApiError> {
    let extra = started.headers.clone();
    let dialect = started.dialect;
    if started.stream {
        let prompt = PromptTokens(started.answer.prompt_tokens());
        let mut response = events(started.into_events(|event| Frame::data(dialect.event(event))), extra);
        response.extensions_mut().insert(prompt);
        Ok(response)
    } else {
        let Collected { text, memory } = started.into_body().await?;
        Ok(held_json(dialect.body(text), memory, extra))
    }
}

/// Reads a request of any family, matches it once and makes its answer ready. `read` gives the generation request and
/// whatever else its family needs to know later.
/// Errors: everything that the engine refuses before the first byte, and a miss where those are errors.
pub(crate) async fn start<T: Send + 'static>(
    state: &Arc<ServerState>,
    arrival: Arrival,
    read: impl FnOnce(&ServerState, &[u8]) -> Result<(GenerationRequest, T), ApiError> + Send + 'static,
) -> Result<(Started, T), ApiError> {
    let validated = validated(state, arrival.body.clone(), read).await;
    let (validated, rest) = match validated.and_then(|(validated, rest)| Ok((validated.begun()?, rest))) {
        Ok(validated) => validated,
        Err(refused) => return Err(arrival.refused(state, refused).await),
    };
    Ok((begin(state, arrival, validated).await?, rest))
}

/// Matches a request once and makes its answer ready.
async fn begin(state: &Arc<ServerState>, arrival: Arrival, validated: ValidatedRequest) -> Result<Started, ApiError> {
    let Arrival { headers, session, recorded, at, clock, .. } = arrival;
    let ValidatedRequest { request, prompts, refused } = validated;
    let session_id = header_text(&headers, "x-session-id").map(str::to_owned);
    let rank = rank_of(&headers).filter(|_| !request.is_response());
    let request_id = header_text(&headers, REQUEST_ID).map(str::to_owned).or_else(|| request.request_id.clone());
    let (stream, choices_before, wants_values) = (request.stream, 0, false);
    let from =
        RequestOrigin { request_id, session_id, rank, session, recorded, at, choices_before, wants_values, refused };
    let planned = match planned(state, request, prompts, from).await? {
        AnswerPlan::Answer(planned) | AnswerPlan::Refused(_, planned) => *planned,
        AnswerPlan::Failure { error, due, id } => {
            let wait = Wait { clock, class: StreamClass::Whole, gate: state.hold(id, 1) };
            wait.for_failure(at, due).await;
            return Err(*error);
        }
    };
    let PlannedAnswer { answer, class, id, headers, max_tokens, cached } = planned;
    let keep_alive = state.config.server.keep_alive;
    let class = if stream { class } else { StreamClass::Whole };
    // What has no choices is refused, and never gets into the engine.
    let gate = Some(answer.choices()).filter(|choices| *choices > 0).and_then(|choices| state.hold(id, choices));
    let wait = Wait { clock, class, gate };
    let dialect = state.config.vllm_version.dialect();
    Ok(Started { answer, at, wait, keep_alive, dialect, stream, headers, max_tokens, cached })
}

impl Started {
    /// The response in another family's form. It has no keep-alive comments, and one form in every version.
    pub(crate) fn in_family(mut self, to: impl FromChat + 'static) -> Self {
        self.keep_alive = None;
        self.in_form(ResponseForm::FromChat(Box::new(to)))
    }

    /// The response in another form, which is the same in every version.
    pub(crate) fn in_form(mut self, form: ResponseForm) -> Self {
        self.answer.set_form(form);
        self.dialect = VllmVersion::default().dialect();
        self
    }

    /// The events of the answer in the shape that is wanted, each at its deadline, and an error where the recorded stream broke off. Dropping the
    /// stream, as when the client leaves, frees everything.
    pub(crate) fn into_events<T>(
        self,
        shape: impl Fn(Bytes) -> T + Send + 'static,
    ) -> impl Stream<Item = Result<T, BodyError>> + Send + 'static {
        stream_of(self.answer, self.at, self.wait, self.keep_alive, shape)
    }

    /// The body of an answer that is no stream, at the deadline of its last token.
    pub(crate) async fn into_body(self) -> Result<Collected, ApiError> {
        collect(self.answer, self.at, self.wait).await
    }
}
