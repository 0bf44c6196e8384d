//! The tap before MCP servers over HTTP: what passes, and what is recorded.

use std::{net::SocketAddr, sync::Arc};

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use super::{
    Server, Shelf, open,
    wire::{call, events, posted, send, server, shop, tap_before, whole},
};
use crate::support::{
    CHAT,
    cassettes::chat,
    client::{self, Answer, Request, post},
    peer::End,
    running::Running,
};

async fn ask(tap: &Running, words: &[&str]) -> Answer {
    tap.send(CHAT, &chat(words)).await
}

const BUY: &str = r#"{"jsonrpc":"2.0",  "id":7,"method":"tools/call","params":{"name":"buy","arguments":{"b":1,"a":1e2},"_meta":{"progressToken":"t"}}}"#;

/// A whole session, and every answer that it got.
async fn session(address: SocketAddr) -> Vec<Answer> {
    let open = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"agent","version":"9"}}}"#;
    let mut answers = vec![send(address, "POST", None, open).await];
    for body in [
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#,
        BUY,
        r#"{"jsonrpc":"2.0","id":"q","result":{"action":"accept"}}"#,
    ] {
        answers.push(send(address, "POST", Some("s-1"), body).await);
    }
    answers
}

/// Reads from a stream until it has said this.
async fn listen(address: SocketAddr, session: &str, until: &str) -> String {
    let request = Request {
        method: "GET",
        path: "/mcp/shop",
        headers: vec![("accept", "text/event-stream"), ("mcp-session-id", session)],
        body: Vec::new(),
    };
    let mut stream = client::open(address, &request).await;
    let mut seen = String::new();
    let mut buffer = [0; 4096];
    // Chunks may cut any word.
    let is_size = |line: &&str| !line.is_empty() && line.chars().all(|letter| letter.is_ascii_hexdigit());
    while !seen.split("\r\n").filter(|line| !is_size(line)).collect::<String>().contains(until) {
        let count = stream.read(&mut buffer).await.unwrap();
        assert!(count > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    seen
}

fn shown(answer: &Answer) -> (u16, Vec<(String, String)>, Vec<u8>) {
    let headers = answer.headers.iter().filter(|(name, _)| !["date", "connection"].contains(&name.as_str()));
    (answer.status, headers.cloned().collect(), answer.body.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn case_1_http_passes_as_it_is() {
    let server = server(shop).await;
    let shelf = Shelf::empty();
    let (tap, _llm) =
        tap_before(&shelf, &server, &["--upstream-header", "shop=Authorization: Bearer made-up-t0ken"]).await;
    let direct = session(server.address).await;
    let before = server.requests.lock().unwrap().len();
    let through = session(tap.address).await;
    for (direct, through) in direct.iter().zip(&through) {
        assert_eq!(shown(through), shown(direct));
    }
    assert_eq!(through.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200, 202, 200, 200, 202]);
    assert_eq!(through[0].header("mcp-session-id"), Some("s-1"));
    assert!(through[3].text().find("progress").unwrap() < through[3].text().find("elicitation").unwrap());
    listen(tap.address, "s-1", "list_changed").await;
    assert_eq!(send(tap.address, "DELETE", Some("s-1"), "").await.status, 200);
    let requests: Vec<String> =
        server.requests.lock().unwrap().iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
    for (direct, through) in requests[..before].iter().zip(&requests[before..]) {
        let body = |request: &str| request.split_once("\r\n\r\n").unwrap().1.to_owned();
        assert_eq!(body(through), body(direct));
        let host = format!("\r\nhost: {}\r\n", server.address);
        for part in
            ["POST /deep/mcp?key=k HTTP/1.1", &host, "\r\nx-own: 1\r\n", "\r\nauthorization: Bearer made-up-t0ken\r\n"]
        {
            assert!(through.contains(part), "{part}: {through}");
        }
        assert!(!through.contains("accept-encoding"), "{through}");
    }
    let ends: Vec<&str> = requests.iter().rev().take(2).map(|request| request.split(' ').next().unwrap()).collect();
    assert_eq!(ends, ["DELETE", "GET"]);
    tap.stop();
    assert!(!shelf.text().contains("t0ken") && !shelf.text().contains("key=k"), "{}", shelf.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_recorded_beside_the_model() {
    let server = server(shop).await;
    let shelf = Shelf::empty();
    let (tap, _llm) = tap_before(&shelf, &server, &[]).await;
    assert_eq!(ask(&tap, &["first"]).await.status, 200);
    session(tap.address).await;
    listen(tap.address, "s-1", "list_changed").await;
    assert_eq!(ask(&tap, &["last"]).await.status, 200);
    assert_eq!(send(tap.address, "DELETE", Some("s-1"), "").await.status, 200);
    let (code, notes) = tap.stop();
    assert!(code == 0 && notes.contains("of which 4 with MCP servers\n"), "{notes}");
    assert!(notes.contains("recorded 6 interactions, of which 4 with MCP servers\n"), "{notes}");
    let play = shelf.play(&[]);
    let notes = play.stop().1;
    let served = "serving 2 records of cassettes as m\nserving 4 records of the MCP server shop at /mcp/shop\n";
    assert!(notes.contains(served), "{notes}");
    let text = shelf.text();
    let places: Vec<usize> = [
        "content: first",
        "method: initialize",
        "method: notifications/initialized",
        "method: tools/list",
        "at: tool:shop/buy",
        "method: notifications/progress",
        "method: elicitation/create",
        "action: accept",
        "bought é",
        "method: notifications/tools/list_changed",
        "content: last",
    ]
    .iter()
    .map(|part| text.find(part).unwrap_or_else(|| panic!("{part}\n{text}")))
    .collect();
    assert!(places.is_sorted(), "{places:?}\n{text}");
    assert!(!text.contains("jsonrpc"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_2_what_came_over_http_is_played_over_stdio() {
    let server = server(shop).await;
    let shelf = Shelf::empty();
    let (tap, _llm) = tap_before(&shelf, &server, &[]).await;
    session(tap.address).await;
    tap.stop();
    let mut play = Server::play(&shelf, &["--server", "shop", "--strict"]);
    assert_eq!(open(&mut play, "2025-06-18", "agent")["result"]["serverInfo"]["name"], "shop");
    assert_eq!(play.ask(json!(1), "tools/list", &json!({}))["result"]["tools"][0]["name"], "buy");
    play.send(&serde_json::from_str(BUY).unwrap());
    assert_eq!(play.next()["method"], "notifications/progress");
    let asked = play.next();
    assert_eq!(asked["method"], "elicitation/create");
    play.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}}));
    assert_eq!(play.next()["result"]["content"][0]["text"], "bought é");
    let (_, code, notes) = play.end();
    assert_eq!(code, 0, "{notes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_4_equal_ids_at_once_are_paired_by_their_exchanges() {
    // The first call is answered after the second one has come.
    let both: Arc<[tokio::sync::Notify; 2]> = Arc::default();
    let (here, there) = (Arc::clone(&both), both);
    let server = server(move |request| {
        let name = posted(request)["params"]["name"].as_str().unwrap_or_default().to_owned();
        if name == "slow" {
            there[0].notify_one();
            let waiting = there[1].notified();
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(waiting));
        }
        whole("200 OK", "", &json!({"jsonrpc": "2.0", "id": 1, "result": {"of": name}}).to_string())
    })
    .await;
    let shelf = Shelf::empty();
    let (tap, _llm) = tap_before(&shelf, &server, &[]).await;
    let of = |name: &str| json!({"name": name});
    let (slow, fast, id) = (of("slow"), of("fast"), json!(1));
    let quick = async {
        here[0].notified().await;
        let answer = call(tap.address, Some("x"), &id, "tools/call", &fast).await;
        here[1].notify_one();
        answer
    };
    let (slow, fast) = tokio::join!(call(tap.address, Some("x"), &id, "tools/call", &slow), quick);
    assert_eq!((&slow.json()["result"]["of"], &fast.json()["result"]["of"]), (&json!("slow"), &json!("fast")));
    tap.stop();
    for name in ["slow", "fast"] {
        let record = format!("at: tool:shop/{name}");
        let text = shelf.text();
        let (_, record) = text.split_once(&record).unwrap();
        assert!(record.split("at: ").next().unwrap().contains(&format!("result: {{of: {name}}}")), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_early_is_marked() {
    let progress =
        "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":1}}\n\n";
    let server = server(move |request| match posted(request)["params"]["name"].as_str() {
        Some("broken") => events("", &[progress], End::Close),
        _ => events("", &[progress], End::Silence),
    })
    .await;
    let shelf = Shelf::empty();
    let (tap, _llm) = tap_before(&shelf, &server, &[]).await;
    call(tap.address, None, &json!(1), "tools/call", &json!({"name": "broken"})).await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "left"}}).to_string();
    let request = Request { method: "POST", path: "/mcp/shop", headers: Vec::new(), body: body.into_bytes() };
    let mut stream = client::open(tap.address, &request).await;
    let mut seen = Vec::new();
    // An event counts once the tap has all of it.
    while !client::body_so_far(&seen).ends_with(b"\n\n") {
        assert!(stream.read_buf(&mut seen).await.unwrap() > 0);
    }
    drop(stream);
    tap.stop();
    let text = shelf.text();
    let of = |name: &str| {
        text.split(&format!("at: tool:shop/{name}")).nth(1).unwrap().split("at: ").next().unwrap().to_owned()
    };
    assert!(of("broken").contains("fault: reset"), "{text}");
    assert!(of("left").contains("aborted: 1"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_over_http_pass_and_are_no_answers() {
    let server = server(|request| {
        let message = posted(request);
        match message["method"].as_str().unwrap_or_default() {
            "a" => whole("401 Unauthorized", "www-authenticate: Bearer realm=x\r\n", "{\"error\":\"unauthorized\"}"),
            "b" => whole(
                "404 Not Found",
                "",
                "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,\"message\":\"no session\"}}",
            ),
            "c" => whole(
                "404 Not Found",
                "",
                "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32601,\"message\":\"no method\"}}",
            ),
            _ => whole("405 Method Not Allowed", "allow: POST\r\n", ""),
        }
    })
    .await;
    let shelf = Shelf::empty();
    let (tap, _llm) = tap_before(&shelf, &server, &[]).await;
    let unauthorized = call(tap.address, None, &json!(1), "a", &Value::Null).await;
    assert_eq!((unauthorized.status, unauthorized.header("www-authenticate")), (401, Some("Bearer realm=x")));
    assert_eq!(call(tap.address, Some("gone"), &json!(1), "b", &Value::Null).await.status, 404);
    assert_eq!(call(tap.address, None, &json!(1), "c", &Value::Null).await.status, 404);
    let get = send(tap.address, "GET", None, "").await;
    assert_eq!((get.status, get.header("allow")), (405, Some("POST")));
    let (_, notes) = tap.stop();
    assert!(notes.contains("messages to MCP servers:\n  2 messages not recorded: refused"), "{notes}");
    assert!(shelf.text().contains("method: c") && !shelf.text().contains("method: a"), "{}", shelf.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn case_19_secrets_do_not_reach_the_disk() {
    let secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD";
    let server = server(move |request| {
        let text = String::from_utf8_lossy(request).into_owned();
        let token = text.lines().find_map(|line| line.strip_prefix("authorization: Bearer ")).unwrap_or_default();
        let text = format!("{} {token} {secret}", posted(request)["params"]["arguments"]["api_key"]);
        let result = json!({"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": text}]}});
        whole("200 OK", "", &result.to_string())
    })
    .await;
    let shelf = Shelf::empty();
    let (tap, _llm) =
        tap_before(&shelf, &server, &["--upstream-header", "Authorization: Bearer words-of-a-token"]).await;
    let arguments = json!({"name": "buy", "arguments": {"api_key": "hunter2-Xy81Qz40pw", "note": secret}});
    let answer = call(tap.address, Some("s"), &json!(1), "tools/call", &arguments).await;
    assert!(
        answer.text().contains("words-of-a-token") && answer.text().contains(secret),
        "it passes: {}",
        answer.text()
    );
    let (_, notes) = tap.stop();
    let mut files = vec![notes];
    for entry in std::fs::read_dir(shelf.folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let inside = if path.is_dir() {
            std::fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()).collect()
        } else {
            vec![path]
        };
        files.extend(inside.iter().map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()));
    }
    assert!(files.iter().any(|text| text.contains("tool:shop/buy")), "{files:?}");
    for secret in [secret, "hunter2-Xy81Qz40pw", "words-of-a-token"] {
        assert!(files.iter().all(|text| !text.contains(secret)), "{secret}: {files:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_modern_era_needs_no_session() {
    let server = server(|request| {
        let message = posted(request);
        let id = &message["id"];
        let meta = json!({"io.modelcontextprotocol/subscriptionId": id});
        match message["method"].as_str().unwrap_or_default() {
            "subscriptions/listen" => events(
                "",
                &[&format!("data: {}\n\n", json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": {"_meta": meta}}))],
                End::Silence,
            ),
            method => {
                let result = json!({"resultType": "complete", "of": method});
                whole("200 OK", "", &json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string())
            }
        }
    })
    .await;
    let shelf = Shelf::empty();
    let (tap, _llm) = tap_before(&shelf, &server, &[]).await;
    let meta = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}});
    let listening = json!({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": meta}).to_string();
    let request = Request { method: "POST", path: "/mcp/shop", headers: Vec::new(), body: listening.into_bytes() };
    let mut stream = client::open(tap.address, &request).await;
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("acknowledged") {
        assert!(stream.read_buf(&mut seen).await.unwrap() > 0);
    }
    for method in ["server/discover", "tools/list"] {
        assert_eq!(call(tap.address, None, &json!(1), method, &meta).await.json()["result"]["of"], method);
    }
    drop(stream);
    let (_, notes) = tap.stop();
    assert!(notes.contains("of which 3 with MCP servers\n"), "{notes}");
    let text = shelf.text();
    let listening = text.split("method: subscriptions/listen").nth(1).unwrap().split("at: ").next().unwrap();
    assert!(listening.contains("acknowledged") && !listening.contains("resultType"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_host_calls_nothing() {
    let server = server(shop).await;
    let shelf = Shelf::empty();
    let (tap, _llm) = tap_before(&shelf, &server, &[]).await;
    let headers = vec![("origin", "http://evil.example:8001"), ("host", "evil.example:8001")];
    let request = Request { method: "POST", path: "/mcp/shop", headers, body: BUY.as_bytes().to_vec() };
    assert_eq!(client::send(tap.address, &request).await.status, 403);
    assert!(server.requests.lock().unwrap().is_empty());
    // Other names are the engine's.
    let chat = client::send(tap.address, &post("/mcp/other", &chat(&["hi"]))).await;
    assert!(chat.text().contains("hello"), "{}", chat.text());
    tap.stop();
}

#[test]
fn modes_that_only_play_refuse_a_server_that_is_not_recorded() {
    let shelf = Shelf::with(super::SERVER);
    for mode in ["once", "none"] {
        let flags = ["tap", "--upstream", "http://127.0.0.1:9", "--cassette", shelf.name(), "--mode", mode];
        let servers = ["--mcp", "shop=http://127.0.0.1:9/mcp", "--mcp-stdio", "bank=false"];
        let output = super::vcr(&[&flags[..], &servers].concat());
        let notes = String::from_utf8_lossy(&output.stderr);
        assert!(notes.contains("has no record of the MCP server bank"), "{notes}");
        assert!(
            output.status.code() == Some(2) && notes.contains("vllm-vcr play --cassette FILE --mcp-on-miss upstream"),
            "{notes}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_16_odd_bytes_pass_and_end_nothing() {
    let long = "é".repeat(600_000);
    let big = json!({"jsonrpc": "2.0", "id": 1, "result": {"text": long}}).to_string();
    let event = format!("\u{feff}: noise\rdata: {big}\r\rdata: {{\n\ndata: \u{1}\n\n");
    let deep = format!("{{\"id\":2,\"method\":\"deep\",\"params\":{{\"a\":{}}}}}", "[".repeat(100_000));
    let (sent, answer) = (event.clone(), big.clone());
    let server = server(move |request| match posted(request)["method"].as_str() {
        Some("stream") => events("", &[&event], End::KeepAlive),
        _ => whole("200 OK", "", &answer),
    })
    .await;
    let shelf = Shelf::empty();
    let (tap, _llm) = tap_before(&shelf, &server, &[]).await;
    assert_eq!(call(tap.address, None, &json!(1), "stream", &Value::Null).await.text(), sent);
    for body in [deep.as_str(), "not json", "", "\u{0}\u{1}", "[1,2]"] {
        assert_eq!(send(tap.address, "POST", None, body).await.text(), big);
    }
    let asked = json!({"name": "buy", "arguments": {"text": long}});
    assert_eq!(call(tap.address, None, &json!(1), "tools/call", &asked).await.text(), big);
    let (code, notes) = tap.stop();
    assert!(code == 0 && notes.contains("of which 2 with MCP servers\n"), "{notes}");
    let requests = server.requests.lock().unwrap();
    assert!(requests.iter().any(|request| request.ends_with(deep.as_bytes())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_names_a_second_endpoint_is_broken_before_it_does() {
    // Behind a long comment, in two pieces.
    let comment = format!(":{}\n\nevent: end", "x".repeat(5000));
    let pieces = [comment, "point\ndata: /messages?sid=s0\n\n".to_owned()];
    let server = server(move |_| events("", &pieces.each_ref().map(String::as_str), End::Silence)).await;
    let shelf = Shelf::empty();
    let (tap, _llm) = tap_before(&shelf, &server, &[]).await;
    let request = Request {
        method: "GET",
        path: "/mcp/shop",
        headers: vec![("accept", "text/event-stream"), ("connection", "close")],
        body: Vec::new(),
    };
    let mut stream = client::open(tap.address, &request).await;
    let mut seen = Vec::new();
    let _broken = stream.read_to_end(&mut seen).await;
    let seen = String::from_utf8_lossy(&seen);
    assert!(seen.starts_with("HTTP/1.1 200") && !seen.contains("/messages"), "{seen}");
    let (_, log) = tap.stop();
    assert!(log.contains("shop has the transport of two endpoints (2024-11-05)"), "{log}");
}
