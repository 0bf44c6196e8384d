//! Made-up answers as clients get them: counted, ended, and told apart from one another.

use serde_json::{Value, json};
use vllm_vcr::{
    play::{Config, Source, Synthetic, TokenizerSource},
    prompt::{SkipSpecial, SpecialTokens, Tokenizer},
};

use crate::{
    client::{self, Answer},
    play_server::{self, Server},
    tokenizers::{llama3, qwen3},
};

/// A server without a trace.
fn synthetic(tokenizer: Tokenizer) -> Config {
    let source = Source::Synthetic(Synthetic::Random);
    let tokenizer = TokenizerSource::Loaded(tokenizer);
    Config { source, tokenizer, ..play_server::config(&[], Vec::new()) }
}

async fn chat(server: &Server, mut body: Value) -> Answer {
    body["messages"] = json!([{"role": "user", "content": "Hi"}]);
    let answer = client::send(server.address, &client::post("/v1/chat/completions", &body)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

/// A member of all deltas of a stream, put together.
fn joined(answer: &Answer, member: &str) -> String {
    let read = |event: &String| serde_json::from_str::<Value>(event.trim_start_matches("data: ")).ok();
    let delta = |event: Value| Some(event["choices"].get(0)?["delta"][member].as_str()?.to_owned());
    answer.events().iter().filter_map(read).filter_map(delta).collect()
}

/// The tokenizers that are there.
fn tokenizers() -> impl Iterator<Item = Tokenizer> {
    [Some(play_server::tokenizer()), qwen3(), llama3()].into_iter().flatten()
}

#[tokio::test]
async fn a_client_counts_as_many_tokens_as_were_sent() {
    for tokenizer in tokenizers() {
        let server = play_server::start(synthetic(tokenizer.clone())).await;
        for (seed, tokens) in (0..12).zip([1, 2, 3, 7, 64].into_iter().cycle()) {
            let asked = json!({"max_tokens": tokens, "seed": seed, "ignore_eos": true, "return_token_ids": true});
            let whole = chat(&server, asked.clone()).await.json();
            let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
            let ids = tokenizer.encode(text, SpecialTokens::Skip).unwrap();
            assert_eq!(json!(ids), whole["choices"][0]["token_ids"], "{}: {text:?}", tokenizer.name());
            assert_eq!((ids.len(), text.trim()), (tokens, text), "{}", tokenizer.name());
            let mut streaming = asked;
            streaming["stream"] = json!(true);
            assert_eq!(joined(&chat(&server, streaming).await, "content"), text);
        }
    }
}

#[test]
fn words_come_back_from_their_text_in_any_order() {
    for tokenizer in tokenizers() {
        let words = tokenizer.words();
        assert!(words.next.len() >= 2000, "{}: {} words", tokenizer.name(), words.next.len());
        let mut at = 7_usize;
        let mut draw = |from: &[u32]| {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            from[(at >> 33) % from.len()]
        };
        for length in 1..200 {
            let mut ids = vec![draw(&words.first)];
            ids.extend((1..length).map(|_| draw(&words.next)));
            let text = tokenizer.decode(&ids, SkipSpecial::Skip).unwrap();
            assert_eq!(tokenizer.encode(&text, SpecialTokens::Skip).unwrap(), ids, "{}: {text}", tokenizer.name());
        }
    }
}
