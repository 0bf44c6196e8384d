//! Responses of vLLM 0.32.0 to a thousand single mistakes (`validation.jsonl`), to mistakes in requests for streams, of which its engine finds
//! some once the stream has begun (`stream_refusals.jsonl`), and with which status it answered what schemathesis made up (`fuzz.jsonl`, by
//! `tests/fuzz/sample.py`): `play` says the same, or a reason is named here.

use std::{fmt::Write, fs};

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use vllm_vcr::{
    play::{Config, Source, Synthetic, TokenizerSource},
    replay::timing::Pacing,
    text::parsers::{Formats, ReasoningFormat, ToolFormat},
};

use crate::support::{
    client::{self, Answer, Request},
    play_server::{self, Server},
    tokenizers, tree,
};

const PAGE: &str = "docs/src/internals/fuzz-comparison.md";

const LONG: &str = "digits beyond 64 bits within an object are those of the nearest double";
const CRASH: &str = "the engine fails on it with 500; it is accepted here";
const NO_PARSER: &str = "an empty list of tools is accepted without a tool parser";
const BUDGET: &str = "a budget is accepted without a reasoning parser";
const TAG: &str = "a structural tag that is none has the words of a chat";
const EMBEDS: &str = "embeddings are refused as other media are";
const RESPONSES: &str = "the kinds of items and tools of responses are not all known";

/// Patterns of cases that differ, and why.
const KNOWN: &[(&str, &str)] = &[
    ("*_logit_bias_15", LONG),
    ("*_top_k_7", CRASH),
    ("*_stream_interval_5", CRASH),
    ("*_thinking_token_budget_*", BUDGET),
    ("messages_23", NO_PARSER),
    ("responses_*", RESPONSES),
    ("*_beam_9", "a search for no token at all is refused"),
    ("raw_chat_19", "nothing is read beyond a depth of 128"),
    ("raw_nested", "nothing is read beyond a depth of 128"),
    ("structured_11", TAG),
    ("structured_12", TAG),
    ("part_44", EMBEDS),
    ("part_46", EMBEDS),
    ("part_47", EMBEDS),
];

fn reason(case: &str) -> Option<&'static str> {
    let fits = |pattern: &str| match pattern.split_once('*') {
        Some((start, end)) if end.ends_with('*') => case.starts_with(start) && case.contains(end.trim_end_matches('*')),
        Some((start, end)) => case.starts_with(start) && case.ends_with(end),
        None => pattern == case,
    };
    KNOWN.iter().find(|(pattern, _)| fits(pattern)).map(|(_, reason)| *reason)
}

async fn server() -> Option<Server> {
    parsing(Formats::default()).await
}

async fn parsing(parsers: Formats) -> Option<Server> {
    let config = Config {
        parsers,
        source: Source::Synthetic(Synthetic::Random),
        tokenizer: TokenizerSource::Loaded(tokenizers::qwen3()?),
        served_model_names: vec!["tiny-qwen3".to_owned()],
        max_model_len: Some(4096),
        vocabulary: Some(151_936),
        pacing: Pacing::Instant,
        scale_out: true,
        ..Config::default()
    };
    Some(play_server::start(config).await)
}

