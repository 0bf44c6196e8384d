//! A cassette for each test, with MCP servers: their records are in the cassette of the test that asked.

use std::path::Path;

use serde_json::json;

use super::{
    PROGRAM, SERVER, Shelf,
    served::Client,
    wire::{engine, server, shop},
};
use crate::support::{
    client::{self, Request, post},
    peer::Upstream,
    read,
    running::Running,
};

async fn open(server: &Running, name: &str, mode: &str) {
    let body = json!({"name": name, "cassette": format!("{name}.yaml"), "mode": mode});
    let opened = client::send(server.address, &post("/vcr/sessions", &body)).await;
    assert_eq!(opened.status, 201, "{}", opened.text());
}

async fn end(server: &Running, name: &str) {
    let path = format!("/vcr/sessions/{name}");
    let request = Request { method: "DELETE", path: &path, headers: Vec::new(), body: Vec::new() };
    assert_eq!(client::send(server.address, &request).await.status, 200);
}

/// A test that sells this thing, in a session that it names by path or by header; it does not end its MCP session.
async fn test(server: &Running, (name, path): (&'static str, &'static str), mode: &str, thing: &str) -> String {
    open(server, name, mode).await;
    let mut client = Client { path, ..Client::new(server) };
    if path == "/mcp/shop" {
        client.headers.push(("x-vcr-session", name));
    }
    let client = client.begin("2025-06-18").await;
    let answer = client.call(1, "sell", &json!({"what": thing})).await.text();
    end(server, name).await;
    answer
}

const ONE: (&str, &str) = ("one", "/vcr/s/one/mcp/shop");
const TWO: (&str, &str) = ("two", "/mcp/shop");

fn tap(llm: &Upstream, folder: &str, server: &[&str]) -> Running {
    let url = format!("http://{}", llm.address);
    let fixed = ["tap", "--upstream", &url, "--listen", "127.0.0.1:0", "--cassette", folder];
    Running::start(&[&fixed[..], server].concat())
}

async fn recorded_and_played(server: &[&str]) {
    let (llm, place) = (engine().await, tempfile::tempdir().unwrap());
    let folder = format!("{}/cassettes/", place.path().display());
    let of = |name: &str| read(&Path::new(&folder).join(format!("{name}.yaml")));
    let recording = tap(&llm, &folder, server);
    let live = [test(&recording, ONE, "once", "tea").await, test(&recording, TWO, "once", "milk").await];
    let (code, notes) = recording.stop();
    assert_eq!(code, 0, "{notes}");
    assert!(!Path::new(&folder).join("default.yaml").exists(), "{notes}");
    let (one, two) = (of("one"), of("two"));
    assert!(one.contains("what: tea") && !one.contains("milk") && one.contains("method: initialize"), "{one}");
    assert!(two.contains("what: milk") && !two.contains("tea") && two.contains("method: initialize"), "{two}");

    // One is recorded again, although other requests have a cassette.
    std::fs::write(Path::new(&folder).join("default.yaml"), "vcr: 1\nrecords: []\n").unwrap();
    std::fs::remove_file(Path::new(&folder).join("one.yaml")).unwrap();
    let recording = tap(&llm, &folder, server);
    test(&recording, ONE, "once", "tea").await;
    assert_eq!(test(&recording, TWO, "once", "milk").await.contains("error"), live[1].contains("error"));
    let (code, notes) = recording.stop();
    assert_eq!((code, of("two")), (0, two), "{notes}");
    assert!(of("one").contains("what: tea"), "{}", of("one"));

    std::fs::remove_file(Path::new(&folder).join("default.yaml")).unwrap();
    let play = Running::start(&["play", "--port", "0", "--instant", "--cassette", &folder, "--strict"]);
    for (of, thing) in [(ONE, "tea"), (TWO, "milk")] {
        let answer = test(&play, of, "none", thing).await;
        assert!(!answer.contains("40400"), "{answer}");
    }
    let (code, notes) = play.stop();
    assert_eq!(code, 0, "{notes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_a_server_are_in_the_cassette_of_the_test_that_asked() {
    let real = server(shop).await;
    let url = format!("shop=http://{}/mcp", real.address);
    // This server answers a call after a question, to which this client does not reply.
    recorded_and_played(&["--mcp", &url]).await;
    // As the plugins of test frameworks start it.
    recorded_and_played(&["--sessions-only", "--mcp", &url]).await;
    let seen = real.requests.lock().unwrap();
    assert!(!seen.iter().any(|request| String::from_utf8_lossy(request).contains("x-vcr-session")));
}

#[tokio::test(flavor = "multi_thread")]
async fn so_are_those_of_a_server_that_is_started() {
    let milk = "- request: POST /mcp/shop\n  body: {method: tools/call, params: {name: sell, arguments: {what: milk}}}\n  answer: {json: {result: {content: []}}}\n";
    let shop = Shelf::with(&format!("{SERVER}{milk}"));
    let command = format!("shop='{PROGRAM}' mcp-play --cassette \"{}\"", shop.name());
    recorded_and_played(&["--mcp-stdio", &command]).await;
}
