//! The account of what a trace served: reports, misses, sessions, metrics, exit codes, and the greeting's example.

use std::path::Path;

use serde_json::{Value, json};
use vllm_vcr::{
    recording::canonical,
    text::prompt::{BlockHashAlgorithm, BlockHasher},
};

use crate::support::{
    cassettes::{self, Shelf},
    client::{self, Answer, get, post},
    read,
    running::{Running, vcr},
    traces::{Trace, line},
};

const COMPLETIONS: &str = "/v1/completions";
const SYSTEM: &str = "You are a patient and careful assistant who answers in one short sentence, always in plain words, and never twice.";

/// Three prompts, two of which begin alike.
fn trace_of_three() -> Trace {
    Trace::of(&[
        line("hello", "one", &json!({})),
        line(&sky(), "blue", &json!({})),
        line(&format!("{SYSTEM} Why is the sea salty?"), "salt", &json!({})),
    ])
}

fn sky() -> String {
    format!("{SYSTEM} Why is the sky blue?")
}

fn mars() -> String {
    format!("{SYSTEM} Write a sonnet about Mars rovers, please.")
}

async fn ask(server: &Running, prompt: &str) -> Answer {
    server.send(COMPLETIONS, &json!({"prompt": prompt, "max_tokens": 4})).await
}

fn json_of(path: &Path) -> Value {
    serde_json::from_str(&read(path)).unwrap()
}

#[tokio::test]
async fn a_run_is_summarised_at_its_end_and_in_its_report() {
    let trace = trace_of_three();
    let report = trace.path("report.json");
    let server = trace.play(&["--report", report.to_str().unwrap(), "--fail-on", "miss"]);
    for prompt in ["hello", "hello", &sky(), &mars(), "nothing like it"] {
        assert_eq!(ask(&server, prompt).await.status, 200);
    }
    let mut by_number = post(COMPLETIONS, &json!({"prompt": "x", "max_tokens": 1}));
    by_number.headers.push(("x-request-id", "replay-1"));
    assert_eq!(client::send(server.address, &by_number).await.header("x-vcr-record"), Some("1"));
    let told = server.get("/vcr/report").await;
    let (code, said) = server.stop();
    assert_eq!(code, 1, "{said}");
    for part in [
        "session default: 6 requests, 3 of 3 records served",
        "found by: 1 index, 1 prefix, 3 whole; prefix shared ",
        "misses: 1 no_match",
        "loose matches: 1 prefix",
        "served again: 1 exhausted, 1 index",
        "failed: miss",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let written = json_of(&report);
    assert_eq!(written["sessions"], told["sessions"]);
    assert_eq!(written["failing"], json!(["miss"]));
    let session = &written["sessions"]["default"];
    assert_eq!(session["matches"]["found"], json!({"index": 1, "prefix": 1, "whole": 3}), "{session}");
    assert_eq!((&session["served"], &session["unconsumed"]), (&json!(3), &json!([])));
}

/// Faults are in the report of `play` as they are in that of `replay --scrape`, with the line that repeats each.
#[tokio::test]
async fn faults_that_happened_are_in_the_report() {
    let trace = trace_of_three();
    let shelf = Shelf::with(&cassettes::tape(&[cassettes::record(&["hello"], "one")]));
    for of_trace in [true, false] {
        let report = trace.path("faults.json");
        let flags =
            ["--fault", "503 where first=1 per=all", "--fault", "no-done", "--report", report.to_str().unwrap()];
        let server = if of_trace { trace.play(&flags) } else { shelf.play(&flags) };
        let chat = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": true});
        let text = json!({"prompt": "hello", "max_tokens": 4, "stream": true});
        for _ in 0..2 {
            let (path, body) = if of_trace { (COMPLETIONS, &text) } else { ("/v1/chat/completions", &chat) };
            server.send(path, body).await;
        }
        let listed = server.get("/vcr/faults").await["hits"].clone();
        let lines: Vec<&str> = listed.as_array().unwrap().iter().map(|hit| hit["fault"].as_str().unwrap()).collect();
        assert_eq!(lines.len(), 2, "{listed}");
        // What happened stays, whatever faults there are at the end.
        let removed = client::Request { method: "DELETE", ..get("/vcr/faults") };
        assert_eq!(client::send(server.address, &removed).await.status, 200);
        let (_, said) = server.stop();
        assert_eq!(json_of(&report)["faults"], json!({"hits": lines}));
        assert!(said.contains("2 faults happened; each of these flags repeats one:\n"), "{said}");
        for line in lines {
            assert!(said.contains(&format!("  --fault '{line}'\n")), "{line}: {said}");
        }
    }
    let report = trace.path("none.json");
    let server = trace.play(&["--report", report.to_str().unwrap()]);
    let (_, said) = server.stop();
    assert_eq!(json_of(&report)["faults"], json!({"hits": []}));
    assert!(!said.contains("happened; each"), "{said}");
}

#[tokio::test]
async fn strict_misses_are_explained_and_consume_nothing() {
    let trace = trace_of_three();
    let server = trace.play(&["--strict"]);
    let missed = ask(&server, &mars()).await;
    assert_eq!((missed.status, missed.header("x-should-retry")), (422, Some("false")));
    let misses = server.get("/vcr/misses").await;
    let nearest = &misses[0]["vcr"]["nearest"];
    assert_eq!((nearest["record"].as_u64(), &misses[0]["vcr"]["reason"]), (Some(1), &json!("no_match")), "{misses}");
    assert!(nearest["matched_blocks"].as_u64().unwrap() > 0, "{misses}");
    assert_eq!(server.get("/vcr/unconsumed").await, json!(["day.jsonl#0-2"]));
    assert_eq!(ask(&server, &sky()).await.status, 200);
    let exhausted = ask(&server, &sky()).await;
    assert_eq!((exhausted.status, exhausted.header("x-vcr-miss")), (422, Some("exhausted")));
    assert_eq!(server.get("/vcr/unconsumed").await, json!(["day.jsonl#0", "day.jsonl#2"]));
    let (code, said) = server.stop();
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("misses: 1 exhausted, 1 no_match") && said.contains("unconsumed beside the misses: 2, listed"),
        "{said}"
    );
}

