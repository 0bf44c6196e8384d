//! `/derender` and `/render` held byte for byte against what vLLM 0.32.0's own render server answered
//! (`tests/goldens/record-derender`): whole answers, streams with the state that the client carries, parsers, refusals.

#![allow(clippy::print_stderr)]

use serde_json::{Value, json};
use vllm_vcr::{
    play::{Config, GenerationConfig, Source, Synthetic, TokenizerSource},
    text::parsers::{Formats, ReasoningFormat, ToolFormat},
    text::prompt::Tokenizer,
};

use crate::support::{client, play_server, tokenizers::qwen3, tree};

fn config(tokenizer: &Tokenizer, parsers: Formats) -> Config {
    Config {
        source: Source::Synthetic(Synthetic::Random),
        tokenizer: TokenizerSource::Loaded(tokenizer.clone()),
        served_model_names: vec!["tiny-qwen3".to_owned()],
        max_model_len: Some(256),
        scale_out: true,
        parsers,
        generation: generation(),
        ..Config::default()
    }
}

/// The golden server's model came with these.
fn generation() -> GenerationConfig {
    let overrides = json!({"temperature": 0.6, "top_p": 0.95, "top_k": 20});
    let Value::Object(overrides) = overrides else { unreachable!() };
    GenerationConfig { overrides, ..GenerationConfig::default() }
}

/// Out of sight: times, and ids that are made up; their kind stays.
fn masked(text: &str) -> String {
    fn mask(value: &mut Value) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    match (key.as_str(), &*value) {
                        ("created", Value::Number(_)) => *value = json!("*"),
                        ("id" | "request_id", Value::String(id)) if is_made_up(id) => *value = json!(kind(id)),
                        ("last_tool_call_ids", Value::Array(ids)) => {
                            let kinds = ids.iter().filter_map(Value::as_str);
                            *value = kinds.map(|id| if is_made_up(id) { kind(id) } else { id.to_owned() }).collect();
                        }
                        _ => mask(value),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(mask),
            _ => {}
        }
    }
    let Ok(mut value) = serde_json::from_str(text) else { return text.to_owned() };
    mask(&mut value);
    value.to_string()
}

fn is_made_up(id: &str) -> bool {
    let digits = id.rsplit('-').next().unwrap_or_default();
    digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn kind(id: &str) -> String {
    format!("{}*", id.trim_end_matches(|c: char| c.is_ascii_hexdigit()))
}

async fn compare(suite: &str, parsers: Formats, at_least: usize) {
    let Some(tokenizer) = qwen3() else { return };
    let server = play_server::start(config(&tokenizer, parsers)).await;
    let text = tree::read(format!("tests/goldens/vllm-0.32.0/{suite}.jsonl"));
    let mut differences = Vec::new();
    let mut compared = 0;
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let body = match &case["request"] {
            Value::String(text) => text.clone().into_bytes(),
            other => other.to_string().into_bytes(),
        };
        let request = client::Request { body, ..client::post(case["path"].as_str().unwrap(), &Value::Null) };
        let answer = client::send(server.address, &request).await;
        let (expected, found) = (masked(case["body"].as_str().unwrap()), masked(&answer.text()));
        compared += 1;
        if (Value::from(answer.status), &found) != (case["status"].clone(), &expected) {
            differences.push(format!("{}: {}\n  {expected}\n  {found}", case["case"], answer.status));
        }
    }
    assert!(compared >= at_least, "{compared} cases");
    assert!(differences.is_empty(), "{} of {compared} differ\n{}", differences.len(), differences.join("\n"));
}

#[tokio::test]
async fn tokens_become_the_answers_that_the_engine_makes_of_them() {
    compare("derender", Formats::default(), 240).await;
}

#[tokio::test]
async fn reasoning_and_calls_are_taken_out_as_the_engine_does() {
    compare(
        "derender-parsers",
        Formats { reasoning: Some(ReasoningFormat::Qwen3), tools: Some(ToolFormat::Hermes) },
        130,
    )
    .await;
}

#[tokio::test]
async fn calls_alone_are_taken_out_as_the_engine_does() {
    compare("derender-tools", ToolFormat::Hermes.into(), 100).await;
}
