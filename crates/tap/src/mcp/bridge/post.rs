//! Posting of messages, and the outcome of the responses.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header, uri::PathAndQuery};
use serde_json::{Value, json};
use tokio::sync::{mpsc::Sender as Queue, watch};

use super::{
    headers::{self, Annotated},
    message::OutgoingMessage,
};
use crate::mcp::as_line;
use base::lock::Lock;
use net::server::{NotWhole, media_type, receive_whole};
use net::upstream::{EndpointUrl, OutgoingBody, Upstream, UpstreamBody, UpstreamError};
use replay::mcp::MOST_BYTES;
use replay::mcp_traffic::SESSION;

/// Code of errors that HTTP, and no server, is the reason of (JSON-RPC's internal error).
pub(super) const INTERNAL: i64 = -32603;

/// Code that the official SDK has for a session that is gone.
const SESSION_GONE: i64 = 32600;

/// A line for the client.
#[derive(Debug)]
pub(super) struct ClientLine {
    pub(super) bytes: Vec<u8>,
    /// It is the bridge's own error, and no message of the server.
    pub(super) is_own: bool,
}

pub(super) type PostResponse = Response<UpstreamBody>;

#[derive(Debug)]
pub(super) struct Post {
    upstream: Upstream,
    target: PathAndQuery,
    headers: Vec<(HeaderName, HeaderValue)>,
    queue: Queue<ClientLine>,
    state: Lock<BridgeSession>,
    closed: watch::Sender<bool>,
}

#[derive(Debug, Clone, Default)]
struct BridgeSession {
    session: Option<HeaderValue>,
    /// The negotiated revision, in the legacy era.
    version: Option<HeaderValue>,
    /// The revision of the last request, in the modern era.
    modern: Option<String>,
    annotated: Annotated,
}

impl Post {
    pub(super) fn new(
        upstream: Upstream,
        url: &EndpointUrl,
        headers: Vec<(HeaderName, HeaderValue)>,
        queue: Queue<ClientLine>,
    ) -> Self {
        let target = url.target("", None);
        Self { upstream, target, headers, queue, state: Lock::default(), closed: watch::Sender::default() }
    }

    /// Whether a message belongs to a connection of the modern era.
    pub(super) fn is_modern(&self, outgoing: &OutgoingMessage) -> bool {
        outgoing.version().is_some() || self.state.lock().modern.is_some()
    }

    /// Ends the stream of what belongs to no request.
    pub(super) fn close(&self) {
        self.closed.send_replace(true);
    }

    pub(super) async fn until_closed(&self) {
        let mut closed = self.closed.subscribe();
        drop(closed.wait_for(|is_closed| *is_closed).await);
    }

    /// Posts a message and passes on what comes back, to its end.
    pub(super) async fn send(&self, outgoing: OutgoingMessage) {
        let request = self.request(&outgoing);
        let sent = self.upstream.send(request).await;
        match sent {
            Ok(response) => self.answered(&outgoing, response).await,
            Err(error) => self.unanswered(&outgoing, &error).await,
        }
    }

    pub(super) async fn delete(&self) {
        if self.state.lock().session.is_some() {
            let _any = self.upstream.send(self.bare(Method::DELETE)).await;
        }
    }

    /// Asks for the stream of what belongs to no request, after the event with this id.
    pub(super) async fn get(&self, after: Option<&[u8]>) -> Result<PostResponse, UpstreamError> {
        let mut request = self.bare(Method::GET);
        request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(after) = after.and_then(|after| HeaderValue::from_bytes(after).ok()) {
            request.headers_mut().insert("last-event-id", after);
        }
        self.upstream.send(request).await
    }

