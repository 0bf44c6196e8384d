//! Requests that a cassette answers: looked for before everything else, and delivered, admitted and counted as every other.

use std::{ops::ControlFlow, sync::Arc};

use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{Method, StatusCode, request::Parts};
use http_body_util::BodyExt;
use tokio::time::Instant;

use crate::{
    endpoints,
    engine::RecordedTiming,
    http::{ErrorResponse, read_body},
    metrics::{AdmissionPermit, ResponseMetrics},
    middleware::Intercept,
    request::{
        extract::{clock, is_json},
        messages,
        prompts::{reader, validated},
        responses,
    },
    selection::plan::engine_id,
    state::ServerState,
};
use api::{Api, ApiError, Endpoint};
use net::{
    server::{BodyError, RequestBody},
    wire::body_as_utf8,
};
use replay::{
    account::{
        http::{plain, put},
        upstream_of,
    },
    delivery::Clock,
    player::{CassettePlayer, Decided, Decision, ReceivedRequest, ReplayedResponse, SemanticReplies, Unanswered},
};

#[derive(Debug, Clone)]
pub(super) struct Cassettes {
    pub(super) player: Arc<CassettePlayer>,
    pub(super) state: Arc<ServerState>,
}

impl Intercept for Cassettes {
    fn takes(&self, _: &Request) -> bool {
        true
    }

    async fn answer(self, mut request: Request) -> ControlFlow<Response, Request> {
        let clock = match clock(request.extensions()) {
            Ok(clock) => clock,
            Err(error) => return ControlFlow::Break(ErrorResponse::from(error).into_response()),
        };
        if !endpoints::is_routed(request.extensions()) {
            request.extensions_mut().insert(Unanswered);
        }
        let request = request.map(|body| RequestBody::Boxed(body.map_err(BodyError::broken).boxed_unsync()));
        let (decided, permit) = match Box::pin(self.player.receive(request)).await {
            Ok(received) => match self.admit(&received) {
                Ok(permit) => (Box::pin(received.decide()).await, permit),
                Err(busy) => {
                    let refused = refusal(busy, received.endpoint());
                    return ControlFlow::Break(in_session(refused, Some(received.session())));
                }
            },
            Err(decided) => (*decided, None),
        };
        let Decided { decision, session, cassette_player } = decided;
        let response = match decision {
            Decision::Answer(response) => response.map(Body::new),
            Decision::Replay(response) => Box::pin(self.deliver(*response, permit, clock)).await,
            Decision::Pass(request) if is_of_named_upstream(&request) => {
                plain(StatusCode::NOT_FOUND, "no record of the upstream that this request names").map(Body::new)
            }
            Decision::Pass(request) => return ControlFlow::Continue(request.map(Body::new)),
            Decision::Forward(forward) => {
                drop(permit);
                Box::pin(cassette_player.forward(*forward)).await.map(Body::new)
            }
        };
        ControlFlow::Break(in_session(response, session.as_deref()))
    }
}

/// Returns whether a request reads what an upstream with a name has: the server's own list of models is not its.
fn is_of_named_upstream<B>(request: &http::Request<B>) -> bool {
    let names_any = matches!(upstream_of(request.extensions()), Ok(Some(_)));
    names_any && request.method() == Method::GET && request.uri().path().starts_with("/v1/")
}

impl Cassettes {
    /// Takes room for the choices of a request, before a record of it is consumed.
    /// Errors: 503 where there is too little.
    fn admit(&self, received: &ReceivedRequest) -> Result<Option<AdmissionPermit>, ApiError> {
        let choices = received.choices();
        if choices == 0 {
            return Ok(None);
        }
        self.state.metrics.admit(choices, self.state.config.server.max_queued).map(Some)
    }

