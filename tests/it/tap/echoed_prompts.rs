//! `echo`: what an answer repeats of its request is no part of what came out, through the tap, in its trace and in a replay.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use vllm_vcr::{
    play::{Config, Source, Synthetic},
    recording::trace::Trace,
    replay::matching::MatchBy,
};

use crate::support::{
    client,
    peer::{self, End, Script, Upstream, answer, event_stream, exchange},
    play_server,
    tapping::Tapping,
};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn requests() -> Vec<(&'static str, Value)> {
    let text = json!({"prompt": "Hello \"there\"\n you", "max_tokens": 3, "echo": true});
    let list = json!({"prompt": ["Hello there", "a"], "n": 2, "max_tokens": 2, "echo": true});
    let cut = json!({"prompt": "Hello there you all", "truncate_prompt_tokens": 2, "max_tokens": 2, "echo": true});
    let told = json!({"prompt": "Hello there", "max_tokens": 2, "echo": true, "logprobs": 1, "return_token_ids": true});
    let only =
        json!({"prompt": "Hello there", "n": 2, "max_tokens": 0, "echo": true, "logprobs": 1, "temperature": 0.5});
    let only_ids = json!({"prompt": ["a", "Hello there"], "max_tokens": 0, "echo": true, "return_token_ids": true});
    let turn = |role: &str| json!([{"role": "user", "content": "Hi"}, {"role": role, "content": "Well yes"}]);
    let continued = json!({"messages": turn("assistant"), "max_tokens": 3, "echo": true, "n": 2,
        "add_generation_prompt": false, "continue_final_message": true});
    let users = json!({"messages": turn("user"), "max_tokens": 3, "echo": true, "add_generation_prompt": false});
    let nothing = json!({"messages": turn("user"), "max_tokens": 3, "echo": true});
    let completions = [text, list, cut, told, only, only_ids].map(|body| (COMPLETIONS, body));
    let chats = [continued, users, nothing].map(|body| (CHAT, body));
    completions
        .into_iter()
        .chain(chats)
        .flat_map(|(path, body)| {
            // Requests that sample without a seed get another answer each time.
            let body = with(body, "seed", json!(1));
            let mut streamed = body.clone();
            streamed["stream"] = json!(true);
            [(path, body), (path, streamed)]
        })
        .collect()
}

fn with(mut body: Value, field: &str, value: Value) -> Value {
    body[field] = value;
    body
}

/// The choices of an answer: each choice's events, or the body; without the time.
fn told(answer: &client::Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut told: Vec<Value> = match answer.header("content-type") {
        Some("application/json") => vec![answer.json()],
        _ => answer.text().lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect(),
    };
    told.iter_mut().for_each(|event| event["created"] = Value::Null);
    // The choices of a stream may take turns in any order.
    told.sort_by_key(|event| event["choices"][0]["index"].as_u64());
    told
}

async fn send(address: std::net::SocketAddr, path: &str, body: &Value, record: usize) -> Vec<Value> {
    let id = format!("replay-{record}");
    let mut request = client::post(path, body);
    request.headers.push(("x-request-id", &id));
    told(&client::send(address, &request).await)
}

fn choices(body: &Value) -> usize {
    let prompts = body["prompt"].as_array().map_or(1, Vec::len);
    prompts * usize::try_from(body["n"].as_u64().unwrap_or(1)).unwrap()
}

#[tokio::test]
async fn what_is_repeated_reaches_the_client_and_no_token_is_of_it() {
    let source = Source::Synthetic(Synthetic::Random);
    let engine = play_server::start(Config { source, ..play_server::config(&[], Vec::new()) }).await;
    let tap = Tapping::start(engine.address, |setup| setup.config.drain = Duration::from_secs(2)).await;
    let mut next = 0;
    let mut direct = Vec::new();
    for (path, body) in requests() {
        let seen = send(engine.address, path, &body, next).await;
        assert_eq!(send(tap.address, path, &body, next).await, seen, "{path} {body}");
        direct.push((path, body.clone(), next, seen));
        next += choices(&body);
    }
    let (_, mut traces) = tap.stop().await;
    let Trace { meta, mut records, .. } = traces.remove(0);
    records.sort_by_key(|record| (record.arrival, record.choice));
    assert_eq!(records.len(), next);
    for (path, body, first, _) in &direct {
        // For a prompt that is only repeated the engine generates one token.
        let tokens = body["max_tokens"].as_u64().unwrap().max(1);
        for record in &records[*first..first + choices(body)] {
            let chunks: u32 = record.chunks.iter().map(|chunk| chunk.tokens).sum();
            let ids = record.output_token_ids.as_ref().map_or(0, Vec::len) as u64;
            assert_eq!((u64::from(record.output_tokens), ids), (tokens, tokens), "{path} {body}");
            assert!(u64::from(chunks) == tokens || record.itl_summary.is_some(), "{path} {body}: {chunks} in chunks");
            assert!(record.prompt_hash.is_some(), "{path} {body}");
        }
    }
    let trace = Trace { meta, records, ..Trace::default() };
    let source = Source::Trace { name: "echoes".to_owned(), trace: Arc::new(trace) };
    let replay = Config { source, ..play_server::config(&[MatchBy::Prefix], Vec::new()) };
    let replay = play_server::start(replay).await;
    for (path, body, first, seen) in direct {
        assert_eq!(send(replay.address, path, &body, first).await, seen, "replayed: {path} {body}");
    }
}

