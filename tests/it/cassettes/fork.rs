//! The start of a cassette is played, and the rest comes from a live server.

use serde_json::{Value, json};

use super::{CHAT, Shelf, chat, read, record, said, tape, vcr};
use crate::support::{
    client::Answer,
    peer::{End, Script, Upstream, answer},
    running::Running,
};

/// A server that names the model which it was asked for, in the words of each family.
async fn live() -> Upstream {
    Upstream::start(|request| {
        let text = String::from_utf8_lossy(request);
        let body: Value = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap_or_default();
        let said = format!("live {}", body["model"].as_str().unwrap_or_default());
        let body = match text.split(' ').nth(1).unwrap() {
            CHAT => json!({"id": "c", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [
                {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}]}),
            "/v1/messages" | "/v1/responses" => json!({"said": said}),
            _ => return Script { pieces: answer("404 Not Found", "{}"), end: End::KeepAlive },
        };
        Script { pieces: answer("200 OK", &body.to_string()), end: End::KeepAlive }
    })
    .await
}

fn three() -> Shelf {
    Shelf::with(&tape(&[record(&["a"], "old A"), record(&["b"], "old B"), record(&["c"], "old C")]))
}

fn fork(shelf: &Shelf, target: &str, flags: &[&str]) -> Running {
    let fixed = ["fork", shelf.name(), "--listen", "127.0.0.1:0", "--target", target];
    Running::start(&[&fixed[..], flags].concat())
}

fn url(upstream: &Upstream) -> String {
    format!("http://{}", upstream.address)
}

