//! Captured answers of a real vLLM, played back: every event and every body equal, ids, times, fingerprint and the numbers
//! in log probabilities aside.

use std::{collections::HashMap, sync::Arc, time::Duration};

use serde_json::Value;
use vllm_vcr::{
    matching::MatchBy,
    play::{Config, PromptTokensDetails, Source, TokenizerSource},
    prompt::{SkipSpecial, SpecialTokens, Tokenizer},
    timing::Pacing,
    trace::{Chunk, FinishReason, Record, Trace},
};

use crate::{
    client::{self, Request},
    goldens, play_server,
    tokenizers::qwen3,
};

/// A golden that this version can be expected to play: an answer of the generation endpoints.
fn playable(name: &str, golden: &Value) -> bool {
    let request = &golden["request"];
    let generates = ["/v1/chat/completions", "/v1/completions"].contains(&request["path"].as_str().unwrap_or_default());
    let asks = |key: &str| !request["body"][key].is_null() && request["body"][key] != false;
    generates
        && golden["status"] == 200
        && !["response_format", "tools", "repetition_detection"].iter().any(|key| asks(key))
        && !name.contains("disconnect")
        && !name.starts_with("burst")
        && !name.starts_with("sigterm")
}

struct Ids<'a> {
    tokenizer: &'a Tokenizer,
    by_text: HashMap<String, u32>,
}

impl<'a> Ids<'a> {
    fn new(tokenizer: &'a Tokenizer) -> Self {
        let text = |id: &u32| Some((tokenizer.decode(&[*id], SkipSpecial::Keep).ok()?, *id));
        Self { tokenizer, by_text: (0..tokenizer.vocab_size()).filter_map(|id| text(&id)).collect() }
    }

    /// The ids behind the deltas of one choice, one list per event; `None` where they cannot be told.
    fn of_choice(&self, request: &Value, events: &[Value]) -> Option<Vec<Vec<u32>>> {
        let told: Option<Vec<Vec<u32>>> =
            events.iter().map(|choice| serde_json::from_value(choice["token_ids"].clone()).ok()).collect();
        if told.is_some() {
            return told;
        }
        let last = events.last()?;
        let ends_in_eos = last["finish_reason"] == "stop" && last["stop_reason"].is_null();
        let mut ids: Vec<u32> = if let Some(script) = request["vllm_xargs"]["script"].as_str() {
            let mut ids = self.tokenizer.encode(script, SpecialTokens::Skip).ok()?;
            ids.push(self.tokenizer.eos_ids()[0]);
            ids.truncate(events.len());
            ids
        } else {
            let texts = events.iter().map(|choice| choice["text"].as_str().or(choice["delta"]["content"].as_str()));
            let echoed = request["prompt"].as_str().filter(|_| request["echo"] == true).unwrap_or_default();
            texts
                .enumerate()
                .map(|(at, text)| {
                    let text = if at == 0 { text?.strip_prefix(echoed)? } else { text? };
                    self.by_text.get(text).copied()
                })
                .collect::<Option<_>>()?
        };
        if ends_in_eos && ids.len() + 1 == events.len() {
            ids.push(self.tokenizer.eos_ids()[0]);
        }
        (ids.len() == events.len()).then(|| ids.into_iter().map(|id| vec![id]).collect())
    }
}

/// The payloads of a golden's events.
fn payloads(golden: &Value) -> Vec<String> {
    let text = |event: &Value| event["raw"].as_str().or(event.as_str()).unwrap_or_default().trim_end().to_owned();
    golden["events"].as_array().map(|events| events.iter().map(text).collect()).unwrap_or_default()
}

/// One record per choice of a streamed golden, with the gaps at which its events came.
fn records(ids: &Ids<'_>, golden: &Value) -> Option<Vec<Record>> {
    let mut choices: Vec<(Vec<Value>, Vec<f64>)> = Vec::new();
    let (mut cached, mut prompt_tokens) = (None, 0);
    for (at, payload) in payloads(golden).iter().enumerate() {
        let Ok(event) = serde_json::from_str::<Value>(payload.trim_start_matches("data: ")) else { continue };
        if let Some(usage) = event.get("usage") {
            cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().or(cached);
            prompt_tokens = usage["prompt_tokens"].as_u64().unwrap_or(prompt_tokens);
        }
        let Some(choice) = event["choices"].get(0) else { continue };
        if choice["delta"].get("role").is_some() {
            continue;
        }
        let index = usize::try_from(choice["index"].as_u64()?).ok()?;
        choices.resize_with(choices.len().max(index + 1), Default::default);
        choices[index].0.push(choice.clone());
        // Without times of their own, events came in the order of the list.
        let order = f64::from(u32::try_from(at).ok()?);
        choices[index].1.push(golden["http_chunks"][at][0].as_f64().unwrap_or(order));
    }
    let request = &golden["request"]["body"];
    choices.iter().map(|(events, times)| record(&ids.of_choice(request, events)?, times, events, cached)).collect()
}

