//! Prompts of words: the endpoint that was asked, the recorded lengths, and the recorded sharing.

use std::fs;

use serde_json::{Value, json};

use super::server::{Sent, Server};
use crate::support::{
    running::{Running, vcr},
    traces::Trace,
    tree,
};

/// A chat, a response, a message and a completion that begin alike, without their requests.
fn trace() -> Trace {
    let line = |(number, (endpoint, tokens, blocks)): (usize, &(&str, u64, Vec<u64>))| {
        json!({"prompt_tokens": tokens, "output_tokens": 3, "ttft_ms": 2.0, "itl_ms": [1.0, 1.0], "arrival_ms": number, "model": "m",
            "block_hashes": blocks, "prompt_hash": 900 + number, "endpoint": endpoint, "stream": false, "status": 200,
            "outcome": "finished"})
    };
    let requests = [
        ("chat", 100, vec![1, 2, 3, 4, 5, 6]),
        ("chat", 150, vec![1, 2, 3, 14, 15, 16, 17, 18, 19]),
        ("responses", 100, vec![1, 2, 3, 4, 5, 6]),
        ("messages", 60, vec![1, 2, 3]),
        ("completions", 35, vec![1, 2]),
    ];
    Trace::of(&requests.iter().enumerate().map(line).collect::<Vec<_>>())
}

/// The text of a request's prompt.
fn text(sent: &Sent) -> String {
    let message = &sent.body["messages"][0]["content"];
    let texts = [message, &sent.body["input"], &sent.body["prompt"]];
    texts.into_iter().find_map(Value::as_str).unwrap().to_owned()
}

fn drive(trace: &Trace, url: &str, flags: &[&str]) -> (Option<i32>, Value, String) {
    let fixed = ["replay", trace.file.to_str().unwrap(), "--target", url, "--json", "--prompt-as", "text"];
    let output = vcr(&[&fixed[..], flags].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default(), said)
}

/// Five tokens for four words, and 23 around them.
fn count(body: &Value) -> usize {
    let sent = Sent { at: std::time::SystemTime::now(), path: String::new(), head: String::new(), body: body.clone() };
    text(&sent).split(' ').count() * 5 / 4 + 23
}

fn answer(path: &str, body: &Value) -> Value {
    let prompt = if body.is_null() { return Value::Null } else { count(body) };
    match path {
        "/v1/chat/completions" => json!({"id": "c", "object": "chat.completion", "model": "m", "choices": [{"index": 0,
            "message": {"role": "assistant", "content": "a b c"}, "finish_reason": "length"}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": 3, "total_tokens": prompt + 3}}),
        "/v1/completions" => json!({"id": "c", "object": "text_completion", "model": "m",
            "choices": [{"index": 0, "text": "a b c", "finish_reason": "length"}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": 3, "total_tokens": prompt + 3}}),
        "/v1/messages" => {
            json!({"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "max_tokens",
            "content": [{"type": "text", "text": "a b c"}], "usage": {"input_tokens": prompt, "output_tokens": 3}})
        }
        "/v1/responses" => {
            json!({"id": "r", "object": "response", "status": "completed", "model": "m", "output": [{"type": "message",
            "id": "i", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "a b c"}]}],
            "usage": {"input_tokens": prompt, "output_tokens": 3, "total_tokens": prompt + 3}})
        }
        _ => Value::Null,
    }
}

#[test]
fn prompts_of_words_have_the_recorded_lengths_by_the_servers_own_count() {
    let (trace, server) = (trace(), Server::start(answer));
    let (_, printed, said) = drive(&trace, &server.url(), &["--arrivals", "burst"]);
    assert!(said.contains("/v1/chat/completions m: a prompt of n words has 1.250 n + 23 tokens"), "{said}");
    let drift = &printed["results"]["drift"];
    assert_eq!((&drift["prompts"], &drift["unknown"]), (&json!(5), &json!(0)), "{printed:#}");
    assert!(drift["largest"].as_i64().unwrap().abs() <= 1, "{drift}");
    // Two prompts for each endpoint before the run.
    let sent = server.sent();
    assert_eq!(sent.len(), 8 + 5);
    let run: Vec<&Sent> = sent.iter().filter(|sent| sent.head.contains("x-request-id: replay-")).collect();
    assert_eq!(run.len(), 5);
    let of = |path: &str| run.iter().filter(|sent| sent.path == path).map(|sent| text(sent)).collect::<Vec<_>>();
    let chats = of("/v1/chat/completions");
    assert_eq!(of("/v1/responses"), [chats.iter().min_by_key(|text| text.len()).unwrap().clone()], "equal prompts");
    // Three blocks of 16 tokens are 38 words.
    let shared = chats[0].split(' ').zip(chats[1].split(' ')).take_while(|(one, other)| one == other).count();
    assert!((38..41).contains(&shared), "{shared}");
    assert!(
        run.iter().all(|sent| sent.body.get("max_tokens").or(sent.body.get("max_output_tokens")) == Some(&json!(3)))
    );
}

#[test]
fn a_server_that_counts_nothing_is_named() {
    let server = Server::start(|path, body| {
        let mut answer = answer(path, body);
        answer.as_object_mut().into_iter().for_each(|answer| drop(answer.remove("usage")));
        answer
    });
    let (code, _, said) = drive(&trace(), &server.url(), &[]);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("without a count of the prompt") && said.contains("--tokenizer"), "{said}");
}

#[test]
fn a_tokenizer_gives_exact_lengths_without_asking() {
    let folder = tempfile::tempdir().unwrap();
    let from = tree::root().join("traces/smollm2-135m");
    for name in ["chat_template.jinja", "tokenizer_config.json"] {
        fs::copy(from.join(name), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("tokenizer.json"), crate::support::tokenizers::smollm2_json()).unwrap();
    let tokenizer = folder.path().to_str().unwrap();
    let server =
        Running::start(&["play", "--port", "0", "--instant", "--tokenizer", tokenizer, "--served-model-name", "m"]);
    let url = format!("http://{}", server.address);
    for flags in [&["--tokenizer", tokenizer][..], &[]] {
        let (_, printed, said) = drive(&trace(), &url, &[&["--arrivals", "burst"], flags].concat());
        let drift = &printed["results"]["drift"];
        assert_eq!(drift["prompts"], 5, "{said}{printed:#}");
        assert!(drift["largest"].as_i64().unwrap().abs() <= 1, "{said}{drift}");
    }
}
