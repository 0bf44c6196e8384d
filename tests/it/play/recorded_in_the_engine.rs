//! Responses that are sent as they were recorded, behind `play --engine`: their bytes are the record's, their times, counts and blocks
//! the engine's.

use std::time::Duration;

use serde_json::{Value, json};
use vllm_vcr::{
    engine::scheduler::SchedulerConfig,
    play::{Config, EngineConfig, Source, Synthetic, TokenizerSource, Unmatched},
    recording::cassette::load,
    replay::{
        account::{Access, Admin},
        matching::MatchBy,
        player::{self, CassettePlayer, Ids},
    },
};

use crate::support::{
    CHAT,
    cassettes::{Shelf, tape},
    client::{self, Answer, get, post, read_until},
    play_server::{Server, config, start},
    simulated::engine,
};

const HOUR: Duration = Duration::from_secs(3600);

const STEP: Duration = Duration::from_millis(10);

/// Looks at a server before a value counts as never reached.
const LOOKS: usize = 2000;

/// Every step takes 10 ms.
fn slow() -> EngineConfig {
    engine(STEP)
}

/// A server of a cassette, and of nothing else. Without a tokenizer, prompts have as many tokens as were recorded.
async fn served(text: &str, engine: Option<EngineConfig>) -> Server {
    let shelf = Shelf::with(text);
    let cassettes = vec![load(&shelf.file).unwrap()];
    let played = player::PlayerConfig { cassettes, ids: Ids::Recorded, ..player::PlayerConfig::default() };
    let base = config(&[MatchBy::Next], Vec::new());
    start(Config {
        source: Source::Synthetic(Synthetic::Random),
        tokenizer: TokenizerSource::BuiltIn,
        cassette_player: Some(CassettePlayer::new(played).unwrap()),
        unmatched: Unmatched::Refuse,
        admin: Admin::Here(Access::default()),
        max_model_len: Some(1024),
        engine,
        ..base
    })
    .await
}

/// A record of a path, a body and the rest of its lines.
fn record(path: &str, body: &Value, answer: &str) -> String {
    format!("- request: POST {path}\n  body: {body}\n  answer: {answer}\n")
}

fn chat(words: &str, stream: bool) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": words}], "stream": stream,
        "stream_options": {"include_usage": true}})
}

/// An answer of so many tokens to a prompt of so many.
fn answer(text: &str, prompt: u32, tokens: u32) -> String {
    format!(
        "{{message: {{role: assistant, content: {}}}, finish_reason: stop, usage: {{prompt_tokens: {prompt}, \
         completion_tokens: {tokens}, prompt_tokens_details: {{cached_tokens: 7}}}}}}",
        json!(text)
    )
}

async fn send(server: &Server, path: &str, body: &Value) -> Answer {
    client::send(server.address, &post(path, body)).await
}

async fn snapshot(server: &Server) -> Value {
    let snapshot = client::send(server.address, &get("/vcr/engine")).await.json();
    assert_eq!(snapshot["differences"], json!([]), "{snapshot}");
    snapshot
}

/// Looks at the engine until it is as wanted.
async fn until(server: &Server, is_wanted: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..LOOKS {
        let found = snapshot(server).await;
        if is_wanted(&found) {
            return found;
        }
        tokio::time::sleep(STEP / 2).await;
    }
    panic!("{}", snapshot(server).await);
}

fn is_idle(snapshot: &Value) -> bool {
    [("running", 0), ("waiting", 0), ("delayed", 0), ("blocks_in_use", 0)]
        .iter()
        .all(|(key, none)| snapshot[key] == *none)
        && snapshot["shown"]["unfinished"] == 0
}

async fn sample(server: &Server, name: &str) -> f64 {
    let page = client::send(server.address, &get("/metrics")).await.text();
    let line = page.lines().find(|line| line.starts_with(name));
    line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

/// An exchange of each family, with the tokens of its choices.
fn families() -> Vec<(&'static str, Value, String, u32)> {
    let message = r#"{json: {id: msg_1, type: message, role: assistant, model: m, content: [{type: text, text: Hello there.}], stop_reason: end_turn, stop_sequence: null, usage: {input_tokens: 30, output_tokens: 4}}}"#;
    let response = r#"{json: {id: resp_1, object: response, created_at: 1, status: completed, model: m, output: [{id: msg_2, type: message, role: assistant, status: completed, content: [{type: output_text, text: Hi you., annotations: []}]}], usage: {input_tokens: 20, output_tokens: 3, total_tokens: 23}}}"#;
    let two = "{choices: [{text: one two, finish_reason: stop}, {text: three, finish_reason: length}], usage: {prompt_tokens: 25, completion_tokens: 5}}";
    vec![
        (CHAT, chat("One", true), answer("A few words.", 40, 5), 5),
        (CHAT, chat("Two", false), answer("Some more words.", 41, 6), 6),
        (
            "/v1/messages",
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}),
            message.to_owned(),
            4,
        ),
        ("/v1/responses", json!({"model": "m", "input": "Hi"}), response.to_owned(), 3),
        ("/v1/completions", json!({"model": "m", "prompt": "Count.", "n": 2}), two.to_owned(), 5),
    ]
}

