//! What changes while a server runs: the page, settings and files that are read again.

use std::{fs, process::Command};

use serde_json::{Value, json};
use tokio::{io::AsyncReadExt, net::TcpStream};

use crate::support::{
    client::{self, Answer, get, post},
    running::Running,
};

const COMPLETIONS: &str = "/v1/completions";

async fn put(play: &Running, path: &str, body: &Value) -> Answer {
    client::send(play.address, &client::Request { method: "PUT", ..post(path, body) }).await
}

fn ask(prompt: &str) -> Value {
    json!({"prompt": prompt, "max_tokens": 3})
}

#[tokio::test]
async fn settings_change_together_or_not_at_all() {
    let play = Running::start(&["play", "--port", "0", "--instant"]);
    let wrong = json!({"pace": {"time_scale": 3}, "faults": ["explode"]});
    let refused = put(&play, "/vcr/config", &wrong).await;
    assert_eq!(refused.status, 400);
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("`explode` is no kind of fault"));
    assert_eq!(play.get("/vcr/config").await, json!({"pace": "instant", "faults": {"seed": 0, "faults": []}}));
    let new =
        json!({"pace": {"time_to_first_token": "1ms"}, "faults": {"seed": 4, "faults": ["503 where prompt=many"]}});
    assert_eq!(put(&play, "/vcr/config", &new).await.status, 200);
    assert_eq!(play.send(COMPLETIONS, &ask("many")).await.status, 503);
    assert_eq!(play.send(COMPLETIONS, &ask("few")).await.status, 200);
    let shown = play.get("/vcr/config").await;
    assert_eq!(shown["pace"], json!({"time_to_first_token": "1ms", "inter_token_latency": "0s"}));
    assert_eq!(shown["faults"], json!({"seed": 4, "faults": ["503 where prompt=many"]}));
}

#[tokio::test]
async fn files_of_answers_are_read_again_when_they_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    fs::write(&file, "records:\n- match: any\n  answer: one\n").unwrap();
    let play = Running::start(&["play", "--port", "0", "--instant", "--answers", file.to_str().unwrap()]);
    assert_eq!(play.get("/vcr/config").await["answers"]["rules"], 1);
    fs::write(&file, "records:\n- match: any\n  answr: two\n").unwrap();
    let all = json!({"answers": "reload", "pace": {"time_scale": 3}});
    let refused = put(&play, "/vcr/config", &all).await;
    assert!(refused.status == 400 && refused.text().contains("rules.yaml:2"), "{}", refused.text());
    assert_eq!(play.get("/vcr/config").await["pace"], "instant");
    fs::write(&file, "records:\n- match: any\n  answer: two\n").unwrap();
    assert_eq!(put(&play, "/vcr/config", &all).await.status, 200);
    let said = play.send("/v1/chat/completions", &crate::support::cassettes::chat(&["x"])).await;
    assert_eq!(crate::support::cassettes::said(&said), "two");
    let none = Running::start(&["play", "--port", "0", "--instant"]);
    assert_eq!(put(&none, "/vcr/config", &json!({"answers": "reload"})).await.status, 400);
}

#[tokio::test]
async fn a_stream_goes_on_while_settings_change() {
    let flags = ["play", "--port", "0", "--synthetic", "random", "--inter-token-latency", "20ms"];
    let play = Running::start(&flags);
    let streamed = json!({"prompt": "a", "max_tokens": 40, "stream": true, "ignore_eos": true});
    let mut stream = client::open(play.address, &post(COMPLETIONS, &streamed)).await;
    let mut text = String::new();
    read_until(&mut stream, &mut text, "data: {").await;
    let new = json!({"pace": "instant", "faults": ["reset at event 1"]});
    assert_eq!(put(&play, "/vcr/config", &new).await.status, 200);
    read_until(&mut stream, &mut text, "data: [DONE]\n\n").await;
    assert_eq!(text.matches("data: {").count(), 40, "{text}");
}

async fn read_until(stream: &mut TcpStream, text: &mut String, end: &str) {
    let mut bytes = [0; 4096];
    while !text.contains(end) {
        let count = stream.read(&mut bytes).await.unwrap();
        assert!(count > 0, "it ended: {text}");
        text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
    }
}

#[tokio::test]
async fn a_file_of_faults_is_read_again_at_a_hangup() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("faults.yaml");
    fs::write(&file, "faults: [429]\n").unwrap();
    let mut play = Running::start(&["play", "--port", "0", "--instant", "--faults", file.to_str().unwrap()]);
    assert_eq!(play.send(COMPLETIONS, &ask("a")).await.status, 429);
    let id = play.id().to_string();
    let hang_up = || assert!(Command::new("kill").args(["-HUP", &id]).status().unwrap().success());
    fs::write(&file, "faults: [503]\n").unwrap();
    hang_up();
    while play.send(COMPLETIONS, &ask("a")).await.status != 503 {}
    fs::write(&file, "faults: [explode]\n").unwrap();
    hang_up();
    play.waits_for("faults.yaml:1: `explode` is no kind of fault");
    assert_eq!(play.send(COMPLETIONS, &ask("a")).await.status, 503);
    fs::write(&file, "faults: []\n").unwrap();
    hang_up();
    while play.send(COMPLETIONS, &ask("a")).await.status != 200 {}
}

#[tokio::test]
async fn the_page_lists_requests_while_somebody_looks() {
    let play = Running::start(&["play", "--port", "0", "--instant", "--fault", "429 where prompt=many"]);
    assert_eq!(play.send(COMPLETIONS, &ask("before")).await.status, 200);
    assert_eq!(play.get("/vcr/live").await, json!({"requests": []}));
    play.send(COMPLETIONS, &ask("few")).await;
    client::send(play.address, &get("/health")).await;
    play.send(COMPLETIONS, &ask("many")).await;
    let shown = play.get("/vcr/live").await;
    let seen: Vec<Value> = shown["requests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|request| json!([request["number"], request["status"], request["faults"], request["took_ms"].is_u64()]))
        .collect();
    assert_eq!(seen, [json!([1, 429, ["429"], true]), json!([0, 200, [], true])], "{shown}");
    let page = client::send(play.address, &get("/vcr")).await;
    assert!(page.text().starts_with("<!doctype html>"));
    assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'"));
    let mut foreign = get("/vcr/live");
    foreign.headers.push(("host", "evil.example"));
    assert_eq!(client::send(play.address, &foreign).await.status, 403);
}

#[tokio::test]
async fn nothing_of_it_is_there_without_the_admin_pages() {
    let play = Running::start(&["play", "--port", "0", "--instant", "--no-admin"]);
    for path in
        ["/vcr", "/vcr/page.js", "/vcr/live", "/vcr/config", "/vcr/metrics", "/vcr/faults", "/vcr/faults/catalog"]
    {
        assert_eq!(client::send(play.address, &get(path)).await.status, 404, "{path}");
    }
}
