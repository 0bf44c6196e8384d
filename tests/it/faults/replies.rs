//! Faults in what the model says: every kind, on every wire that can say it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use vllm_vcr::faults::{CATALOGUE, FaultStage};

use crate::support::{
    cassettes::{self, Shelf, tape},
    client::{self, post},
    running::Running,
};

/// Paths of the endpoints whose answers are text of a model.
const WIRES: [&str; 4] = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"];

fn chat() -> Value {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    json!({"messages": [{"role": "user", "content": "hi"}],
           "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]})
}

/// A request of an endpoint that takes any.
fn plain(path: &str, model: &str) -> Value {
    let mut body = match path {
        "/v1/completions" => json!({"prompt": "hi"}),
        "/v1/responses" => json!({"input": "hi"}),
        _ => json!({"messages": [{"role": "user", "content": "hi"}]}),
    };
    body["model"] = model.into();
    body[if path == "/v1/responses" { "max_output_tokens" } else { "max_tokens" }] = 16.into();
    body
}

async fn model(play: &Running) -> String {
    play.get("/v1/models").await["data"][0]["id"].as_str().unwrap().to_owned()
}

fn with_fault(line: &'static str, more: &[&'static str]) -> Running {
    Running::start(&[&["play", "--port", "0", "--fault", line][..], more].concat())
}

async fn faulted(play: &Running, path: &str, kind: &str, body: &Value) -> client::Answer {
    let mut request = post(path, body);
    request.headers.push(("x-vcr-fault", kind));
    client::send(play.address, &request).await
}

#[tokio::test]
async fn every_kind_is_an_answer_in_a_valid_form() {
    let play = Running::start(&[
        "play",
        "--port",
        "0",
        "--instant",
        "--fault-headers",
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
    ]);
    let kinds: Vec<&str> = CATALOGUE.iter().filter(|row| row.stage == FaultStage::Reply).map(|row| row.name).collect();
    assert_eq!(kinds.len(), 13);
    for kind in kinds {
        let answer = faulted(&play, "/v1/chat/completions", kind, &chat()).await;
        let whole = answer.json();
        assert_eq!(answer.status, 200, "{kind}: {whole}");
        assert!(whole["model"].is_string() && whole["choices"][0]["finish_reason"].is_string(), "{kind}: {whole}");
        let mut streamed = chat();
        streamed["stream"] = true.into();
        let events = faulted(&play, "/v1/chat/completions", kind, &streamed).await.events();
        assert_eq!(events.last().unwrap(), "data: [DONE]", "{kind}");
        for event in events.iter().filter(|event| *event != "data: [DONE]") {
            let data: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
            assert!(data["choices"].is_array(), "{kind}: {event}");
        }
    }
}

#[tokio::test]
async fn calls_are_wrong_in_the_named_way() {
    let play = Running::start(&[
        "play",
        "--port",
        "0",
        "--instant",
        "--fault-headers",
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
    ]);
    let calls = async |kind: &str| {
        let answer = faulted(&play, "/v1/chat/completions", kind, &chat()).await.json();
        answer["choices"][0]["message"]["tool_calls"].as_array().cloned().unwrap_or_default()
    };
    let arguments = |call: &Value| serde_json::from_str::<Value>(call["function"]["arguments"].as_str().unwrap());
    assert!(arguments(&calls("bad-arguments").await[0]).is_err());
    assert!(!arguments(&calls("schema-violation").await[0]).unwrap()["a"].is_i64());
    assert_ne!(calls("unknown-tool").await[0]["function"]["name"], "f");
    let twice = calls("duplicate-call").await;
    assert_eq!(twice[0]["id"], twice[1]["id"]);
}

#[tokio::test]
async fn what_a_wire_cannot_say_leaves_the_request_served_and_is_listed_with_the_reason() {
    let play = with_fault("unknown-tool", &["--instant"]);
    let served = play.send("/v1/completions", &json!({"prompt": "a", "max_tokens": 4})).await;
    assert_eq!(served.status, 200, "{}", served.text());
    assert!(served.json()["usage"]["completion_tokens"].as_u64() > Some(0));
    let shown = play.get("/vcr/faults").await;
    assert_eq!((&shown["hits"], &shown["faults"][0]["happened"]), (&json!([]), &json!(0)));
    assert_eq!(shown["faults"][0]["not_said"], 1);
    let unsaid = &shown["not_said"][0];
    assert!(unsaid["fault"].as_str().unwrap().starts_with("unknown-tool where request="), "{unsaid}");
    assert_eq!(
        (&unsaid["of"], unsaid["reason"].as_str()),
        (&json!(0), Some("unknown-tool: a completion has no tool calls"))
    );
    let (_, said) = play.stop();
    assert!(said.contains("fault not said: --fault 'unknown-tool where request="), "{said}");
}

#[tokio::test]
async fn a_request_that_asks_for_what_its_wire_cannot_say_is_refused() {
    let play = Running::start(&[
        "play",
        "--port",
        "0",
        "--instant",
        "--fault-headers",
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
    ]);
    let refused = faulted(&play, "/v1/completions", "unknown-tool", &json!({"prompt": "a"})).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("a completion has no tool calls"), "{}", refused.text());
    let body = json!({"messages": [{"role": "user", "content": "a"}]});
    let without = faulted(&play, "/v1/chat/completions", "bad-arguments", &body).await;
    assert_eq!(without.status, 400, "{}", without.text());
    let shown = play.get("/vcr/faults").await;
    assert_eq!((&shown["hits"], shown["not_said"].as_array().unwrap().len()), (&json!([]), 2));
}

