//! Traces at their edges: choices that share a response, errors that the server gives by itself, records without an answer,
//! bad lines, models of several files.

use serde_json::{Value, json};
use vllm_vcr::{
    recording::canonical,
    text::prompt::{BlockHashAlgorithm, BlockHasher},
};

use crate::support::{
    CHAT,
    client::{self, Answer, get, post},
    running::{Running, vcr},
    traces::{Trace, line},
};

const COMPLETIONS: &str = "/v1/completions";

/// By what a request is found.
fn key(path: &str, request: &Value) -> Option<String> {
    let key = canonical::request_key(path, request.to_string().as_bytes()).number();
    BlockHasher::new(BlockHashAlgorithm::Xxh3_64, 16).request_key(key)
}

/// A line of a trace about a request without ids.
fn about(path: &str, request: &Value, more: &Value) -> Value {
    let mut line = json!({"prompt_tokens": 2, "output_tokens": 0, "ttft_ms": 1.0, "request_key": key(path, request)});
    line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    line
}

fn temperature_nine() -> Value {
    json!({"messages": [{"role": "user", "content": "hi"}], "temperature": 9})
}

async fn ask(server: &Running, id: &str, body: &Value) -> Answer {
    let mut request = post(COMPLETIONS, body);
    request.headers.push(("x-request-id", id));
    client::send(server.address, &request).await
}

#[tokio::test]
async fn a_recorded_error_without_its_words_has_those_of_the_endpoint() {
    let withheld = r#"{"error":{"message":"(not recorded)","type":"Bad Request","param":"(not recorded)","code":400}}"#;
    let request = json!({"prompt": 5});
    let error = |status: u16| {
        json!({"endpoint": "other", "path": "/tokenize", "status": status, "outcome": "error",
            "response": {"headers": [["content-type", "application/json"], ["retry-after", "3"]], "body": withheld}})
    };
    for (status, is_own) in [(400, true), (422, false)] {
        let trace = Trace::of(&[about("/tokenize", &request, &error(status))]);
        let server = trace.play(&["--strict"]);
        let answer = server.send("/tokenize", &request).await;
        assert_eq!((answer.status, answer.header("x-vcr-record")), (status, Some("0")));
        assert_eq!(answer.text().contains("Input should be a valid string"), is_own, "{}", answer.text());
        assert_eq!((answer.text() == withheld, answer.header("retry-after")), (!is_own, Some("3")));
        assert_eq!(server.stop().0, 0);
    }
}

#[tokio::test]
async fn an_error_that_the_server_gives_by_itself_consumes_its_record() {
    let withheld =
        r#"{"error":{"message":"(not recorded)","type":"BadRequestError","param":"temperature","code":400}}"#;
    let error = |body: &str| {
        json!({"endpoint": "chat", "status": 400, "outcome": "error",
            "error": {"headers": {"content-type": "application/json", "retry-after": "3"}, "body": body}})
    };
    let worded = r#"{"object":"error","message":"too hot"}"#;
    let other = json!({"messages": [], "n": 2, "temperature": 7});
    let trace = Trace::of(&[
        about(CHAT, &temperature_nine(), &error(withheld)),
        about(CHAT, &other, &error(worded)),
        line("hello", "one", &json!({})),
    ]);
    let server = trace.play(&["--strict"]);
    let own = server.send(CHAT, &temperature_nine()).await;
    assert_eq!((own.status, own.header("x-vcr-match"), own.header("x-vcr-record")), (400, Some("request"), Some("0")));
    assert!(own.text().contains("temperature") && !own.text().contains("(not recorded)"), "{}", own.text());
    assert_eq!(own.header("retry-after"), Some("3"));
    let recorded = server.send(CHAT, &other).await;
    assert_eq!((recorded.status, recorded.text().as_str()), (400, worded), "as an engine of other words had it");
    assert_eq!(ask(&server, "a", &json!({"prompt": "hello", "max_tokens": 4})).await.status, 200);
    let again = server.send(CHAT, &temperature_nine()).await;
    assert_eq!((again.status, again.header("x-vcr-match")), (400, None), "its own error needs no record");
    let (code, said) = server.stop();
    assert!(said.contains("3 requests, 3 of 3 records served"), "{said}");
    assert_eq!(code, 0, "{said}");
    let by_index = trace.play(&["--replay-match", "index", "--strict"]);
    let mut request = post(CHAT, &temperature_nine());
    request.headers.push(("x-request-id", "replay-0"));
    let indexed = client::send(by_index.address, &request).await;
    assert_eq!((indexed.status, indexed.header("x-vcr-match")), (400, Some("index")), "{}", indexed.text());
}

