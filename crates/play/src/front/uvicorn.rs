//! The engine's HTTP server in front of the endpoints: the requests that it refuses, and its answers to them.
//!
//! Limits: hyper reads some heads that uvicorn refuses (bare line feeds, a length beside chunks, which it drops) and refuses some that
//! uvicorn reads (more than 100 headers, 400 kB of them), and keeps HTTP/1.0 connections that ask for it; a body whose
//! chunks break off is answered as an error of the API.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};

use super::super::http::{ResponseBody, now, text};
use net::server::ConnectionOptions;

/// Time that a connection may be idle unless configured otherwise.
const IDLE: Duration = Duration::from_secs(5);

/// Answer to what is no request.
const INVALID: &str = "Invalid HTTP request received.";

/// Methods that its parser takes; others are invalid requests.
const METHODS: [&str; 35] = [
    "ACL",
    "BIND",
    "CHECKOUT",
    "CONNECT",
    "COPY",
    "DELETE",
    "GET",
    "HEAD",
    "LINK",
    "LOCK",
    "M-SEARCH",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MOVE",
    "NOTIFY",
    "OPTIONS",
    "PATCH",
    "POST",
    "PROPFIND",
    "PROPPATCH",
    "PURGE",
    "PUT",
    "QUERY",
    "REBIND",
    "REPORT",
    "SEARCH",
    "SOURCE",
    "SUBSCRIBE",
    "TRACE",
    "UNBIND",
    "UNLINK",
    "UNLOCK",
    "UNSUBSCRIBE",
];

/// Builds the connection options of uvicorn; `idle` replaces its keep-alive timeout.
pub(in super::super) fn connection_options(idle: Option<Duration>) -> ConnectionOptions {
    ConnectionOptions { header_timeout: idle.unwrap_or(IDLE), bad_request: Some(refusal) }
}

/// Answers without an endpoint: invalid requests, and those for a WebSocket.
pub(super) fn answer<B>(request: &Request<B>) -> Option<Response<ResponseBody>> {
    if request.version() == Version::HTTP_2 {
        return None;
    }
    if is_invalid(request) {
        return Some(closing(StatusCode::BAD_REQUEST, INVALID));
    }
    let upgrade = request.headers().get(header::UPGRADE).filter(|_| *request.method() == Method::GET)?;
    let is_websocket = upgrade.as_bytes().eq_ignore_ascii_case(b"websocket");
    is_websocket.then(|| closing(StatusCode::FORBIDDEN, ""))
}

/// Checks whether the client is of HTTP/1.0 and its connection is closed after the answer.
pub(super) fn is_old<B>(request: &Request<B>) -> bool {
    let asks = request.headers().get(header::CONNECTION).is_some_and(|requested| requested.as_bytes() != b"close");
    request.version() == Version::HTTP_10 && !asks
}

/// Adds that the connection is closed.
pub(super) fn close(response: &mut Response<ResponseBody>) {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
}

fn is_invalid<B>(request: &Request<B>) -> bool {
    let uri = request.uri();
    // `GET version` names a host, not a path.
    let has_no_path = uri.scheme().is_none() && uri.authority().is_some();
    let is_ascii = uri.path_and_query().is_none_or(|path| path.as_str().is_ascii());
    !METHODS.contains(&request.method().as_str()) || has_no_path || !is_ascii || is_chunked_twice(request.headers())
}

fn is_chunked_twice(headers: &HeaderMap) -> bool {
    let codings = headers
        .get_all(header::TRANSFER_ENCODING)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    codings.filter(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"chunked")).count() > 1
}

fn closing(status: StatusCode, body: &'static str) -> Response<ResponseBody> {
    let mut response = text(status, HeaderMap::new(), body.to_owned());
    let headers = response.headers_mut();
    if let Some(length) = headers.remove(header::CONTENT_LENGTH) {
        headers.insert(header::CONTENT_LENGTH, length);
    }
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The same as bytes, for what hyper does not take for a request.
fn refusal() -> Vec<u8> {
    let date = now().and_then(|date| date.to_str().map(str::to_owned).ok()).unwrap_or_default();
    let length = INVALID.len();
    format!(
        "HTTP/1.1 400 Bad Request\r\ndate: {date}\r\nserver: uvicorn\r\ncontent-type: text/plain; charset=utf-8\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{INVALID}"
    )
    .into_bytes()
}
