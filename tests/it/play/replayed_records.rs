//! The replay server's own promises, on the built-in tokenizer.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use vllm_vcr::{
    play::{Config, PlayError, Player, ServerOptions, Source, Synthetic, TokenizerSource, Unmatched, UnmatchedPace},
    recording::trace::{FinishReason, Outcome, Record},
    replay::matching::MatchBy,
    replay::timing::Pacing,
    text::prompt::{BlockHashAlgorithm, BlockHasher, SpecialTokens},
};

use crate::support::{
    client::{self, Answer, get, post},
    play_server::{Server, config, record, start, tokenizer},
    traces::{Trace, line},
};

/// A record that answers with these words.
fn saying(text: &str, finish: FinishReason) -> Record {
    record(&tokenizer().encode(text, SpecialTokens::Skip).unwrap(), Duration::from_millis(1), finish)
}

/// The same, matched by a prompt.
fn answering(prompt: &str, text: &str) -> Record {
    let ids = tokenizer().encode(prompt, SpecialTokens::Add).unwrap();
    let hashes = BlockHasher::new(BlockHashAlgorithm::Fnv1a64, 4).hash(&ids);
    Record {
        prompt_tokens: u32::try_from(ids.len()).unwrap(),
        block_hashes: hashes.blocks.into(),
        prompt_hash: hashes.whole,
        ..saying(text, FinishReason::Length)
    }
}

async fn complete(server: &Server, body: Value) -> Answer {
    client::send(server.address, &post("/v1/completions", &body)).await
}

fn text_of(answer: &Answer) -> String {
    answer.json()["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {}", answer.text())).to_owned()
}

#[tokio::test]
async fn permuted_ids_are_no_tokens_and_others_of_their_number_are_served() {
    let trace = Trace::of(&[line("x", "The river runs to the", &json!({"output_token_ids": [700_001, 2, 3, 4, 5]}))]);
    let text = std::fs::read_to_string(&trace.file).unwrap();
    std::fs::write(&trace.file, text.replacen("{\"meta\":{", "{\"meta\":{\"ids_permuted\":true,", 1)).unwrap();
    let mut server = trace.play(&[]);
    let asked = json!({"prompt": "x", "max_tokens": 9, "return_token_ids": true});
    let answer = server.send("/v1/completions", &asked).await.json();
    let ids: Vec<u64> = serde_json::from_value(answer["choices"][0]["token_ids"].clone()).unwrap();
    assert!(ids.len() == 5 && ids.iter().all(|id| *id < 49_152) && ids[1..] != [2, 3, 4, 5], "{answer}");
    server.waits_for("hold permuted token ids, which spell nothing");
    assert!(!server.stop().1.contains("tokenizer DIR"));
}

#[tokio::test]
async fn a_smaller_max_tokens_cuts_a_larger_one_does_not_add() {
    let text = "The river runs to the sea and the sea is wide.";
    let record = saying(text, FinishReason::Stop);
    let tokens = record.output_tokens;
    let server = start(config(&[MatchBy::Next], vec![record.clone(), record.clone(), record])).await;
    let cut = complete(&server, json!({"prompt": "x", "max_tokens": 3})).await;
    assert_eq!(text_of(&cut), "The river runs");
    assert_eq!(cut.json()["choices"][0]["finish_reason"], "length");
    assert_eq!(cut.json()["usage"]["completion_tokens"], 3);
    let whole = complete(&server, json!({"prompt": "x", "max_tokens": 500})).await;
    assert_eq!(text_of(&whole), text);
    assert_eq!(whole.json()["choices"][0]["finish_reason"], "stop");
    assert_eq!(whole.json()["usage"]["completion_tokens"], tokens);
    let stopped = complete(&server, json!({"prompt": "x", "max_tokens": 500, "stop": [" sea"]})).await;
    assert_eq!(text_of(&stopped), "The river runs to the");
    assert_eq!(stopped.json()["choices"][0]["stop_reason"], " sea");
}

