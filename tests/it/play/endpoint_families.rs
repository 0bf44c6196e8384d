//! The families beside chat and completions, held against captured answers of a real vLLM and against what its own
//! request models say of bodies that do not fit (`tests/goldens/vllm-0.32.0/apis.jsonl`).

#![allow(clippy::print_stderr)]

use std::{fs, sync::Arc, time::Duration};

use serde_json::{Value, json};
use vllm_vcr::{
    play::{Config, GenerationConfig, Source, TokenizerSource},
    recording::trace::{Chunk, FinishReason, Record, Trace},
    replay::matching::MatchBy,
    replay::timing::Pacing,
    text::prompt::Tokenizer,
};

use crate::support::{
    client::{self, Answer, Request},
    play_server,
    tokenizers::qwen3,
    tree::root,
};

fn cases(prefix: &str) -> Vec<Value> {
    let text = fs::read_to_string(root().join("tests/goldens/vllm-0.32.0/apis.jsonl")).unwrap();
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let cases: Vec<Value> = all.filter(|case| path(case).starts_with(prefix)).collect();
    assert!(!cases.is_empty(), "no case for {prefix}");
    cases
}

fn path(case: &Value) -> &str {
    case["request"]["path"].as_str().unwrap()
}

/// The record that makes a case's answer: its tokens in its chunks.
fn record(case: &Value) -> Record {
    let output = &case["output"];
    let ids: Vec<u32> = serde_json::from_value(output["ids"].clone()).unwrap_or_else(|_| vec![13]);
    let chunks: Vec<u32> = serde_json::from_value(output["chunks"].clone()).unwrap_or_else(|_| vec![1]);
    let chunk = |tokens| Chunk { gap: Duration::ZERO, tokens, step: None };
    Record {
        prompt_tokens: 4,
        output_tokens: u32::try_from(ids.len()).unwrap(),
        chunks: chunks.into_iter().map(chunk).collect(),
        cached_tokens: Some(0),
        output_token_ids: Some(ids),
        finish_reason: Some(if output["finish"] == "stop" { FinishReason::Stop } else { FinishReason::Length }),
        ..Record::default()
    }
}

fn config(tokenizer: &Tokenizer, record: Record) -> Config {
    let trace = Trace { records: vec![record], ..Trace::default() };
    Config {
        source: Source::Trace { name: "golden".to_owned(), trace: Arc::new(trace) },
        order: vec![MatchBy::Next],
        pacing: Pacing::Instant,
        tokenizer: TokenizerSource::Loaded(tokenizer.clone()),
        served_model_names: vec!["tiny-qwen3".to_owned()],
        max_model_len: Some(4096),
        block_size: std::num::NonZeroU32::new(128),
        drain: Duration::ZERO,
        ..Config::default()
    }
}

async fn ask(config: Config, path: &str, body: &Value) -> Answer {
    let server = play_server::start(config).await;
    client::send(server.address, &Request { ..client::post(path, body) }).await
}

/// What differs between two runs of an engine, out of sight; the kind of an id stays.
fn masked(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.shift_remove("metrics");
            for (key, value) in map {
                match key.as_str() {
                    "id" | "item_id" | "request_id" | "signature" => {
                        let kind = value.as_str().and_then(|id| id.rsplit_once(['-', '_'])).map(|(kind, _)| kind);
                        *value = Value::from(format!("{}*", kind.unwrap_or_default()));
                    }
                    "created" | "created_at" | "system_fingerprint" => *value = Value::from("*"),
                    _ => masked(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(masked),
        _ => {}
    }
}

fn masked_text(text: &str) -> String {
    let (head, data) = text.find('{').map_or((text, ""), |at| text.split_at(at));
    let Ok(mut value) = serde_json::from_str(data) else { return text.to_owned() };
    masked(&mut value);
    format!("{head}{value}")
}

fn compare(case: &Value, answer: &Answer) {
    let name = format!("{} {}", case["case"].as_str().unwrap(), case["request"]["body"]);
    assert_eq!(u64::from(answer.status), case["status"].as_u64().unwrap(), "{name}: {}", answer.text());
    if let Some(expected) = case["events"].as_array() {
        let got: Vec<String> = answer.events().iter().map(|event| masked_text(event.trim())).collect();
        let expected: Vec<String> = expected.iter().map(|event| masked_text(event.as_str().unwrap())).collect();
        for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got, expected, "{name}, event {at}");
        }
        assert_eq!(got.len(), expected.len(), "{name}");
        assert_eq!(answer.chunks.len(), got.len(), "{name}: one HTTP chunk per event");
    } else {
        assert_eq!(masked_text(&answer.text()), masked_text(&case["body"].to_string()), "{name}");
    }
}

