//! Which record of a trace answers, and what a request gets that finds none.

use std::{num::NonZeroU32, time::Duration};

use serde_json::{Value, json};
use vllm_vcr::{
    play::{Config, Unmatched},
    recording::trace::{Endpoint, FinishReason, Record},
    replay::matching::{MatchBy, MinMatch, OnExhausted},
    replay::timing::Pacing,
    text::prompt::{BlockHashAlgorithm, BlockHasher, SpecialTokens},
};

use crate::support::{
    client::{self, Answer, get, post},
    play_server::{Server, config, record, start, tokenizer},
};

/// A record of a prompt and its answer.
fn answering(prompt: &str, text: &str) -> Record {
    let ids = tokenizer().encode(prompt, SpecialTokens::Add).unwrap();
    let hashes = BlockHasher::new(BlockHashAlgorithm::Fnv1a64, 4).hash(&ids);
    let output = tokenizer().encode(text, SpecialTokens::Skip).unwrap();
    Record {
        prompt_tokens: u32::try_from(ids.len()).unwrap(),
        block_hashes: hashes.blocks.into(),
        prompt_hash: hashes.whole,
        ..record(&output, Duration::from_millis(1), FinishReason::Length)
    }
}

async fn ask(server: &Server, headers: &[(&'static str, &'static str)], body: Value) -> Answer {
    let mut request = post("/v1/completions", &body);
    request.headers.extend(headers);
    client::send(server.address, &request).await
}

async fn complete(server: &Server, prompt: &str) -> Answer {
    ask(server, &[], json!({"prompt": prompt})).await
}

fn text_of(answer: &Answer) -> String {
    answer.json()["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {}", answer.text())).to_owned()
}

const SYSTEM: &str =
    "You are a patient and careful assistant who answers in one short sentence, always in plain words.";

/// The trace's own conversations begin alike.
fn sky_and_sea() -> Vec<Record> {
    vec![
        answering(&format!("{SYSTEM} Why is the sky blue?"), "the sky"),
        answering(&format!("{SYSTEM} Why is the sea salty?"), "the sea"),
    ]
}

