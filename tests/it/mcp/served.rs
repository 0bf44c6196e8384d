//! MCP servers over HTTP, beside the models of a cassette: clients of the era with sessions.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{io::AsyncReadExt, net::TcpStream, time::timeout};

use super::{SERVER, Server, Shelf, shopping};
use crate::support::{
    client::{Answer, Request, open, send},
    running::Running,
};

pub(super) const PATH: &str = "/mcp/shop";

/// The shop without anything that the server asks or announces.
pub(super) fn silent() -> String {
    let kept = |line: &&str| !line.contains("elicitation/create") && !line.contains("list_changed}");
    let text: String = SERVER.lines().filter(kept).map(|line| format!("{line}\n")).collect();
    text.replace("    events:\n    - data: {method: roots/list, reply: {result: {roots: [{uri: 'file:///a'}]}}}\n", "")
}

/// A client with a session, or without one.
pub(super) struct Client<'a> {
    pub(super) server: &'a Running,
    pub(super) path: &'a str,
    pub(super) session: Option<String>,
    pub(super) headers: Vec<(&'a str, &'a str)>,
}

impl<'a> Client<'a> {
    pub(super) fn new(server: &'a Running) -> Self {
        let headers = vec![("accept", "application/json, text/event-stream"), ("content-type", "application/json")];
        Self { server, path: PATH, session: None, headers }
    }

    /// A client that has begun a session.
    pub(super) async fn begun(server: &'a Running, version: &str) -> Self {
        Self::new(server).begin(version).await
    }