#[tokio::test]
async fn messages_are_the_engines() {
    let Some(tokenizer) = qwen3() else { return };
    for case in cases("/v1/messages").iter().filter(|case| case["case"] != "schema") {
        let details = case["details"] == true;
        let config = Config { prompt_tokens_details: details, ..config(&tokenizer, record(case)) };
        compare(case, &ask(config, path(case), &case["request"]["body"]).await);
    }
}

fn qwen3_defaults() -> GenerationConfig {
    let overrides = json!({"temperature": 0.6, "top_p": 0.95}).as_object().unwrap().clone();
    GenerationConfig { overrides, ..GenerationConfig::default() }
}

#[tokio::test]
async fn responses_are_the_engines() {
    let Some(tokenizer) = qwen3() else { return };
    for case in cases("/v1/responses").iter().filter(|case| case["case"] != "schema") {
        let config = Config { generation: qwen3_defaults(), ..config(&tokenizer, record(case)) };
        compare(case, &ask(config, path(case), &case["request"]["body"]).await);
    }
}

#[tokio::test]
async fn tokens_are_returned_as_the_engine_returns_them() {
    let Some(tokenizer) = qwen3() else { return };
    let mut told = 0;
    for case in cases("/inference/v1/generate").iter().filter(|case| case["output"].is_object()) {
        let config = Config { scale_out: true, ..config(&tokenizer, record(case)) };
        compare(case, &ask(config, path(case), &case["request"]["body"]).await);
        told += 1;
    }
    assert_eq!(told, 2);
}

#[tokio::test]
async fn scale_out_endpoints_are_refused_where_the_server_has_none() {
    let record = play_server::record(&[13], Duration::ZERO, FinishReason::Length);
    let server = play_server::start(play_server::config(&[MatchBy::Next], vec![record])).await;
    let all = [cases("/inference"), cases("/v1/chat/completions/render"), cases("/v1/completions/render")].concat();
    let refused: Vec<&Value> = all.iter().filter(|case| case["status"] == 403).collect();
    assert_eq!(refused.len(), 4);
    for case in refused {
        compare(case, &client::send(server.address, &client::post(path(case), &case["request"]["body"])).await);
    }
}

#[tokio::test]
async fn an_invocation_is_the_request_that_it_looks_like() {
    let Some(tokenizer) = qwen3() else { return };
    for case in cases("/invocations") {
        compare(&case, &ask(config(&tokenizer, record(&case)), path(&case), &case["request"]["body"]).await);
    }
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2});
    let answer = ask(config(&tokenizer, record(&Value::Null)), "/invocations", &chat).await.json();
    assert_eq!(answer["object"], "chat.completion", "{answer}");
    let neither = ask(config(&tokenizer, record(&Value::Null)), "/invocations", &json!({"prompt": {}})).await;
    assert_eq!((neither.status, neither.json()["error"]["type"].clone()), (400, json!("BadRequestError")));
}

