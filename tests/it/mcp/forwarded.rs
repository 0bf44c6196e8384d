//! Requests to MCP servers that were not recorded go to the real server (`--mcp-on-miss upstream` and `record`).

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use serde_json::{Value, json};

use super::{
    Shelf,
    served::{Client, code, silent},
    vcr,
    wire::{method, posted, server, shop, whole},
};
use crate::support::{
    cassettes::{record, tape},
    peer::{Script, Upstream},
    running::Running,
};

/// A call that is not on the cassette.
fn novel(id: &str) -> Value {
    let params = json!({"name": "buy", "arguments": {"what": "milk", "many": 1}, "_meta": {"progressToken": "t"}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

fn play(shelf: &Shelf, real: &Upstream, on_miss: &str, flags: &[&str]) -> Running {
    let url = format!("shop=http://{}/deep/mcp?key=k", real.address);
    shelf.play(&[&["--mcp-upstream", &url, "--mcp-on-miss", on_miss], flags].concat())
}

/// Methods of HTTP and MCP that a server received, and the session that each request named.
fn received(real: &Upstream) -> Vec<String> {
    let requests = real.requests.lock().unwrap();
    let one = |request: &Vec<u8>| {
        let text = String::from_utf8_lossy(request);
        let session = text.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap_or("none").to_owned();
        let message = posted(request);
        let named = message["method"].as_str().unwrap_or(if message.is_null() { "" } else { "a reply" }).to_owned();
        format!("{} {named} {session}", method(request))
    };
    requests.iter().map(one).collect()
}

/// Events of a response, as they came.
fn bytes_of_call(id: &str) -> Vec<u8> {
    let script = shop(format!("POST / HTTP/1.1\r\n\r\n{}", novel(id)).as_bytes());
    let text = String::from_utf8(script.pieces.concat()).unwrap();
    let body = text.split_once("\r\n\r\n").unwrap().1.to_owned();
    let sizes = |line: &&str| !line.chars().all(|letter| letter.is_ascii_hexdigit()) || line.is_empty();
    let lines: Vec<&str> = body.split("\r\n").filter(sizes).collect();
    lines.concat().into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_novel_call_goes_to_the_real_server_and_its_answer_passes_as_it_is() {
    let real = server(shop).await;
    let shelf = Shelf::with(&silent());
    let play = play(&shelf, &real, "upstream", &["--upstream-header", "shop=Authorization: Bearer made-up-t0ken"]);
    let client = Client::begun(&play, "2025-06-18").await;
    assert_ne!(client.session.as_deref(), Some("s-1"));
    assert_eq!(client.ask(json!(1), "tools/list", &json!({})).await.json()["result"]["tools"][0]["name"], "buy");
    assert_eq!(received(&real), [""; 0], "what is recorded needs no server");

    let answer = client.post(&novel("n")).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/event-stream")));
    assert_eq!(answer.header("mcp-session-id"), None);
    assert_eq!(String::from_utf8_lossy(&answer.body), String::from_utf8_lossy(&bytes_of_call("n")));
    // The real server asked for something meanwhile, and the reply is for it.
    let reply = json!({"jsonrpc": "2.0", "id": "q", "result": {"action": "accept"}});
    assert_eq!(client.post(&reply).await.status, 202);
    let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "n"}});
    assert_eq!(client.post(&cancelled).await.status, 202);
    assert_eq!(client.post(&novel("m")).await.status, 200);
    assert_eq!(client.method("DELETE").await.status, 200);

    let (exit, notes) = play.stop();
    assert!(exit == 0 && notes.contains("forwarded: 2") && notes.contains("no_match"), "{notes}");
    assert_eq!(shelf.text(), silent(), "nothing is recorded");
    let expected = [
        "POST initialize none",
        "POST notifications/initialized s-1",
        "POST tools/call s-1",
        "POST a reply s-1",
        "POST notifications/cancelled s-1",
        "POST tools/call s-1",
        "DELETE  s-1",
    ];
    assert_eq!(received(&real), expected);
    let requests = real.requests.lock().unwrap();
    let texts: Vec<String> = requests.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
    assert!(texts[0].contains("\"name\":\"agent\"") && texts[0].contains("2025-06-18"), "{}", texts[0]);
    assert_eq!(texts[2].split_once("\r\n\r\n").unwrap().1, novel("n").to_string());
    for text in &texts {
        assert!(
            text.contains(" /deep/mcp?key=k HTTP/1.1") && text.contains("authorization: Bearer made-up-t0ken"),
            "{text}"
        );
        assert!(!text.contains("accept-encoding"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_novel_call_is_recorded_after_what_was_there_and_replayed() {
    let real = server(shop).await;
    let shelf = Shelf::with(&silent());
    let play = play(&shelf, &real, "record", &[]);
    let client = Client::begun(&play, "2025-06-18").await;
    assert_eq!(client.ask(json!(1), "tools/list", &json!({})).await.status, 200);
    assert_eq!(client.post(&novel("n")).await.status, 200);
    assert_eq!(client.post(&json!({"jsonrpc": "2.0", "id": "q", "result": {"action": "accept"}})).await.status, 202);
    assert_eq!(client.method("DELETE").await.status, 200);
    let (exit, notes) = play.stop();
    assert!(exit == 0 && notes.contains("of which 1 with MCP servers\n"), "{notes}");
    let text = shelf.text();
    let added = text.strip_prefix(&silent()).unwrap_or_else(|| panic!("{text}"));
    assert!(
        added.contains("at: tool:shop/buy") && added.contains("what: milk") && added.contains("bought é"),
        "{added}"
    );
    assert!(added.contains("action: accept") && !added.contains("initialize"), "{added}");
    drop(real);

    let play = shelf.play(&["--on-exhausted", "error"]);
    let client = Client::begun(&play, "2025-06-18").await;
    let mut events = client.stream(Some(&novel("again"))).await;
    assert_eq!(events.next().await.unwrap()["method"], "notifications/progress");
    let asked = events.next().await.unwrap();
    let reply = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}});
    assert_eq!(client.post(&reply).await.status, 202);
    let answer = events.next().await.unwrap();
    assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!("again"), &json!("bought é")));
    assert_eq!(play.stop().0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_any_record_is_recorded_whole() {
    let real = server(shop).await;
    let shelf = Shelf::with(&tape(&[record(&["hi"], "hello")]));
    let play = play(&shelf, &real, "record", &[]);
    let client = Client::begun(&play, "2025-06-18").await;
    assert_ne!(client.session.as_deref(), Some("s-1"));
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(client.post(&initialized).await.status, 202);
    for _ in 0..2 {
        assert_eq!(client.ask(json!(1), "tools/list", &json!({})).await.status, 200);
    }
    let records = play.get("/vcr/requests").await;
    let outcomes: Vec<(&str, &str)> = records
        .as_array()
        .unwrap_or_else(|| panic!("{records}"))
        .iter()
        .map(|it| (it["at"].as_str().unwrap(), it["outcome"].as_str().unwrap()))
        .collect();
    assert_eq!(outcomes, [("mcp:shop", "recorded"); 3]);
    assert_eq!(client.method("DELETE").await.status, 200);
    let (exit, notes) = play.stop();
    assert!(exit == 0 && notes.contains("of which 4 with MCP servers\n"), "{notes}");
    let names = [
        "POST initialize none",
        "POST notifications/initialized s-1",
        "POST tools/list s-1",
        "POST tools/list s-1",
        "DELETE  s-1",
    ];
    assert_eq!(received(&real), names);
    let play = shelf.play(&["--strict", "--on-exhausted", "error", "--fail-on", "miss,unconsumed=all"]);
    let client = Client::begun(&play, "2025-06-18").await;
    for _ in 0..2 {
        assert_eq!(client.ask(json!(2), "tools/list", &json!({})).await.json()["result"]["tools"][0]["name"], "buy");
    }
    assert_eq!(code(&client.ask(json!(3), "tools/list", &json!({})).await), 41000);
}

#[tokio::test(flavor = "multi_thread")]
async fn modes_that_record_add_what_is_new_without_a_miss() {
    let real = server(shop).await;
    let shelf = Shelf::with(&silent());
    let url = format!("shop=http://{}/mcp", real.address);
    let play = shelf.play(&["--mode", "new-episodes", "--mcp-upstream", &url, "--fail-on", "miss"]);
    let client = Client::begun(&play, "2025-06-18").await;
    assert_eq!(client.ask(json!(1), "tools/list", &json!({})).await.status, 200);
    assert_eq!(client.post(&novel("n")).await.status, 200);
    let (exit, notes) = play.stop();
    assert!(exit == 0 && notes.contains("of which 1 with MCP servers\n"), "{notes}");
    assert!(shelf.text().starts_with(&silent()) && shelf.text().contains("what: milk"), "{}", shelf.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_modern_request_is_forwarded_with_its_headers() {
    let real = server(|request| {
        let id = posted(request)["id"].clone();
        let body = json!({"jsonrpc": "2.0", "id": id, "result": {"resultType": "complete", "content": []}});
        whole("200 OK", "", &body.to_string())
    })
    .await;
    let shelf = Shelf::with(&silent());
    let play = play(&shelf, &real, "upstream", &[]);
    let version = "2026-07-28";
    let meta =
        json!({"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {}});
    let params = json!({"name": "buy", "arguments": {"what": "milk"}, "_meta": meta});
    let mut client = Client::new(&play);
    client.headers.extend([("mcp-protocol-version", version), ("mcp-method", "tools/call"), ("mcp-name", "buy")]);
    let answer = client.ask(json!("x"), "tools/call", &params).await;
    assert_eq!((answer.status, &answer.json()["id"]), (200, &json!("x")));
    let requests = real.requests.lock().unwrap().clone();
    assert_eq!(requests.len(), 1);
    let text = String::from_utf8_lossy(&requests[0]);
    for header in ["mcp-protocol-version: 2026-07-28", "mcp-method: tools/call", "mcp-name: buy"] {
        assert!(text.contains(header), "{header}: {text}");
    }
    assert_eq!(posted(&requests[0])["params"], params);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_reached_is_an_error_of_its_requests_only() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("shop=http://{}/mcp", closed.local_addr().unwrap());
    drop(closed);
    let shelf = Shelf::with(&silent());
    let play = shelf.play(&["--mcp-upstream", &url, "--mcp-on-miss", "upstream"]);
    let client = Client::begun(&play, "2025-06-18").await;
    let failed = client.post(&novel("n")).await;
    assert_eq!((failed.status, code(&failed), &failed.json()["id"]), (200, 50200, &json!("n")));
    let error = &failed.json()["error"];
    assert_eq!(error["data"]["vcr"]["reason"], "upstream_unreachable");
    assert!(error["message"].as_str().unwrap().contains("no response from http://"), "{error}");
    assert_eq!(client.ask(json!(1), "tools/list", &json!({})).await.status, 200);
    let batch = json!([novel("a")]);
    let client = Client::begun(&play, "2025-03-26").await;
    assert_eq!(client.post(&batch).await.json()[0]["error"]["code"], 40400);
    let (_, notes) = play.stop();
    assert!(notes.contains("forwarded: 1"), "{notes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_the_real_server_forgot_is_opened_again_and_refusals_are_errors() {
    let (forgets, refuses) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (gone, closed) = (Arc::clone(&forgets), Arc::clone(&refuses));
    let real = server(move |request| -> Script {
        let is_call = posted(request)["method"] == "tools/call";
        if is_call && gone.swap(false, Relaxed) {
            return whole("404 Not Found", "", "{}");
        }
        if closed.load(Relaxed) {
            return whole("401 Unauthorized", "www-authenticate: Bearer\r\n", "{}");
        }
        shop(request)
    })
    .await;
    let shelf = Shelf::with(&silent());
    let play = play(&shelf, &real, "upstream", &[]);
    let client = Client::begun(&play, "2025-06-18").await;
    assert_eq!(client.post(&novel("a")).await.status, 200);
    forgets.store(true, Relaxed);
    let answer = client.post(&novel("b")).await;
    assert!(answer.status == 200 && answer.text().contains("bought"), "{}", answer.text());
    let opened = received(&real).iter().filter(|request| request.starts_with("POST initialize")).count();
    assert_eq!(opened, 2);
    refuses.store(true, Relaxed);
    let refused = client.post(&novel("c")).await;
    assert_eq!((refused.status, code(&refused)), (200, 50200));
    assert!(refused.text().contains("HTTP 401"), "{}", refused.text());
}

#[test]
fn flags_that_cannot_work_are_refused_with_what_does() {
    let shelf = Shelf::with(&silent());
    let refused = |arguments: &[&str]| {
        let output = vcr(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let name = shelf.name();
    let text = refused(&["play", "--cassette", name, "--mcp-on-miss", "record"]);
    assert!(text.contains("--mcp-upstream NAME=URL"), "{text}");
    let text = refused(&["mcp-play", "--cassette", name, "--on-miss", "upstream"]);
    assert!(text.contains("vllm-vcr play --cassette FILE --mcp-on-miss upstream --mcp-upstream NAME=URL"), "{text}");
    let twice = ["--mcp-upstream", "a=http://h/", "--mcp-upstream", "a=http://h/"];
    let text = refused(&[&["play", "--cassette", name, "--mcp-on-miss", "upstream"], &twice[..]].concat());
    assert!(text.contains("--mcp-upstream a"), "{text}");
}
