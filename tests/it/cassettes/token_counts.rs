//! Token counts of answers that have none, and what `/metrics` counts of cassettes.

use serde_json::json;

use super::{CHAT, Running, Shelf, chat, record, tape};
use crate::support::{
    client::{self, get},
    tokenizers::smollm2_json,
};

const MADE: &str = "vcr: 1\nrecords:\n- request: POST /v1/chat/completions\n  body: {model: m, messages: [{role: user, content: one}]}\n  \
                    answer: {message: {role: assistant, content: Hello there}, finish_reason: stop}\n";

#[tokio::test]
async fn a_hand_written_answer_has_token_counts() {
    let shelf = Shelf::with(MADE);
    let play = shelf.play(&["--on-exhausted", "last"]);
    let usage = play.send(CHAT, &chat(&["one"])).await.json()["usage"].clone();
    assert_eq!(usage, json!({"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}));
    let mut streamed = chat(&["one"]);
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let text = play.send(CHAT, &streamed).await.text();
    assert!(text.contains(r#""usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}"#), "{text}");
    // With the model's tokenizer they are counted.
    std::fs::write(shelf.folder.path().join("tokenizer.json"), smollm2_json()).unwrap();
    let play = shelf.play(&["--tokenizer", shelf.folder.path().to_str().unwrap()]);
    let counted = play.send(CHAT, &chat(&["one"])).await.json()["usage"].clone();
    assert_eq!(counted["completion_tokens"], 2, "{counted}");
}

/// A sample of `/metrics` by the beginning of its line.
async fn sample(play: &Running, name: &str) -> f64 {
    let page = client::send(play.address, &get("/metrics")).await.text();
    let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn answers_from_a_cassette_count_as_the_engines() {
    let shelf = Shelf::with(&tape(&[record(&["one"], "Two words"), record(&["two"], "And three more")]));
    let play = shelf.play(&[]);
    assert_eq!(play.send(CHAT, &chat(&["one"])).await.status, 200);
    let mut streamed = chat(&["two"]);
    streamed["stream"] = json!(true);
    assert_eq!(play.send(CHAT, &streamed).await.status, 200);
    for (name, value) in [
        ("vllm:num_requests_running{", 0.0),
        ("vllm:prompt_tokens_total{", 6.0),
        ("vllm:generation_tokens_total{", 4.0),
        ("vllm:time_to_first_token_seconds_count{", 2.0),
        ("vllm:inter_token_latency_seconds_count{", 2.0),
        ("vllm:e2e_request_latency_seconds_count{", 2.0),
        ("vllm:request_generation_tokens_sum{", 4.0),
        ("vllm:iteration_tokens_total_count{", 4.0),
        ("vllm:request_success_total{engine=\"0\",finished_reason=\"stop\"", 2.0),
    ] {
        assert_eq!(sample(&play, name).await, value, "{name}");
    }
    // A miss is no work of the engine.
    assert_eq!(play.send(CHAT, &chat(&["three"])).await.status, 422);
    assert_eq!(sample(&play, "vllm:prompt_tokens_total{").await, 6.0);
}
