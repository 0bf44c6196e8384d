//! Answers that no token ids stand for: recorded through the tap, they replay as they were.

use std::{net::SocketAddr, sync::Arc};

use serde_json::{Value, json};
use vllm_vcr::{
    engine::{scheduler::SchedulerConfig, step_clock::StepTimes},
    play::{Config, EngineConfig, EngineTimes, Source},
    recording::trace::{ContentSource, Endpoint, Record, ResponseContent, Trace},
    replay::{
        account::{Access, Admin},
        matching::MatchBy,
        timing::Pacing,
    },
};

use crate::support::{
    client::{self, Answer, get, post},
    peer::{End, Script, Upstream, answer, event_stream},
    play_server,
    tapping::Tapping,
};

fn named_stream(events: &[(&str, &str)]) -> Vec<Vec<u8>> {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = |(name, data): &(&str, &str)| {
        let event = format!("event: {name}\ndata: {data}\n\n");
        format!("{:x}\r\n{event}\r\n", event.len()).into_bytes()
    };
    std::iter::once(head.as_bytes().to_vec()).chain(events.iter().map(chunk)).chain([b"0\r\n\r\n".to_vec()]).collect()
}

const MESSAGE: [(&str, &str); 9] = [
    (
        "message_start",
        r#"{"type":"message_start","message":{"id":"chatcmpl-8d1c0f2a7b3e4d5c","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":12,"output_tokens":0}}}"#,
    ),
    (
        "content_block_start",
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}"#,
    ),
    (
        "content_block_delta",
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm."}}"#,
    ),
    ("content_block_stop", r#"{"type":"content_block_stop","index":0}"#),
    ("content_block_start", r#"{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}"#),
    (
        "content_block_delta",
        r#"{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Hello é\n"}}"#,
    ),
    ("content_block_stop", r#"{"type":"content_block_stop","index":1}"#),
    (
        "message_delta",
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":12,"output_tokens":5}}"#,
    ),
    ("message_stop", r#"{"type":"message_stop"}"#),
];

const RESPONSE: [(&str, &str); 4] = [
    (
        "response.created",
        r#"{"type":"response.created","sequence_number":0,"response":{"id":"resp_8d1c0f2a7b3e4d5c","created_at":1700000000,"status":"in_progress","output":[]}}"#,
    ),
    (
        "response.output_text.delta",
        r#"{"type":"response.output_text.delta","sequence_number":1,"item_id":"msg_8d1c0f2a7b3e4d5d","delta":"Hi"}"#,
    ),
    (
        "response.output_text.done",
        r#"{"type":"response.output_text.done","sequence_number":2,"item_id":"msg_8d1c0f2a7b3e4d5d","text":"Hi"}"#,
    ),
    (
        "response.completed",
        r#"{"type":"response.completed","sequence_number":3,"response":{"id":"resp_8d1c0f2a7b3e4d5c","created_at":1700000000,"status":"completed","output":[{"id":"msg_8d1c0f2a7b3e4d5d","type":"message","content":[{"type":"output_text","text":"Hi"}]}],"usage":{"input_tokens":3,"output_tokens":2}}}"#,
    ),
];

const EMBEDDING: &str = r#"{"id":"embd-8d1c0f2a7b3e4d5c","object":"list","created":1700000000,"model":"m","data":[{"index":0,"object":"embedding","embedding":[0.1234567890123,-1e-05]}],"usage":{"prompt_tokens":8,"total_tokens":8}}"#;

/// Endpoints whose responses may have no ids.
fn engines(request: &[u8]) -> Script {
    let text = String::from_utf8_lossy(request).into_owned();
    let path = text.split(' ').nth(1).unwrap_or_default();
    let streams = text.contains("\"stream\":true");
    let tgi = [
        r#"{"index":1,"token":{"id":42,"text":" a","special":false},"generated_text":null}"#,
        r#"{"index":2,"token":{"id":2,"text":"</s>","special":true},"generated_text":" a","details":{"finish_reason":"eos_token","generated_tokens":2,"input_length":5}}"#,
    ];
    let chat = [
        r#"{"id":"chatcmpl-8d1c0f2a7b3e4d5c","created":1700000000,"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#,
        r#"{"id":"chatcmpl-8d1c0f2a7b3e4d5c","created":1700000000,"choices":[{"index":0,"delta":{"content":"Hi"}}]}"#,
        r#"{"id":"chatcmpl-8d1c0f2a7b3e4d5c","created":1700000000,"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
        "[DONE]",
    ];
    let pieces = match path {
        "/v1/messages" if streams => named_stream(&MESSAGE),
        "/v1/messages" => answer(
            "200 OK",
            r#"{"id":"chatcmpl-8d1c0f2a7b3e4d5e","type":"message","role":"assistant","content":[{"type":"text","text":"Hello."}],"model":"m","stop_reason":"end_turn","usage":{"input_tokens":1,"output_tokens":2}}"#,
        ),
        "/v1/responses" if streams => named_stream(&RESPONSE),
        "/v1/responses" => answer(
            "200 OK",
            r#"{"id":"resp_8d1c0f2a7b3e4d5f","object":"response","created_at":1700000000,"status":"completed","output":[{"id":"rs_8d1c0f2a7b3e4d50","type":"reasoning","content":[]}],"usage":{"input_tokens":4,"output_tokens":6}}"#,
        ),
        "/v1/chat/completions" => event_stream(&chat),
        "/generate_stream" => event_stream(&tgi),
        "/v1/embeddings" => answer("200 OK\r\nmetadata: {\"shape\":[2]}", EMBEDDING),
        "/v1/rerank" => answer(
            "200 OK",
            r#"{"id":"rerank-8d1c0f2a7b3e4d5c","results":[{"index":0,"document":{"id":"doc-1"},"relevance_score":0.5}]}"#,
        ),
        "/busy" => answer(
            "429 Too Many Requests\r\nretry-after: 7",
            r#"{"error":{"message":"Service Unavailable","type":"rate_limit","code":429}}"#,
        ),
        _ => answer("404 Not Found", "{}"),
    };
    Script { pieces, end: End::KeepAlive }
}

fn requests() -> Vec<(&'static str, Value)> {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    vec![
        ("/v1/messages", json!({"model": "m", "max_tokens": 9, "messages": messages, "stream": true})),
        ("/v1/messages", json!({"model": "m", "max_tokens": 8, "messages": messages})),
        ("/v1/responses", json!({"model": "m", "input": "Hi", "stream": true})),
        ("/v1/responses", json!({"model": "m", "input": "Hello"})),
        ("/v1/chat/completions", json!({"model": "m", "messages": messages, "stream": true})),
        ("/generate_stream", json!({"inputs": "x"})),
        ("/v1/embeddings", json!({"model": "m", "input": "x"})),
        ("/v1/rerank", json!({"model": "m", "query": "x", "documents": ["a"]})),
        ("/busy", json!({"x": 1})),
    ]
}

async fn ask(address: SocketAddr, path: &str, body: &Value, id: Option<&str>) -> Answer {
    let mut request = post(path, body);
    request.headers.extend(id.map(|id| ("x-request-id", id)));
    client::send(address, &request).await
}

async fn recorded(change: impl FnOnce(&mut vllm_vcr::tap::Setup)) -> (Vec<Answer>, Vec<Record>) {
    let upstream = Upstream::start(engines).await;
    let tap = Tapping::start(upstream.address, change).await;
    let mut seen = Vec::new();
    for (path, body) in requests() {
        let direct = ask(upstream.address, path, &body, None).await;
        let through = ask(tap.address, path, &body, None).await;
        assert_eq!((through.status, through.text()), (direct.status, direct.text()), "{path}");
        seen.push(through);
    }
    let (_, mut records) = tap.records().await;
    records.sort_by_key(|record| record.arrival);
    (seen, records)
}

async fn played(records: Vec<Record>, order: &[MatchBy]) -> play_server::Server {
    let lines: Vec<Record> = records;
    let trace = Trace { records: lines, ..Trace::default() };
    let source = Source::Trace { name: "recorded".to_owned(), trace: Arc::new(trace) };
    play_server::start(Config { source, ..play_server::config(order, Vec::new()) }).await
}

/// An answer without what no two have in common; each id by the order of its appearance.
fn comparable(answer: &Answer) -> String {
    let mut text = answer.text();
    let mut ids: Vec<String> = Vec::new();
    for field in ["\"id\":\"", "\"item_id\":\""] {
        for (at, _) in answer.text().match_indices(field) {
            let id = answer.text()[at + field.len()..].split('"').next().unwrap().to_owned();
            if !ids.contains(&id) && (id.len() > 16 || id.contains("-replay-")) {
                ids.push(id);
            }
        }
    }
    for (at, id) in ids.iter().enumerate() {
        let kind = id.split(['-', '_']).next().unwrap();
        text = text.replace(id, &format!("{kind}-{at}"));
    }
    let mut out = String::new();
    for (at, part) in text.split("\"created").enumerate() {
        let rest = part.trim_start_matches(|c: char| at > 0 && (c.is_ascii_digit() || "_at\":".contains(c)));
        out.push_str(if at > 0 { "<created>" } else { "" });
        out.push_str(rest);
    }
    out
}

fn assert_same(path: &str, played: &Answer, seen: &Answer) {
    assert_eq!(comparable(played), comparable(seen), "{path}");
    assert_eq!((played.status, played.header("content-type")), (seen.status, seen.header("content-type")), "{path}");
    assert_eq!(played.header("retry-after"), seen.header("retry-after"), "{path}");
    assert_eq!(played.header("metadata"), seen.header("metadata"), "{path}");
    assert_eq!(played.chunks.len(), seen.chunks.len(), "{path}: events as they were cut");
}

#[tokio::test]
async fn what_no_ids_stand_for_replays_as_it_was() {
    let (seen, records) = recorded(|_| {}).await;
    let sources: Vec<Option<ContentSource>> = records.iter().map(|record| record.content_source).collect();
    let (events, body) = (Some(ContentSource::Events), Some(ContentSource::Body));
    assert_eq!(sources, [events, body, events, body, events, events, body, body, body]);
    assert!(records.iter().all(|record| record.request_key.is_some()));
    assert_eq!(records[5].output_token_ids.as_deref(), Some(&[42, 2][..]), "its ids are known beside");
    let by_request = played(records.clone(), &[MatchBy::Prefix]).await;
    let by_index = played(records, &[MatchBy::Index]).await;
    for (at, ((path, body), seen)) in requests().into_iter().zip(&seen).enumerate() {
        let answer = ask(by_request.address, path, &body, None).await;
        assert_eq!(answer.header("x-vcr-match"), Some("request"), "{path}: {}", answer.text());
        assert_eq!(answer.header("x-vcr-record"), Some(at.to_string().as_str()), "{path}");
        assert_same(path, &answer, seen);
        assert_same(path, &ask(by_request.address, path, &body, None).await, seen);
        let other = json!({"model": "m", "input": "something else", "messages": [], "stream": body["stream"]});
        let answer = ask(by_index.address, path, &other, Some(&format!("replay-{at}"))).await;
        assert_eq!(answer.header("x-vcr-match"), Some("index"), "{path}: {}", answer.text());
        assert_same(path, &answer, seen);
    }
}

#[tokio::test]
async fn a_simulated_engine_runs_what_was_generated_and_sends_it_as_it_was() {
    let (seen, records) = recorded(|_| {}).await;
    simulated(&seen, records.clone(), EngineTimes::Given(StepTimes::Instant)).await;
    let generated = |record: &&Record| record.endpoint.is_some_and(Endpoint::generates) && record.output_tokens > 0;
    let first = |record: &Record| if record.stream == Some(false) { record.e2e } else { record.ttft() };
    let expected: f64 = records.iter().filter(generated).map(|record| first(record).unwrap().as_secs_f64()).sum();
    let server = simulated(&seen, records, EngineTimes::Recorded).await;
    let page = client::send(server.address, &get("/metrics")).await.text();
    let sum = page.lines().find_map(|line| line.strip_prefix("vllm:time_to_first_token_seconds_sum{")).unwrap();
    let sum: f64 = sum.rsplit(' ').next().unwrap().parse().unwrap();
    assert!((sum - expected).abs() < 1e-6, "{sum} is not {expected}");
}

/// A server with an engine, after it has sent everything as it was recorded.
async fn simulated(seen: &[Answer], records: Vec<Record>, times: EngineTimes) -> play_server::Server {
    let generated = records.iter().filter(|record| record.endpoint.is_some_and(Endpoint::generates));
    let tokens: Vec<u32> = generated.map(|record| record.output_tokens).filter(|tokens| *tokens > 0).collect();
    let trace = Trace { records, ..Trace::default() };
    let source = Source::Trace { name: "recorded".to_owned(), trace: Arc::new(trace) };
    let engine = Some(EngineConfig { scheduler: SchedulerConfig::default(), times, ..EngineConfig::default() });
    let admin = Admin::Here(Access::default());
    let base = play_server::config(&[MatchBy::Prefix], Vec::new());
    let pacing = Pacing::default();
    let server = play_server::start(Config { source, engine, admin, pacing, ..base }).await;
    for ((path, body), seen) in requests().into_iter().zip(seen) {
        assert_same(path, &ask(server.address, path, &body, None).await, seen);
    }
    let found = client::send(server.address, &get("/vcr/engine")).await.json();
    assert_eq!((&found["differences"], &found["shown"]["others"]), (&json!([]), &json!(0)), "{found}");
    let totals = &found["totals"];
    assert_eq!((&totals["submitted"], &totals["finished"]), (&json!(tokens.len()), &json!(tokens.len())), "{found}");
    assert_eq!(totals["generated_tokens"], tokens.iter().sum::<u32>(), "{found}");
    assert!(tokens.len() >= 4, "{tokens:?}");
    server
}

#[tokio::test]
async fn every_answer_has_ids_and_times_of_its_own() {
    let (_, records) = recorded(|_| {}).await;
    let server = played(records, &[MatchBy::Prefix]).await;
    let (path, body) = &requests()[2];
    let (one, two) = (ask(server.address, path, body, None).await, ask(server.address, path, body, None).await);
    assert!(!one.text().contains("8d1c0f2a7b3e4d5") && !one.text().contains("1700000000"), "{}", one.text());
    let id = |answer: &Answer| answer.text().split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    assert_ne!(id(&one), id(&two));
    assert_eq!(one.text().matches(&id(&one)).count(), 2, "the same id wherever it stood");
    let rerank = ask(server.address, requests()[7].0, &requests()[7].1, None).await;
    assert!(rerank.text().contains(r#""id":"doc-1""#), "what is no id of an answer stays: {}", rerank.text());
}

#[tokio::test]
async fn a_request_id_in_the_body_counts_where_there_is_no_header() {
    let (_, records) = recorded(|_| {}).await;
    let server = played(records, &[MatchBy::Auto]).await;
    let (path, mut body) = requests().swap_remove(4);
    body["request_id"] = json!("mine-and-long-enough");
    let named = ask(server.address, path, &body, None).await;
    assert_eq!(named.text().matches(r#""id":"chatcmpl-mine-and-long-enough""#).count(), 3, "{}", named.text());
    let index = json!({"model": "m", "messages": [], "stream": true, "request_id": "replay-4"});
    let indexed = ask(server.address, path, &index, None).await;
    assert_eq!(indexed.header("x-vcr-match"), Some("index"), "{}", indexed.text());
}

#[tokio::test]
async fn a_request_that_was_not_recorded_is_a_miss_with_its_reason() {
    let (_, records) = recorded(|_| {}).await;
    let server = played(records, &[MatchBy::Prefix]).await;
    let other = ask(server.address, "/v1/embeddings", &json!({"input": "y"}), None).await;
    assert_eq!((other.status, other.header("x-vcr-miss")), (422, Some("no_match")), "{}", other.text());
    // The same request as others spell it.
    let again = json!({"input": "x", "user": "somebody", "model": "another"});
    assert_eq!(ask(server.address, "/v1/embeddings", &again, None).await.status, 200);
    assert_eq!(ask(server.address, "/v1/classify", &again, None).await.status, 404);
}

#[tokio::test]
async fn a_stream_is_replayed_whole_and_a_body_as_a_stream_where_the_family_is_known() {
    let (_, records) = recorded(|_| {}).await;
    let server = played(records, &[MatchBy::Prefix]).await;
    let other_way = |at: usize| {
        let (path, mut body) = requests().swap_remove(at);
        body["stream"] = json!(body["stream"] != json!(true));
        (path, body)
    };
    let (path, body) = other_way(0);
    let whole = ask(server.address, path, &body, None).await;
    assert_eq!(whole.header("content-type"), Some("application/json"));
    assert_eq!(whole.json()["content"][1]["text"], "Hello é\n");
    let (path, body) = other_way(1);
    let streamed = ask(server.address, path, &body, None).await;
    assert!(streamed.header("content-type").unwrap().starts_with("text/event-stream"));
    let text = streamed.text();
    assert!(
        text.contains("event: message_start") && text.contains("Hello.") && text.contains("message_stop"),
        "{text}"
    );
    let (path, body) = other_way(4);
    assert_eq!(ask(server.address, path, &body, None).await.json()["choices"][0]["message"]["content"], "Hi");
}

#[tokio::test]
async fn a_tokenizer_gives_the_ids_of_plain_text_and_the_prompts_hashes() {
    let tokenizer = play_server::tokenizer();
    let text = "The sky is blue because of the air.";
    let ids = tokenizer.encode(text, vllm_vcr::text::prompt::SpecialTokens::Skip).unwrap();
    let finish = vllm_vcr::recording::trace::FinishReason::Length;
    let said = play_server::record(&ids, std::time::Duration::ZERO, finish);
    let engine = play_server::start(play_server::config(&[MatchBy::Next], vec![said])).await;
    let tap = Tapping::start(engine.address, |setup| setup.config.tokenizer = Some(tokenizer.clone())).await;
    let messages = json!([{"role": "user", "content": "Why is the sky blue?"}]);
    let requests = [
        ("/v1/messages", json!({"model": "m", "max_tokens": 99, "messages": messages, "stream": true})),
        ("/v1/messages", json!({"model": "m", "max_tokens": 99, "messages": messages})),
        ("/v1/responses", json!({"model": "m", "input": "Why is the sky blue?", "stream": true})),
        ("/v1/responses", json!({"model": "m", "input": "Why is the sky blue?"})),
    ];
    let mut seen = Vec::new();
    for (path, body) in &requests {
        seen.push(ask(tap.address, path, body, None).await);
    }
    let (_, mut records) = tap.records().await;
    records.sort_by_key(|record| record.arrival);
    for record in &records {
        assert_eq!(record.content_source, Some(ContentSource::Tokenizer), "{:?}", record.response);
        assert_eq!(record.output_token_ids.as_ref(), Some(&ids));
        assert!(record.prompt_hash.is_some() && record.response.is_none());
    }
    let mut trace = Trace { records, ..Trace::default() };
    (trace.meta.block_size, trace.meta.block_hash) =
        (Some(2), Some(vllm_vcr::text::prompt::BlockHashAlgorithm::Xxh3_64));
    let source = Source::Trace { name: "tokenized".to_owned(), trace: Arc::new(trace) };
    let server = play_server::start(Config { source, ..play_server::config(&[MatchBy::Prefix], Vec::new()) }).await;
    for ((path, body), seen) in requests.iter().zip(&seen) {
        let answer = ask(server.address, path, body, None).await;
        assert!(answer.header("x-vcr-match").unwrap().starts_with("prefix"), "{path}");
        assert_eq!(comparable(&answer), comparable(seen), "{path}");
    }
}

#[tokio::test]
async fn content_is_recorded_with_the_tokens_only_and_without_its_secrets() {
    let (_, records) = recorded(|setup| setup.config.record_tokens = false).await;
    assert!(records.iter().all(|record| record.response.is_none() && record.request_key.is_none()));
    let secret =
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"jane.doe@example.org"}}"#;
    let upstream = Upstream::start(move |_| Script {
        pieces: named_stream(&[("content_block_delta", secret), ("message_stop", r#"{"type":"message_stop"}"#)]),
        end: End::KeepAlive,
    })
    .await;
    let tap = Tapping::start(upstream.address, |setup| {
        setup.content.rules = vllm_vcr::recording::redaction::RedactionRules::all()
    })
    .await;
    ask(tap.address, "/v1/messages", &json!({"stream": true}), None).await;
    let (report, records) = tap.records().await;
    let Some(ResponseContent::Events(events)) = records[0].response.as_ref().map(|response| &response.content) else {
        panic!("no events: {records:?}")
    };
    assert!(events[0].1.as_deref().unwrap().contains("[REDACTED:email:1]"), "{events:?}");
    assert_eq!(report.recorder.redacted, 1);
}