    pub(super) async fn begin(mut self, version: &str) -> Self {
        let params =
            json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "agent", "version": "9"}});
        let answer = self.ask(json!(0), "initialize", &params).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        self.session = Some(answer.header("mcp-session-id").expect("a session").to_owned());
        self
    }

    fn request(&self, method: &'a str, body: Vec<u8>) -> Request<'_> {
        let mut headers = self.headers.clone();
        headers.extend(self.session.as_deref().map(|session| ("mcp-session-id", session)));
        Request { method, path: self.path, headers, body }
    }

    pub(super) async fn method(&self, method: &'a str) -> Answer {
        send(self.server.address, &self.request(method, Vec::new())).await
    }

    pub(super) async fn post(&self, message: &Value) -> Answer {
        self.post_bytes(message.to_string().as_bytes()).await
    }

    pub(super) async fn post_bytes(&self, body: &[u8]) -> Answer {
        send(self.server.address, &self.request("POST", body.to_vec())).await
    }

    pub(super) async fn ask(&self, id: Value, method: &str, params: &Value) -> Answer {
        self.post(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await
    }

    pub(super) async fn call(&self, id: u64, tool: &str, arguments: &Value) -> Answer {
        self.ask(json!(id), "tools/call", &json!({"name": tool, "arguments": arguments})).await
    }

    /// Opens a stream, by a message or by GET.
    pub(super) async fn stream(&self, message: Option<&Value>) -> Events {
        let body = message.map(|message| message.to_string().into_bytes()).unwrap_or_default();
        let method = if message.is_some() { "POST" } else { "GET" };
        let stream = open(self.server.address, &self.request(method, body)).await;
        let mut events = Events { stream, read: Vec::new() };
        while !events.read.windows(4).any(|window| window == b"\r\n\r\n") {
            assert!(events.more().await, "the head: {}", String::from_utf8_lossy(&events.read));
        }
        let head = String::from_utf8_lossy(&events.read).to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 200") && head.contains("content-type: text/event-stream\r\n"), "{head}");
        events
    }
}

/// Events of a stream that is open.
pub(super) struct Events {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Events {
    /// Reads more; far more time than anything takes.
    async fn more(&mut self) -> bool {
        let read = timeout(Duration::from_secs(120), self.stream.read_buf(&mut self.read)).await;
        read.expect("something in time").is_ok_and(|count| count > 0)
    }

    /// The next message; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Value> {
        const START: &[u8] = b"data: ";
        loop {
            let start = self.read.windows(START.len()).position(|window| window == START);
            let end = start.and_then(|start| Some(start + self.read[start..].windows(2).position(|it| it == b"\n\n")?));
            if let Some((start, end)) = start.zip(end) {
                let message = serde_json::from_slice(&self.read[start + START.len()..end]).unwrap();
                self.read.drain(..end);
                return Some(message);
            }
            if !self.more().await {
                return None;
            }
        }
    }

    /// Whether the body ended as it should, after its last message.
    pub(super) async fn ended_well(mut self) -> bool {
        assert_eq!(self.next().await, None);
        self.read.ends_with(b"0\r\n\r\n")
    }
}

pub(super) fn code(answer: &Answer) -> i64 {
    answer.json()["error"]["code"].as_i64().unwrap_or_else(|| panic!("{}", answer.text()))
}

fn notification(method: &str) -> Value {
    json!({"jsonrpc": "2.0", "method": method})
}

#[tokio::test]
async fn case_9_10_a_session_begins_and_ends() {
    let shop = Shelf::with(&silent());
    let play = shop.play(&[]);
    let stranger = Client::new(&play);
    assert_eq!(stranger.ask(json!(1), "tools/list", &json!({})).await.status, 400);
    let unknown = Client { session: Some("unknown".to_owned()), ..Client::new(&play) };
    let refused = unknown.ask(json!(1), "tools/list", &json!({})).await;
    assert_eq!((refused.status, refused.header("content-type")), (404, Some("application/json")));
    assert_eq!((unknown.method("DELETE").await.status, stranger.method("DELETE").await.status), (404, 400));

    let client = Client::begun(&play, "2025-11-25").await;
    let session = client.session.clone().unwrap();
    assert!(session.len() >= 32 && session.bytes().all(|byte| (0x21..=0x7e).contains(&byte)), "{session}");
    let accepted = client.post(&notification("notifications/initialized")).await;
    assert_eq!((accepted.status, accepted.body.len()), (202, 0));
    let listed = client.ask(json!("a"), "tools/list", &json!({})).await;
    assert_eq!((listed.status, listed.header("content-type")), (200, Some("application/json")));
    assert_eq!((&listed.json()["id"], &listed.json()["result"]["tools"][0]["name"]), (&json!("a"), &json!("buy")));
    for version in ["1999-01-01", "2099-01-01", ""] {
        let mut odd = Client { session: Some(session.clone()), ..Client::new(&play) };
        odd.headers.push(("mcp-protocol-version", version));
        assert_eq!(odd.ask(json!(1), "ping", &json!({})).await.status, 400, "{version}");
    }
    for (method, status) in [("GET", 405), ("PUT", 405), ("HEAD", 405)] {
        let refused = client.method(method).await;
        assert_eq!((refused.status, refused.header("allow")), (status, Some("POST, DELETE")), "{method}");
    }
    assert_eq!(client.method("DELETE").await.status, 200);
    assert_eq!(client.ask(json!(2), "tools/list", &json!({})).await.status, 404);
    assert_eq!(client.method("DELETE").await.status, 404);
    let (exit, notes) = play.stop();
    assert!(exit == 0 && notes.contains("session mcp:shop: 1 request, 1 of 5 records served"), "{notes}");
}

#[tokio::test]
async fn case_3_7_8_everything_that_a_server_sends_arrives_where_it_belongs() {
    let shop = Shelf::with(SERVER);
    let play = shop.play(&["--fail-on", "drift"]);
    let client = Client::begun(&play, "2025-06-18").await;
    let mut listening = client.stream(None).await;
    assert_eq!(client.post(&notification("notifications/initialized")).await.status, 202);
    let roots = listening.next().await.unwrap();
    assert_eq!(roots["method"], "roots/list");
    let reply = json!({"jsonrpc": "2.0", "id": roots["id"], "result": {"roots": [{"uri": "file:///a"}]}});
    assert_eq!(client.post(&reply).await.status, 202);

    let arguments = json!({"many": 2, "what": "tea"});
    let params = json!({"name": "buy", "arguments": arguments, "_meta": {"progressToken": "mine"}});
    let call = json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params});
    let mut called = client.stream(Some(&call)).await;
    assert_eq!(called.next().await.unwrap()["params"]["progressToken"], "mine");
    let asked = called.next().await.unwrap();
    assert_eq!(asked["method"], "elicitation/create");
    assert_ne!(asked["id"], roots["id"]);
    // Other requests are answered meanwhile.
    assert_eq!(client.ask(json!(5), "tools/list", &json!({})).await.json()["id"], 5);
    let reply = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {"sure": true}}});
    assert_eq!(client.post(&reply).await.status, 202);
    let answer = called.next().await.unwrap();
    assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!("c"), &json!("bought")));
    assert!(called.ended_well().await);
    assert_eq!(listening.next().await.unwrap()["method"], "notifications/tools/list_changed");
    // A program that ends does not wait for a stream that is open.
    let (exit, notes) = play.stop();
    assert!(exit == 0 && !notes.contains("cut at the drain"), "{notes}");
    assert!(listening.ended_well().await);
}