/// What pydantic says of a body, from the engine's own models.
async fn refusals(prefix: &str, least: usize) {
    let record = play_server::record(&[13], Duration::ZERO, FinishReason::Length);
    let server =
        play_server::start(Config { scale_out: true, ..play_server::config(&[MatchBy::Next], vec![record]) }).await;
    let mut compared = 0;
    for case in cases(prefix).iter().filter(|case| case["case"] == "schema") {
        if is_of_many_kinds(case) {
            let answer = client::send(server.address, &client::post(path(case), &case["request"]["body"])).await;
            assert_eq!(u64::from(answer.status), case["status"].as_u64().unwrap(), "{case}: {}", answer.text());
            continue;
        }
        compare(case, &client::send(server.address, &client::post(path(case), &case["request"]["body"])).await);
        compared += 1;
    }
    assert!(compared >= least, "{compared} bodies");
}

#[tokio::test]
async fn messages_that_do_not_fit_are_refused_in_the_engines_words() {
    refusals("/v1/messages", 60).await;
}

/// Bodies whose faults the engine finds by trying every kind of input item, tool or choice; only refused alike here.
fn is_of_many_kinds(case: &Value) -> bool {
    let message = case["body"]["error"]["message"].as_str().unwrap_or_default();
    message.contains("MessageParam")
        || message.contains("Param.")
        || message.contains("EasyInputMessageParam")
        || message.contains("ResponseFormat")
        || message.contains("FunctionTool.")
        || message.contains("ToolChoice")
}

#[tokio::test]
async fn responses_that_do_not_fit_are_refused_in_the_engines_words() {
    refusals("/v1/responses", 50).await;
}

#[tokio::test]
async fn batches_and_tokens_that_do_not_fit_are_refused_in_the_engines_words() {
    refusals("/v1/chat/completions/batch", 14).await;
    refusals("/inference/v1/generate", 18).await;
}

#[tokio::test]
async fn a_batch_has_a_choice_for_each_conversation() {
    let tokenizer = play_server::tokenizer();
    let record = |text: &str| {
        let ids = tokenizer.encode(text, vllm_vcr::text::prompt::SpecialTokens::Skip).unwrap();
        play_server::record(&ids, Duration::ZERO, FinishReason::Stop)
    };
    let config = play_server::config(&[MatchBy::Next], vec![record("Hello there."), record("Good bye.")]);
    let user = json!([{"role": "user", "content": "x"}]);
    let body = json!({"messages": [user, user], "stream": true});
    let answer = ask(config, "/v1/chat/completions/batch", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["choices"][0]["message"]["content"], "Hello there.");
    assert_eq!(answer["choices"][1]["message"]["content"], "Good bye.");
    assert_eq!(answer["choices"][1]["index"], 1);
    assert_eq!(answer["usage"]["prompt_tokens_details"], Value::Null);
    let config = play_server::config(&[MatchBy::Next], vec![record("Hello.")]);
    let scored = json!({"messages": [user], "prompt_logprobs": 1});
    assert_eq!(ask(config, "/v1/chat/completions/batch", &scored).await.json()["prompt_logprobs"], Value::Null);
}

#[tokio::test]
async fn a_whole_token_answer_has_the_engines_fields() {
    let record = play_server::record(&[13, 14], Duration::ZERO, FinishReason::Stop);
    let config = Config { scale_out: true, ..play_server::config(&[MatchBy::Next], vec![record]) };
    let body = json!({"token_ids": [1, 2], "sampling_params": {}, "return_token_ids": true, "request_id": "mine"});
    let mut answer = ask(config, "/inference/v1/generate", &body).await.json();
    answer["created"] = Value::from("*");
    assert_eq!(
        answer.to_string(),
        r#"{"request_id":"generate-tokens-mine","model":"m","created":"*","usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2,"prompt_tokens_details":null,"completion_tokens_details":null},"prompt_logprobs":null,"prompt_token_id_logprobs":null,"prompt_token_ids":[1,2],"mm_placeholders":null,"metrics":null,"kv_transfer_params":null,"ec_transfer_params":null,"output_mode":"tokens","choices":[{"index":0,"finish_reason":"stop","stop_reason":null,"token_ids":[13,14],"routed_experts":null,"sampling_mask":null,"weight_versions":[{"version":"default","start":0,"end":2}],"logprobs":null}]}"#
    );
}

