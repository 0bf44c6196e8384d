//! Servers over stdio behind the tap's address: `tap --mcp-stdio`.

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use super::{
    PROGRAM, SERVER, Shelf,
    wire::{call, engine, send},
};
use crate::support::{
    client::{self, Request},
    peer::Upstream,
    running::Running,
};

async fn start(tape: &Shelf, shop: &Shelf) -> (Running, Upstream) {
    let llm = engine().await;
    let server = format!("shop='{PROGRAM}' mcp-play --cassette \"{}\"", shop.name());
    (tape.tap(&llm, &["--mcp-stdio", &server]), llm)
}

async fn open(tap: &Running) -> String {
    let params =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "agent", "version": "9"}});
    let opened = call(tap.address, None, &json!(0), "initialize", &params).await;
    assert!(opened.text().contains("\"name\":\"shop\""), "{}", opened.text());
    opened.header("mcp-session-id").unwrap().to_owned()
}

/// Posts a message, or listens, and reads until it has come.
async fn until(
    tap: &Running,
    method: &str,
    session: &str,
    body: &Value,
    wanted: &str,
) -> (tokio::net::TcpStream, Value) {
    let headers = vec![("accept", "application/json, text/event-stream"), ("mcp-session-id", session)];
    let body = if method == "GET" { Vec::new() } else { body.to_string().into_bytes() };
    let mut stream = client::open(tap.address, &Request { method, path: "/mcp/shop", headers, body }).await;
    let seen = read_until(&mut stream, wanted).await;
    let messages = seen.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let id = messages.filter(|message| message["method"] == wanted).map(|message| message["id"].clone()).next();
    (stream, id.unwrap_or_default())
}

