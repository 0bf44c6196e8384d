//! The tap that is a client of an HTTP server: `mcp-tap --url`.

use serde_json::{Value, json};

use super::{
    Server, Shelf, open,
    wire::{ACCEPTED, events, method, posted, server, shop, whole},
};
use crate::support::peer::{End, Script, Upstream};

fn start(shelf: &Shelf, behind: &Upstream, flags: &[&str]) -> Server {
    let url = format!("http://{}/deep/mcp?key=k", behind.address);
    let fixed = ["mcp-tap", "--cassette", shelf.name(), "--name", "shop", "--url", &url];
    Server::start(&[&fixed[..], flags].concat())
}

fn requests(behind: &Upstream) -> Vec<String> {
    behind.requests.lock().unwrap().iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
}

fn buy(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": {"name": "buy", "arguments": {"what": "tea"}, "_meta": {"progressToken": "t"}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_over_http_is_lines_over_stdio() {
    let (behind, shelf) = (server(shop).await, Shelf::empty());
    let mut tap = start(&shelf, &behind, &["--upstream-header", "Authorization: Bearer made-up-t0ken"]);
    assert_eq!(open(&mut tap, "2025-06-18", "agent")["result"]["serverInfo"]["name"], "shop");
    // The stream of a GET is opened after that.
    assert_eq!(tap.next()["method"], "notifications/tools/list_changed");
    assert_eq!(tap.ask(json!(1), "tools/list", &json!({}))["result"]["tools"][0]["name"], "buy");
    tap.send(&buy(7));
    assert_eq!(tap.next()["method"], "notifications/progress");
    assert_eq!(tap.next()["id"], "q");
    assert_eq!(
        tap.next(),
        json!({"jsonrpc": "2.0", "id": 7, "result": {"content": [{"type": "text", "text": "bought é"}]}})
    );
    tap.send(&json!({"jsonrpc": "2.0", "id": "q", "result": {"action": "accept"}}));
    let (rest, code, notes) = tap.end();
    assert_eq!((rest.len(), code), (0, 0), "{notes}");
    let requests = requests(&behind);
    assert!(requests.last().unwrap().starts_with("DELETE /deep/mcp?key=k"), "{requests:?}");
    assert!(!requests[0].contains("mcp-session-id"), "{requests:?}");
    for request in &requests[1..] {
        for part in [
            "mcp-session-id: s-1\r\n",
            "mcp-protocol-version: 2025-06-18\r\n",
            "authorization: Bearer made-up-t0ken\r\n",
        ] {
            assert!(request.contains(part), "{part}: {request}");
        }
    }
    assert!(requests.iter().filter(|request| request.starts_with("POST")).all(|request| {
        request.contains("accept: application/json, text/event-stream\r\n")
            && request.contains("content-type: application/json\r\n")
    }));
    let text = shelf.text();
    assert!(text.contains("at: tool:shop/buy") && text.contains("action: accept") && !text.contains("t0ken"), "{text}");
    let mut play = Server::play(&shelf, &[]);
    assert_eq!(open(&mut play, "2025-06-18", "agent")["result"]["serverInfo"]["name"], "shop");
    assert_eq!(play.next()["method"], "notifications/tools/list_changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_http_refuses_is_an_error_of_the_request() {
    let behind = server(|request| match posted(request)["method"].as_str().unwrap_or_default() {
        "initialize" => whole(
            "200 OK",
            "mcp-session-id: s\r\n",
            r#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18"}}"#,
        ),
        "locked" => whole("401 Unauthorized", "", "{\"error\":\"no\"}"),
        "foreign" => whole(
            "400 Bad Request",
            "",
            r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32020,"message":"mismatch"}}"#,
        ),
        "unknown" => {
            whole("404 Not Found", "", r#"{"jsonrpc":"2.0","id":3,"error":{"code":-32601,"message":"no method"}}"#)
        }
        "gone" => whole("404 Not Found", "", ""),
        _ if method(request) == "GET" => whole("405 Method Not Allowed", "", ""),
        _ => Script { pieces: vec![ACCEPTED.to_vec()], end: End::KeepAlive },
    })
    .await;
    let shelf = Shelf::empty();
    let mut tap = start(&shelf, &behind, &[]);
    open(&mut tap, "2025-06-18", "agent");
    let locked = tap.ask(json!(1), "locked", &json!({}));
    assert_eq!((&locked["id"], &locked["error"]["data"]["status"]), (&json!(1), &json!(401)));
    assert!(locked["error"]["message"].as_str().unwrap().contains("give its key with --upstream-header"), "{locked}");
    let mut keyed = start(&Shelf::empty(), &behind, &["--upstream-header", "Authorization: Bearer made-up-t0ken"]);
    let refused = keyed.ask(json!(1), "locked", &json!({}))["error"]["message"].to_string();
    assert!(refused.contains("the key in --upstream-header was refused"), "{refused}");
    let foreign = tap.ask(json!("2"), "foreign", &json!({}));
    assert_eq!((&foreign["id"], &foreign["error"]), (&json!("2"), &json!({"code": -32020, "message": "mismatch"})));
    assert_eq!(tap.ask(json!(3), "unknown", &json!({}))["error"]["code"], -32601);
    assert_eq!(tap.ask(json!(4), "gone", &json!({}))["error"]["code"], 32600);
    // The client starts again.
    open(&mut tap, "2025-06-18", "agent");
    let (_, code, notes) = tap.end();
    assert_eq!(code, 0);
    assert_eq!(shelf.text().matches("method: initialize").count(), 2, "{}", shelf.text());
    // What the bridge says is no answer of the server, as where `tap` is in front of one.
    assert!(shelf.text().contains("no method") && notes.contains("3 messages"), "{}{notes}", shelf.text());
    for own in ["locked", "foreign", "gone"] {
        assert!(!shelf.text().contains(&format!("method: {own}")), "{own}: {}", shelf.text());
    }
    let dead = Shelf::empty();
    let mut tap = Server::start(&["mcp-tap", "--cassette", dead.name(), "--url", "http://127.0.0.1:9/mcp"]);
    let error = tap.ask(json!(1), "tools/list", &json!({}));
    assert!(
        error["error"]["code"] == -32603 && error["error"]["message"].as_str().unwrap().contains("127.0.0.1:9"),
        "{error}"
    );
    let (_, _, notes) = tap.end();
    let is_recorded = std::fs::read_to_string(dead.name()).is_ok_and(|text| text.contains("tools/list"));
    assert!(!is_recorded && notes.contains("1 message not recorded"), "{notes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_ended_early_is_resumed() {
    let behind = server(|request| {
        let resumed = String::from_utf8_lossy(request).contains("last-event-id: e-1\r\n");
        match (method(request).as_str(), resumed) {
            ("POST", _) => events("", &["id: e-1\nretry: 1\ndata:\n\n"], End::KeepAlive),
            ("GET", true) => {
                events("", &["data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"of\":\"later\"}}\n\n"], End::KeepAlive)
            }
            _ => whole("405 Method Not Allowed", "", ""),
        }
    })
    .await;
    let shelf = Shelf::empty();
    let mut tap = start(&shelf, &behind, &[]);
    assert_eq!(tap.ask(json!(1), "tools/list", &json!({}))["result"]["of"], "later");
    assert_eq!(tap.end().1, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_modern_era_has_its_headers_and_cancels_by_closing() {
    let behind = server(|request| {
        let message = posted(request);
        match message["params"]["name"].as_str() {
            Some("slow") => {
                events("", &["data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}\n\n"], End::Silence)
            }
            _ => {
                let tools =
                    json!([{"name": "buy", "inputSchema": {"properties": {"region": {"x-mcp-header": "Region"}}}}]);
                whole(
                    "200 OK",
                    "",
                    &json!({"jsonrpc": "2.0", "id": message["id"], "result": {"tools": tools}}).to_string(),
                )
            }
        }
    })
    .await;
    let shelf = Shelf::empty();
    let mut tap = start(&shelf, &behind, &[]);
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    tap.ask(json!(1), "tools/list", &json!({"_meta": meta}));
    tap.ask(json!(2), "tools/call", &json!({"name": "buy", "arguments": {"region": "eu"}, "_meta": meta}));
    assert_eq!(
        tap.ask(json!(3), "tools/call", &json!({"name": "slow", "_meta": meta}))["method"],
        "notifications/message"
    );
    tap.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}}));
    assert_eq!(tap.end().1, 0);
    let requests = requests(&behind);
    assert_eq!(requests.len(), 3, "no cancellation is posted and no session deleted: {requests:?}");
    for part in [
        "mcp-protocol-version: 2026-07-28\r\n",
        "mcp-method: tools/call\r\n",
        "mcp-name: buy\r\n",
        "mcp-param-region: eu\r\n",
    ] {
        assert!(requests[1].contains(part), "{part}: {}", requests[1]);
    }
    assert!(shelf.text().contains("aborted: 1"), "{}", shelf.text());
}