#[tokio::test]
async fn a_record_without_a_reason_ends_as_it_was_asked_for() {
    let unsaid = Record { finish_reason: None, ..saying("The river runs to the sea.", FinishReason::Stop) };
    let cut = Record { outcome: Some(Outcome::UpstreamFailed), ..unsaid.clone() };
    let tokens = unsaid.output_tokens;
    let server = start(config(&[MatchBy::Next], vec![unsaid.clone(), unsaid.clone(), unsaid, cut])).await;
    // A part of an answer that broke off is whole.
    for (max_tokens, reason) in [(tokens, "length"), (tokens + 1, "stop"), (tokens - 1, "length"), (2, "length")] {
        let answer = complete(&server, json!({"prompt": "x", "max_tokens": max_tokens})).await;
        assert_eq!(answer.json()["choices"][0]["finish_reason"], reason, "{max_tokens}");
    }
}

#[tokio::test]
async fn no_more_prompt_tokens_were_cached_than_there_are() {
    let record = Record { prompt_tokens: 900, cached_tokens: Some(896), ..saying("a", FinishReason::Length) };
    let server = start(Config { prompt_tokens_details: true, ..config(&[MatchBy::Next], vec![record]) }).await;
    let usage = complete(&server, json!({"prompt": "x y z"})).await.json()["usage"].clone();
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]);
}

#[tokio::test]
async fn unmatched_requests_are_paced_as_the_trace_is_unless_a_flag_sets_the_pace() {
    let recorded = saying("a b c", FinishReason::Length);
    for (unmatched_pace, class) in [(UnmatchedPace::Trace, "fixed"), (UnmatchedPace::Instant, "instant")] {
        let server = ServerOptions { vcr_metrics: true, ..ServerOptions::default() };
        let server = start(Config {
            pacing: Pacing::default(),
            unmatched_pace,
            server,
            ..config(&[MatchBy::Index], vec![recorded.clone()])
        })
        .await;
        let answer = complete(&server, json!({"prompt": "x", "max_tokens": 3, "stream": true})).await;
        assert_eq!(answer.header("x-vcr-match"), Some("random"));
        let page = client::send(server.address, &get("/metrics")).await.text();
        let count = format!("vcr_event_lateness_seconds_count{{class=\"{class}\"}} ");
        assert!(page.contains(&count), "{class}: {page}");
    }
}

#[tokio::test]
async fn the_models_length_is_that_of_the_longest_record_unless_it_is_given() {
    let long = Record { prompt_tokens: 40_000, ..saying("a", FinishReason::Length) };
    for (given, length) in [(None, 40_000 + u64::from(long.output_tokens)), (Some(4096), 4096)] {
        let server = start(Config { max_model_len: given, ..config(&[MatchBy::Index], vec![long.clone()]) }).await;
        let models = client::send(server.address, &get("/v1/models")).await;
        assert_eq!(models.json()["data"][0]["max_model_len"], length);
    }
}

#[tokio::test]
async fn index_names_the_record_and_the_answer_says_so() {
    let records = vec![saying("zero", FinishReason::Length), saying("one", FinishReason::Length)];
    let server = start(config(&[MatchBy::Index], records)).await;
    for (id, text) in [("replay-1", "one"), ("replay-0", "zero")] {
        let mut request = post("/v1/completions", &json!({"prompt": "x"}));
        request.headers.push(("x-request-id", id));
        let answer = client::send(server.address, &request).await;
        assert_eq!(text_of(&answer), text);
        assert_eq!(answer.json()["id"], format!("cmpl-{id}"));
        assert_eq!(answer.header("x-vcr-match"), Some("index"));
        assert_eq!(answer.header("x-vcr-record"), Some(&id[7..]));
    }
}

#[tokio::test]
async fn prefix_finds_the_prompts_record_and_next_takes_turns() {
    let long = "The quick brown fox jumps over the lazy dog and then rests in the warm sun";
    let other = "Completely different words about ships that sail on cold northern waters";
    let records = vec![answering(other, "ships"), answering(long, "foxes")];
    let server = start(config(&[MatchBy::Prefix, MatchBy::Next], records)).await;
    let found = complete(&server, json!({"prompt": format!("{long} for a while")})).await;
    assert_eq!(
        (text_of(&found).as_str(), found.header("x-vcr-match").map(|by| by.starts_with("prefix;blocks="))),
        ("foxes", Some(true))
    );
    let next = complete(&server, json!({"prompt": "?"})).await;
    assert_eq!(next.header("x-vcr-match"), Some("next"));
    assert_eq!(text_of(&next), "ships");
}

