//! Faults in what the model says: every kind, on every wire that can say it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use vllm_vcr::faults::{CATALOGUE, FaultStage};

use crate::support::{
    cassettes::{self, Shelf, tape},
    client::{self, post},
    mailer::{FAMILIES, call_for, call_in, mail, mailer},
    running::Running,
    traces::{Trace, line},
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
    assert!(said.contains("fault not applied: --fault 'unknown-tool where request="), "{said}");
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

/// The events of a stream as JSON, without the last one of chats and completions.
fn events_of(answer: &client::Answer) -> Vec<Value> {
    let data = |event: &String| event.lines().find_map(|line| line.strip_prefix("data: ")).map(str::to_owned);
    let events: Vec<String> = answer.events().iter().filter_map(data).filter(|data| data != "[DONE]").collect();
    events.iter().map(|data| serde_json::from_str(data).unwrap_or_else(|_| panic!("{data}"))).collect()
}

/// A chat's record with a refusal, as the other families have it.
const REFUSED: &str = "vcr: 1\nrecords:\n- match: {contains: recorded}\n  answer: {message: {role: assistant, content: null, refusal: Certainly not.}}\n";

#[tokio::test]
async fn a_refusal_is_the_text_of_a_message_and_why_it_stops() {
    let written = Shelf::with(REFUSED);
    let record = cassettes::record(&["recorded"], "one");
    let recorded = record.replace("content: \"one\"", "content: null, refusal: Certainly not.");
    assert_ne!(recorded, record);
    let recorded = Shelf::with(&tape(&[recorded]));
    for (shelf, flags) in [(&written, &[][..]), (&recorded, &["--cross-api", "--on-exhausted", "last"])] {
        let play = shelf.play(flags);
        let mut body = plain("/v1/messages", "m");
        body["messages"] = cassettes::chat(&["recorded"])["messages"].clone();
        let whole = play.send("/v1/messages", &body).await.json();
        assert_eq!(whole["content"], json!([{"type": "text", "text": "Certainly not."}]), "{whole}");
        assert_eq!(whole["stop_reason"], "refusal", "{whole}");
        body["stream"] = true.into();
        let events = events_of(&play.send("/v1/messages", &body).await);
        let text: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
        assert_eq!(text, "Certainly not.");
        assert!(events.iter().any(|event| event["delta"]["stop_reason"] == "refusal"), "{events:?}");
    }
}

#[tokio::test]
async fn a_refusal_is_a_part_of_a_response() {
    let shelf = Shelf::with(REFUSED);
    let cassette = ["--cassette", shelf.name()];
    let words = "I'm sorry, but I can't help with that.";
    for (flags, input, refused) in
        [(&["--fault", "refusal"][..], "hi", words), (&cassette[..], "recorded", "Certainly not.")]
    {
        let play = Running::start(&[&["play", "--port", "0", "--instant"], flags].concat());
        let model = model(&play).await;
        let mut body = json!({"model": model, "input": input});
        let whole = play.send("/v1/responses", &body).await.json();
        let part = json!([{"refusal": refused, "type": "refusal"}]);
        assert_eq!(
            (&whole["output"][0]["type"], &whole["output"][0]["content"], &whole["status"]),
            (&json!("message"), &part, &json!("completed")),
            "{whole}"
        );
        body["stream"] = true.into();
        let events = events_of(&play.send("/v1/responses", &body).await);
        let of_kind = |kind: &str| events.iter().filter(|event| event["type"] == kind).cloned().collect::<Vec<_>>();
        let added: String =
            of_kind("response.refusal.delta").iter().filter_map(|event| event["delta"].as_str()).collect();
        assert_eq!(added, refused);
        let done = &of_kind("response.refusal.done")[0];
        assert_eq!((&done["refusal"], done.get("text"), done.get("logprobs")), (&json!(refused), None, None), "{done}");
        assert_eq!(of_kind("response.content_part.added")[0]["part"], json!({"refusal": "", "type": "refusal"}));
        assert_eq!(of_kind("response.content_part.done")[0]["part"], part[0]);
        assert_eq!(of_kind("response.completed")[0]["response"]["output"][0]["content"], part);
        assert!(of_kind("response.output_text.delta").is_empty());
    }
}

/// A redacted recording of every wire, whole and streamed, and each kind in the place of each of its answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_redacted_cassettes_are_replaced_on_every_wire() {
    let shelf = Shelf::empty();
    let upstream = mailer().await;
    let tap = shelf.tap(&upstream, &["--redact", "all"]);
    let cases: Vec<(&str, bool)> = FAMILIES.into_iter().flat_map(|path| [(path, false), (path, true)]).collect();
    for (path, stream) in &cases {
        assert_eq!(tap.send(path, &mail(path, *stream, "jane.doe@example.org", "s3cret!xyz")).await.status, 200);
    }
    tap.stop();
    assert!(shelf.text().contains("REDACTED") && !shelf.text().contains("jane.doe"), "{}", shelf.text());
    let play = shelf.play(&["--fault-headers", "--on-exhausted", "last"]);
    let kinds = CATALOGUE.iter().filter(|row| row.stage == FaultStage::Reply).map(|row| row.name);
    let (mut said, mut unsaid) = (0, 0);
    for (kind, (path, stream)) in kinds.flat_map(|kind| cases.iter().map(move |case| (kind, *case))) {
        let body = mail(path, stream, "anna.berg@example.net", "0ther&pass");
        let answer = faulted(&play, path, kind, &body).await;
        let (shown, text) = (format!("{kind} {path} {stream}"), answer.text());
        for secret in ["jane.doe", "s3cret!xyz", "REDACTED", "anna.berg", "0ther&pass"] {
            assert!(!text.contains(secret), "{shown}: {text}");
        }
        if answer.status == 400 {
            unsaid += 1;
            assert!(text.contains("cannot get the fault") && text.contains(kind), "{shown}: {text}");
            continue;
        }
        said += 1;
        assert_eq!(answer.status, 200, "{shown}: {text}");
        assert!(answer.header("x-vcr-record").is_some_and(|name| name.starts_with("tape.yaml#")), "{shown}");
        assert!(!text.contains("send_mail"), "{shown}: {text}");
        if stream {
            let (events, last) = (events_of(&answer), answer.events().last().cloned().unwrap_or_default());
            let ends = ["[DONE]", "message_stop", "response.completed"];
            assert!(!events.is_empty() && ends.iter().any(|end| last.contains(end)), "{shown}: {text}");
        } else {
            let whole = answer.json();
            let of_wire = ["choices", "content", "output"].iter().any(|name| whole[*name].is_array());
            assert!(of_wire && whole["usage"].is_object(), "{shown}: {text}");
        }
    }
    // Six kinds need tools, which no request here offers; completions have no reasoning and no refusal.
    assert_eq!((said, unsaid), (7 * 8 - 2 * 2, 6 * 8 + 2 * 2));
    let shown = play.get("/vcr/faults?hits=1000").await;
    assert_eq!((shown["hits"].as_array().unwrap().len(), shown["not_said"].as_array().unwrap().len()), (said, unsaid));
    // Without a fault the records are as they were, with the secrets of the request.
    for (path, stream) in cases {
        let answer = play.send(path, &mail(path, stream, "anna.berg@example.net", "0ther&pass")).await;
        let expected: Value = serde_json::from_str(&call_for("anna.berg@example.net", "0ther&pass")).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&call_in(path, stream, &answer)).unwrap(), expected, "{path}");
    }
}