/// What vLLM's own request models make of them.
#[tokio::test]
async fn a_request_is_rendered_as_the_token_request_that_it_comes_to() {
    let config = || {
        let record = play_server::record(&[13, 14], Duration::ZERO, FinishReason::Stop);
        let config = play_server::config(&[MatchBy::Next], vec![record]);
        Config { scale_out: true, generation: qwen3_defaults(), ..config }
    };
    let params = r#""sampling_params":{"presence_penalty":0.0,"frequency_penalty":0.0,"repetition_penalty":1.0,"temperature":0.6,"top_p":0.95,"min_p":0.0,"stop":[],"stop_token_ids":[],"max_tokens":5,"output_kind":2,"skip_clone":true,"bad_words":[],"skip_reading_prefix_cache":false}"#;
    let one = |id: &str, token: u32| {
        format!(
            r#"{{"request_id":"{id}","token_ids":[{token}],"token_offsets":null,"features":null,"content_parts":null,{params},"model":"m","reasoning_ended":null,"reasoning_parser_kwargs":null,"return_token_ids":null,"output_mode":"tokens","stream":false,"stream_options":null,"cache_salt":null,"priority":0,"kv_transfer_params":null,"ec_transfer_params":null}}"#
        )
    };
    let body = json!({"model": "m", "prompt": [[1], [2]], "max_tokens": 5, "request_id": "mine"});
    let answer = ask(config(), "/v1/completions/render", &body).await.text();
    assert_eq!(answer, format!("[{},{}]", one("cmpl-mine-0", 1), one("cmpl-mine-1", 2)));
    let user = json!([{"role": "user", "content": "x"}]);
    let body = json!({"messages": user, "max_tokens": 5, "request_id": "mine"});
    let answer = ask(config(), "/v1/chat/completions/render", &body).await.json();
    assert_eq!(answer["request_id"], "chatcmpl-mine");
    assert!(answer["token_ids"].as_array().is_some_and(|ids| !ids.is_empty()));
    let body = json!({"model": "other", "prompt": "x"});
    assert_eq!(ask(config(), "/v1/completions/render", &body).await.status, 404);
    let body = json!({"prompt": "x", "use_beam_search": true});
    let refused = ask(config(), "/v1/completions/render", &body).await;
    assert_eq!(refused.json()["error"]["message"], "Beam search is not supported by the render endpoint");
}

#[tokio::test]
async fn token_requests_are_aborted_by_the_ids_in_their_answers() {
    let record = play_server::record(&[13; 100], Duration::from_millis(100), FinishReason::Stop);
    let config = play_server::config(&[MatchBy::Next], vec![record]);
    let pacing = Pacing::Recorded { scale: vllm_vcr::base::units::TimeScale::REAL };
    let server = play_server::start(Config { scale_out: true, pacing, ..config }).await;
    let address = server.address;
    let body = json!({"token_ids": [1, 2], "sampling_params": {}, "request_id": "mine"});
    let running =
        tokio::spawn(async move { client::send(address, &client::post("/inference/v1/generate", &body)).await });
    let abort =
        |body: Value| async move { client::send(address, &client::post("/inference/v1/abort_requests", &body)).await };
    let missing = abort(json!({})).await;
    assert_eq!(
        (missing.status, missing.json()["error"]["message"].as_str().unwrap()),
        (400, "Missing 'request_ids' in request body")
    );
    while !running.is_finished() {
        let aborted = abort(json!({"request_ids": ["generate-tokens-mine"]})).await;
        assert_eq!((aborted.status, aborted.text().as_str()), (200, ""));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(running.await.unwrap().json()["choices"][0]["finish_reason"], "abort");
}