#[tokio::test]
async fn strict_refuses_what_no_record_answers() {
    let strict =
        Config { unmatched: Unmatched::Refuse, ..config(&[MatchBy::Index], vec![saying("a", FinishReason::Length)]) };
    let server = start(strict).await;
    let answer = complete(&server, json!({"prompt": "x"})).await;
    assert_eq!(answer.status, 422);
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    assert_eq!(answer.json()["error"]["type"], "vcr_miss");
    assert_eq!(answer.json()["error"]["code"], "no_match");
}

#[tokio::test]
async fn unmatched_requests_get_the_same_random_tokens_for_the_same_seed() {
    let server = start(config(&[MatchBy::Index], vec![saying("a", FinishReason::Length)])).await;
    let body = json!({"prompt": "x", "max_tokens": 9, "return_token_ids": true, "seed": 1});
    let (one, two) = (complete(&server, body.clone()).await, complete(&server, body).await);
    assert_eq!(one.header("x-vcr-match"), Some("random"));
    assert_eq!(one.json()["choices"][0]["token_ids"].as_array().unwrap().len(), 9);
    assert_eq!(text_of(&one), text_of(&two));
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    let chat = client::send(server.address, &post("/v1/chat/completions", &chat)).await;
    assert_eq!(chat.json()["usage"]["completion_tokens"], 128);
}

#[tokio::test]
async fn synthetic_tokens_need_no_trace() {
    let synthetic =
        |kind| Config { source: Source::Synthetic(kind), served_model_names: vec!["m".into()], ..Config::default() };
    let server = start(synthetic(Synthetic::Echo)).await;
    let answer = complete(&server, json!({"prompt": "hello there", "max_tokens": 50})).await;
    assert_eq!((text_of(&answer).as_str(), answer.header("x-vcr-match")), ("hello there", Some("echo")));
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "stop");
    let chat = json!({"messages": [{"role": "user", "content": "say it again"}]});
    let chat = client::send(server.address, &post("/v1/chat/completions", &chat)).await;
    assert_eq!(chat.json()["choices"][0]["message"]["content"], "say it again");
    let server = start(synthetic(Synthetic::Random)).await;
    let stream = json!({"prompt": "x", "max_tokens": 2000, "stream": true, "ignore_eos": true});
    assert_eq!(complete(&server, stream).await.events().len(), 2001);
}

#[tokio::test]
async fn recorded_times_hold_and_a_client_that_leaves_ends_its_stream() {
    let ids = tokenizer().encode("a b c d e f g h", SpecialTokens::Skip).unwrap();
    let slow = record(&ids, Duration::from_secs(3600), FinishReason::Length);
    let paced = Config { pacing: Pacing::default(), ..config(&[MatchBy::Next], vec![slow]) };
    let server = start(paced).await;
    let request = post("/v1/completions", &json!({"prompt": "x", "max_tokens": 100, "stream": true}));
    let mut stream = client::open(server.address, &request).await;
    let mut head = [0; 15];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK");
    // The headers are out at once, the first token is an hour away; the server goes on for others.
    drop(stream);
    assert_eq!(client::send(server.address, &get("/health")).await.status, 200);
}