#[tokio::test]
async fn a_chats_record_is_replaced_for_other_families_too() {
    let shelf = Shelf::with(&tape(&[cassettes::record(&["hello"], "one two three")]));
    let play = shelf.play(&["--fault", "wrong-language", "--cross-api"]);
    for path in ["/v1/chat/completions", "/v1/messages", "/v1/responses"] {
        for stream in [false, true] {
            let mut body = plain(path, "m");
            body[if path == "/v1/responses" { "input" } else { "messages" }] =
                if path == "/v1/responses" { json!("hello") } else { json!([{"role": "user", "content": "hello"}]) };
            if path == "/v1/chat/completions" {
                body.as_object_mut().unwrap().remove("max_tokens");
            }
            body["stream"] = stream.into();
            let answer = play.send(&format!("/vcr/s/{}-{stream}{path}", &path[4..8]), &body).await;
            let (text, record) = (answer.text(), answer.header("x-vcr-record"));
            assert_eq!((answer.status, record), (200, Some("tape.yaml#0")), "{path} {stream}: {text}");
            let said: String = if stream {
                let pieces = events_of(&answer);
                let piece = |event: &Value| {
                    let places = [&event["choices"][0]["delta"]["content"], &event["delta"]["text"], &event["delta"]];
                    places.iter().find_map(|place| place.as_str()).unwrap_or_default().to_owned()
                };
                pieces.iter().map(piece).collect()
            } else {
                text
            };
            assert!(said.contains("没有人要求") && !said.contains("two"), "{path} {stream}: {said}");
        }
    }
}

#[tokio::test]
async fn a_redacted_traces_answers_are_replaced_too() {
    let trace = Trace::of(&[line("Write to jane@example.org", "Wrote to [REDACTED:email:1].", &json!({}))]);
    let play = trace.play(&["--fault", "refusal where nth=1", "--fault", "empty where nth=1"]);
    let body = json!({"prompt": "Write to jane@example.org", "max_tokens": 9});
    let replaced = play.send("/v1/completions", &body).await;
    assert_eq!((replaced.status, &replaced.json()["choices"][0]["text"]), (200, &json!("")), "{}", replaced.text());
    assert!(replaced.header("x-vcr-record").is_none(), "the record of a trace stays");
    let served = play.send("/v1/completions", &body).await;
    assert!(served.json()["choices"][0]["text"].as_str().unwrap().starts_with("Wrote"), "{}", served.text());
    let shown = play.get("/vcr/faults").await;
    assert_eq!(shown["not_said"][0]["reason"], "refusal: a completion has no field for it");
    let (_, said) = play.stop();
    assert!(!said.contains("jane@"), "{said}");
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
