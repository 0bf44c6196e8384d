//! What becomes of an upstream's answer: how it is passed on, and how it is looked at meanwhile.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Body;
use serde_json::json;

use super::{
    amend::Added,
    body::{Answer, BodyError, Copied, Reading, Received, Relayed, Timed},
    capabilities::Capabilities,
    event::StreamEvent,
    exchange::Exchange,
    observed_stream::ObservedStream,
    refusal::Refusal,
    restore::restore_answer,
};
use crate::{
    net::server::media_type,
    recording::capture::Capture,
    recording::trace::{Endpoint, Outcome},
};

/// The largest body of a request or a JSON answer that is looked at; a larger one passes as it comes.
const LARGEST_READ_BODY: usize = 64 << 20;

/// An answer that nothing looks at. The server writes `content-length: 0` last unless a body is there to be polled.
pub(super) fn passed(response: Response<Received>, idle: Option<Duration>) -> Response<Answer> {
    let tells_empty = response.headers().get(header::CONTENT_LENGTH).is_some_and(|length| length == "0");
    response.map(|body| if tells_empty { Answer::Empty } else { Answer::Passed(Relayed::untouched(body).within(idle)) })
}

/// An answer that is an exchange's.
pub(super) async fn recorded(
    response: Response<Received>,
    mut exchange: Exchange,
    added: Added,
    (learned, idle): (Arc<Capabilities>, Option<Duration>),
) -> Response<Answer> {
    exchange.status(response.status().as_u16());
    let is_error = response.status().is_client_error() || response.status().is_server_error();
    let refusal = is_error.then(|| Refusal::new(response.headers()));
    let generates =
        exchange.observed().is_some_and(|observed| observed.facts.endpoint.is_some_and(Endpoint::generates));
    if is_error && generates {
        exchange.forget_copy();
    } else {
        exchange.forget_request();
    }
    let readable = !response.headers().contains_key(header::CONTENT_ENCODING);
    match exchange.capture() {
        Some(capture) if readable => capture.headers(response.headers()),
        Some(capture) => capture.lose(),
        None => {}
    }
    if response.body().is_end_stream() {
        exchange.capture().into_iter().for_each(|capture| capture.body(Bytes::new()));
        exchange.unread();
        refusal.into_iter().for_each(|refusal| exchange.refused(refusal));
        exchange.end_of_answer();
        return passed(response, idle);
    }
    let (has_choices, ends_anyhow) = exchange.observed().map_or((false, true), |observed| {
        (observed.facts.has_choices(), !observed.facts.endpoint.is_some_and(Endpoint::generates))
    });
    let kind = kind(response.headers());
    // Where nothing has to be taken out of it, a body that is recorded as it came passes as it comes.
    let streams_whole = exchange.is_for_cassette() && !added.any();
    let response = response.map(|body| Relayed::untouched(body).within(idle));
    match kind {
        Kind::Events if readable => {
            exchange.streams();
            if ends_anyhow {
                exchange.unread();
            }
            response.map(|body| Answer::ObservedStream(Box::new(ObservedStream::new(body, exchange, added, learned))))
        }
        Kind::Json if readable && response.status().is_success() && has_choices && !streams_whole => {
            whole_answer(response, exchange, added).await
        }
        Kind::Json if readable && response.status().is_success() => {
            response.map(|body| Answer::Copied(Box::new(Copied::new(body, exchange, Reading::Content))))
        }
        Kind::Json | Kind::Other if readable && exchange.capture().is_some() => {
            let copied = |body| Copied::new(body, exchange, Reading::Nothing).refused_as(refusal);
            response.map(|body| Answer::Copied(Box::new(copied(body))))
        }
        Kind::Events | Kind::Json | Kind::Other => {
            exchange.unread();
            response.map(|body| Answer::Timed(Timed::new(body, exchange, refusal)))
        }
    }
}