fn goldens(name: &str) -> Vec<Value> {
    let text = tree::read(format!("tests/goldens/vllm-0.32.0/{name}.jsonl"));
    text.split('\n').filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The body that was sent: as it is, or what is usual with something else in it.
fn body(golden: &Value) -> Vec<u8> {
    if let Some(text) = golden["text"].as_str() {
        return text.as_bytes().to_vec();
    }
    let Some(other) = golden["with"].as_object() else { return golden["body"].to_string().into_bytes() };
    let mut body = if golden["path"] == "/v1/completions" {
        json!({"model": "tiny-qwen3", "prompt": "hi"})
    } else {
        json!({"model": "tiny-qwen3", "messages": [{"role": "user", "content": "hi"}]})
    };
    body["max_tokens"] = 2.into();
    body["return_token_ids"] = true.into();
    body.as_object_mut().unwrap().extend(other.clone());
    body.to_string().into_bytes()
}

async fn ask(server: &Server, golden: &Value) -> Answer {
    let headers = match (&golden["content_type"], golden.get("content_type")) {
        (Value::String(kind), _) => vec![("content-type", kind.as_str())],
        (_, Some(_)) => Vec::new(),
        _ => vec![("content-type", "application/json")],
    };
    let path = golden["path"].as_str().unwrap();
    client::send(server.address, &Request { method: "POST", path, headers, body: body(golden) }).await
}

#[tokio::test]
async fn mistakes_have_the_engines_error_bodies() {
    let Some(server) = server().await else { return };
    let parsers = Formats { reasoning: Some(ReasoningFormat::Qwen3), tools: Some(ToolFormat::Hermes) };
    let Some(parsing) = parsing(parsers).await else { return };
    let (mut complaints, mut same) = (Vec::new(), 0);
    for golden in goldens("validation") {
        let case = golden["case"].as_str().unwrap();
        let answer = ask(if golden["parsers"] == true { &parsing } else { &server }, &golden).await;
        let expected = golden.get("answer").map(Value::to_string);
        let is_same = golden["status"] == answer.status && expected.is_none_or(|body| body == answer.text());
        match (is_same, reason(case)) {
            (false, None) => complaints.push(format!(
                "{case} {}\n  engine {} {}\n  play   {} {}",
                String::from_utf8_lossy(&body(&golden)),
                golden["status"],
                golden["answer"],
                answer.status,
                answer.text().chars().take(1000).collect::<String>()
            )),
            (is_same, _) => same += usize::from(is_same),
        }
    }
    assert!(complaints.is_empty(), "{} cases:\n{}", complaints.len(), complaints.join("\n"));
    eprintln!("{same} answers are the engine's");
    assert!(same > 1360, "only {same}");
}

#[tokio::test]
async fn what_the_engine_finds_late_is_an_event_of_the_stream() {
    let Some(server) = server().await else { return };
    for golden in goldens("stream_refusals") {
        let answer = ask(&server, &golden).await;
        let expected = golden["events"].as_str().map_or_else(|| golden["answer"].to_string(), str::to_owned);
        assert_eq!(
            (answer.status, answer.text()),
            (golden["status"].as_u64().unwrap().try_into().unwrap(), expected),
            "{golden}"
        );
    }
}

#[tokio::test]
async fn a_stream_of_a_response_breaks_off_at_what_the_engine_finds_late() {
    let Some(server) = server().await else { return };
    let body = json!({"model": "tiny-qwen3", "input": "a", "stream": true, "logit_bias": {"999999": 1}, "max_output_tokens": 3});
    let mut stream = client::open(server.address, &client::post("/v1/responses", &body)).await;
    let mut raw = Vec::new();
    stream.read_to_end(&mut raw).await.unwrap();
    let text = String::from_utf8(raw).unwrap();
    let events: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(events, ["response.created", "response.in_progress"]);
    assert!(text.contains(r#""max_output_tokens":3"#) && !text.ends_with("0\r\n\r\n"), "{text}");
}

const HEAD: &str = "\
# Fuzzed requests compared with the engine

Requests that schemathesis made from vLLM's own openapi.json were sent to vLLM 0.32.0 and are sent to `play`; the class of the status (2xx, 4xx,
5xx) is compared. `tests/fuzz/sample.py` makes them, `tests/fuzz/statuses.py` asks any two servers; the engine's answers are kept in
`tests/goldens/vllm-0.32.0/fuzz.jsonl`. This page is written by the test that compares (`tests/it/validation.rs`).

";

/// Why classes differ: the start of a case's name and a word in its body, with the reason.
const CLASSES: &[(&str, &str, &str)] = &[
    ("chat_completions_10", "", "the engine fails on it (a division by zero); it is accepted here"),
    (
        "responses_",
        "vllm_xargs",
        "the range of whole numbers in `vllm_xargs` and `priority` of responses is not looked at",
    ),
    ("responses_", "ec_transfer_params", "the range of whole numbers in `ec_transfer_params` is not looked at"),
    ("messages_", "tools", NO_PARSER),
];

#[tokio::test]
async fn fuzzed_requests_get_the_engines_class_of_status() {
    let Some(server) = server().await else { return };
    let goldens = goldens("fuzz");
    let mut rows = String::new();
    let mut unexplained = Vec::new();
    let mut count = 0;
    for golden in &goldens {
        let (case, theirs) = (golden["case"].as_str().unwrap(), golden["status"].as_u64().unwrap());
        let answer = ask(&server, golden).await;
        if theirs / 100 == u64::from(answer.status / 100) {
            continue;
        }
        count += 1;
        let text = golden["body"].to_string();
        let why = CLASSES.iter().find(|(start, word, _)| case.starts_with(start) && text.contains(word));
        match why {
            Some((.., why)) => {
                let _ = writeln!(rows, "| `{case}` | {theirs} | {} | {why} |", answer.status);
            }
            None => unexplained.push(format!("{case} {theirs} {} {text}\n  {}", answer.status, answer.text())),
        }
    }
    assert!(unexplained.is_empty(), "{} of {}:\n{}", unexplained.len(), goldens.len(), unexplained.join("\n"));
    let agreed = goldens.len() - count;
    let page = format!(
        "{HEAD}{agreed} of {} agree. The others:\n\n| request | engine | play | why |\n|---|---|---|---|\n{rows}",
        goldens.len()
    );
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(tree::root().join(PAGE), &page).unwrap();
    }
    let fresh = page == tree::read(PAGE);
    assert!(fresh, "{PAGE} is stale; run `UPDATE_REFERENCE=1 cargo test --test it validation` and commit it");
}
