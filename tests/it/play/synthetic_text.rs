//! Made-up answers as clients get them: counted, ended, and distinct from one another.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};
use vllm_vcr::{
    engine::OutputTokens,
    play::{Config, PlayError, Player, Source, Synthetic, SyntheticOptions, TokenizerSource},
    recording::trace::FinishReason,
    replay::matching::MatchBy,
    text::parsers::ReasoningFormat,
    text::prompt::{SkipSpecial, SpecialTokens, Tokenizer},
};

use crate::support::{
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

/// Finish reason and number of tokens of an answer.
fn ended(answer: &Value) -> (String, u64) {
    let reason = answer["choices"][0]["finish_reason"].as_str().unwrap().to_owned();
    (reason, answer["usage"]["completion_tokens"].as_u64().unwrap())
}

fn with(options: SyntheticOptions) -> Config {
    Config { synthetic: options, ..synthetic(play_server::tokenizer()) }
}

#[tokio::test]
async fn an_answer_ends_by_itself_at_a_drawn_length_or_at_its_limit() {
    let output_tokens = Some("20..60".parse().unwrap());
    let server = play_server::start(with(SyntheticOptions { output_tokens, ..SyntheticOptions::default() })).await;
    let mut lengths = BTreeSet::new();
    for seed in 0..30 {
        let (reason, free) = ended(&chat(&server, json!({"seed": seed})).await.json());
        assert!(reason == "stop" && (20..=60).contains(&free), "{reason} {free}");
        lengths.insert(free);
        let cut = ended(&chat(&server, json!({"seed": seed, "max_tokens": 40})).await.json());
        let expected = if free > 40 { ("length".to_owned(), 40) } else { ("stop".to_owned(), free) };
        assert_eq!(cut, expected);
        let least = ended(&chat(&server, json!({"seed": seed, "max_tokens": 90, "min_tokens": 50})).await.json());
        assert_eq!(least, ("stop".to_owned(), free.max(50)));
        let endless = json!({"seed": seed, "max_tokens": 70, "ignore_eos": true});
        assert_eq!(ended(&chat(&server, endless).await.json()), ("length".to_owned(), 70));
    }
    assert!(lengths.len() > 10, "{lengths:?}");
}

#[tokio::test]
async fn a_share_of_answers_ends_by_itself() {
    let server =
        play_server::start(with(SyntheticOptions { stop_rate: Some(0.25), ..SyntheticOptions::default() })).await;
    let mut stopped = 0;
    for seed in 0..200 {
        let (reason, tokens) = ended(&chat(&server, json!({"seed": seed, "max_tokens": 50})).await.json());
        stopped += u32::from(reason == "stop");
        assert!(reason == "stop" && tokens <= 50 || tokens == 50, "{reason} {tokens}");
    }
    assert!((30..=70).contains(&stopped), "{stopped} of 200");
    let server = play_server::start(with(SyntheticOptions::default())).await;
    assert_eq!(ended(&chat(&server, json!({"max_tokens": 50})).await.json()), ("length".to_owned(), 50));
    assert_eq!(ended(&chat(&server, json!({})).await.json()), ("stop".to_owned(), 128), "nothing cut it");
}

#[tokio::test]
async fn unmatched_answers_are_as_long_as_records_where_that_is_asked() {
    let record = |tokens: usize| play_server::record(&vec![500; tokens], Duration::ZERO, FinishReason::Stop);
    let options = SyntheticOptions { output_tokens: Some(OutputTokens::Trace), ..SyntheticOptions::default() };
    let trace = play_server::config(&[MatchBy::Index], vec![record(3), record(5)]);
    let server = play_server::start(Config { synthetic: options.clone(), ..trace }).await;
    let mut lengths = BTreeSet::new();
    for seed in 0..20 {
        let answer = chat(&server, json!({"seed": seed})).await;
        assert_eq!(answer.header("x-vcr-match"), Some("random"));
        lengths.insert(ended(&answer.json()).1);
    }
    assert_eq!(lengths, BTreeSet::from([3, 5]));
    assert!(matches!(Player::load(with(options)), Err(PlayError::NoLengths)));
}

/// Every reasoning parser, with what a request has to say so that the model thinks.
fn thinking() -> impl Iterator<Item = (ReasoningFormat, Value)> {
    ReasoningFormat::ALL.map(ReasoningFormat::name).into_iter().map(|name| {
        let format: ReasoningFormat = name.parse().unwrap();
        let kwargs = if name == "deepseek_v3" { json!({"thinking": true}) } else { json!({}) };
        (format, json!({"chat_template_kwargs": kwargs}))
    })
}

#[tokio::test]
async fn reasoning_ends_and_an_answer_follows_under_every_parser() {
    for tokenizer in tokenizers() {
        for (format, asked) in thinking() {
            let server = play_server::start(Config { parsers: format.into(), ..synthetic(tokenizer.clone()) }).await;
            for seed in 0..3 {
                let mut asked = asked.clone();
                asked["seed"] = json!(seed);
                asked["max_tokens"] = json!(64);
                let whole = chat(&server, asked.clone()).await.json();
                let message = &whole["choices"][0]["message"];
                let context = format!("{format:?} with {}: {message}", tokenizer.name());
                let content = message["content"].as_str().unwrap_or_else(|| panic!("{context}"));
                let words = |text: &str| text.split_whitespace().count();
                assert!(words(content) >= 10, "{context}");
                let reasons = format != ReasoningFormat::Mistral || tokenizer.token_id("[THINK]").is_some();
                assert_eq!(message["reasoning"].as_str().map_or(0, words) >= 10, reasons, "{context}");
                assert_eq!(ended(&whole), ("length".to_owned(), 64));
                asked["stream"] = json!(true);
                let streamed = chat(&server, asked).await;
                assert_eq!(joined(&streamed, "content").trim(), content.trim(), "{context}");
                let reasoning = message["reasoning"].as_str().unwrap_or_default();
                assert_eq!(joined(&streamed, "reasoning").trim(), reasoning.trim(), "{context}");
            }
        }
    }
}

#[tokio::test]
async fn a_share_of_an_answer_is_reasoning_and_short_answers_have_content_too() {
    let counted = async |share: f64, asked: Value| {
        let options = SyntheticOptions { reasoning_share: share, ..SyntheticOptions::default() };
        let server = play_server::start(Config { parsers: ReasoningFormat::Qwen3.into(), ..with(options) }).await;
        let message = chat(&server, asked).await.json()["choices"][0]["message"].take();
        ["reasoning", "content"].map(|member| message[member].as_str().map(|text| text.split_whitespace().count()))
    };
    let hundred = json!({"max_tokens": 103});
    assert_eq!(counted(0.0, hundred.clone()).await, [None, Some(100)]);
    assert_eq!(counted(0.25, hundred.clone()).await, [Some(25), Some(75)]);
    assert_eq!(counted(1.0, hundred).await, [Some(103), None]);
    assert_eq!(counted(0.25, json!({"max_tokens": 103, "thinking_token_budget": 5})).await, [Some(5), Some(95)]);
    assert_eq!(counted(0.9, json!({"max_tokens": 4})).await, [None, Some(1)]);
    assert_eq!(
        counted(0.9, json!({"max_tokens": 100, "chat_template_kwargs": {"enable_thinking": false}})).await,
        [None, Some(100)]
    );
}

#[tokio::test]
async fn conforming_text_follows_reasoning_under_every_parser() {
    for (format, mut asked) in thinking() {
        let server = play_server::start(Config { parsers: format.into(), ..synthetic(play_server::tokenizer()) }).await;
        asked["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "pet", "schema": {
            "type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}}, "required": ["kind"], "additionalProperties": false,
        }}});
        let whole = chat(&server, asked.clone()).await.json();
        let message = &whole["choices"][0]["message"];
        let value: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
        assert!(value == json!({"kind": "cat"}) || value == json!({"kind": "dog"}), "{format:?}: {message}");
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
        assert_eq!(message["reasoning"].is_string(), format != ReasoningFormat::Mistral, "{format:?}: {message}");
    }
}

#[tokio::test]
async fn an_unseeded_prompt_has_another_answer_each_time_and_a_run_the_same_ones() {
    let trace = || {
        play_server::config(&[MatchBy::Index], vec![play_server::record(&[500], Duration::ZERO, FinishReason::Stop)])
    };
    for config in [|| with(SyntheticOptions::default()), trace] {
        let run = async |asked: Value| {
            let server = play_server::start(config()).await;
            let mut texts = Vec::new();
            for _ in 0..4 {
                let whole = chat(&server, asked.clone()).await.json();
                texts.push(whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned());
            }
            texts
        };
        let sampled = run(json!({"max_tokens": 9})).await;
        assert_eq!(sampled.iter().collect::<BTreeSet<_>>().len(), 4, "{sampled:?}");
        assert_eq!(run(json!({"max_tokens": 9})).await, sampled);
        for asked in [json!({"max_tokens": 9, "temperature": 0}), json!({"max_tokens": 9, "seed": 3})] {
            let same = run(asked).await;
            assert_eq!(same.iter().collect::<BTreeSet<_>>().len(), 1, "{same:?}");
        }
    }
}