#[tokio::test]
async fn case_2_what_came_over_stdio_is_served_over_http() {
    let (shop, recorded) = (Shelf::with(SERVER), Shelf::empty());
    let mut tap = Server::tap(&recorded, &shop, &[]);
    let ids = [json!(1), json!(2), json!(3), json!(4), json!(5)];
    let seen = shopping(&mut tap, ids, &json!("t"));
    assert_eq!(tap.end().1, 0);
    let answers = seen.iter().filter_map(|message| message.get("result").or(message.get("error")));
    let direct: Vec<&Value> = answers.skip(1).collect();

    let play = recorded.play(&["--strict"]);
    let client = Client::begun(&play, "2025-06-18").await;
    assert_eq!(client.post(&notification("notifications/initialized")).await.status, 202);
    let mut listening = client.stream(None).await;
    let roots = listening.next().await.unwrap();
    let reply = json!({"jsonrpc": "2.0", "id": roots["id"], "result": {"roots": [{"uri": "file:///a"}]}});
    assert_eq!(client.post(&reply).await.status, 202);
    let mut now = vec![client.ask(json!(1), "tools/list", &json!({})).await.json()];
    let params = json!({"name": "buy", "arguments": {"what": "tea", "many": 2}});
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params});
    let mut called = client.stream(Some(&call)).await;
    let asked = called.next().await.unwrap();
    let reply = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {"sure": true}}});
    assert_eq!(client.post(&reply).await.status, 202);
    now.push(called.next().await.unwrap());
    now.push(client.ask(json!(3), "tools/list", &json!({})).await.json());
    now.push(client.call(4, "sell", &json!({"what": "tea"})).await.json());
    now.push(client.ask(json!(5), "resources/read", &json!({"uri": "shop://é/list"})).await.json());
    let now: Vec<&Value> = now.iter().filter_map(|message| message.get("result").or(message.get("error"))).collect();
    assert_eq!((now.len(), now), (5, direct));
    let (exit, notes) = play.stop();
    assert_eq!(exit, 0, "{notes}");
}