/// A JSON answer is read whole: its ids can only be taken out, and its length told, when all of it is there. One that is
/// too long for that passes with its ids.
async fn whole_answer(response: Response<Relayed<Received>>, mut exchange: Exchange, added: Added) -> Response<Answer> {
    let (mut parts, body) = response.into_parts();
    let (body, trailers) = match gather(body).await {
        Gathered::Whole(body, trailers) => (body, trailers),
        Gathered::TooLarge(body) => {
            exchange.unread();
            exchange.capture().into_iter().for_each(Capture::lose);
            return Response::from_parts(parts, Answer::Timed(Timed::new(body, exchange, None)));
        }
        Gathered::Broken(BodyError::Idle(limit)) => {
            exchange.end(Outcome::TimedOut);
            return refusal(StatusCode::GATEWAY_TIMEOUT, &format!("the upstream's answer paused for {limit:?}"));
        }
        Gathered::Broken(BodyError::Broken(_) | BodyError::Played(_)) => {
            exchange.end(Outcome::UpstreamFailed);
            return refusal(StatusCode::BAD_GATEWAY, "the upstream broke off in the middle of its answer");
        }
    };
    let at = exchange.elapsed();
    let parsed = StreamEvent::read(&body);
    if let (Some(parsed), Some(observed)) = (&parsed, exchange.observed()) {
        observed.saw_answer(parsed, at);
    }
    let restored = parsed.as_ref().filter(|_| added.any()).and_then(|parsed| restore_answer(&body, parsed, &added));
    drop(parsed);
    let body = restored.map_or(body, |restored| {
        let restored = Bytes::from(restored);
        tell_length(&mut parts.headers, &restored);
        restored
    });
    exchange.capture().into_iter().for_each(|capture| capture.body(body.clone()));
    exchange.end_of_answer();
    Response::from_parts(parts, Answer::Passed(Relayed::whole(body).with_trailers(trailers)))
}

enum Kind {
    Events,
    Json,
    Other,
}

fn kind(headers: &HeaderMap) -> Kind {
    match media_type(headers) {
        "text/event-stream" => Kind::Events,
        "application/json" => Kind::Json,
        _ => Kind::Other,
    }
}

/// A body that was received.
pub(super) enum Gathered<R> {
    /// All of it, and its trailers.
    Whole(Bytes, Option<Box<HeaderMap>>),
    /// It is over the limit: its beginning, then the rest as it comes.
    TooLarge(Relayed<R>),
    Broken(BodyError),
}

/// Receives a body, up to the limit.
pub(super) async fn gather<R>(mut body: Relayed<R>) -> Gathered<R>
where
    R: Body<Data = Bytes, Error: Into<BodyError>> + Unpin,
{
    if body.size_hint().lower() > LARGEST_READ_BODY as u64 {
        return Gathered::TooLarge(body);
    }
    let (mut gathered, mut trailers) = (BytesMut::new(), None);
    while let Some(frame) = body.frame().await {
        let data = match frame.map(http_body::Frame::into_data) {
            Ok(Ok(data)) => data,
            Ok(Err(other)) => {
                trailers = other.into_trailers().ok().map(Box::new);
                continue;
            }
            Err(error) => return Gathered::Broken(error),
        };
        if gathered.is_empty() && body.is_end_stream() {
            return Gathered::Whole(data, None);
        }
        gathered.extend_from_slice(&data);
        if gathered.len() > LARGEST_READ_BODY {
            return Gathered::TooLarge(Relayed::resumed(gathered.freeze(), body));
        }
    }
    Gathered::Whole(gathered.freeze(), trailers)
}

/// Corrects the length where one is told, in its place among the headers.
pub(super) fn tell_length(headers: &mut HeaderMap, body: &Bytes) {
    if let Some(length) = headers.get_mut(header::CONTENT_LENGTH) {
        *length = body.len().into();
    }
}

/// What a client gets whose request's body did not arrive whole; nothing more can come over its connection.
pub(super) fn broken_off(error: &BodyError) -> Response<Answer> {
    let mut response = match error {
        BodyError::Idle(limit) => {
            refusal(StatusCode::REQUEST_TIMEOUT, &format!("the request's body paused for {limit:?}"))
        }
        BodyError::Broken(_) | BodyError::Played(_) => {
            refusal(StatusCode::BAD_REQUEST, "the request's body ended early")
        }
    };
    response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    response
}

/// An answer of the tap's own, in the shape of the engine's errors.
pub(super) fn refusal(status: StatusCode, message: &str) -> Response<Answer> {
    let body = json!({"error": {"message": message, "type": "UpstreamError", "param": null, "code": status.as_u16()}});
    let mut response = Response::new(Answer::Passed(Relayed::whole(Bytes::from(body.to_string()))));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