fn record(ids: &[Vec<u32>], times: &[f64], events: &[Value], cached: Option<u64>) -> Option<Record> {
    let last = events.last()?;
    let mut before = 0.0;
    let mut chunks = Vec::new();
    for (step, at) in ids.iter().zip(times) {
        let gap = Duration::from_secs_f64((at - before) / 1000.0);
        before = *at;
        chunks.push(Chunk { gap, tokens: u32::try_from(step.len()).ok()?, step: None });
    }
    let ids: Vec<u32> = ids.concat();
    Some(Record {
        output_tokens: u32::try_from(ids.len()).ok()?,
        chunks,
        cached_tokens: cached.and_then(|cached| u32::try_from(cached).ok()),
        output_token_ids: Some(ids),
        finish_reason: Some(if last["finish_reason"] == "stop" { FinishReason::Stop } else { FinishReason::Length }),
        stop_token: last["stop_reason"].as_u64().and_then(|id| u32::try_from(id).ok()),
        group: Some("golden".to_owned()),
        choice: None,
        ..Record::default()
    })
}

/// What differs between two runs of a server is put out of sight.
fn normalised(text: &str) -> String {
    let mut value: Value = match serde_json::from_str(text.trim_start_matches("data: ")) {
        Ok(value) => value,
        Err(_) => return text.to_owned(),
    };
    for key in ["id", "created", "system_fingerprint"] {
        if let Some(slot) = value.get_mut(key) {
            *slot = Value::from("any");
        }
    }
    mask_logprobs(&mut value);
    value.to_string()
}

/// Of log probabilities, what is taken and how it is spelled stays; numbers and alternatives go.
fn mask_logprobs(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match (key.as_str(), &mut *value) {
                    ("logprob" | "rank", slot) => *slot = Value::from("any"),
                    ("token_logprobs", Value::Array(items)) => {
                        items.iter_mut().filter(|item| item.is_f64()).for_each(|item| *item = Value::from("any"));
                    }
                    ("top_logprobs" | "prompt_logprobs", Value::Array(items)) => mask_alternatives(items),
                    _ => mask_logprobs(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask_logprobs),
        _ => {}
    }
}

/// A chat's alternatives are a list, the others are dictionaries whose first entry is the token that was taken.
fn mask_alternatives(items: &mut [Value]) {
    for (at, item) in items.iter_mut().enumerate() {
        match item {
            Value::Object(map) if map.contains_key("bytes") && at == 0 => {}
            Value::Object(map) if map.contains_key("bytes") => {
                *map = map.keys().map(|key| (key.clone(), Value::from("any"))).collect();
            }
            Value::Object(map) => {
                let first = map.iter().next().map(|(key, value)| (key.clone(), value.clone()));
                *map = first.into_iter().collect();
                map.values_mut().filter(|value| value.is_f64()).for_each(|value| *value = Value::from("any"));
            }
            _ => {}
        }
        mask_logprobs(item);
    }
}

async fn play(tokenizer: &Tokenizer, records: Vec<Record>, golden: &Value) -> client::Answer {
    let mut records = records;
    for (choice, record) in records.iter_mut().enumerate() {
        record.choice = u32::try_from(choice).ok();
    }
    if golden["request"]["body"]["prompt"].is_array() {
        for record in &mut records {
            (record.group, record.choice) = (None, None);
        }
    }
    let details =
        golden.to_string().contains("prompt_tokens_details\":{") || golden.to_string().contains("cached_tokens\\\"");
    let server = play_server::start(Config {
        source: Source::Trace { name: "golden".to_owned(), trace: Arc::new(Trace { records, ..Trace::default() }) },
        order: vec![MatchBy::Next],
        pacing: Pacing::Recorded { scale: "1000".parse().unwrap() },
        tokenizer: TokenizerSource::Loaded(tokenizer.clone()),
        served_model_names: vec!["tiny-qwen3".to_owned()],
        max_model_len: 4096,
        prompt_tokens_details: details.then_some(PromptTokensDetails),
        ..Config::default()
    })
    .await;
    let path = golden["request"]["path"].as_str().unwrap();
    let request = Request { ..client::post(path, &golden["request"]["body"]) };
    client::send(server.address, &request).await
}

#[tokio::test]
async fn streams_are_the_engines() {
    let Some(tokenizer) = qwen3() else { return };
    let ids = Ids::new(&tokenizer);
    let (mut equal, mut untold) = (Vec::new(), Vec::new());
    for (name, golden) in ["plain", "tails", "spec"].into_iter().flat_map(goldens::suite) {
        if !playable(&name, &golden) || golden["events"].is_null() {
            continue;
        }
        let Some(records) = records(&ids, &golden) else {
            untold.push(name);
            continue;
        };
        let answer = play(&tokenizer, records, &golden).await;
        let expected: Vec<String> = payloads(&golden).iter().map(|event| normalised(event)).collect();
        let got: Vec<String> = answer.events().iter().map(|event| normalised(event)).collect();
        for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got, expected, "{name}, event {at}");
        }
        assert_eq!(got.len(), expected.len(), "{name}");
        assert_eq!(answer.chunks.len(), got.len(), "{name}: one HTTP chunk per event");
        equal.push(name);
    }
    eprintln!("{} streams equal; ids of {} cannot be told: {untold:?}", equal.len(), untold.len());
}