#[tokio::test]
async fn what_the_engine_refuses_is_refused_all_the_same() {
    let (clean, play) = (Running::start(&["play", "--port", "0", "--instant"]), with_fault("empty", &["--instant"]));
    let model = model(&play).await;
    for path in WIRES {
        let mut hot = plain(path, &model);
        hot["temperature"] = json!(-3);
        let mut long = plain(path, &model);
        long[if path == "/v1/responses" { "max_output_tokens" } else { "max_tokens" }] = json!(-1);
        for body in [hot, long, plain(path, "no-such-model"), json!({}), json!([])] {
            let (expected, got) = (clean.send(path, &body).await, play.send(path, &body).await);
            assert_eq!((got.status, got.text()), (expected.status, expected.text()), "{path} {body}");
            assert!(got.status >= 400, "{path} {body}");
        }
        assert_eq!(play.send(path, &plain(path, &model)).await.status, 200);
    }
    let shown = play.get("/vcr/faults?hits=100").await;
    assert_eq!((&shown["faults"][0]["happened"], &shown["faults"][0]["not_said"]), (&json!(4), &json!(20)));
    assert!(shown["not_said"][0]["reason"].as_str().unwrap().starts_with("the request is refused: "), "{shown}");
}

#[tokio::test]
async fn answers_are_paced_counted_and_have_usage_on_every_wire() {
    let said = regex::Regex::new(r#""(?:content|text|delta)": ?"([^"]*)""#).unwrap();
    for source in [&["--synthetic", "random"][..], &["--engine"], &[]] {
        let play = with_fault(
            "repetition",
            &[source, &["--time-to-first-token", "120ms", "--inter-token-latency", "1ms"]].concat(),
        );
        let model = model(&play).await;
        for path in WIRES {
            for stream in [false, true] {
                let before = (tokens(&play).await, finished(&play).await);
                let mut body = plain(path, &model);
                body["stream"] = stream.into();
                if stream && path.ends_with("completions") {
                    body["stream_options"] = json!({"include_usage": true});
                }
                let begun = Instant::now();
                let answer = play.send(path, &body).await;
                let (took, text) = (begun.elapsed(), answer.text());
                assert_eq!(answer.status, 200, "{path}: {text}");
                let spoken: String = said.captures_iter(&text).map(|found| found[1].to_owned()).collect();
                assert!(spoken.contains("I will look into that"), "{path}: {text}");
                if source != ["--engine"] {
                    assert!(took >= Duration::from_millis(120), "{path} {stream}: {took:?}");
                }
                let name = if path.ends_with("completions") { "completion_tokens" } else { "output_tokens" };
                let pattern = regex::Regex::new(&format!("\"{name}\": ?([0-9]+)")).unwrap();
                let counts = pattern.captures_iter(&text).map(|found| found[1].parse::<u64>().unwrap());
                let after = (tokens(&play).await, finished(&play).await);
                assert_eq!(after.1 - before.1, 1, "{path} {stream} {source:?}");
                assert_eq!(counts.max(), Some(after.0 - before.0), "{path} {stream} {source:?}: {text}");
            }
        }
        assert_eq!(play.get("/vcr/faults").await["faults"][0]["happened"], 8);
    }
}

async fn tokens(play: &Running) -> u64 {
    sum(play, "vllm:generation_tokens_total").await
}

async fn finished(play: &Running) -> u64 {
    sum(play, "vllm:request_success_total").await
}

async fn sum(play: &Running, family: &str) -> u64 {
    let page = client::send(play.address, &client::get("/metrics")).await.text();
    let samples = page.lines().filter(|line| line.starts_with(family));
    samples.map(|line| line.rsplit(' ').next().unwrap().trim_end_matches(".0").parse::<u64>().unwrap()).sum()
}

#[tokio::test]
async fn of_cassettes_answers_are_replaced_and_misses_and_failures_stay() {
    let mut failed = cassettes::record(&["broken"], "x");
    failed = failed.replace("status: 200", "status: 500");
    let shelf = Shelf::with(&tape(&[cassettes::record(&["hello"], "one two three"), failed]));
    let play = shelf.play(&["--fault", "wrong-language"]);
    let path = "/v1/chat/completions";
    let said = play.send(path, &cassettes::chat(&["hello"])).await;
    assert!(said.text().contains("没有人要求"), "{}", said.text());
    assert!(said.header("x-vcr-record").is_some_and(|name| name.ends_with("#0")));
    let missed = play.send(path, &cassettes::chat(&["unknown"])).await;
    assert_eq!(missed.status, 422, "{}", missed.text());
    let shown = play.get("/vcr/faults").await;
    assert_eq!(shown["faults"][0]["happened"], 1);
    assert_eq!(shown["not_said"][0]["reason"], "no record answers; the status is 422");
}

#[tokio::test]
async fn a_reply_can_have_faults_in_its_stream_too() {
    let faults = ["--fault", "refusal where prompt=hi", "--fault", "no-done"];
    let tools = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"];
    let play = Running::start(&[&["play", "--port", "0", "--instant"][..], &tools, &faults].concat());
    let mut streamed = chat();
    streamed["stream"] = true.into();
    let text = play.send("/v1/chat/completions", &streamed).await.text();
    assert!(text.contains("data: {") && !text.contains("[DONE]"), "{text}");
}
