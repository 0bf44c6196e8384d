//! Servers over HTTP for tests, and what a client sends them through a tap.

use std::{io::Write, net::SocketAddr};

use serde_json::{Value, json};

use super::Shelf;
use crate::support::{
    client::{self, Answer, Request},
    peer::{End, Script, Upstream, answer},
    running::Running,
};

/// Answer of a server that accepts a message.
pub(super) const ACCEPTED: &[u8] = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";

/// A whole response of this status, with further headers.
pub(super) fn whole(status: &str, headers: &str, body: &str) -> Script {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    Script { pieces: vec![head.into_bytes(), body.as_bytes().to_vec()], end: End::KeepAlive }
}

/// A stream of events, each as one chunk, in pieces of a few bytes.
pub(super) fn events(headers: &str, events: &[&str], end: End) -> Script {
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{headers}transfer-encoding: chunked\r\n\r\n");
    let mut bytes = head.into_bytes();
    for event in events {
        write!(bytes, "{:x}\r\n{event}\r\n", event.len()).unwrap();
    }
    if end == End::KeepAlive {
        bytes.extend_from_slice(b"0\r\n\r\n");
    }
    Script { pieces: bytes.chunks(7).map(<[u8]>::to_vec).collect(), end }
}

/// The message that was posted.
pub(super) fn posted(request: &[u8]) -> Value {
    let text = String::from_utf8_lossy(request);
    text.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok()).unwrap_or_default()
}

pub(super) fn method(request: &[u8]) -> String {
    String::from_utf8_lossy(request).split(' ').next().unwrap().to_owned()
}

/// A server with every kind of message, whose session is `s-1`.
pub(super) fn shop(request: &[u8]) -> Script {
    let message = posted(request);
    let id = &message["id"];
    match (method(request).as_str(), message["method"].as_str().unwrap_or_default()) {
        ("GET", _) => events(
            "",
            &["data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n"],
            End::Silence,
        ),
        ("DELETE", _) => whole("200 OK", "", "{}"),
        (_, "initialize") => events(
            "mcp-session-id: s-1\r\n",
            &[
                "id: 1\r\ndata:\r\n\r\n",
                &format!(
                    ": hello\n\nevent: message\ndata: {{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":\ndata: {{\"protocolVersion\":\"2025-06-18\",\"capabilities\":{{\"tools\":{{}}}},\"serverInfo\":{{\"name\":\"shop\",\"version\":\"1\"}}}}}}\n\n"
                ),
            ],
            End::KeepAlive,
        ),
        (_, "tools/list") => whole(
            "200 OK",
            "",
            &format!(
                "{{\n  \"jsonrpc\": \"2.0\",\n  \"id\": {id},  \"result\": {{\"tools\": [{{\"name\": \"buy\"}}]}}}}\r\n"
            ),
        ),
        (_, "tools/call") => events(
            "",
            &[
                "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":\"t\",\"progress\":1}}\n\n",
                "data: {\"jsonrpc\":\"2.0\",\"id\":\"q\",\"method\":\"elicitation/create\",\"params\":{\"message\":\"Sure?\"}}\n\n",
                &format!(
                    "data: {{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"content\":[{{\"type\":\"text\",\"text\":\"bought é\"}}]}}}}\n\n"
                ),
            ],
            End::KeepAlive,
        ),
        _ => Script { pieces: vec![ACCEPTED.to_vec()], end: End::KeepAlive },
    }
}

/// A tap before a server at `/deep/mcp?key=k`, beside an engine that is asked for chats.
pub(super) async fn tap_before(shelf: &Shelf, behind: &Upstream, flags: &[&str]) -> (Running, Upstream) {
    let llm = engine().await;
    let url = format!("shop=http://{}/deep/mcp?key=k", behind.address);
    (shelf.tap(&llm, &[&["--mcp", &url], flags].concat()), llm)
}

/// An engine that says hello.
pub(super) async fn engine() -> Upstream {
    let said = r#"{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;
    server(|_| Script { pieces: answer("200 OK", said), end: End::KeepAlive }).await
}

pub(super) async fn server(script: impl Fn(&[u8]) -> Script + Send + Sync + 'static) -> Upstream {
    Upstream::start(script).await
}

/// Sends something to `/mcp/shop` in a session.
pub(super) async fn send(address: SocketAddr, method: &str, session: Option<&str>, body: &str) -> Answer {
    let mut headers =
        vec![("accept", "application/json, text/event-stream"), ("accept-encoding", "gzip, br"), ("x-own", "1")];
    headers.extend(session.map(|session| ("mcp-session-id", session)));
    let request = Request { method, path: "/mcp/shop", headers, body: body.as_bytes().to_vec() };
    client::send(address, &request).await
}

pub(super) async fn call(
    address: SocketAddr,
    session: Option<&str>,
    id: &Value,
    method: &str,
    params: &Value,
) -> Answer {
    let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    send(address, "POST", session, &message.to_string()).await
}
