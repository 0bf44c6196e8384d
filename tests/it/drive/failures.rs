//! What a report says of requests that fail, of targets that differ, and of what is not sent.

use std::{io::Write, thread::sleep, time::Duration};

use serde_json::{Value, json};

use super::server::{Server, raw};
use crate::support::{
    running::{Running, vcr},
    traces::{Trace, json_lines},
};

fn line(number: usize, status: u16) -> Value {
    json!({"prompt_tokens": 4, "output_tokens": 2, "ttft_ms": 1.0, "itl_ms": [1.0], "arrival_ms": number, "status": status,
        "outcome": if status == 200 { "finished" } else { "error" }, "endpoint": "completions", "stream": true})
}

fn drive(trace: &Trace, flags: &[&str]) -> (Value, String) {
    let fixed = ["replay", trace.file.to_str().unwrap(), "--arrivals", "burst"];
    let printed = vcr(&[&fixed[..], flags, &["--json"]].concat());
    let shown = vcr(&[&fixed[..], flags].concat());
    let shown = [shown.stdout, shown.stderr].concat();
    (serde_json::from_slice(&printed.stdout).unwrap(), String::from_utf8(shown).unwrap())
}

#[test]
fn the_first_error_of_each_status_is_shown_with_advice_and_without_secrets() {
    let trace = Trace::of(&[line(0, 200), line(1, 200)]);
    let server = Running::start(&["play", "--synthetic", "random", "--port", "0", "--api-key", "a-secret-of-mine"]);
    let url = format!("http://{}", server.address);
    let (printed, shown) = drive(&trace, &["--target", &format!("{url}/v1"), "--api-key", "a-secret-of-mine"]);
    assert_eq!(printed["errors"]["404"], r#"{"detail":"Not Found"}"#, "{printed:#}");
    assert!(shown.contains("failed     2 error with status 404"), "{shown}");
    assert!(shown.contains("status 404: {\"detail\":\"Not Found\"}"), "{shown}");
    assert!(shown.contains("vLLM's URL has no /v1 at its end: leave it out"), "{shown}");
    let (printed, shown) = drive(&trace, &["--target", &url, "--api-key", "a-secret-of-mine", "--model", "nope"]);
    let error = printed["errors"]["404"].as_str().unwrap();
    assert!(error.contains("`nope` does not exist") && shown.contains(error), "{shown}");
    assert!(!shown.contains("no /v1"), "{shown}");
}

#[test]
fn what_is_no_completion_fails_in_the_runs_trace_too_and_is_shown() {
    let trace = Trace::of(&(0..4).map(|number| line(number, 200)).collect::<Vec<_>>());
    let good = Server::start(
        |_, _| json!({"choices": [{"index": 0, "text": "a b", "finish_reason": "length"}], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}),
    );
    let login = Server::start(|_, _| json!({"detail": "login required"}));
    let event = "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\ndata: {\"error\":{\"message\":\"engine dead\"}}\n\ndata: [DONE]\n\n";
    let dead = Server::start(move |_, _| json!(event));
    let (runs, gate) =
        (["good", "login", "dead"].map(|name| trace.path(&format!("{name}.jsonl"))), trace.path("gate.toml"));
    std::fs::write(&gate, "[error_share]\nmax = '1%'\n").unwrap();
    for ((server, out), said) in [good, login, dead].iter().zip(&runs).zip([
        "",
        r#"status 200: application/json: {"detail":"login required"}"#,
        r#"status 200: text/event-stream: {"error":{"message":"engine dead"}}"#,
    ]) {
        let flags = ["--target", &server.url(), "--arrivals", "burst", "--out", out.to_str().unwrap()];
        let shown = vcr(&[&["replay", trace.file.to_str().unwrap()][..], &flags].concat()).stdout;
        assert!(String::from_utf8_lossy(&shown).contains(said), "{}", String::from_utf8_lossy(&shown));
    }
    for (run, code) in runs.iter().zip([0, 1, 1]) {
        let files = [&runs[0], run, &gate].map(|path| path.to_str().unwrap());
        let compared = vcr(&["inspect", "compare", files[0], files[1], "--gate", files[2]]);
        assert_eq!(compared.status.code(), Some(code), "{}", String::from_utf8_lossy(&compared.stdout));
    }
}

#[test]
fn a_server_that_does_not_answer_is_no_gateway_with_a_status() {
    let trace = Trace::of(&[line(0, 200)]);
    let (printed, shown) = drive(&trace, &["--target", "http://127.0.0.1:1"]);
    let why = printed["errors"]["upstream_failed"].as_str().unwrap();
    assert!(why.starts_with("the upstream cannot be reached: Connection refused"), "{printed:#}");
    assert!(shown.contains(&format!("upstream_failed: {why}")) && !shown.contains("status 502"), "{shown}");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let (printed, _) = drive(&trace, &["--target", &url, "--timeout", "200ms"]);
    assert_eq!(printed["errors"], json!({"timed_out": "the upstream took too long: no response within 200ms"}));
}

#[test]
fn a_stream_without_an_end_is_left() {
    let mut long = line(0, 200);
    (long["output_tokens"], long["itl_ms"]) = (json!(8), json!(vec![1.0; 7]));
    let fault = "repeat:every=1ms at event 2";
    let server = Running::start(&["play", "--synthetic", "random", "--instant", "--port", "0", "--fault", fault]);
    let (printed, shown) = drive(&Trace::of(&[long]), &["--target", &format!("http://{}", server.address)]);
    assert_eq!(printed["results"]["failures"], json!({"error": 1}), "{printed:#}");
    assert!(shown.contains("error: left after 1"), "{shown}");
}

const EVENT: &str = "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n";

#[test]
fn a_response_that_breaks_off_or_cannot_be_read_is_shown_with_its_reason() {
    let trace = Trace::of(&[line(0, 200)]);
    let broken = raw(|client| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        let _left = client.write_all(format!("{head}{:x}\r\n{EVENT}\r\n", EVENT.len()).as_bytes());
    });
    let (printed, shown) = drive(&trace, &["--target", &broken]);
    assert_eq!(printed["results"]["failures"], json!({"upstream_failed": 1}), "{printed:#}");
    assert!(shown.contains("upstream_failed: the connection broke off: "), "{shown}");
    let early = Server::start(|_, _| json!(EVENT));
    let (printed, _) = drive(&trace, &["--target", &early.url()]);
    assert_eq!(printed["results"]["failures"], json!({"upstream_failed": 1}), "{printed:#}");
    assert!(printed["errors"]["200"].as_str().unwrap().starts_with("text/event-stream: {"), "{printed:#}");
    let packed = raw(|client| {
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n";
        let _left = client.write_all(format!("{head}abcd").as_bytes());
    });
    let (printed, _) = drive(&trace, &["--target", &packed]);
    assert!(printed["errors"]["200"].as_str().unwrap().contains("content encoding"), "{printed:#}");
    let moved = raw(|client| {
        let _left = client.write_all(b"HTTP/1.1 302 Found\r\nlocation: /login\r\ncontent-length: 0\r\n\r\n");
    });
    let (printed, _) = drive(&trace, &["--target", &moved]);
    assert_eq!(printed["errors"]["302"], "location /login:", "{printed:#}");
    // It came whole: no connection broke.
    let other = Server::start(|_, _| json!(["data: {}"]));
    let (printed, _) = drive(&trace, &["--target", &other.url()]);
    assert_eq!(printed["results"]["failures"], json!({"error": 1}), "{printed:#}");
    assert_eq!(printed["errors"]["200"], r#"application/json: ["data: {}"]"#);
}

#[test]
fn comments_keep_no_response_alive_beyond_the_timeout() {
    let mut left = line(1, 200);
    (left["outcome"], left["prompt_tokens"]) = (json!("client_gone"), json!(5));
    let alive = raw(|client| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        let mut is_open = client.write_all(format!("{head}{EVENT}").as_bytes()).is_ok();
        while is_open {
            sleep(Duration::from_millis(50));
            is_open = client.write_all(b": ping\n\n").is_ok();
        }
    });
    let (printed, shown) = drive(&Trace::of(&[line(0, 200), left]), &["--target", &alive, "--timeout", "500ms"]);
    assert_eq!(printed["results"]["failures"], json!({"timed_out": 2}), "{printed:#}");
    assert!(shown.contains("timed_out: nothing but comments came for 500ms"), "{shown}");
}