#[tokio::test]
async fn secrets_of_a_prompt_are_not_reported() {
    let trace = trace_of_three();
    let server = trace.play(&["--strict"]);
    let secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH";
    let missed = ask(&server, &format!("{SYSTEM} Use the key {secret} for it.")).await;
    assert_eq!(missed.status, 422);
    assert_eq!(missed.json()["error"]["vcr"]["first_difference"]["received"], Value::Null, "{}", missed.text());
    let misses = server.get("/vcr/misses").await.to_string();
    let (_, said) = server.stop();
    for told in [missed.text(), misses, said] {
        assert!(!told.contains("abcdefghij"), "{told}");
    }
}

#[tokio::test]
async fn sessions_consume_apart_and_begin_anew() {
    let trace = Trace::of(&[line("hello", "one", &json!({})), line("hello", "two", &json!({}))]);
    let server = trace.play(&[]);
    let text = |answer: Answer| answer.json()["choices"][0]["text"].as_str().unwrap().to_owned();
    let by_path = |name: &'static str| {
        let path = format!("/vcr/s/{name}{COMPLETIONS}");
        let address = server.address;
        async move { client::send(address, &post(&path, &json!({"prompt": "hello"}))).await }
    };
    assert_eq!(text(ask(&server, "hello").await), "one");
    let first = by_path("a").await;
    assert_eq!(first.header("x-vcr-session"), Some("a"));
    assert_eq!(text(first), "one");
    assert_eq!(text(by_path("a").await), "two");
    let mut by_header = post(COMPLETIONS, &json!({"prompt": "hello"}));
    by_header.headers.push(("x-vcr-session", "b"));
    assert_eq!(text(client::send(server.address, &by_header).await), "one");
    let own = ask(&server, "hello").await;
    assert_eq!((own.header("x-vcr-session"), own.header("x-vcr-match")), (None, Some("prefix;blocks=0/0;whole")));
    assert_eq!(text(own), "two");
    let report = server.get("/vcr/report?session=a").await;
    assert_eq!(report["sessions"], json!({"a": report["sessions"]["a"]}));
    assert_eq!(report["sessions"]["a"]["served"], 2);
    let reset = server.send("/vcr/reset", &json!({"session": "a"})).await;
    assert_eq!(reset.status, 200);
    assert_eq!(text(by_path("a").await), "one");
    assert_eq!(server.send("/vcr/reset", &Value::Null).await.status, 200);
    assert_eq!(text(ask(&server, "hello").await), "one");
    assert_eq!(server.get("/vcr/sessions").await.as_array().unwrap().len(), 3);
    let opened = server.send("/vcr/sessions", &json!({"name": "c"})).await;
    assert_eq!((opened.status, &opened.json()["base_url"]), (201, &json!("/vcr/s/c/v1")));
    let verified = server.send("/vcr/verify", &json!({"session": "c", "fail_on": ["unconsumed"]})).await;
    assert_eq!(verified.status, 409);
    let ended = client::send(server.address, &client::Request { method: "DELETE", ..get("/vcr/sessions/c") }).await;
    assert_eq!((ended.status, &ended.json()["sessions"]["c"]["served"]), (200, &json!(0)));
    let wrong = client::send(server.address, &post("/vcr/s/a%20b/v1/completions", &json!({"prompt": "hello"}))).await;
    assert_eq!(wrong.status, 400);
}