    /// Sends a response at its deadlines.
    async fn deliver(&self, response: ReplayedResponse, permit: Option<AdmissionPermit>, clock: Clock) -> Response {
        let state = &self.state;
        // A cassette does not have the concurrency.
        let timing = RecordedTiming { schedule: response.schedule(), arrived: response.at, concurrency: 1 };
        let metrics = match permit.zip(response.generated.as_ref()) {
            Some((permit, generated)) => state.response_metrics(permit, generated, timing),
            None => Ok(ResponseMetrics::default()),
        };
        let metrics = match metrics {
            Ok(metrics) => metrics,
            Err(busy) => return refusal(busy, response.request.endpoint),
        };
        let request = &response.request;
        let api = if request.endpoint == Endpoint::Completions { Api::Completions } else { Api::Chat };
        let id = request.id.clone().unwrap_or_else(|| state.fresh_id());
        let gate = request.is_work.then(|| state.hold(engine_id(api, &id), response.choices())).flatten();
        let keep_alive = state.config.server.keep_alive;
        response.deliver(clock, gate, keep_alive, metrics).await.map(Body::new)
    }
}

/// Semantic faults of requests that no cassette answers.
#[derive(Debug, Clone)]
pub(super) struct SemanticAnswers(pub(super) Arc<ServerState>);

impl Intercept for SemanticAnswers {
    fn takes(&self, request: &Request) -> bool {
        request.extensions().get::<SemanticReplies>().is_some()
            && *request.method() == Method::POST
            && endpoints::is_served(request.extensions())
    }

    async fn answer(self, request: Request) -> ControlFlow<Response, Request> {
        let (parts, body) = request.into_parts();
        let body = match read_body(body, self.0.config.body_limit).await {
            Ok(body) => body,
            Err(error) => return ControlFlow::Break(ErrorResponse::from(error).into_response()),
        };
        let at = Instant::now();
        match self.answer_semantic(&parts, &body, at).await {
            Some(response) => ControlFlow::Break(response),
            None => ControlFlow::Continue(Request::from_parts(parts, Body::from(body))),
        }
    }
}

impl SemanticAnswers {
    /// The answer of a semantic fault to a request that the server takes; `None` where none is applied.
    async fn answer_semantic(&self, parts: &Parts, body: &Bytes, at: Instant) -> Option<Response> {
        let replies = parts.extensions.get::<SemanticReplies>()?;
        let clock = clock(&parts.extensions).ok()?;
        if let Err(refused) = self.accepted(parts, body).await {
            replies.not_applied(&format!("the request is refused: {}", refused.message));
            return None;
        }
        let player = match self.0.semantic_player() {
            Ok(player) => player,
            Err(error) => {
                replies.not_applied(&error.to_string());
                return None;
            }
        };
        let response = player.answer_semantic(parts.clone(), body.clone(), replies, at).await?;
        let permit = self.0.metrics.admit(response.choices(), self.0.config.server.max_queued);
        let permit = match permit {
            Ok(permit) => Some(permit),
            Err(busy) => return Some(refusal(busy, response.request.endpoint)),
        };
        Some(Cassettes { player, state: Arc::clone(&self.0) }.deliver(*response, permit, clock).await)
    }

    /// Validates a request as its endpoint does.
    async fn accepted(&self, parts: &Parts, body: &Bytes) -> Result<(), ApiError> {
        let (state, body) = (&self.0, body_as_utf8(body));
        if !is_json(&parts.headers) {
            return Err(ApiError::unsupported_media_type());
        }
        let validated = match Endpoint::of_path(parts.uri.path()) {
            Endpoint::Chat => validated(state, body, reader(Api::Chat)).await?.0,
            Endpoint::Completions => validated(state, body, reader(Api::Completions)).await?.0,
            Endpoint::Messages => validated(state, body, messages::read).await?.0,
            Endpoint::Responses => {
                let (validated, (request, _)) = validated(state, body, responses::read).await?;
                if request.is_background() {
                    return Err(ApiError::bad_request("a response in the background is made by the server itself"));
                }
                validated
            }
            Endpoint::Embeddings | Endpoint::Other => return Ok(()),
        };
        validated.accepted().map(drop)
    }
}

/// A refusal in the words of the request's family.
pub(super) fn refusal(error: ApiError, endpoint: Endpoint) -> Response {
    match endpoint {
        Endpoint::Messages => messages::refusal(error).map_err(ErrorResponse::from).into_response(),
        _ => ErrorResponse::from(error).into_response(),
    }
}

fn in_session(mut response: Response, session: Option<&str>) -> Response {
    if let Some(session) = session {
        put(response.headers_mut(), "x-vcr-session", session);
    }
    response
}