#[test]
fn targets_are_counted_apart() {
    let trace = Trace::of(&(0..6).map(|number| line(number, 200)).collect::<Vec<_>>());
    let good = Running::start(&["play", "--synthetic", "random", "--port", "0"]);
    let bad = Running::start(&["play", "--synthetic", "random", "--port", "0", "--fault", "429"]);
    let [good, bad] = [&good, &bad].map(|server| format!("http://{}", server.address));
    let (table, out) = (trace.path("run.csv"), trace.path("run.jsonl"));
    let fixed = ["replay", trace.file.to_str().unwrap(), "--arrivals", "burst", "--json", "--target", &good];
    let saved = ["--target", &bad, "--save", table.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let printed: Value = serde_json::from_slice(&vcr(&[&fixed[..], &saved].concat()).stdout).unwrap();
    let key = |url: &str| format!("{url}/");
    let of = |url: &str| {
        let targets = printed["results"]["by_target"].as_object().unwrap();
        targets.iter().find(|(name, _)| key(name).starts_with(&key(url))).unwrap().1.clone()
    };
    assert_eq!(of(&good), json!({"requests": 3, "good": 3}), "{printed:#}");
    assert_eq!(of(&bad), json!({"requests": 3, "good": 0}));
    let table = std::fs::read_to_string(table).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|row| row.split(',').collect()).collect();
    assert!(rows.iter().all(|row| (row[12] == "true") == row[15].starts_with(&good)), "{table}");
    let records: Vec<Value> = json_lines(&out).into_iter().filter(|line| line["intended_ms"].is_number()).collect();
    assert_eq!(records.len(), 6);
    for record in records {
        let number = record["request_id"].as_str().unwrap().trim_start_matches("replay-").to_owned();
        let row = rows.iter().find(|row| row[0] == number).unwrap();
        assert_eq!((record["target"].as_str(), record["intended_ms"].as_f64()), (Some(row[15]), row[1].parse().ok()));
    }
    let (_, shown) = drive(&trace, &["--target", &good, "--target", &bad]);
    assert!(shown.contains(": 3 requests, 3 not answered well") && shown.contains(": 3 requests, 0 not"), "{shown}");
}