#[tokio::test]
async fn a_reply_that_does_not_come_is_not_waited_for() {
    let shop = Shelf::with(SERVER);
    let play = shop.play(&["--mcp-reply-within", "1ms", "--fail-on", "drift"]);
    let client = Client::begun(&play, "2025-06-18").await;
    let params = json!({"name": "buy", "arguments": {"many": 2, "what": "tea"}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let mut called = client.stream(Some(&call)).await;
    assert_eq!(called.next().await.unwrap()["method"], "elicitation/create");
    assert_eq!(called.next().await.unwrap()["result"]["content"][0]["text"], "bought");
    let (exit, notes) = play.stop();
    assert!(exit == 1 && notes.contains("failed: drift"), "{notes}");
}

#[tokio::test]
async fn case_18_two_sessions_at_once_are_independent() {
    let shop = Shelf::with(&silent());
    let play = shop.play(&["--strict", "--on-exhausted", "error"]);
    let (one, other) = tokio::join!(Client::begun(&play, "2025-06-18"), Client::begun(&play, "2025-11-25"));
    assert_ne!(one.session, other.session);
    let list = async |client: &Client<'_>| {
        let answer = client.ask(json!(1), "tools/list", &json!({})).await.json();
        answer["result"]["tools"].as_array().map(Vec::len)
    };
    for expected in [Some(1), Some(2), None] {
        let (first, second) = tokio::join!(list(&one), list(&other));
        assert_eq!((first, second), (expected, expected));
    }
    let report = play.get("/vcr/report").await;
    let sessions = report["sessions"].as_object().unwrap();
    assert_eq!(sessions.keys().collect::<Vec<_>>(), ["mcp:shop", "mcp:shop/2"]);
    for session in sessions.values() {
        assert_eq!((&session["served"], &session["misses"]), (&json!(2), &json!({"exhausted": 1})));
    }
    assert_eq!(play.stop().0, 1);
}

#[tokio::test]
async fn case_6_misses_are_answers_and_in_the_report() {
    let shop = Shelf::with(&silent());
    let file = shop.folder.path().join("report.json");
    let play = shop.play(&["--strict", "--report", file.to_str().unwrap()]);
    let client = Client::begun(&play, "2025-06-18").await;
    let missed = client.call(1, "sell", &json!({"what": "coffee"})).await;
    assert_eq!((missed.status, code(&missed)), (200, 40400));
    let vcr = &missed.json()["error"]["data"]["vcr"];
    assert_eq!(vcr["diffs"][0]["path"], "$.params.arguments.what");
    let listed = play.get("/vcr/misses").await;
    assert_eq!(listed[0]["diffs"], vcr["diffs"]);
    let message = listed[0]["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("No recorded interaction matched"), "{message}");
    let unknown = client.ask(json!(2), "no/method", &json!({})).await;
    assert_eq!((unknown.status, code(&unknown)), (200, -32601));
    let (exit, notes) = play.stop();
    assert!(exit == 1 && notes.contains("misses: 1 no_match"), "{notes}");
    let report: Value = serde_json::from_str(&crate::support::read(&file)).unwrap();
    assert_eq!(report["sessions"]["mcp:shop"]["novel"][0]["diffs"], vcr["diffs"]);
    for (policy, expected) in [("stub", "<novel: sell#"), ("closest", "Nothing to sell")] {
        let play = shop.play(&["--mcp-on-miss", policy]);
        let client = Client::begun(&play, "2025-06-18").await;
        let answer = client.call(1, "sell", &json!({"what": "coffee"})).await.text();
        assert!(answer.contains(expected), "{policy}: {answer}");
    }
}

#[tokio::test]
async fn case_15_batches_are_of_one_version() {
    let shop = Shelf::with(&silent());
    let play = shop.play(&[]);
    let batch = json!([{"jsonrpc": "2.0", "id": 1, "method": "ping"}, {"jsonrpc": "2.0", "method": "notifications/x"},
        {"jsonrpc": "2.0", "id": "1", "method": "tools/list"}, 7]);
    let newer = Client::begun(&play, "2025-06-18").await;
    let refused = newer.post(&batch).await;
    assert_eq!((refused.status, code(&refused)), (400, -32600));
    let client = Client::begun(&play, "2025-03-26").await;
    let answered = client.post(&batch).await;
    assert_eq!(answered.status, 200, "{}", answered.text());
    let ids: Vec<Value> = answered.json().as_array().unwrap().iter().map(|answer| answer["id"].clone()).collect();
    assert_eq!(ids, [json!(1), json!("1"), Value::Null]);
    let quiet = client.post(&json!([{"jsonrpc": "2.0", "method": "notifications/x"}])).await;
    assert_eq!((quiet.status, quiet.body.len()), (202, 0));
}

#[tokio::test]
async fn clients_that_take_no_events_get_the_answer_and_others_what_they_take() {
    let text = SERVER.replace(
        "    - data: {method: elicitation/create, params: {message: Sure?}, reply: {result: {action: accept, content: {sure: true}}}}\n",
        "",
    );
    let shop = Shelf::with(&text);
    let play = shop.play(&[]);
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params":
        {"name": "buy", "arguments": {"many": 2, "what": "tea"}, "_meta": {"progressToken": 9}}});
    let begun = Client::begun(&play, "2025-06-18").await;
    for (accept, is_stream) in
        [("application/json", false), ("application/json, text/event-stream", true), ("text/event-stream", true)]
    {
        let headers = vec![("accept", accept), ("content-type", "application/json")];
        let client = Client { session: begun.session.clone(), headers, ..Client::new(&play) };
        let answer = client.post(&call).await;
        let expected = if is_stream { "text/event-stream" } else { "application/json" };
        assert_eq!(answer.header("content-type"), Some(expected), "{accept}");
        assert_eq!(answer.text().matches("bought").count(), 1);
        let sent = answer.text().matches("notifications/progress").count();
        assert_eq!(sent, usize::from(is_stream), "{accept}");
    }
}

