//! HTTP responses of a server that is started.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;

use net::{
    server::{ResponseBody, whole_body},
    wire::encode_event,
};

/// A response with a message of the server, as it is.
pub(super) fn json(status: StatusCode, message: Bytes) -> Response<ResponseBody> {
    let mut response = Response::new(whole_body(message));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A response with a message of the tap's own.
pub(super) fn whole(status: StatusCode, message: &Value) -> Response<ResponseBody> {
    json(status, Bytes::from(message.to_string()))
}

/// An error that answers no request.
pub(super) fn error(status: StatusCode, code: i64, why: &str, data: Option<Value>) -> Response<ResponseBody> {
    let mut error = json!({"code": code, "message": format!("vllm-vcr: {why}")});
    if let (Some(data), Some(fields)) = (data, error.as_object_mut()) {
        fields.insert("data".to_owned(), data);
    }
    whole(status, &json!({"jsonrpc": "2.0", "id": null, "error": error}))
}

/// The answer to a message that wants none.
pub(super) fn accepted() -> Response<ResponseBody> {
    let mut response = Response::new(whole_body(Bytes::new()));
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}

pub(super) fn method_not_allowed() -> Response<ResponseBody> {
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, -32600, "use POST, GET or DELETE", None);
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST, GET, DELETE"));
    response
}

/// A stream of events, one for each message.
pub(super) fn stream(messages: Receiver<Bytes>) -> Response<ResponseBody> {
    let events = futures_util::stream::unfold(messages, |mut messages| async {
        let message = messages.recv().await?;
        let event = encode_event(Some("message"), &String::from_utf8_lossy(&message));
        Some((Ok::<_, Infallible>(Frame::data(event)), messages))
    });
    let body = StreamBody::new(events).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
