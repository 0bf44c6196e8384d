//! Sessions with real servers: how one is opened, and what a client gets where that is not possible.

use std::time::Duration;

use axum::{body::Body, response::Response};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header, request::Parts};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{super::http::body_of_type, upstreams::RealServer};
use net::server::{ResponseBody, media_type, receive_whole};
use net::upstream::UpstreamError;
use replay::mcp::{ReadLine, error_response};
use replay::mcp_traffic::{EventData, SESSION};

/// Code of the error of a request to a real server that did not answer it.
const UNANSWERED: i64 = 50200;

/// Longest wait for a session to be opened.
const OPEN_WITHIN: Duration = Duration::from_secs(60);

/// Bytes of the answer to an `initialize` at most.
const MOST_BYTES: usize = 4 << 20;

const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// Id of the `initialize` of our own.
const OPENING: &str = "vllm-vcr-open";

#[derive(Debug, Clone, Default)]
pub(super) struct Opened {
    pub(super) is_open: bool,
    /// Its name; `None` where the server has no sessions.
    pub(super) session: Option<HeaderValue>,
    /// The negotiated revision; `None` for that of the client.
    pub(super) version: Option<HeaderValue>,
}

impl Opened {
    /// Puts session and revision into the head of a request.
    pub(super) fn put_into(&self, headers: &mut HeaderMap) {
        self.session.clone().map(|session| headers.insert(SESSION, session));
        self.version.clone().map(|version| headers.insert(VERSION, version));
    }
}

/// Reason for which there is no answer of a real server.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error("there is no such MCP server: name it with --mcp-upstream NAME=URL")]
    Unknown,
    #[error("{0}: {cause}", cause = .0.cause())]
    Unanswered(UpstreamError),
    #[error("the MCP server refused the request with HTTP {}", .0.as_u16())]
    Refused(StatusCode),
    #[error("the MCP server opens no session: {0}")]
    Closed(String),
}

impl Failed {
    /// The response to a request of this id, or to a message that wants no answer.
    pub(super) fn response(&self, server: &str, id: Option<&Value>) -> Response {
        let of_type = Some(HeaderValue::from_static("application/json"));
        let Some(id) = id else {
            let mut accepted = Response::new(Body::empty());
            *accepted.status_mut() = StatusCode::ACCEPTED;
            return accepted;
        };
        let message = format!("{server}: {self}. No record answers this request, so that it was forwarded.");
        let data = json!({"vcr": {"reason": "upstream_unreachable", "server": server}});
        let body = error_response(id.clone(), UNANSWERED, &message, Some(data)).to_string();
        body_of_type(StatusCode::OK, of_type, body.into(), HeaderMap::new())
    }
}

/// Opens a session with the parameters of a client's `initialize` and its other headers.
pub(super) async fn open(server: &RealServer, opening: &Value, headers: &HeaderMap) -> Result<Opened, Failed> {
    let in_time = timeout(OPEN_WITHIN, negotiate(server, opening, headers)).await;
    in_time.unwrap_or_else(|_| Err(Failed::Closed(format!("no answer to initialize within {OPEN_WITHIN:?}"))))
}

async fn negotiate(server: &RealServer, opening: &Value, headers: &HeaderMap) -> Result<Opened, Failed> {
    let params = if opening.is_null() { json!({}) } else { opening.clone() };
    let initialize = json!({"jsonrpc": "2.0", "id": OPENING, "method": "initialize", "params": params});
    let response = server
        .send(posted(server, headers, &Opened::default()), initialize.to_string().into())
        .await
        .map_err(Failed::Unanswered)?;
    if !response.status().is_success() {
        return Err(Failed::Refused(response.status()));
    }
    let session = response.headers().get(SESSION).cloned();
    let is_stream = media_type(response.headers()) == "text/event-stream";
    let answer = answer(response.into_body(), is_stream).await;
    let answer = answer.ok_or_else(|| Failed::Closed("initialize has no answer".to_owned()))?;
    if let Some(error) = answer.get("error") {
        let message = error.get("message").and_then(Value::as_str).unwrap_or_default();
        return Err(Failed::Closed(message.chars().take(200).collect()));
    }
    let version = answer.pointer("/result/protocolVersion").and_then(Value::as_str);
    let version = version.and_then(|version| version.parse().ok());
    let opened = Opened { is_open: true, session, version };
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let request = posted(server, headers, &opened);
    let response = server.send(request, initialized.to_string().into()).await.map_err(Failed::Unanswered)?;
    drop(receive_whole(response.into_body(), MOST_BYTES).await);
    Ok(opened)
}

/// The head of a message of our own.
fn posted(server: &RealServer, headers: &HeaderMap, opened: &Opened) -> Parts {
    let (mut parts, ()) = Request::new(()).into_parts();
    (parts.method, parts.headers) = (Method::POST, headers.clone());
    let mut parts = server.in_session(&parts, &Opened::default());
    parts.headers.remove(VERSION);
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    parts.headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    opened.put_into(&mut parts.headers);
    parts
}

async fn answer(mut body: ResponseBody, is_stream: bool) -> Option<Value> {
    let is_it = |message: &Value| message.get("id").and_then(Value::as_str) == Some(OPENING);
    if !is_stream {
        return serde_json::from_slice(&receive_whole(body, MOST_BYTES).await.ok()?).ok().filter(is_it);
    }
    let mut events = EventData::new(MOST_BYTES);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.ok()?.into_data() else { continue };
        for read_line in events.push(data) {
            let ReadLine::Line(line) = read_line else { continue };
            let message: Option<Value> = serde_json::from_slice(&line).ok().filter(is_it);
            if message.is_some() {
                return message;
            }
        }
    }
    None
}