#[tokio::test]
async fn hostile_pages_and_bodies_are_refused() {
    let shop = Shelf::with(&silent());
    let play = shop.play(&["--allowed-origins", r#"["https://ui.example"]"#, "--mcp-host", "vcr.example"]);
    let begun = Client::begun(&play, "2025-06-18").await;
    for (name, value, status) in [
        ("origin", "http://evil.example", 403),
        ("origin", "null", 403),
        ("origin", "http://localhost:6274", 200),
        ("origin", "https://ui.example", 200),
        ("host", "evil.example", 403),
        ("host", "vcr.example:8000", 200),
        ("host", "agent-vcr", 200),
    ] {
        let mut client = Client { session: begun.session.clone(), ..Client::new(&play) };
        client.headers.push((name, value));
        assert_eq!(client.ask(json!(1), "ping", &json!({})).await.status, status, "{name} {value}");
    }
    for (body, expected) in [
        (&b"{"[..], -32700),
        (b"", -32700),
        (b"7", -32600),
        (b"[]", -32600),
        (b"\xff", -32700),
        (&[b'['; 100_000], -32700),
    ] {
        let refused = begun.post_bytes(body).await;
        assert_eq!((refused.status, code(&refused)), (400, expected));
    }
    assert_eq!(begun.post_bytes(&vec![b' '; (64 << 20) + 1]).await.status, 413);
    for path in ["/mcp/other", "/mcp"] {
        let other = Client { path, ..Client::new(&play) };
        let unknown = other.ask(json!(1), "tools/list", &json!({})).await;
        assert!(unknown.status == 404 && unknown.text().contains("/mcp/shop"), "{}", unknown.text());
    }
}

#[tokio::test]
async fn a_server_that_ended_ends_its_answer_and_a_call_that_was_cancelled_has_none() {
    let shop = Shelf::with(
        r"vcr: 1
records:
- request: POST /mcp/shop
  body: {method: tools/call, params: {name: crash}}
  answer:
    fault: reset
    events:
    - data: {method: notifications/message, params: {data: oh}}
- request: POST /mcp/shop
  body: {method: tools/call, params: {name: slow}}
  aborted: 1
  answer:
    events:
    - data: {method: notifications/message, params: {data: wait}}
",
    );
    let play = shop.play(&[]);
    let client = Client::begun(&play, "2025-06-18").await;
    let call =
        |id: u64, name: &str| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name}});
    let mut crashed = client.stream(Some(&call(1, "crash"))).await;
    assert_eq!(crashed.next().await.unwrap()["params"]["data"], "oh");
    assert!(!crashed.ended_well().await);
    let mut slow = client.stream(Some(&call(2, "slow"))).await;
    assert_eq!(slow.next().await.unwrap()["params"]["data"], "wait");
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}});
    assert_eq!(client.post(&cancel).await.status, 202);
    assert!(slow.ended_well().await);
}