/// A chat of the real engine that repeats its last message: with ids or without, as the request asks.
fn chat_engine(request: &[u8]) -> Script {
    let text = String::from_utf8_lossy(request);
    if text.starts_with("GET /version") {
        return Script { pieces: answer("200 OK", r#"{"version":"0.32.0"}"#), end: End::KeepAlive };
    }
    let body: Value = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
    let ids = |list: &str| if body["return_token_ids"] == true { list.to_owned() } else { "null".to_owned() };
    let (prompt, first, second) = (ids("[151644,872]"), ids("[95139]"), ids("[106851]"));
    if body["stream"] != true {
        let whole = format!(
            r#"{{"id":"chatcmpl-1","object":"chat.completion","choices":[{{"index":0,"message":{{"role":"assistant","content":"Well yes billig火"}},"finish_reason":"length","stop_reason":null,"token_ids":{}}}],"usage":{{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2}},"prompt_token_ids":{prompt}}}"#,
            ids("[95139,106851]")
        );
        return Script { pieces: answer("200 OK", &whole), end: End::KeepAlive };
    }
    let choice = |inner: &str| format!(r#"{{"id":"chatcmpl-1","choices":[{{"index":0,{inner}}}]"#);
    let role = choice(r#""delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null"#);
    let repeated = choice(r#""delta":{"content":"Well yes"},"logprobs":null,"finish_reason":null"#);
    let one =
        choice(&format!(r#""delta":{{"content":" billig"}},"logprobs":null,"finish_reason":null,"token_ids":{first}"#));
    let two = choice(&format!(
        r#""delta":{{"content":"火"}},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":{second}"#
    ));
    let events = [
        format!(r#"{role},"prompt_token_ids":{prompt},"prompt_text":null}}"#),
        repeated + "}",
        one + "}",
        two + "}",
        "[DONE]".to_owned(),
    ];
    Script { pieces: event_stream(&events.each_ref().map(String::as_str)), end: End::KeepAlive }
}

#[tokio::test]
async fn a_chats_repeated_message_is_no_chunk_and_its_ids_are_kept() {
    let upstream = Upstream::start(chat_engine).await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    for rest in ["", r#","stream":true"#, r#","stream":true,"return_token_ids":true"#, r#","return_token_ids":true"#] {
        let body = format!(
            r#"{{"messages":[{{"role":"assistant","content":"Well yes"}}],"echo":true,"add_generation_prompt":false{rest}}}"#
        );
        let direct = exchange(upstream.address, &peer::post(CHAT, &body)).await;
        assert_eq!(exchange(tap.address, &peer::post(CHAT, &body)).await.body(), direct.body(), "{body}");
    }
    let (_, records) = tap.records().await;
    for record in records {
        assert_eq!(record.output_token_ids.as_deref(), Some(&[95139, 106_851][..]), "{:?}", record.stream);
        assert_eq!((record.output_tokens, record.chunks.len()), (2, if record.stream == Some(true) { 2 } else { 1 }));
    }
}

#[tokio::test]
async fn a_chats_repeated_message_is_no_chunk_where_no_ids_are_returned() {
    let upstream = Upstream::start(|request| {
        chat_engine(String::from_utf8_lossy(request).replace("return_token_ids", "no_token_ids____").as_bytes())
    })
    .await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    let body = r#"{"messages":[{"role":"assistant","content":"Well yes"}],"echo":true,"stream":true,"add_generation_prompt":false}"#;
    exchange(tap.address, &peer::post(CHAT, body)).await;
    let (_, records) = tap.records().await;
    assert_eq!((records[0].output_tokens, records[0].chunks.len()), (2, 2));
    assert_eq!(records[0].output_token_ids, None);
}