#[tokio::test]
async fn full_answers_are_the_engines() {
    let Some(tokenizer) = qwen3() else { return };
    let ids = Ids::new(&tokenizer);
    let suites: HashMap<String, Value> = ["plain", "tails"].into_iter().flat_map(goldens::suite).collect();
    let mut equal = Vec::new();
    for (name, golden) in &suites {
        if !playable(name, golden) || !golden["events"].is_null() {
            continue;
        }
        let twin = name.strip_suffix("_full").map(|stem| format!("{stem}_stream"));
        let twin = twin
            .or_else(|| name.strip_suffix("_ns").map(str::to_owned))
            .or_else(|| name.starts_with("err_").then(|| format!("{name}_none")));
        let twin = twin.and_then(|twin| suites.get(&twin)).filter(|twin| !twin["events"].is_null());
        let Some(mut records) = twin.and_then(|twin| records(&ids, twin)) else { continue };
        let body = golden["json"].is_object().then(|| golden["json"].clone());
        let body = body.unwrap_or_else(|| serde_json::from_str(golden["body"].as_str().unwrap()).unwrap());
        for record in &mut records {
            let cached = body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
            record.cached_tokens = cached.and_then(|cached| u32::try_from(cached).ok());
        }
        let answer = play(&tokenizer, records, golden).await;
        assert_eq!(normalised(&answer.text()), normalised(&body.to_string()), "{name}");
        equal.push(name.clone());
    }
    eprintln!("{} full answers equal", equal.len());
}

#[tokio::test]
async fn refusals_are_the_engines_to_the_header() {
    let Some(tokenizer) = qwen3() else { return };
    let record = play_server::record(&[1], Duration::ZERO, FinishReason::Length);
    let server = play_server::start(Config {
        source: Source::Trace {
            name: "t".to_owned(),
            trace: Arc::new(Trace { records: vec![record], ..Trace::default() }),
        },
        tokenizer: TokenizerSource::Loaded(tokenizer),
        served_model_names: vec!["tiny-qwen3".to_owned()],
        max_model_len: 4096,
        ..play_server::config(&[MatchBy::Next], Vec::new())
    })
    .await;
    let later = ["err_bad_schema", "err_tools_auto_not_enabled"];
    let mut compared = 0;
    for (name, golden) in goldens::suite("plain") {
        let is_plain = name.starts_with("err_")
            || [
                "get_nope",
                "get_health",
                "get_ping",
                "get_version",
                "tokenize_prompt",
                "tokenize_messages",
                "tokenize_tools",
                "detokenize",
                "get_v1_models_tiny-qwen3",
            ]
            .contains(&name.as_str());
        let generates = golden["status"] == 200
            && golden["request"]["path"].as_str().is_some_and(|path| path.ends_with("completions"));
        if !is_plain || generates || later.contains(&name.as_str()) {
            continue;
        }
        let sent = as_sent(&name, &golden["request"]);
        let answer = client::send(server.address, &sent).await;
        assert_eq!(u64::from(answer.status), golden["status"].as_u64().unwrap(), "{name}");
        let expected = if golden["json"].is_null() { String::new() } else { golden["json"].to_string() };
        assert_eq!(answer.text(), expected, "{name}");
        let names = |headers: &[(String, String)]| -> Vec<String> {
            headers.iter().map(|(name, _)| name.clone()).filter(|name| name != "x-request-id").collect()
        };
        let golden_headers: Vec<(String, String)> = serde_json::from_value(golden["headers"].clone()).unwrap();
        assert_eq!(names(&answer.headers), names(&golden_headers), "{name}");
        compared += 1;
    }
    eprintln!("{compared} exchanges equal to the header");
}

/// A golden's request as it went over the wire.
fn as_sent<'a>(name: &str, request: &'a Value) -> Request<'a> {
    let body = match &request["body"] {
        Value::Null => Vec::new(),
        Value::String(text) => text.clone().into_bytes(),
        other => other.to_string().into_bytes(),
    };
    let mut headers: Vec<(&str, &str)> = match request["headers"].as_object() {
        Some(map) => map.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap())).collect(),
        None => Vec::new(),
    };
    if headers.is_empty() && request["body"].is_object() | request["body"].is_array() && name != "err_no_content_type" {
        headers.push(("content-type", "application/json"));
    }
    Request { method: request["method"].as_str().unwrap(), path: request["path"].as_str().unwrap(), headers, body }
}