    /// A request without a body in the session.
    fn bare(&self, method: Method) -> Request<OutgoingBody> {
        let mut request = Request::new(OutgoingBody::whole(Bytes::new()));
        *request.method_mut() = method;
        *request.uri_mut() = self.target.clone().into();
        let BridgeSession { session, version, .. } = self.state.lock().clone();
        let headers = request.headers_mut();
        session.map(|session| headers.insert(SESSION, session));
        version.map(|version| headers.insert("mcp-protocol-version", version));
        headers.extend(self.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
        request
    }

    fn request(&self, outgoing: &OutgoingMessage) -> Request<OutgoingBody> {
        if let Some(version) = outgoing.version() {
            self.state.lock().modern = Some(version.to_owned());
        }
        if outgoing.opens_session() {
            // It starts again.
            *self.state.lock() = BridgeSession::default();
        }
        let mut request = self.bare(Method::POST);
        *request.body_mut() = OutgoingBody::whole(Bytes::copy_from_slice(&outgoing.line));
        let (modern, annotated) = {
            let state = self.state.lock();
            (state.modern.clone(), state.annotated.clone())
        };
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        if let Some(version) = modern {
            headers::add(headers, outgoing, &version, &annotated);
        }
        request
    }

    async fn answered(&self, outgoing: &OutgoingMessage, response: PostResponse) {
        let status = response.status();
        let Some(id) = outgoing.id.as_deref() else {
            if !status.is_success() {
                tracing::warn!(%status, "the server refused a message of the client");
            }
            return;
        };
        self.keep_session(outgoing, response.headers());
        if media_type(response.headers()) == "text/event-stream" && status.is_success() {
            return self.stream(outgoing, response.into_body()).await;
        }
        let body = match receive_whole(response.into_body(), MOST_BYTES).await {
            Ok(body) => body,
            Err(why) => {
                let why = match why {
                    NotWhole::TooLarge => "the answer is too large",
                    NotWhole::BrokeOff => "the server broke off in the middle of its answer",
                };
                return self.fail(id, INTERNAL, why, status).await;
            }
        };
        let read: Option<Value> = serde_json::from_slice(&body).ok();
        let is_answer = read.as_ref().is_some_and(|body| has_id(body, id) || body.is_array());
        if is_answer {
            self.learn(outgoing, read.as_ref());
            return self.pass(body.to_vec()).await;
        }
        let has_session = self.state.lock().session.is_some();
        match read.as_ref().and_then(|body| body.get("error")).filter(|error| error.is_object()) {
            _ if status == StatusCode::NOT_FOUND && has_session => {
                self.state.lock().session = None;
                self.fail(id, SESSION_GONE, "the session is gone; start again with initialize", status).await;
            }
            Some(error) => self.line(id, &json!({"error": error})).await,
            None => self.fail(id, INTERNAL, "the server did not answer with a message of MCP", status).await,
        }
    }

    async fn unanswered(&self, outgoing: &OutgoingMessage, error: &UpstreamError) {
        let why = format!("{error}: {}", error.cause());
        match &outgoing.id {
            Some(id) => self.line(id, &json!({"error": {"code": INTERNAL, "message": why}})).await,
            None => tracing::warn!("a message of the client is lost: {why}"),
        }
    }

    /// Notes the session that a server opened.
    fn keep_session(&self, outgoing: &OutgoingMessage, headers: &HeaderMap) {
        if let Some(session) = headers.get(SESSION).filter(|_| outgoing.opens_session()) {
            self.state.lock().session = Some(session.clone());
        }
    }

    /// Takes the parts of a result that concern later requests.
    pub(super) fn learn(&self, outgoing: &OutgoingMessage, answer: Option<&Value>) {
        let Some(result) = answer.and_then(|answer| answer.get("result")) else { return };
        match outgoing.method.as_deref() {
            Some("initialize") => {
                let version = result.get("protocolVersion").and_then(Value::as_str);
                self.state.lock().version = version.and_then(|version| version.parse().ok());
            }
            Some("tools/list") => self.state.lock().annotated.extend(headers::annotations(result)),
            _ => {}
        }
    }

    pub(super) async fn pass(&self, message: Vec<u8>) {
        let _client_left = self.queue.send(ClientLine { bytes: as_line(message), is_own: false }).await;
    }

    /// Answers a request with an error of the bridge's own.
    pub(super) async fn fail(&self, id: &str, code: i64, why: &str, status: StatusCode) {
        let hint = match status {
            StatusCode::UNAUTHORIZED if self.headers.is_empty() => "; give its key with --upstream-header",
            StatusCode::UNAUTHORIZED => "; the key in --upstream-header was refused",
            StatusCode::METHOD_NOT_ALLOWED => "; the transport of two endpoints (2024-11-05) is not supported",
            _ => "",
        };
        let message = format!("vllm-vcr: {why} (HTTP {}){hint}", status.as_u16());
        let data = json!({"status": status.as_u16()});
        self.line(id, &json!({"error": {"code": code, "message": message, "data": data}})).await;
    }

    async fn line(&self, id: &str, answer: &Value) {
        let answer = answer.to_string();
        let rest = answer.strip_prefix('{').unwrap_or_default();
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{rest}").into_bytes();
        let _client_left = self.queue.send(ClientLine { bytes: as_line(line), is_own: true }).await;
    }
}

/// Returns whether a message has this id, as JSON.
pub(super) fn has_id(message: &Value, id: &str) -> bool {
    message.get("id").map(Value::to_string).as_deref() == Some(id)
}