#[tokio::test]
async fn a_chunk_of_several_tokens_is_one_event() {
    let mut record = saying("one two three four five", FinishReason::Length);
    let tokens = record.output_tokens;
    record.chunks.truncate(2);
    record.chunks[1].tokens = tokens - 1;
    let server = start(config(&[MatchBy::Next], vec![record])).await;
    let stream = json!({"prompt": "x", "max_tokens": 100, "stream": true, "return_token_ids": true});
    let events = complete(&server, stream).await.events();
    assert_eq!(events.len(), 3, "{events:?}");
    let second: Value = serde_json::from_str(events[1].strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(second["choices"][0]["text"], " two three four five");
}

#[tokio::test]
async fn a_failure_of_the_engine_is_played_back() {
    let server = start(config(&[MatchBy::Next], vec![saying("one two", FinishReason::Error)])).await;
    let events = complete(&server, json!({"prompt": "x", "stream": true})).await.events();
    assert!(events[1].contains(r#""text":" two""#) && events[1].contains(r#""finish_reason":null"#), "{events:?}");
    assert_eq!(
        events[2..],
        [
            r#"data: {"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}"#,
            "data: [DONE]",
        ]
    );
    assert_eq!(complete(&server, json!({"prompt": "x"})).await.status, 500);
}

#[tokio::test]
async fn large_and_broken_bodies_are_answered() {
    let small = Config { body_limit: 1 << 20, ..config(&[MatchBy::Next], vec![saying("a", FinishReason::Length)]) };
    let server = start(small).await;
    let huge = json!({"prompt": "river ".repeat((20 << 20) / 6)});
    let answer = complete(&server, huge).await;
    assert_eq!(answer.status, 413);
    assert_eq!(answer.json()["error"]["code"], 413);
    for body in [&b"["[..], b"{\"prompt\": {}}", b"nul", b"{\"prompt\":\"x\",\"n\":[]}", b"\"x\""] {
        let mut request = post("/v1/completions", &Value::Null);
        request.body = body.to_vec();
        let answer = client::send(server.address, &request).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], 400);
    }
    let mut request = post("/v1/completions", &Value::Null);
    request.body = b"{\"prompt\": \"\xff\"}".to_vec();
    let answer = client::send(server.address, &request).await;
    assert_eq!((answer.status, answer.text()), (400, r#"{"detail":"There was an error parsing the body"}"#.to_owned()));
    assert_eq!(client::send(server.address, &get("/health")).await.status, 200);
}

#[tokio::test]
async fn a_body_of_20_mb_is_refused_for_its_length() {
    let server = start(config(&[MatchBy::Next], vec![saying("a", FinishReason::Length)])).await;
    for (prompt, param) in
        [(json!("river ".repeat(3_400_000)), "input_text"), (json!(vec![300; 200_000]), "input_tokens")]
    {
        let answer = complete(&server, json!({"prompt": prompt})).await;
        assert_eq!(answer.status, 400);
        assert_eq!(answer.json()["error"]["param"], param);
    }
}

#[tokio::test]
async fn the_endpoints_beside_generation() {
    let server = start(config(&[MatchBy::Next], vec![saying("a", FinishReason::Length)])).await;
    let models = client::send(server.address, &get("/v1/models")).await;
    assert_eq!(models.json()["data"][0]["id"], "m");
    assert_eq!(models.json()["data"][0]["max_model_len"], 4096);
    assert_eq!(client::send(server.address, &get("/version")).await.text(), r#"{"version":"0.32.0"}"#);
    let tokens = client::send(server.address, &post("/tokenize", &json!({"prompt": "hello world"}))).await.json();
    assert_eq!(tokens["count"], 2);
    let text = client::send(server.address, &post("/detokenize", &json!({"tokens": tokens["tokens"]}))).await;
    assert_eq!(text.text(), r#"{"prompt":"hello world"}"#);
    assert_eq!(client::send(server.address, &get("/tokenize")).await.header("allow"), Some("POST"));
}

#[test]
fn what_does_not_fit_together_is_refused_at_load() {
    let with = |change: &dyn Fn(&mut vllm_vcr::recording::trace::Trace)| {
        let mut config = config(&[MatchBy::Next], vec![saying("a", FinishReason::Length)]);
        config.tokenizer = TokenizerSource::BuiltIn;
        if let Source::Trace { trace, .. } = &mut config.source {
            change(std::sync::Arc::make_mut(trace));
        }
        config
    };
    let other = with(&|trace| trace.meta.tokenizer.as_mut().unwrap().fingerprint = "0".repeat(16));
    assert!(matches!(Player::load(other.clone()), Err(PlayError::OtherTokenizer { .. })));
    let elsewhere = with(&|trace| {
        let tokenizer = trace.meta.tokenizer.as_mut().unwrap();
        (tokenizer.name, tokenizer.fingerprint) = ("another".to_owned(), "0".repeat(16));
    });
    assert!(matches!(Player::load(elsewhere), Err(PlayError::TokenizerNeeded { .. })));
    let given = Config { tokenizer: TokenizerSource::Loaded(tokenizer()), ..other };
    assert!(matches!(Player::load(given), Err(PlayError::OtherTokenizer { .. })));
    let unnamed = with(&|trace| trace.meta.tokenizer = None);
    assert!(matches!(Player::load(unnamed), Err(PlayError::TokenizerUnsaid { .. })));
    let empty = with(&|trace| trace.records.clear());
    assert!(matches!(Player::load(empty), Err(PlayError::Empty { .. })));
}

/// Padded embeddings: the model has ids that the tokenizer does not, and the engine gives them no text.
#[tokio::test]
async fn ids_without_a_token_have_no_text() {
    let word = tokenizer().token_id("hello").unwrap();
    let first = tokenizer().vocab_size();
    let padded = |id: u32, tokenizer, is_recorded_one: bool| {
        let mut config = config(&[MatchBy::Next], vec![record(&[word, id, word], Duration::ZERO, FinishReason::Stop)]);
        config.tokenizer = TokenizerSource::Loaded(tokenizer);
        if let Source::Trace { trace, .. } = &mut config.source {
            let meta = &mut std::sync::Arc::make_mut(trace).meta;
            meta.tokenizer = meta.tokenizer.take().filter(|_| is_recorded_one);
        }
        config
    };
    let of_model = tokenizer().with_model_vocabulary(first + 100);
    for (id, tokenizer, is_recorded_one) in [
        (first + 99, of_model.clone(), false),
        (first + 99, tokenizer(), false),
        (10_000_000, tokenizer(), true),
        (10_000_000, of_model.clone(), true),
    ] {
        let server = start(padded(id, tokenizer, is_recorded_one)).await;
        let answer = complete(&server, json!({"prompt": "x", "return_token_ids": true})).await.json();
        assert_eq!(answer["choices"][0]["text"], "hellohello");
        assert_eq!(answer["choices"][0]["token_ids"], json!([word, id, word]));
    }
    let refused = Player::load(padded(first + 100, of_model, false)).unwrap_err();
    assert!(matches!(refused, PlayError::IdBeyondVocabulary { .. }), "{refused}");
}

#[tokio::test]
async fn a_trace_is_served_by_its_ids_alone_without_a_tokenizer() {
    let ids = [200_000, 7, 8];
    let recorded = record(&ids, Duration::from_millis(1), FinishReason::Stop);
    let mut config = config(&[MatchBy::Index], vec![recorded]);
    config.tokenizer = TokenizerSource::None;
    let server = start(config).await;
    let mut request = post("/v1/completions", &json!({"prompt": [1, 300_000], "return_token_ids": true}));
    request.headers.push(("x-request-id", "replay-0"));
    let answer = client::send(server.address, &request).await;
    assert_eq!(text_of(&answer), "<200000><7><8>");
    assert_eq!(answer.json()["choices"][0]["token_ids"], json!(ids));
    assert_eq!(answer.json()["usage"]["prompt_tokens"], 2);
    let chat = json!({"messages": [{"role": "user", "content": "x".repeat(400)}], "max_tokens": 5});
    let made_up = client::send(server.address, &post("/v1/chat/completions", &chat)).await.json();
    let usage = &made_up["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(105), &json!(5)));
    assert!(made_up["choices"][0]["message"]["content"].as_str().unwrap().ends_with('>'));
}

#[tokio::test]
async fn the_built_in_trace_is_served() {
    let server = start(Config { pacing: Pacing::Instant, ..Config::default() }).await;
    let body = json!({"messages": [{"role": "user", "content": "Hello!"}], "stream": true});
    let answer = client::send(server.address, &post("/v1/chat/completions", &body)).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.events().last().map(String::as_str), Some("data: [DONE]"));
}
