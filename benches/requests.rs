//! What it costs to read and judge a request: from its bytes to the request.
//!
//! `cargo bench --bench requests -- --json FILE`. Each figure is the best of several runs; beside each stands `serde_json` alone.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::cast_precision_loss, clippy::indexing_slicing)]

mod shared;

use std::hint::black_box;

use serde_json::{Value, json};
use tokio::time::Instant;
use vllm_vcr::api::{Api, GenerationRequest};

const REQUESTS: u32 = 20_000;
const ROUNDS: usize = 9;

fn main() {
    let chat = json!({
        "model": "HuggingFaceTB/SmolLM2-135M-Instruct", "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        "max_tokens": 16, "stream": true, "stream_options": {"include_usage": true}, "temperature": 0,
    });
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tool =
        json!({"type": "function", "function": {"name": "weather", "description": "Now", "parameters": parameters}});
    let mut with_tools = chat.clone();
    with_tools["tools"] = json!([tool]);
    with_tools["tool_choice"] = "auto".into();
    with_tools["messages"] = json!([
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is the sky blue?"},
        {"role": "assistant", "content": "Because."}, {"role": "user", "content": [{"type": "text", "text": "Go on"}]},
    ]);
    let completion = json!({"model": "m", "prompt": "Why is the sky blue?", "max_tokens": 16, "stream": true});
    let of = |what: &str, api: Api, body: &Value| {
        let body = body.to_string();
        let read = best(&mut || drop(black_box(GenerationRequest::parse(api, black_box(body.as_bytes())).unwrap())));
        let serde = best(&mut || drop(black_box(serde_json::from_slice::<Value>(black_box(body.as_bytes())).unwrap())));
        json!({"what": what, "ns": read, "serde_json_ns": serde})
    };
    shared::report(
        "requests",
        &[
            of("small chat", Api::Chat, &chat),
            of("chat with tools", Api::Chat, &with_tools),
            of("completion", Api::Completions, &completion),
        ],
    );
}

/// Nanoseconds of one run in the best round.
fn best(run: &mut dyn FnMut()) -> f64 {
    let time = |()| {
        let start = Instant::now();
        (0..REQUESTS).for_each(|_| run());
        start.elapsed().as_nanos() as f64 / f64::from(REQUESTS)
    };
    [(); ROUNDS].map(time).into_iter().fold(f64::MAX, f64::min)
}