const EMBEDDINGS: &str = "/v1/embeddings";

/// A line of a trace with a response to `{"input": "x"}`.
fn embedding(data: &str) -> Value {
    let key = canonical::request_key(EMBEDDINGS, br#"{"input":"x"}"#).number();
    let key = BlockHasher::new(BlockHashAlgorithm::Xxh3_64, 16).request_key(key);
    json!({"prompt_tokens": 0, "output_tokens": 0, "ttft_ms": 1.0, "endpoint": "embeddings", "status": 200,
        "request_key": key, "response": {"body": json!({"data": data}).to_string()}})
}

#[tokio::test]
async fn recorded_responses_are_consumed_by_each_session_for_itself() {
    let trace = Trace::of(&[embedding("one"), embedding("two")]);
    let server = trace.play(&["--on-exhausted", "error"]);
    let send = |path: String, session: Option<&'static str>| {
        let address = server.address;
        async move {
            let mut request = post(&path, &json!({"input": "x"}));
            request.headers.extend(session.map(|name| ("x-vcr-session", name)));
            client::send(address, &request).await
        }
    };
    let by_path = || send(format!("/vcr/s/a{EMBEDDINGS}"), None);
    let data = |answer: Answer| answer.json()["data"].as_str().unwrap().to_owned();
    assert_eq!(data(send(EMBEDDINGS.to_owned(), None).await), "one");
    let first = by_path().await;
    assert_eq!((first.header("x-vcr-session"), first.header("x-vcr-record")), (Some("a"), Some("0")));
    assert_eq!(data(first), "one");
    assert_eq!(data(send(EMBEDDINGS.to_owned(), Some("a")).await), "two");
    assert_eq!(by_path().await.header("x-vcr-miss"), Some("exhausted"));
    assert_eq!(data(send(EMBEDDINGS.to_owned(), Some("b")).await), "one");
    let own = send(EMBEDDINGS.to_owned(), None).await;
    assert_eq!(own.header("x-vcr-session"), None);
    assert_eq!(data(own), "two");
    let report = server.get("/vcr/report?session=a").await;
    assert_eq!(report["sessions"]["a"]["served"], 2);
    assert_eq!(server.get("/vcr/unconsumed?session=b").await, json!(["day.jsonl#1"]));
    assert_eq!(server.send("/vcr/reset", &json!({"session": "a"})).await.status, 200);
    assert_eq!(data(by_path().await), "one");
    assert_eq!(server.send("/vcr/sessions", &json!({"name": "b"})).await.status, 201);
    assert_eq!(data(send(EMBEDDINGS.to_owned(), Some("b")).await), "one", "reopened");
}