#[test]
fn requests_that_were_refused_too_have_not_failed_and_what_is_not_sent_is_in_the_report() {
    let broken = json!({"prompt_tokens": 4, "output_tokens": "two"});
    let (mut refused, answered) = (line(1, 404), line(0, 200));
    refused["prompt_tokens"] = json!(5);
    let trace = Trace::of(&[answered, refused.clone(), refused, broken]);
    let server = Server::start(|_, body| {
        let tokens = body["prompt"].as_array().map_or(0, Vec::len);
        let answer = json!({"choices": [{"index": 0, "text": "a b", "finish_reason": "length"}],
            "usage": {"prompt_tokens": 4, "completion_tokens": 2}});
        if tokens == 4 { answer } else { Value::Null }
    });
    let (printed, shown) = drive(&trace, &["--target", &server.url()]);
    assert!(shown.contains("2 were refused with the status that they had been"), "{shown}");
    let results = &printed["results"];
    assert_eq!((&results["failed"], &results["as_recorded"]), (&json!(0), &json!(2)), "{printed:#}");
    assert_eq!(printed["run"]["left_out"], json!({"lines that are no sound record": 1}));
}

#[test]
fn events_that_are_no_json_and_answers_without_a_token_are_counted() {
    let trace = Trace::of(&[line(0, 200)]);
    let done = |text: &str| {
        let text = text.to_owned();
        Server::start(move |_, _| json!(format!("data: {{\"choices\":[{{\"index\":0,\"te\n\n{text}data: [DONE]\n\n")))
    };
    let empty = done("data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n");
    let (printed, shown) = drive(&trace, &["--target", &empty.url(), "--slo", "ttft=10s"]);
    let results = &printed["results"];
    assert_eq!((&results["unread_events"], &results["goodput"]), (&json!(1), &json!(0.0)), "{printed:#}");
    assert_eq!(results["output_drift"]["off"], 1);
    assert!(shown.contains("events     1 could not be read") && shown.contains("(none came)"), "{shown}");
    let named = done(
        "data: {\"choices\":[{\"index\":0,\"text\":\"ab\",\"token_ids\":[1,2],\"finish_reason\":\"length\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":0}}\n\n",
    );
    let (printed, _) = drive(&trace, &["--target", &named.url()]);
    assert_eq!(printed["results"]["output_tokens"], 2, "{printed:#}");
}

#[test]
fn shares_durations_and_contradictions_are_refused_before_the_run() {
    let trace = Trace::of(&[line(0, 200)]);
    let fixed = ["replay", trace.file.to_str().unwrap(), "--target", "http://127.0.0.1:1"];
    for (flags, said) in [
        (&["--max-errors", "5"][..], "0.05, or 5%"),
        (&["--sample", "2"], "0.05, or 5%"),
        (&["--sample", "0"], "and not 0"),
        (&["--burstiness", "3"], "--arrivals gamma"),
        (&["--rate", "3", "--arrivals", "burst"], "--arrivals burst"),
        (&["--duration", "60"], "60s for seconds, 60ms for milliseconds"),
        (&["--timeout", "10"], "10s for seconds, 10ms"),
        (&["--timeout", "0s"], "zero would end everything"),
        (&["--find-max", "--rung", "1.5"], "1.5s for seconds, 1.5ms"),
        (&["--out", "-"], "name a file"),
        (&["--find-max", "--print-as", "vllm"], "--print-as"),
        (&["--find-max", "--save", "rungs.hlog"], ".json or .csv"),
    ] {
        let output = vcr(&[&fixed[..], flags].concat());
        let shown = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && shown.contains(said), "{flags:?} {shown}");
    }
    let server = Server::start(|_, _| Value::Null);
    let kept = ["--max-errors", "100%", "--sample", "100%", "--warmup", "0", "--duration", "1s"];
    let (printed, _) = drive(&trace, &[&["--target", &server.url()][..], &kept].concat());
    assert_eq!(printed["results"]["requests"], 1);
}