fn all_families() -> String {
    tape(&families().iter().map(|(path, body, answer, _)| record(path, body, answer)).collect::<Vec<_>>())
}

#[tokio::test]
async fn every_family_has_its_recorded_bytes_and_is_a_request_of_the_engine() {
    let (plain, simulated) =
        (served(&all_families(), None).await, served(&all_families(), Some(engine(Duration::ZERO))).await);
    for (path, body, ..) in families() {
        let (plain, simulated) = (send(&plain, path, &body).await, send(&simulated, path, &body).await);
        assert_eq!((simulated.status, simulated.text()), (200, plain.text()), "{path}");
        assert_eq!(simulated.chunks.len(), plain.chunks.len(), "{path}");
    }
    let found = until(&simulated, is_idle).await;
    let tokens: u32 = families().iter().map(|(.., tokens)| tokens).sum();
    let totals = &found["totals"];
    assert_eq!((&totals["submitted"], &totals["finished"]), (&json!(6), &json!(6)), "{found}");
    assert_eq!((&totals["generated_tokens"], &found["shown"]["others"]), (&json!(tokens), &json!(0)), "{found}");
    assert_eq!(totals["prompt_tokens"], 40 + 41 + 30 + 20 + 2 * 25, "{found}");
    assert_eq!(
        sample(&simulated, "vllm:iteration_tokens_total_count").await,
        f64::from(tokens) - 2.0,
        "n=2 shares steps"
    );
    let stop = "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\"";
    assert_eq!((sample(&simulated, stop).await, sample(&plain, stop).await), (5.0, 5.0));
}

#[tokio::test]
async fn prefixes_are_cached_and_the_recorded_usage_stays() {
    let words = "A system prompt of many words, the same for each request. ".repeat(8);
    let ask = |question: &str| chat(&format!("{words}{question}"), false);
    let records = ["One?", "Two?"].map(|question| record(CHAT, &ask(question), &answer("Yes.", 130, 2)));
    let server = served(&tape(&records), Some(engine(Duration::ZERO))).await;
    for question in ["One?", "Two?"] {
        let usage = send(&server, CHAT, &ask(question)).await.json()["usage"].clone();
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 7, "as it was recorded");
        assert_eq!(usage["prompt_tokens"], 130);
    }
    let totals = until(&server, is_idle).await["totals"].clone();
    // 4 ids around the message and 116 of the words: 7 blocks of 16.
    assert_eq!((&totals["prompt_tokens"], &totals["cached_tokens"]), (&json!(260), &json!(112)));
    assert_eq!(sample(&server, "vllm:prefix_cache_hits_total").await, 112.0);
}

#[tokio::test]
async fn tokens_come_with_the_steps_and_a_full_batch_makes_others_wait() {
    let config =
        EngineConfig { scheduler: SchedulerConfig { max_num_seqs: 1, ..SchedulerConfig::default() }, ..slow() };
    let long = [("One", true), ("Two", false)].map(|(words, stream)| {
        let text = answer("A few words, again and again and again.", 40, 900);
        record(CHAT, &chat(words, stream), &text)
    });
    let server = served(&tape(&long), Some(config)).await;
    let mut first = client::open(server.address, &post(CHAT, &chat("One", true))).await;
    let read = read_until(&mut first, "\"content\":\"A").await;
    assert!(!read.contains("[DONE]") && read.contains("\"role\""), "{read}");
    let second = client::open(server.address, &post(CHAT, &chat("Two", false))).await;
    let found = until(&server, |found| found["waiting"] == 1).await;
    let tokens = found["totals"]["generated_tokens"].as_u64().unwrap();
    assert!(found["running"] == 1 && tokens > 0 && tokens < 900, "{found}");
    assert_eq!(sample(&server, "vllm:num_requests_waiting{").await, 1.0);
    drop(second);
    drop(first);
    let found = until(&server, is_idle).await;
    assert_eq!((&found["totals"]["aborted"], &found["totals"]["finished"]), (&json!(2), &json!(0)), "{found}");
}

