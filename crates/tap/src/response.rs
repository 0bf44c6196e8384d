//! Responses of upstreams: how each is passed on to the client and observed.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header};
use hyper::body::Body;

use super::{
    amend::Added,
    amend::update_content_length,
    body::{Copied, ProxyBody},
    capabilities::Capabilities,
    event::StreamEvent,
    exchange::OpenExchange,
    gather::{Gathered, ReceivedBody, gather},
    observed_stream::ObservedStream,
    refusal::Refusal,
    restore::restore_answer,
};
use net::{
    server::{BodyError, media_type},
    upstream::{Observed, Relayed, UpstreamBody, error_response},
};
use recording::trace::{Endpoint, Outcome};
use replay::player::Completed;

/// Passes a response on unobserved. With a body to poll, the server would write `content-length: 0` after the other headers.
pub(super) fn passed(response: Response<UpstreamBody>, idle: Option<Duration>) -> Response<ProxyBody> {
    let is_empty = response.headers().get(header::CONTENT_LENGTH).is_some_and(|length| length == "0");
    response.map(
        |body| {
            if is_empty { ProxyBody::Empty } else { ProxyBody::Passed(Relayed::untouched(body).within(idle)) }
        },
    )
}

/// Passes the response of a recorded exchange on.
pub(super) async fn recorded(
    response: Response<UpstreamBody>,
    mut exchange: OpenExchange,
    added: Added,
    capabilities: Arc<Capabilities>,
    idle: Option<Duration>,
) -> Response<ProxyBody> {
    exchange.status(response.status().as_u16());
    let is_error = response.status().is_client_error() || response.status().is_server_error();
    let refusal = is_error.then(|| Refusal::new(response.headers()));
    if is_error && generates(&exchange) {
        if !exchange.is_for_cassette() {
            exchange.observed.capture = None;
        }
    } else {
        exchange.observed.request = None;
    }
    let is_readable = !response.headers().contains_key(header::CONTENT_ENCODING);
    match exchange.capture() {
        Some(capture) if is_readable => capture.headers(response.headers()),
        Some(capture) => capture.lose(),
        None => {}
    }
    if response.body().is_end_stream() {
        end_without_body(exchange, refusal);
        return passed(response, idle);
    }
    let is_success = response.status().is_success();
    let streams = is_success && exchange.observed.facts.stream;
    let kind = if is_readable { kind(response.headers(), streams) } else { ResponseKind::Unreadable };
    let response = response.map(|body| Relayed::untouched(body).within(idle));
    match kind {
        ResponseKind::Events => response.map(|body| stream(body, exchange, added, capabilities)),
        ResponseKind::Json if is_success && is_gathered(&exchange, &added) => {
            whole_answer(response, exchange, added).await
        }
        ResponseKind::Json if is_success => response.map(|body| copied(body, Copied::new(exchange).decoded())),
        ResponseKind::Json | ResponseKind::Other if exchange.capture().is_some() => {
            response.map(|body| copied(body, Copied::new(exchange).refused_as(refusal)))
        }
        ResponseKind::Json | ResponseKind::Other | ResponseKind::Unreadable => {
            response.map(|body| copied(body, Copied::unread(exchange).refused_as(refusal)))
        }
    }
}

fn generates(exchange: &OpenExchange) -> bool {
    exchange.observed.facts.endpoint.is_some_and(Endpoint::generates)
}

/// Checks whether a successful JSON response is received whole before it is passed on. A cassette records the body as it came;
/// if nothing has to be restored, it passes piece by piece.
fn is_gathered(exchange: &OpenExchange, added: &Added) -> bool {
    exchange.observed.facts.has_choices() && (added.any() || !exchange.is_for_cassette())
}

/// Ends an exchange whose response has no body.
fn end_without_body(mut exchange: OpenExchange, refusal: Option<Refusal>) {
    if let Some(capture) = exchange.capture() {
        capture.body(Bytes::new());
    }
    exchange.observed.unread = true;
    exchange.observed.refusal = refusal;
    exchange.end_of_answer();
}