#[tokio::test]
async fn a_session_that_begins_anew_makes_up_the_same_answers_again() {
    let trace = trace_of_three();
    let server = trace.play(&[]);
    let text = |answer: Answer| answer.json()["choices"][0]["text"].as_str().unwrap().to_owned();
    let sample = |session: Option<&'static str>| {
        let address = server.address;
        async move {
            let body = json!({"prompt": "a prompt that nobody recorded", "max_tokens": 8, "temperature": 1});
            let mut request = post(COMPLETIONS, &body);
            request.headers.extend(session.map(|name| ("x-vcr-session", name)));
            client::send(address, &request).await
        }
    };
    let samples = [text(sample(None).await), text(sample(None).await)];
    assert_ne!(samples[0], samples[1]);
    assert_eq!(text(sample(Some("a")).await), samples[0]);
    assert_eq!(server.send("/vcr/reset", &json!({"session": "default"})).await.status, 200);
    assert_eq!([text(sample(None).await), text(sample(None).await)], samples);
    assert_eq!(text(sample(Some("a")).await), samples[1], "another session goes on");
    assert_eq!(server.send("/vcr/reset", &Value::Null).await.status, 200);
    assert_eq!([text(sample(Some("a")).await), text(sample(None).await)], [samples[0].clone(), samples[0].clone()]);
}

#[tokio::test]
async fn records_and_metrics_tell_what_was_served() {
    let trace = trace_of_three();
    let server = trace.play(&["--vcr-metrics"]);
    ask(&server, "hello").await;
    ask(&server, &mars()).await;
    ask(&server, "nothing like it").await;
    let records = server.get("/vcr/records").await;
    assert_eq!((records[0]["served"].as_u64(), records[2]["served"].as_u64()), (Some(1), Some(0)), "{records}");
    assert_eq!(server.get("/vcr/records/1").await["record"], "day.jsonl#1");
    server.send("/vcr/reset", &Value::Null).await;
    let metrics = client::send(server.address, &get("/metrics")).await.text();
    for row in [
        "vcr_prompts_matched_total{by=\"whole\"} 1.0",
        "vcr_prompts_matched_total{by=\"prefix\"} 1.0",
        "vcr_prompts_missed_total{reason=\"no_match\"} 1.0",
        "vcr_records 3.0",
        "vcr_records_consumed 0.0",
        "vcr_sessions 1.0",
    ] {
        assert!(metrics.contains(&format!("\n{row}\n")), "{row}: {metrics}");
    }
    let without = trace.play(&[]);
    assert!(!client::send(without.address, &get("/metrics")).await.text().contains("vcr_"));
}

#[tokio::test]
async fn questions_are_answered_where_they_are_wanted() {
    let trace = trace_of_three();
    let status = |server: &Running| {
        let address = server.address;
        async move { client::send(address, &get("/vcr/report")).await.status }
    };
    assert_eq!(status(&trace.play(&["--no-admin"])).await, 404);
    let apart = trace.play(&["--admin-listen", "127.0.0.1:0"]);
    assert_eq!(status(&apart).await, 404);
    let (_, said) = apart.stop();
    assert!(said.contains("admin pages at http://127.0.0.1:"), "{said}");
    let synthetic = Running::start(&["play", "--port", "0", "--synthetic", "random"]);
    assert_eq!(status(&synthetic).await, 404, "there is nothing to ask");
}