#[tokio::test]
async fn a_failure_in_the_middle_of_a_stream_ends_its_request() {
    for fault in ["reset", "truncate", "stall"] {
        let answer = answer("A few words of an answer.", 40, 9).replacen(
            '{',
            &format!("{{fault: {fault}, after_events: 2, "),
            1,
        );
        let server = served(&tape(&[record(CHAT, &chat("One", true), &answer)]), Some(engine(Duration::ZERO))).await;
        let mut stream = client::open(server.address, &post(CHAT, &chat("One", true))).await;
        let read = read_until(&mut stream, "\"content\":\"").await;
        assert!(!read.contains("[DONE]"), "{fault}: {read}");
        let found = until(&server, |found| found["totals"]["finished"] == 1 && found["blocks_in_use"] == 0).await;
        let (computed, shown) = (&found["totals"]["generated_tokens"], &found["shown"]["generated_tokens"]);
        assert!(computed == shown && computed.as_u64().unwrap() < 9, "{fault}: {found}");
    }
    // Only what was sent is computed, also of a stream without any text.
    let answer = answer("A few words of an answer.", 40, 900).replacen('{', "{fault: stall, after_events: 1, ", 1);
    let server = served(&tape(&[record(CHAT, &chat("One", true), &answer)]), Some(slow())).await;
    let mut stream = client::open(server.address, &post(CHAT, &chat("One", true))).await;
    read_until(&mut stream, "\"role\"").await;
    let found = until(&server, |found| found["totals"]["finished"] == 1).await;
    assert_eq!((&found["totals"]["generated_tokens"], &found["running"]), (&json!(1), &json!(0)), "{found}");
}

#[tokio::test]
async fn a_stream_with_an_error_in_it_is_a_request_too() {
    let events = r#"{events: [{data: {id: c, choices: [{index: 0, delta: {role: assistant, content: ""}}]}}, {data: {id: c, choices: [{index: 0, delta: {content: Hello there}}]}}, {data: {error: {message: broke, code: 500}}}]}"#;
    let text = tape(&[record(CHAT, &chat("One", true), events)]);
    let (plain, simulated) = (served(&text, None).await, served(&text, Some(engine(Duration::ZERO))).await);
    let body = chat("One", true);
    assert_eq!(send(&simulated, CHAT, &body).await.text(), send(&plain, CHAT, &body).await.text());
    let found = until(&simulated, is_idle).await;
    assert_eq!((&found["totals"]["finished"], &found["totals"]["generated_tokens"]), (&json!(1), &json!(3)), "{found}");
    assert_eq!(sample(&simulated, "vllm:request_success_total{engine=\"0\",finished_reason=\"error\"").await, 1.0);
}

#[tokio::test]
async fn errors_and_what_no_model_generates_are_sent_as_recorded() {
    let failed =
        record(CHAT, &chat("One", false), "{status: 429, json: {error: {message: slow down, type: x, code: 429}}}");
    let vector =
        "{json: {object: list, data: [{index: 0, object: embedding, embedding: [0.5]}], usage: {prompt_tokens: 3}}}";
    let embedding = json!({"model": "m", "input": "x"});
    let text = tape(&[failed, record("/v1/embeddings", &embedding, vector)]);
    // An engine whose steps never end would hold them up.
    let server = served(&text, Some(engine(HOUR))).await;
    assert_eq!(send(&server, CHAT, &chat("One", false)).await.status, 429);
    assert_eq!(send(&server, "/v1/embeddings", &embedding).await.json()["data"][0]["embedding"][0], 0.5);
    assert_eq!(snapshot(&server).await["totals"]["submitted"], 0);
}

#[tokio::test]
async fn what_is_longer_than_the_model_is_sent_as_recorded_and_counted_apart() {
    let text = tape(&[record(CHAT, &chat("One", false), &answer("Yes.", 1020, 5))]);
    let server = served(&text, Some(slow())).await;
    assert_eq!(send(&server, CHAT, &chat("One", false)).await.json()["usage"]["prompt_tokens"], 1020);
    let found = until(&server, is_idle).await;
    assert_eq!((&found["totals"]["submitted"], &found["shown"]["others"]), (&json!(0), &json!(1)), "{found}");
}

#[tokio::test]
async fn with_the_models_tokenizer_prompts_are_those_of_its_template() {
    let text = tape(&[record(CHAT, &chat("Why is the sky blue?", false), &answer("The air.", 999, 2))]);
    let shelf = Shelf::with(&text);
    let cassettes = vec![load(&shelf.file).unwrap()];
    let cassette_player =
        CassettePlayer::new(player::PlayerConfig { cassettes, ..player::PlayerConfig::default() }).unwrap();
    let server = start(Config {
        source: Source::Synthetic(Synthetic::Random),
        cassette_player: Some(cassette_player),
        admin: Admin::Here(Access::default()),
        engine: Some(engine(Duration::ZERO)),
        ..config(&[MatchBy::Next], Vec::new())
    })
    .await;
    let body = chat("Why is the sky blue?", false);
    let tokenized = send(&server, "/tokenize", &json!({"messages": body["messages"]})).await.json()["count"].clone();
    assert_eq!(send(&server, CHAT, &body).await.json()["usage"]["prompt_tokens"], 999);
    assert_eq!(until(&server, is_idle).await["totals"]["prompt_tokens"], tokenized);
}