/// Builds the body of a stream of events, each observed as it passes.
fn stream(
    body: Relayed<UpstreamBody>,
    mut exchange: OpenExchange,
    added: Added,
    capabilities: Arc<Capabilities>,
) -> ProxyBody {
    exchange.observed.facts.stream = true;
    exchange.observed.unread |= !generates(&exchange);
    let completions = exchange.completions();
    let stream = ObservedStream::new(body, exchange, added, capabilities);
    ProxyBody::ObservedStream(Box::new(Completed::new(stream, completions)))
}

/// Builds a body that is recorded once it has passed.
fn copied(body: Relayed<UpstreamBody>, copied: Copied) -> ProxyBody {
    let completions = copied.completions();
    ProxyBody::Copied(Box::new(Completed::new(Observed::new(body, copied), completions)))
}

/// Receives a JSON response whole, because the ids can be taken out and `content-length` corrected only then. One over the
/// limit passes with its ids.
async fn whole_answer(
    response: Response<Relayed<UpstreamBody>>,
    mut exchange: OpenExchange,
    added: Added,
) -> Response<ProxyBody> {
    let (mut parts, body) = response.into_parts();
    let ReceivedBody { bytes, trailers } = match gather(body, &exchange.shared.bodies).await {
        Gathered::Whole(body) => body,
        Gathered::TooLarge { body, .. } => {
            if let Some(capture) = exchange.capture() {
                capture.lose();
            }
            return Response::from_parts(parts, copied(body, Copied::unread(exchange)));
        }
        Gathered::Broken(BodyError::Idle(limit)) => {
            let message = format!("the upstream's answer paused for {limit:?}");
            return refused(exchange, Outcome::TimedOut, StatusCode::GATEWAY_TIMEOUT, &message);
        }
        Gathered::Broken(BodyError::Connection(_) | BodyError::Aborted(_) | BodyError::Broken(_)) => {
            let message = "the upstream broke off in the middle of its answer";
            return refused(exchange, Outcome::UpstreamFailed, StatusCode::BAD_GATEWAY, message);
        }
    };
    let at = exchange.elapsed();
    let parsed = StreamEvent::read(&bytes);
    if let Some(parsed) = &parsed {
        exchange.observed.observe_response(parsed, at);
    }
    // It came whole, as one of another type.
    exchange.observed.unread |= parsed.is_none();
    let restored = parsed.as_ref().filter(|_| added.any()).and_then(|parsed| restore_answer(&bytes, parsed, &added));
    drop(parsed);
    let bytes = match restored {
        Some(restored) => {
            let restored = Bytes::from(restored);
            update_content_length(&mut parts.headers, restored.len());
            restored
        }
        None => bytes,
    };
    if let Some(capture) = exchange.capture() {
        capture.body(bytes.clone());
    }
    exchange.end_of_answer();
    Response::from_parts(parts, ProxyBody::Passed(Relayed::whole(bytes).with_trailers(trailers)))
}

/// Ends an exchange whose response is an error of the tap, which is what its record says too.
fn refused(mut exchange: OpenExchange, outcome: Outcome, status: StatusCode, message: &str) -> Response<ProxyBody> {
    exchange.status(status.as_u16());
    exchange.end(outcome);
    refusal(status, message)
}

enum ResponseKind {
    Events,
    Json,
    Other,
    /// The body has a content encoding.
    Unreadable,
}

/// Without a type the response is what was requested.
fn kind(headers: &HeaderMap, streams: bool) -> ResponseKind {
    match media_type(headers) {
        "" if streams => ResponseKind::Events,
        "" => ResponseKind::Json,
        "text/event-stream" => ResponseKind::Events,
        "application/json" => ResponseKind::Json,
        _ => ResponseKind::Other,
    }
}

/// Builds the error for a request whose body did not arrive whole; its connection is closed.
pub(super) fn broken_off(error: &BodyError) -> Response<ProxyBody> {
    let mut response = match error {
        BodyError::Idle(limit) => {
            refusal(StatusCode::REQUEST_TIMEOUT, &format!("the request's body paused for {limit:?}"))
        }
        BodyError::Connection(_) | BodyError::Aborted(_) | BodyError::Broken(_) => {
            refusal(StatusCode::BAD_REQUEST, "the request's body ended early")
        }
    };
    response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    response
}

/// Builds an error of the tap, in the shape of the engine's errors.
pub(super) fn refusal(status: StatusCode, message: &str) -> Response<ProxyBody> {
    error_response(status, message).map(|body| ProxyBody::Passed(Relayed::whole(body)))
}