#[test]
fn flags_that_a_source_has_no_use_for_are_refused() {
    let trace = trace_of_three();
    let file = trace.file.to_str().unwrap();
    for (flags, said) in [
        (&["--replay-tokens", file, "--match", "exact"][..], "--match has no effect on a trace"),
        (&["--replay-tokens", file, "--live", "llm", "--upstream", "http://h:1"], "has no effect on a trace"),
        (&["--replay-tokens", file, "--scrub", "s/a/b/"], "--scrub has no effect on a trace"),
        (&["--replay-tokens", file, "--on-miss", "upstream"], "--on-miss has no effect on a trace"),
        (&["--synthetic", "random", "--fail-on", "miss"], "--fail-on has no effect on synthetic tokens"),
        (&["--mode", "all"], "--mode has no effect on the built-in trace"),
        (&["--replay-tokens", file, "--report", "/nowhere/r.json"], "cannot write /nowhere/r.json"),
    ] {
        let output = vcr(&[&["play", "--port", "0"], flags].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        let code = if said.starts_with("cannot") { 4 } else { 2 };
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {stderr}");
        assert!(stderr.contains(said), "{flags:?}: {stderr}");
    }
    let config = trace.path("vcr.toml");
    std::fs::write(&config, "[play]\nretries = \"reserve\"\nscrub = \"s/a/b/\"\n").unwrap();
    let output = vcr(&["--config", config.to_str().unwrap(), "play", "--port", "0", "--replay-tokens", file]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("--scrub has no effect on a trace"), "the default of --retries is no wish: {stderr}");
}

/// What the greeting tells to try, sent.
async fn trial(flags: &[&str]) -> Answer {
    let server = Running::start(&[&["play", "--port", "0", "--instant"], flags].concat());
    let again = Running::start(&[&["play", "--port", "0", "--instant"], flags].concat());
    let (_, said) = again.stop();
    let command = said.lines().find(|line| line.contains("curl -N")).unwrap_or_else(|| panic!("{said}")).to_owned();
    let path = format!("/{}", command.split("http://").nth(1).unwrap().split_once('/').unwrap().1);
    let path = path.split(' ').next().unwrap().to_owned();
    let body: Value = serde_json::from_str(command.split_once(" -d '").unwrap().1.trim_end_matches('\'')).unwrap();
    let id = command.split_once("x-request-id: ").map(|(_, rest)| rest.split('\'').next().unwrap().to_owned());
    let mut request = post(&path, &body);
    request.headers.extend(id.as_deref().map(|id| ("x-request-id", id)));
    client::send(server.address, &request).await
}

#[tokio::test]
async fn what_the_greeting_tells_to_try_is_answered_by_a_record() {
    let built_in = trial(&[]).await;
    assert!(built_in.header("x-vcr-match").unwrap().ends_with(";whole"), "{built_in:?}");
    let trace = trace_of_three();
    let by_number = trial(&["--replay-tokens", trace.file.to_str().unwrap()]).await;
    assert_eq!((by_number.header("x-vcr-match"), by_number.header("x-vcr-record")), (Some("index"), Some("0")));
    let request = json!({"request": {"prompt": "recorded", "model": "m"}, "model": "m"});
    let recorded = Trace::of(&[line("hello", "one", &json!({})), line("recorded", "two", &request)]);
    let answer = trial(&["--replay-tokens", recorded.file.to_str().unwrap()]).await;
    assert_eq!(answer.json()["choices"][0]["text"], "two", "{}", answer.text());
}

#[tokio::test]
async fn pages_answer_head_with_their_headers_and_no_body() {
    let server = trace_of_three().play(&[]);
    for path in ["/vcr/report", "/vcr/misses", "/vcr/records", "/vcr/records/0", "/vcr/sessions", "/vcr/unconsumed"] {
        let page = client::send(server.address, &get(path)).await;
        let head = client::send(server.address, &client::Request { method: "HEAD", ..get(path) }).await;
        assert_eq!((head.status, head.text()), (200, String::new()), "{path}");
        let headers = |answer: &Answer| {
            let mut headers = answer.headers.clone();
            headers.retain(|(name, _)| name != "date");
            headers
        };
        assert_eq!(headers(&head), headers(&page), "{path}");
        assert!(page.header("content-length").is_some_and(|length| length != "0"), "{path}");
    }
    let missing = client::Request { method: "HEAD", ..get("/vcr/records/99") };
    assert_eq!(client::send(server.address, &missing).await.status, 404);
}
