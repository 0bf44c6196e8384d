//! `tap` where MCP servers were recorded before: what is there is played, and what is new goes to the real servers.

use serde_json::{Value, json};

use super::{
    PROGRAM, SERVER, Shelf,
    served::{Client, code, silent},
    wire::{engine, server, shop, tap_before},
};
use crate::support::{
    CHAT,
    cassettes::{chat, record, said, tape},
    client::{self, Request, post},
    running::Running,
};

/// A cassette with a model and the shop.
fn both() -> Shelf {
    let silent = silent();
    Shelf::with(&tape(&[record(&["hello"], "Hi"), silent.split_once("records:\n").unwrap().1.to_owned()]))
}

/// Everything of the shop that is recorded, as it was recorded.
async fn shopping(tap: &Running) -> Client<'_> {
    let client = Client::begun(tap, "2025-06-18").await;
    assert_eq!(client.ask(json!(1), "tools/list", &json!({})).await.json()["result"]["tools"][0]["name"], "buy");
    let bought = client.call(2, "buy", &json!({"what": "tea", "many": 2})).await.text();
    assert!(bought.contains("bought") && !bought.contains('é'), "{bought}");
    client
}

fn milk() -> Value {
    json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "buy", "arguments": {"what": "milk", "many": 1}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tap_that_adds_plays_what_is_recorded_and_adds_only_what_is_new() {
    let real = server(shop).await;
    let shelf = both();
    let before = shelf.text();
    let (tap, llm) = tap_before(&shelf, &real, &["--mode", "new-episodes"]).await;
    assert_eq!(said(&tap.send(CHAT, &chat(&["hello"])).await), "Hi");
    shopping(&tap).await;
    let (exit, notes) = tap.stop();
    assert_eq!((exit, shelf.text() == before), (0, true), "{notes}");
    assert!(real.requests.lock().unwrap().is_empty());

    let (tap, _llm) = tap_before(&shelf, &real, &["--mode", "new-episodes"]).await;
    let client = shopping(&tap).await;
    let answer = client.post(&milk()).await.text();
    assert!(answer.contains("bought é"), "{answer}");
    let reply = json!({"jsonrpc": "2.0", "id": "q", "result": {"action": "accept"}});
    assert_eq!(client.post(&reply).await.status, 202);
    assert_eq!(client.method("DELETE").await.status, 200);
    let (exit, notes) = tap.stop();
    assert!(exit == 0 && notes.contains("of which 1 with MCP servers\n"), "{notes}");
    let text = shelf.text();
    let added = text.strip_prefix(&before).unwrap_or_else(|| panic!("{text}"));
    assert!(added.contains("what: milk") && added.matches("- id:").count() == 1, "{added}");
    assert!(!llm.requests.lock().unwrap().iter().any(|request| String::from_utf8_lossy(request).contains("/mcp/")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_server_that_is_not_named_is_played_and_never_the_engine() {
    let shelf = both();
    let before = shelf.text();
    let llm = engine().await;
    let tap = shelf.tap(&llm, &["--mode", "new-episodes"]);
    let client = shopping(&tap).await;
    assert_eq!(code(&client.post(&milk()).await), 40400);
    let (exit, notes) = tap.stop();
    assert_eq!((exit, shelf.text() == before), (0, true), "{notes}");
    let asked = llm.requests.lock().unwrap();
    assert!(!asked.iter().any(|request| String::from_utf8_lossy(request).contains("/mcp/")), "{asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tap_that_only_plays_asks_no_server() {
    let (real, shelf) = (server(shop).await, both());
    let before = shelf.text();
    for mode in ["once", "none"] {
        let (tap, _llm) = tap_before(&shelf, &real, &["--mode", mode]).await;
        let client = shopping(&tap).await;
        assert_eq!(code(&client.post(&milk()).await), 40400);
        let (exit, notes) = tap.stop();
        assert_eq!((exit, shelf.text() == before), (0, true), "{notes}");
    }
    assert!(real.requests.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_started_is_asked_for_what_is_new_only() {
    let (shelf, llm) = (both(), engine().await);
    let other = Shelf::with(&SERVER.replace("what: tea, many: 2", "what: milk, many: 1").replace("bought", "milked"));
    let command = format!("shop='{PROGRAM}' mcp-play --cassette \"{}\"", other.name());
    let before = shelf.text();
    let flags = ["--mode", "new-episodes", "--mcp-stdio", command.as_str()];
    let tap = shelf.tap(&llm, &flags);
    let client = shopping(&tap).await;
    let mut events = client.stream(Some(&milk())).await;
    let asked = loop {
        let event = events.next().await.unwrap();
        if event["method"] == "elicitation/create" {
            break event;
        }
    };
    let reply = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {"sure": true}}});
    assert_eq!(client.post(&reply).await.status, 202);
    assert_eq!(events.next().await.unwrap()["result"]["content"][0]["text"], "milked");
    assert_eq!(client.method("DELETE").await.status, 200);
    let (exit, notes) = tap.stop();
    assert_eq!(exit, 0, "{notes}");
    let text = shelf.text();
    let added = text.strip_prefix(&before).unwrap_or_else(|| panic!("{text}"));
    assert!(added.contains("milked") && added.matches("- id:").count() == 1, "{added}");
}

#[tokio::test(flavor = "multi_thread")]
async fn advice_names_the_servers_of_the_recording_and_its_path() {
    let shelf = both();
    let play = shelf.play(&[]);
    let client = Client::begun(&play, "2025-06-18").await;
    let of_tool = client.call(1, "buy", &json!({"what": "milk", "many": 2})).await.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    let of_model = play.send(CHAT, &chat(&["other"])).await.text();
    for message in [of_tool, of_model] {
        let command = format!(
            "vllm-vcr tap --mode new-episodes --upstream URL --cassette {} --mcp shop=URL (a program: --mcp-stdio 'NAME=COMMAND')",
            shelf.name()
        );
        assert!(message.contains(&command), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_server_is_not_the_engine_where_servers_are_known() {
    let (real, shelf) = (server(shop).await, Shelf::empty());
    let (tap, llm) = tap_before(&shelf, &real, &[]).await;
    let headers = vec![("accept", "application/json, text/event-stream")];
    let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}).to_string().into_bytes();
    for path in ["/mcp/shopp", "/mcp"] {
        let request = Request { method: "POST", path, headers: headers.clone(), body: body.clone() };
        let refused = client::send(tap.address, &request).await;
        assert!(refused.status == 404 && refused.text().contains("/mcp/shop"), "{}", refused.text());
        // What is no message of MCP is the engine's.
        assert!(client::send(tap.address, &post(path, &chat(&["hi"]))).await.text().contains("hello"));
    }
    tap.stop();
    let asked = llm.requests.lock().unwrap();
    assert!(!asked.iter().any(|request| String::from_utf8_lossy(request).contains("initialize")), "{asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_at_once_is_an_error_with_its_exit_code_and_no_record() {
    let (shelf, llm) = (Shelf::empty(), engine().await);
    let tap = shelf.tap(&llm, &["--mcp-stdio", "shop=sh -c 'exit 7'"]);
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}});
    let client = Client::new(&tap);
    let refused = client.ask(json!(0), "initialize", &params).await;
    let named = "the MCP server shop (--mcp-stdio, sh) ended before it answered `initialize`: exit status: 7";
    assert!(refused.status == 502 && refused.text().contains(named), "{} {}", refused.status, refused.text());
    assert_eq!(said(&tap.send(CHAT, &chat(&["hello"])).await), "hello");
    let (_, notes) = tap.stop();
    assert!(notes.contains("shop (--mcp-stdio, sh) ended by itself: exit status: 7"), "{notes}");
    assert!(!shelf.text().contains("/mcp/shop"), "{}", shelf.text());

    let tap = Shelf::empty().tap(&llm, &["--mcp-stdio", "shop=/no/such/program"]);
    let refused = Client::new(&tap).ask(json!(0), "initialize", &params).await.text();
    assert!(refused.contains("shop (--mcp-stdio, /no/such/program) cannot be started: No such file"), "{refused}");
}