#[tokio::test]
async fn choices_that_share_a_response_are_served_with_it() {
    let request = json!({"prompt": [[1, 2, 3], [7, 8]], "echo": true, "logprobs": 2});
    let body = json!({"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}]}).to_string();
    let choice = |choice: u32| {
        json!({"endpoint": "completions", "status": 200, "stream": false, "group": "g", "choice": choice,
            "output_tokens": 1, "prompt_hash": 7})
    };
    let mut first = about(COMPLETIONS, &request, &choice(0));
    first["response"] = json!({"headers": [["content-type", "application/json"]], "body": body});
    let mut second = about(COMPLETIONS, &request, &choice(1));
    second.as_object_mut().unwrap().remove("request_key");
    let trace = Trace::of(&[first, second]);
    let server = trace.play(&["--strict"]);
    assert_eq!(server.send(COMPLETIONS, &request).await.text(), body);
    assert_eq!(server.get("/vcr/unconsumed").await, json!([]));
    let second = ask(&server, "replay-1", &json!({"prompt": "x"})).await;
    assert_eq!((second.status, second.header("x-vcr-record"), second.text()), (200, Some("0"), body));
    let (code, said) = server.stop();
    assert!(said.contains("2 of 2 records served") && !said.contains("no token ids"), "{said}");
    assert!(said.contains("-H 'x-request-id: replay-0'"), "{said}");
    assert_eq!(code, 0, "{said}");
}

#[tokio::test]
async fn a_body_that_answered_a_request_for_a_stream_does_so_again() {
    let chat =
        |content: &str, stream: bool| json!({"messages": [{"role": "user", "content": content}], "stream": stream});
    let html = |stream: bool| {
        json!({"endpoint": "chat", "status": 200, "stream": stream,
            "response": {"headers": [["content-type", "text/html"]], "body": "<html>busy</html>"}})
    };
    let trace =
        Trace::of(&[about(CHAT, &chat("stream", true), &html(true)), about(CHAT, &chat("whole", false), &html(false))]);
    let server = trace.play(&["--strict"]);
    let same = server.send(CHAT, &chat("stream", true)).await;
    assert_eq!((same.status, same.text().as_str()), (200, "<html>busy</html>"));
    assert_eq!(same.header("content-type"), Some("text/html"));
    let other = server.send(CHAT, &chat("whole", true)).await;
    assert_eq!((other.status, other.header("x-vcr-miss")), (422, Some("no_match")), "{}", other.text());
    assert_eq!(server.get("/vcr/unconsumed").await, json!(["day.jsonl#1"]), "a miss consumes nothing");
    assert_eq!(server.send(CHAT, &chat("whole", false)).await.status, 200);
    let (code, said) = server.stop();
    assert!(said.contains("3 requests, 2 of 2 records served") && said.contains("misses: 1 no_match"), "{said}");
    assert!(said.contains("found by: 2 whole"), "{said}");
    assert_eq!(code, 1, "{said}");
}

#[tokio::test]
async fn a_path_that_nothing_knows_is_a_miss() {
    let trace = Trace::of(&[line("hello", "one", &json!({}))]);
    let server = trace.play(&["--fail-on", "miss"]);
    assert_eq!(server.send("/generate", &json!({"inputs": "x"})).await.status, 404);
    assert_eq!(client::send(server.address, &get("/favicon.ico")).await.status, 404);
    let misses = server.get("/vcr/misses").await;
    assert!(misses[0]["message"].as_str().unwrap().contains("/generate"), "{misses}");
    let (code, said) = server.stop();
    assert!(said.contains("misses: 1 no_match"), "{said}");
    assert_eq!(code, 1, "{said}");
}

#[tokio::test]
async fn records_without_an_answer_are_one_number_with_its_reasons() {
    let gone = |outcome: &str| json!({"prompt_tokens": 2, "output_tokens": 0, "ttft_ms": 1.0, "outcome": outcome, "endpoint": "completions"});
    let trace = Trace::of(&[line("hello", "one", &json!({})), gone("client_gone"), gone("upstream_failed")]);
    let server = trace.play(&["--strict"]);
    assert_eq!(ask(&server, "a", &json!({"prompt": "hello"})).await.status, 200);
    let missed = ask(&server, "replay-1", &json!({"prompt": "hello"})).await;
    assert_eq!(missed.status, 422);
    assert!(missed.text().contains("Record 1 is one whose client left before the first token"), "{}", missed.text());
    let (_, said) = server.stop();
    assert!(said.contains("day.jsonl (1 of 3 records)"), "{said}");
    assert!(said.contains("2 of the 3 records of") && said.contains("1 whose upstream failed"), "{said}");
    assert!(said.contains("1 of 1 record served"), "{said}");
}

#[tokio::test]
async fn a_miss_by_index_speaks_of_no_blocks() {
    let trace = Trace::of(&[line("hello", "one", &json!({}))]);
    let server = trace.play(&["--strict", "--replay-match", "index"]);
    let missed = ask(&server, "replay-7", &json!({"prompt": "hello"})).await;
    assert!(missed.status == 422 && !missed.text().contains("block ("), "{}", missed.text());
    assert!(!missed.text().contains("shares its first block"), "{}", missed.text());
}

#[tokio::test]
async fn a_bad_line_keeps_its_place() {
    let trace = Trace::of(&[
        line("one", "one", &json!({"arrival_ms": 0})),
        json!({"prompt_tokens": -1, "output_tokens": 1, "ttft_ms": 1}),
        line("three", "three", &json!({"arrival_ms": 9})),
    ]);
    let server = trace.play(&["--strict"]);
    let third = ask(&server, "replay-2", &json!({"prompt": "x", "max_tokens": 4})).await;
    assert_eq!((third.status, third.json()["choices"][0]["text"].as_str()), (200, Some("three")), "{}", third.text());
    let bad = ask(&server, "replay-1", &json!({"prompt": "x"})).await;
    assert!(bad.status == 422 && bad.text().contains("whose line breaks a rule"), "{}", bad.text());
    let (_, said) = server.stop();
    assert!(said.contains("(2 of 3 records)"), "{said}");
    assert!(said.contains("session default: 2 requests, 1 of 2 records served"), "{said}");
}

/// A trace of one file with a meta of its own beside that of `trace`.
fn beside(trace: &Trace, name: &str, meta: &Value, lines: &[Value]) -> String {
    let first = std::fs::read_to_string(&trace.file).unwrap().lines().next().unwrap().to_owned();
    let mut whole: Value = serde_json::from_str(&first).unwrap();
    whole["meta"].as_object_mut().unwrap().extend(meta.as_object().unwrap().clone());
    let text: String = std::iter::once(&whole).chain(lines).map(|line| format!("{line}\n")).collect();
    let path = trace.path(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn models_of_several_files_keep_their_names() {
    let trace = Trace::of(&[line("unused", "x", &json!({}))]);
    let one = beside(&trace, "one.jsonl", &json!({"model": "alpha"}), &[line("hello", "one", &json!({}))]);
    let two = beside(&trace, "two.jsonl", &json!({"model": "beta"}), &[line("bye", "two", &json!({}))]);
    let three = beside(&trace, "three.jsonl", &json!({}), &[line("hm", "three", &json!({"model": "gamma"}))]);
    let play = |files: &[&String]| {
        let files: Vec<&str> = files.iter().flat_map(|file| ["--replay-tokens", file.as_str()]).collect();
        Running::start(&[&["play", "--port", "0", "--instant", "--strict"][..], &files].concat())
    };
    let server = play(&[&one, &two, &three]);
    let models = server.get("/v1/models").await;
    let mut names: Vec<&str> = models["data"].as_array().unwrap().iter().filter_map(|it| it["id"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["alpha", "beta", "gamma"]);
    for (model, prompt, text) in [(Some("beta"), "bye", "two"), (None, "hello", "one"), (Some("gamma"), "hm", "three")]
    {
        let answer = server.send(COMPLETIONS, &json!({"model": model, "prompt": prompt, "max_tokens": 4})).await;
        assert_eq!(
            (answer.status, answer.json()["choices"][0]["text"].as_str()),
            (200, Some(text)),
            "{}",
            answer.text()
        );
    }
    let (code, said) = server.stop();
    assert_eq!(code, 0, "{said}");
    let unnamed = play(&[&one, &two]);
    for (prompt, text) in [("bye", "two"), ("hello", "one")] {
        let answer = unnamed.send(COMPLETIONS, &json!({"prompt": prompt, "max_tokens": 4})).await;
        assert_eq!(
            (answer.status, answer.json()["choices"][0]["text"].as_str()),
            (200, Some(text)),
            "{}",
            answer.text()
        );
    }
    let named_once = play(&[&one, &beside(&trace, "four.jsonl", &json!({}), &[line("yes", "four", &json!({}))])]);
    assert_eq!(named_once.get("/v1/models").await["data"][0]["id"], "alpha");
}

#[test]
fn flags_that_would_be_ignored_are_refused() {
    let trace = Trace::of(&[line("hello", "one", &json!({}))]);
    let file = trace.file.to_str().unwrap();
    let key = trace.path("key");
    std::fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
    let key = key.to_str().unwrap();
    let out = trace.path("out.jsonl");
    let tap = ["tap", "--upstream", "http://127.0.0.1:9", "--trace-out", out.to_str().unwrap()];
    let cassette = trace.path("c.yaml");
    std::fs::write(&cassette, "vcr: 1\nrecords: []\n").unwrap();
    let cassette = cassette.to_str().unwrap();
    let play = |flags: &[&'static str]| [&["play", "--port", "0"][..], flags].concat();
    let cases: Vec<(Vec<&str>, &str)> = vec![
        (vec!["play", "--port", "0", file], "use --replay-tokens"),
        (vec!["play", "--port", "0", "--replay-tokens", file, "--hash-key-file", key], "--hash-key-file has no effect"),
        (
            vec!["play", "--port", "0", "--replay-tokens", file, "--strict", "--unmatched-pace", "trace"],
            "--unmatched-pace is about made-up tokens",
        ),
        (play(&["--synthetic", "random", "--reasoning-share", "0.3"]), "--reasoning-share has no effect"),
        (
            vec!["play", "--port", "0", "--cassette", cassette, "--record-errors", "all"],
            "--record-errors has no effect",
        ),
        (
            vec!["play", "--port", "0", "--cassette", cassette, "--synthetic", "random", "--on-miss", "error"],
            "--synthetic has no effect",
        ),
        ([&tap[..], &["--record-errors", "all"]].concat(), "--record-errors all has no effect on a trace"),
        ([&tap[..], &["--cross-api"]].concat(), "--cross-api has no effect"),
        ([&tap[..], &["--ids", "fresh"]].concat(), "--ids fresh has no effect"),
        ([&tap[..], &["--retries", "consume"]].concat(), "--retries consume has no effect"),
        ([&tap[..], &["--miss-status", "404"]].concat(), "--miss-status has no effect"),
        ([&tap[..], &["--miss-detail", "none"]].concat(), "--miss-detail has no effect"),
        ([&tap[..], &["--allow-secrets"]].concat(), "--allow-secrets has no effect"),
        ([&tap[..], &["--admin"]].concat(), "--admin has no effect"),
        ([&tap[..], &["--no-admin"]].concat(), "--no-admin has no effect"),
    ];
    for (words, said) in cases {
        let output = vcr(&words);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_some_and(|code| code > 0) && stderr.contains(said), "{words:?}: {stderr}");
    }
}