async fn ask(server: &Running, words: &str) -> Answer {
    server.send(CHAT, &chat(&[words])).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_start_is_played_and_the_rest_is_live_with_another_model() {
    let (shelf, upstream) = (three(), live().await);
    let running = fork(&shelf, &url(&upstream), &["--at", "3", "--model", "other \"m\""]);
    for (words, answer) in [("a", "old A"), ("b", "old B"), ("c", "live other \"m\""), ("new", "live other \"m\"")] {
        assert_eq!(said(&ask(&running, words).await), answer, "{words}");
    }
    let (code, log) = running.stop();
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("recorded"), "{log}");
    let file = shelf.folder.path().join("tape.fork.yaml");
    let text = read(&file);
    assert!(text.contains("fork:") && !text.contains("old C"), "{text}");
    let output = vcr(&["cassette", "diff", shelf.name(), file.to_str().unwrap()]);
    let diff = String::from_utf8(output.stdout).unwrap();
    assert!(diff.contains("old C") && diff.contains("only in") && !diff.contains("old B"), "{diff}");
    let play = Running::start(&["play", "--port", "0", "--instant", "--strict", "--cassette", file.to_str().unwrap()]);
    for (words, answer) in [("a", "old A"), ("b", "old B"), ("c", "live other \"m\""), ("new", "live other \"m\"")] {
        assert_eq!(said(&ask(&play, words).await), answer, "{words}");
    }
    assert_eq!(play.stop().0, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_session_has_its_own_start_and_misses_before_it_fail() {
    let (shelf, upstream) = (three(), live().await);
    let running = fork(&shelf, &url(&upstream), &["--at", "2"]);
    assert_eq!(ask(&running, "unknown").await.status, 422);
    assert_eq!(said(&ask(&running, "c").await), "live m", "its record comes after the fork");
    assert_eq!(said(&ask(&running, "a").await), "old A");
    assert_eq!(said(&ask(&running, "a").await), "live m", "the next one of the same request");
    let two = running.send(&format!("/vcr/s/two{CHAT}"), &chat(&["a"])).await;
    assert_eq!(said(&two), "old A");
    let own = running.send("/vcr/sessions", &json!({"name": "s", "cassette": "x.yaml"})).await;
    assert!(own.status == 400 || own.status == 409 || own.status == 422, "{}", own.text());
    assert!(own.text().contains("fork"), "{}", own.text());
    let (code, log) = running.stop();
    assert!(code == 1 && log.contains("failed: miss"), "{code} {log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn families_go_live_and_a_fork_that_was_not_reached_is_told() {
    let upstream = live().await;
    for path in ["/v1/messages", "/v1/responses"] {
        let body = |words: &str| json!({"model": "m", "max_tokens": 9, "input": words, "messages": [{"role": "user", "content": words}]});
        let one = |words: &str| {
            format!("- request: POST {path}\n  body: {}\n  answer: {{json: {{said: old}}}}\n", body(words))
        };
        let shelf = Shelf::with(&format!("vcr: 1\nrecords:\n{}{}", one("a"), one("b")));
        let running = fork(&shelf, &url(&upstream), &["--at", "2", "--model", "x"]);
        assert_eq!(running.send(path, &body("a")).await.json()["said"], "old", "{path}");
        assert_eq!(running.send(path, &body("b")).await.json()["said"], "live x", "{path}");
        assert_eq!(running.stop().0, 0);
        let early = fork(&shelf, &url(&upstream), &["--at", "2", "--overwrite"]);
        assert_eq!(early.send(path, &body("a")).await.status, 200);
        let (code, log) = early.stop();
        assert!(code == 1 && log.contains("no request reached --at 2"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_only_read_is_answered_from_its_record_before_and_after_the_fork() {
    let upstream = live().await;
    let models = "- request: GET /v1/models\n  answer: {json: {data: [{id: old}]}}\n".to_owned();
    let shelf = Shelf::with(&tape(&[models, record(&["a"], "old A"), record(&["b"], "old B")]));
    let running = fork(&shelf, &url(&upstream), &["--at", "3", "--json"]);
    let listed = async || running.get("/v1/models").await["data"][0]["id"].clone();
    assert_eq!((listed().await, listed().await), (json!("old"), json!("old")), "twice before the fork");
    assert_eq!(said(&ask(&running, "a").await), "old A");
    assert_eq!(said(&ask(&running, "b").await), "live m");
    assert_eq!((listed().await, listed().await), (json!("old"), json!("old")), "and after it");
    let (code, log) = running.stop();
    assert_eq!(code, 0, "{log}");
    let text = read(&shelf.folder.path().join("tape.fork.yaml"));
    assert_eq!(text.matches("request: GET /v1/models").count(), 1, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_target_is_an_environment_that_fails() {
    let shelf = three();
    let running = fork(&shelf, "http://127.0.0.1:9", &["--at", "2"]);
    assert_eq!(said(&ask(&running, "a").await), "old A");
    assert_eq!(ask(&running, "b").await.status, 502);
    let (code, log) = running.stop();
    assert!(code == 4 && log.contains("not recorded in"), "{code} {log}");
}

#[test]
fn bounds_and_what_no_fork_plays_are_named() {
    let shelf = three();
    let fails = |file: &str, flags: &[&str]| {
        let output =
            vcr(&[&["fork", file, "--target", "http://127.0.0.1:9", "--listen", "127.0.0.1:0"], flags].concat());
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, log) = fails(shelf.name(), &["--at", "4", "--", "true"]);
    assert!(code == 2 && log.contains("the cassette has 3 requests"), "{log}");
    let (code, log) = fails(shelf.name(), &["--at", "0"]);
    assert!(code == 2 && log.contains("--at"), "{log}");
    let (code, log) = fails(shelf.name(), &["--at", "1", "--out", shelf.name()]);
    assert!(code == 2 && log.contains("this is the cassette"), "{log}");
    let taken = shelf.folder.path().join("taken.yaml");
    std::fs::write(&taken, "").unwrap();
    for (out, part) in [
        (taken.to_str().unwrap(), "exists"),
        ("x.txt", "x.txt: the name of a cassette ends in .yaml"),
        ("s3://b/x.yaml", "s3://b/x.yaml: cassettes are written to files only"),
    ] {
        let (code, log) = fails(shelf.name(), &["--at", "1", "--out", out]);
        assert!(code == 2 && log.contains(part), "{code} {log}");
    }
    let (code, log) = fails(shelf.folder.path().to_str().unwrap(), &["--at", "1"]);
    assert!(code == 2 && log.contains("is a folder"), "{log}");
    let by_hand = Shelf::with(&tape(&[record(&["a"], "A"), "- match: {contains: x}\n  answer: y\n".to_owned()]));
    let (code, log) = fails(by_hand.name(), &["--at", "1"]);
    assert!(code == 3 && log.contains("hand-written"), "{log}");
}