#[tokio::test]
async fn the_built_in_trace_answers_forty_unknown_chats_with_every_record_in_turn() {
    let config = Config { pacing: Pacing::Instant, drain: Duration::ZERO, ..Config::default() };
    let server = start(config).await;
    let mut served = Vec::new();
    for at in 0..40 {
        let body =
            json!({"max_tokens": 1, "messages": [{"role": "user", "content": format!("Something new, number {at}")}]});
        let answer = client::send(server.address, &post("/v1/chat/completions", &body)).await;
        assert_eq!(answer.header("x-vcr-match").map(|by| by.starts_with("next")), Some(true), "{answer:?}");
        served.push(answer.header("x-vcr-record").unwrap().parse::<usize>().unwrap());
    }
    let records = *served.iter().max().unwrap() + 1;
    assert!((12..40).contains(&records), "{served:?}");
    assert_eq!(served, (0..40).map(|at| at % records).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_id_of_the_form_replay_names_its_record_and_others_count() {
    let embeddings = Record { endpoint: Some(Endpoint::Embeddings), ..answering("embedded", "never") };
    let records = vec![answering("zero", "0 0"), embeddings, answering("two", "2 2")];
    let server = start(config(&[MatchBy::Auto], records)).await;
    let named = ask(&server, &[("x-request-id", "replay-2")], json!({"prompt": "zero"})).await;
    assert_eq!((text_of(&named).as_str(), named.header("x-vcr-record")), ("2 2", Some("2")));
    let in_body = ask(&server, &[], json!({"prompt": "zero", "request_id": "replay-2"})).await;
    assert_eq!(in_body.header("x-vcr-match"), Some("index"));
    let other = ask(&server, &[("x-request-id", "run-7-2")], json!({"prompt": "zero"})).await;
    assert_eq!((text_of(&other).as_str(), other.header("x-vcr-match")), ("0 0", Some("prefix;blocks=0/0;whole")));
    for id in ["replay-1", "replay-3"] {
        let none = ask(&server, &[("x-request-id", id)], json!({"prompt": "zero"})).await;
        assert_eq!(none.header("x-vcr-match"), Some("random"), "{id}");
    }
}

#[tokio::test]
async fn a_shared_system_prompt_alone_is_no_match_where_that_is_asked_for() {
    let strict = Config {
        min_match: MinMatch::Whole,
        unmatched: Unmatched::Refuse,
        ..config(&[MatchBy::Prefix], sky_and_sea())
    };
    let server = start(strict).await;
    let mars = complete(&server, &format!("{SYSTEM} Write a sonnet about Mars rovers.")).await;
    assert_eq!((mars.status, mars.header("x-vcr-miss")), (422, Some("no_match")), "{}", mars.text());
    let error = mars.json()["error"].clone();
    assert_eq!(error["vcr"]["nearest"]["record"], 0, "{error}");
    let shared = error["vcr"]["nearest"]["matched_blocks"].as_u64().unwrap();
    assert!(shared > 0 && error["vcr"]["first_difference"]["block"] == shared, "{error}");
    let received = error["vcr"]["first_difference"]["received"].as_str().unwrap();
    assert!(!received.is_empty() && error["message"].as_str().unwrap().contains(received), "{error}");
    let sky = complete(&server, &format!("{SYSTEM} Why is the sky blue?")).await;
    assert_eq!(text_of(&sky), "the sky");
    let header = sky.header("x-vcr-match").unwrap();
    assert!(header.starts_with("prefix;blocks=") && header.ends_with(";whole"), "not consumed before: {header}");
}

#[tokio::test]
async fn a_part_of_the_prompt_is_enough_where_it_is_long_enough() {
    let asked = format!("{SYSTEM} Why is the moon bright?");
    let of = |min_match| Config { min_match, ..config(&[MatchBy::Prefix], sky_and_sea()) };
    let near = complete(&start(of(MinMatch::Percent(50))).await, &asked).await;
    assert_eq!(text_of(&near), "the sky");
    let header = near.header("x-vcr-match").unwrap();
    let (matched, total) = header.strip_prefix("prefix;blocks=").unwrap().split_once('/').unwrap();
    let (matched, total): (u32, u32) = (matched.parse().unwrap(), total.parse().unwrap());
    assert!(0 < matched && matched < total, "{header}");
    let enough = complete(&start(of(MinMatch::Blocks(NonZeroU32::new(matched).unwrap()))).await, &asked).await;
    assert_eq!(text_of(&enough), "the sky");
    let more = complete(&start(of(MinMatch::Blocks(NonZeroU32::new(matched + 1).unwrap()))).await, &asked).await;
    assert_eq!(more.header("x-vcr-match"), Some("random"));
}

#[tokio::test]
async fn exhausted_records_are_served_as_configured() {
    let records = || vec![answering("hello", "first"), answering("hello", "second")];
    for (said, rest) in [
        (None, ["second", "second"]),
        (Some(OnExhausted::Last), ["second", "second"]),
        (Some(OnExhausted::Cycle), ["first", "second"]),
    ] {
        let server = start(Config { on_exhausted: said, ..config(&[MatchBy::Prefix], records()) }).await;
        for (at, text) in ["first", "second"].iter().chain(&rest).enumerate() {
            let answer = complete(&server, "hello").await;
            assert_eq!(text_of(&answer), *text, "{said:?} {at}");
            assert_eq!(answer.header("x-vcr-match").unwrap().ends_with(";again"), at > 1, "{said:?} {at}");
        }
    }
    let refusing = Config {
        on_exhausted: Some(OnExhausted::Error),
        unmatched: Unmatched::Refuse,
        miss_status: 404,
        ..config(&[MatchBy::Prefix], records())
    };
    let server = start(refusing).await;
    complete(&server, "hello").await;
    complete(&server, "hello").await;
    let third = complete(&server, "hello").await;
    assert_eq!((third.status, third.header("x-vcr-miss")), (404, Some("exhausted")));
    assert_eq!(third.json()["error"]["code"], "exhausted");
}

#[tokio::test]
async fn records_of_several_models_are_served_under_their_names() {
    let of = |model: &str, text: &str| Record { model: Some(model.to_owned()), ..answering("hello", text) };
    let records = vec![of("small", "from small"), of("large", "from large"), of("large", "from large too")];
    let server = start(Config { served_model_names: Vec::new(), ..config(&[MatchBy::Prefix], records) }).await;
    let models = client::send(server.address, &get("/v1/models")).await.json();
    let names: Vec<&str> = models["data"].as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["large", "small"]);
    for (model, text) in [("large", "from large"), ("small", "from small"), ("large", "from large too")] {
        let answer = ask(&server, &[], json!({"prompt": "hello", "model": model})).await;
        assert_eq!((text_of(&answer).as_str(), answer.json()["model"].as_str()), (text, Some(model)));
    }
}