async fn read_until(stream: &mut tokio::net::TcpStream, wanted: &str) -> String {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(wanted) {
        assert!(stream.read_buf(&mut seen).await.unwrap() > 0, "{wanted}: {}", String::from_utf8_lossy(&seen));
    }
    String::from_utf8_lossy(&seen).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_over_stdio_is_one_over_http() {
    let (tape, shop) = (Shelf::empty(), Shelf::with(SERVER));
    let (tap, _llm) = start(&tape, &shop).await;
    let session = open(&tap).await;
    let (address, of) = (tap.address, Some(session.as_str()));
    assert_eq!(
        send(address, "POST", of, r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await.status,
        202
    );
    let (mut listening, roots_id) = until(&tap, "GET", &session, &Value::Null, "roots/list").await;
    let roots = json!({"jsonrpc": "2.0", "id": roots_id, "result": {"roots": [{"uri": "file:///a"}]}});
    assert_eq!(send(address, "POST", of, &roots.to_string()).await.status, 202);
    let list = call(address, of, &json!("x"), "tools/list", &json!({})).await;
    assert!(
        list.text().starts_with("event: message\ndata: {") && list.text().contains("\"id\":\"x\""),
        "{}",
        list.text()
    );
    let params = json!({"name": "buy", "arguments": {"what": "tea", "many": 2}, "_meta": {"progressToken": "t"}});
    let buy = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
    let (mut buying, sure_id) = until(&tap, "POST", &session, &buy, "elicitation/create").await;
    let reply = json!({"jsonrpc": "2.0", "id": sure_id, "result": {"action": "accept", "content": {"sure": true}}});
    assert_eq!(send(address, "POST", of, &reply.to_string()).await.status, 202);
    read_until(&mut buying, "bought").await;
    read_until(&mut listening, "list_changed").await;
    assert_eq!(send(address, "DELETE", of, "").await.status, 200);
    assert_eq!(call(address, of, &json!(8), "tools/list", &json!({})).await.status, 404);
    let (code, notes) = tap.stop();
    assert!(code == 0 && notes.contains("of which 4 with MCP servers\n"), "{notes}");
    let text = tape.text();
    let places: Vec<usize> = [
        "initialize",
        "roots/list",
        "file:///a",
        "tools/list",
        "progress",
        "elicitation/create",
        "sure: true",
        "bought",
        "list_changed",
    ]
    .iter()
    .map(|part| text.find(part).unwrap_or_else(|| panic!("{part}\n{text}")))
    .collect();
    assert!(places.is_sorted(), "{places:?}\n{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_18_sessions_have_processes_of_their_own() {
    let (tape, shop) = (Shelf::empty(), Shelf::with(SERVER));
    let (tap, _llm) = start(&tape, &shop).await;
    let (one, other) = (open(&tap).await, open(&tap).await);
    assert_ne!(one, other);
    for expected in [1, 2] {
        for session in [&one, &other] {
            let list = call(tap.address, Some(session), &json!(1), "tools/list", &json!({})).await;
            assert_eq!(list.text().matches("\"name\":").count(), expected, "{}", list.text());
        }
    }
    // A client that takes no events gets the answer alone.
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "sell", "arguments": {"what": "tea"}}});
    let headers = vec![("accept", "application/json"), ("mcp-session-id", one.as_str())];
    let request = Request { method: "POST", path: "/mcp/shop", headers, body: body.to_string().into_bytes() };
    assert_eq!(client::send(tap.address, &request).await.json()["error"]["message"], "Nothing to sell");
    tap.stop();
    assert_eq!(tape.text().matches("method: initialize").count(), 2, "{}", tape.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_process_can_answer_is_refused() {
    let (tape, shop) = (Shelf::empty(), Shelf::with(SERVER));
    let (tap, _llm) = start(&tape, &shop).await;
    let meta = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}});
    let modern = call(tap.address, None, &json!(1), "server/discover", &meta).await;
    assert_eq!((modern.status, &modern.json()["error"]["code"]), (400, &json!(-32022)));
    assert_eq!(modern.json()["error"]["data"]["supported"][0], "2025-11-25");
    for (method, session, body, status) in [
        ("POST", None, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}", 400),
        ("POST", None, "{", 400),
        ("POST", Some("unknown"), "{}", 404),
        ("GET", Some("unknown"), "", 404),
        ("DELETE", None, "", 400),
        ("PUT", None, "{}", 405),
    ] {
        assert_eq!(send(tap.address, method, session, body).await.status, status, "{method} {session:?} {body}");
    }
    let session = open(&tap).await;
    assert_eq!(send(tap.address, "POST", Some(&session), "[]").await.status, 400);
    tap.stop();
    let missing = Shelf::empty();
    let llm = engine().await;
    let tap = missing.tap(&llm, &["--mcp-stdio", "shop=/no/such/program"]);
    let refused = call(tap.address, None, &json!(1), "initialize", &json!({})).await;
    assert!(refused.status == 502 && refused.text().contains("cannot be started"), "{}", refused.text());
    tap.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn case_16_a_process_that_crashes_ends_its_session_only() {
    let script = r#"read line; echo noise; echo '{"jsonrpc":"2.0","id":0,"result":{"serverInfo":{"name":"shop"}}}'; read line; kill -9 $$"#;
    let (tape, llm) = (Shelf::empty(), engine().await);
    let tap = tape.tap(&llm, &["--mcp-stdio", &format!("shop=sh -c '{}'", script.replace('\'', r"'\''"))]);
    for _ in 0..2 {
        let opened = call(tap.address, None, &json!(0), "initialize", &json!({})).await;
        let session = opened.header("mcp-session-id").unwrap().to_owned();
        let crashed = call(tap.address, Some(&session), &json!(1), "tools/call", &json!({"name": "buy"})).await;
        assert_eq!((crashed.status, crashed.text().as_str()), (200, ""), "its stream ends");
        let gone = call(tap.address, Some(&session), &json!(2), "tools/list", &json!({})).await;
        assert_eq!(gone.status, 404);
    }
    let (code, notes) = tap.stop();
    assert!(code == 0 && notes.contains("of which 4 with MCP servers\n"), "{notes}");
    assert_eq!(tape.text().matches("fault: reset").count(), 2, "{}", tape.text());
}
