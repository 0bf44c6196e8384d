//! Errors that were recorded, replayed.

use std::time::Duration;

use serde_json::{Value, json};
use vllm_vcr::{
    recording::trace::{FinishReason, Outcome, Record, RecordedErrorResponse, Trace},
    replay::matching::{MatchBy, OnExhausted},
    text::prompt::{BlockHashAlgorithm, BlockHasher, SpecialTokens},
};

use crate::support::{
    CHAT,
    client::{self, Answer, post},
    peer::{self, End, Script, Upstream, event_stream, exchange},
    play_server::{Server, config, record, start, tokenizer},
    tapping::Tapping,
};

const BODY: &str = r#"{"error":{"message":"slow down","type":"rate_limit","param":null,"code":429}}"#;

fn refused(status: u16, body: Option<&str>) -> Record {
    let headers = [("content-type", "application/json; x"), ("retry-after", "7")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
    Record {
        status: Some(status),
        outcome: Some(Outcome::Error),
        e2e: Some(Duration::from_millis(5)),
        error: Some(RecordedErrorResponse { headers, body: body.map(str::to_owned) }),
        ..Record::default()
    }
}

async fn ask(server: &Server, path: &str, id: &str, body: &Value) -> Answer {
    let mut request = post(path, body);
    request.headers.push(("x-request-id", id));
    client::send(server.address, &request).await
}

#[tokio::test]
async fn an_error_is_found_by_its_index_and_is_what_it_was() {
    let answer = record(&[1, 2], Duration::ZERO, FinishReason::Length);
    let server = start(config(&[MatchBy::Index], vec![refused(429, Some(BODY)), answer])).await;
    for stream in [false, true] {
        let body = json!({"prompt": "x", "stream": stream});
        let error = ask(&server, "/v1/completions", "replay-0", &body).await;
        assert_eq!((error.status, error.text().as_str()), (429, BODY));
        assert_eq!(error.header("retry-after"), Some("7"));
        assert_eq!(error.header("content-type"), Some("application/json; x"));
        assert_eq!((error.header("x-vcr-record"), error.header("x-vcr-match")), (Some("0"), Some("index")));
        assert_eq!(ask(&server, "/v1/completions", "replay-1", &body).await.status, 200);
    }
}

#[tokio::test]
async fn an_error_is_found_by_its_prompt_and_a_retry_gets_the_answer() {
    let ids = tokenizer().encode("a long enough prompt for a block or two", SpecialTokens::Add).unwrap();
    let hashes = BlockHasher::new(BlockHashAlgorithm::Fnv1a64, 4).hash(&ids);
    let prompted = |record| Record { block_hashes: hashes.blocks.clone().into(), prompt_hash: hashes.whole, ..record };
    let answer = prompted(record(&[1, 2], Duration::ZERO, FinishReason::Length));
    let server = start(config(&[MatchBy::Prefix], vec![prompted(refused(503, Some(BODY))), answer])).await;
    let body = json!({"prompt": "a long enough prompt for a block or two"});
    let statuses =
        [ask(&server, "/v1/completions", "a", &body).await, ask(&server, "/v1/completions", "b", &body).await];
    assert_eq!(statuses.map(|answer| answer.status), [503, 200]);
}

#[tokio::test]
async fn an_error_without_a_body_has_its_familys_error_body() {
    let server = start(config(&[MatchBy::Index], vec![refused(503, None)])).await;
    let completion = ask(&server, "/v1/completions", "replay-0", &json!({"prompt": "x"})).await;
    assert_eq!((completion.status, completion.header("retry-after")), (503, Some("7")));
    assert_eq!(completion.header("content-type"), Some("application/json"));
    assert_eq!(completion.json()["error"]["code"], 503);
    let message = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]});
    let message = ask(&server, "/v1/messages", "replay-0", &message).await;
    assert_eq!((message.status, message.json()["type"].as_str()), (503, Some("error")));
    assert_eq!(message.header("retry-after"), Some("7"));
}

#[tokio::test]
async fn a_stream_that_failed_fails_with_its_event() {
    let payload = r#"{"error": {"message": "engine died", "code": 500}}"#;
    let failing = |record| Record {
        finish_reason: Some(FinishReason::Error),
        status: Some(200),
        error: Some(RecordedErrorResponse { body: Some(payload.to_owned()), ..RecordedErrorResponse::default() }),
        ..record
    };
    let late =
        failing(Record { outcome: Some(Outcome::Error), ..record(&[1, 2], Duration::ZERO, FinishReason::Error) });
    let at_once = failing(Record { outcome: Some(Outcome::Error), ..Record::default() });
    let server = start(config(&[MatchBy::Index], vec![late, at_once])).await;
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "stream": true});
    for (id, events) in [("replay-0", 5), ("replay-1", 2)] {
        let answer = ask(&server, CHAT, id, &chat).await;
        let told = answer.events();
        assert_eq!((answer.status, told.len()), (200, events), "{told:?}");
        assert_eq!(told[events - 2..], [format!("data: {payload}"), "data: [DONE]".to_owned()]);
    }
    let whole = json!({"messages": [{"role": "user", "content": "x"}]});
    for id in ["replay-0", "replay-1"] {
        let answer = ask(&server, CHAT, id, &whole).await;
        assert_eq!((answer.status, answer.header("content-type")), (500, Some("application/json")));
        assert_eq!(answer.json()["error"]["message"], "engine died");
    }
}

/// An engine that refuses what it was asked in the stream of its answer.
async fn refusing_in_a_stream() -> Upstream {
    let refusal = r#"{"error": {"message": "Token id 9 is out of vocabulary", "type": "BadRequestError", "param": null, "code": 400}}"#;
    Upstream::start(move |_| Script { pieces: event_stream(&[refusal, "[DONE]"]), end: End::KeepAlive }).await
}

/// Checks the response to a client that asked for no stream where a stream was recorded that failed.
async fn assert_refused_as_json(server: &Server) {
    let answer = ask(server, CHAT, "mine", &json!({"messages": [], "model": "m"})).await;
    let seen = (answer.status, answer.header("content-type"), answer.text());
    let body =
        r#"{"error":{"message":"Token id 9 is out of vocabulary","type":"BadRequestError","param":null,"code":400}}"#;
    assert_eq!(seen, (400, Some("application/json"), body.to_owned()));
}

#[tokio::test]
async fn the_error_of_a_stream_is_a_body_for_a_client_that_asked_for_none() {
    let upstream = refusing_in_a_stream().await;
    let tap = Tapping::start(upstream.address, |setup| setup.content.text = true).await;
    exchange(tap.address, &peer::post(CHAT, r#"{"messages":[],"model":"m","stream":true}"#)).await;
    let (_, records) = tap.records().await;
    assert!(records[0].response.is_some());
    let server = served(records, |_| {}).await;
    assert_refused_as_json(&server).await;
}

#[tokio::test]
async fn what_the_tap_saw_refused_is_refused_again() {
    let echoing = r#"{"error":{"message":"`my words` are too many","type":"BadRequestError","param":"n","code":400}}"#;
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nretry-after: 3\r\nset-cookie: a=b\r\n";
    let upstream = Upstream::start(move |_| Script {
        pieces: vec![format!("{head}content-length: {}\r\n\r\n{echoing}", echoing.len()).into_bytes()],
        end: End::KeepAlive,
    })
    .await;
    for (keeps_text, message) in [(false, "(not recorded)"), (true, "`my words` are too many")] {
        let tap = Tapping::start(upstream.address, |setup| setup.content.text = keeps_text).await;
        exchange(tap.address, &peer::post(CHAT, r#"{"n":3,"messages":[]}"#)).await;
        let (_, records) = tap.records().await;
        assert_eq!((records.len(), records.iter().filter(|record| record.error.is_some()).count()), (3, 1));
        let server = start(config(&[MatchBy::Index], records)).await;
        let chat = json!({"messages": [{"role": "user", "content": "x"}], "n": 3});
        let answer = ask(&server, CHAT, "replay-0", &chat).await;
        assert_eq!((answer.status, answer.header("retry-after")), (400, Some("3")));
        assert_eq!(answer.header("set-cookie"), None);
        assert_eq!(answer.json()["error"]["message"], message);
        assert_eq!(answer.json()["error"]["type"], "BadRequestError");
    }
}

#[tokio::test]
async fn an_event_that_ends_a_stream_is_recorded_as_the_end_of_it() {
    let failure =
        r#"{"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}"#;
    let words = r#"{"id":"1","choices":[{"index":0,"delta":{"content":"a"}}]}"#;
    let upstream =
        Upstream::start(move |_| Script { pieces: event_stream(&[words, failure, "[DONE]"]), end: End::KeepAlive })
            .await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    exchange(tap.address, &peer::post(CHAT, r#"{"stream":true}"#)).await;
    let (_, records) = tap.records().await;
    assert_eq!((records[0].outcome, records[0].finish_reason), (Some(Outcome::Error), Some(FinishReason::Error)));
    assert_eq!(records[0].error.as_ref().unwrap().body.as_deref(), Some(failure));
}

/// An engine that fails each chat of these words so often, and answers then.
async fn failing_engine(failures: usize) -> Upstream {
    let failure =
        r#"{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}"#;
    let asked = std::sync::atomic::AtomicUsize::new(0);
    Upstream::start(move |request| {
        let pieces = if request.starts_with(b"GET ") {
            peer::answer("200 OK", r#"{"version":"0.32.0"}"#)
        } else if asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < failures {
            peer::answer("500 Internal Server Error", failure)
        } else {
            let (chat, prompt) = (r#""message":{"role":"assistant","content":"a"}"#, prompt_ids());
            let answer = format!(
                r#"{{"id":"x","choices":[{{"index":0,{chat},"finish_reason":"length","token_ids":[5]}}],"prompt_token_ids":{prompt:?},"usage":{{"prompt_tokens":{},"completion_tokens":1}}}}"#,
                prompt.len()
            );
            peer::answer("200 OK", &answer)
        };
        Script { pieces, end: End::KeepAlive }
    })
    .await
}

const WORDS: &str = "Why is the sky blue?";

fn prompt_ids() -> Vec<u32> {
    let tokenizer = tokenizer();
    let chat = json!({"messages": [{"role": "user", "content": WORDS}]});
    tokenizer.ids_of_chat(chat.as_object().unwrap(), &serde_json::Map::new()).unwrap()
}

async fn replayed(failures: usize, change: impl FnOnce(&mut vllm_vcr::play::Config)) -> (Vec<Record>, Server) {
    let upstream = failing_engine(failures).await;
    let tap = Tapping::start(upstream.address, |setup| setup.config.record_tokens = false).await;
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": WORDS}], "max_tokens": 1});
    for _ in 0..3 {
        exchange(tap.address, &peer::post(CHAT, &chat.to_string())).await;
    }
    let (_, mut records) = tap.records().await;
    records.sort_by_key(|record| record.arrival);
    (records.clone(), served(records, change).await)
}

/// A server of records whose requests have keys.
async fn served(records: Vec<Record>, change: impl FnOnce(&mut vllm_vcr::play::Config)) -> Server {
    let mut config = config(&[MatchBy::Auto], records);
    let vllm_vcr::play::Source::Trace { name, trace } = config.source else { unreachable!() };
    let mut trace = Trace::clone(&trace);
    (trace.meta.block_size, trace.meta.block_hash) = (Some(2), Some(BlockHashAlgorithm::Xxh3_64));
    config.source = vllm_vcr::play::Source::Trace { name, trace: trace.into() };
    config.unmatched = vllm_vcr::play::Unmatched::Refuse;
    change(&mut config);
    start(config).await
}

/// An engine without token ids that fails first, then calls a tool, then answers in words, and calls a tool again.
async fn changing_engine() -> Upstream {
    let asked = std::sync::atomic::AtomicUsize::new(0);
    Upstream::start(move |request| {
        let tool = |id: &str| json!({"type": "tool_use", "id": id, "name": "f", "input": {}});
        let (content, tokens) =
            match asked.fetch_add(usize::from(request.starts_with(b"POST")), std::sync::atomic::Ordering::Relaxed) {
                0 => return Script { pieces: peer::answer("503 Service Unavailable", BODY), end: End::KeepAlive },
                2 => {
                    let ids = tokenizer().encode(WORDS, SpecialTokens::Skip).unwrap();
                    (json!({"type": "text", "text": WORDS}), ids.len() + 1)
                }
                turn => (tool(&format!("toolu_{turn}")), 5),
            };
        let usage = json!({"input_tokens": prompt_ids().len(), "output_tokens": tokens});
        let message = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [content],
            "stop_reason": "end_turn", "usage": usage});
        Script { pieces: peer::answer("200 OK", &message.to_string()), end: End::KeepAlive }
    })
    .await
}

#[tokio::test]
async fn records_of_one_request_are_served_in_the_order_of_their_recording() {
    let message = json!({"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": WORDS}]});
    for has_tokenizer in [false, true] {
        let upstream = changing_engine().await;
        let tap = Tapping::start(upstream.address, |setup| {
            setup.config.tokenizer = has_tokenizer.then(tokenizer);
        })
        .await;
        for _ in 0..4 {
            exchange(tap.address, &peer::post("/v1/messages", &message.to_string())).await;
        }
        let (_, mut records) = tap.records().await;
        records.sort_by_key(|record| record.arrival);
        let found: Vec<_> =
            records.iter().map(|record| (record.prompt_hash.is_some(), record.output_token_ids.is_some())).collect();
        assert_eq!(found, [false, false, true, false].map(|has_ids| (has_tokenizer, has_ids && has_tokenizer)));
        let server = served(records, |_| {}).await;
        for (status, record, kind) in
            [(503, "0", ""), (200, "1", "tool_use"), (200, "2", "text"), (200, "3", "tool_use"), (200, "3", "tool_use")]
        {
            let answer = ask(&server, "/v1/messages", "mine", &message).await;
            assert_eq!((answer.status, answer.header("x-vcr-record")), (status, Some(record)), "{}", answer.text());
            assert_eq!(answer.json()["content"][0]["type"].as_str().unwrap_or_default(), kind);
            assert!(answer.header("x-vcr-match").unwrap().starts_with("request"));
        }
    }
}

#[tokio::test]
async fn an_error_whose_prompt_was_not_tokenized_is_matched_by_its_request() {
    let (records, server) = replayed(2, |_| {}).await;
    let found: Vec<(Option<u16>, bool, bool)> = records
        .iter()
        .map(|record| (record.status, record.prompt_hash.is_some(), record.request_key.is_some()))
        .collect();
    assert_eq!(found, [(Some(500), false, true), (Some(500), false, true), (Some(200), true, false)]);
    // As another client spells it, and by a name of its own.
    let chat =
        json!({"messages": [{"content": WORDS, "role": "user"}], "user": "somebody", "max_tokens": 1, "model": "m"});
    for (status, record, by) in
        [(500, "0", "request"), (500, "1", "request"), (200, "2", "prefix"), (200, "2", "prefix")]
    {
        let answer = ask(&server, CHAT, "mine", &chat).await;
        assert_eq!((answer.status, answer.header("x-vcr-record")), (status, Some(record)), "{}", answer.text());
        assert!(answer.header("x-vcr-match").unwrap().starts_with(by), "{:?}", answer.headers);
        if status == 500 {
            assert_eq!(answer.json()["error"]["message"], "Internal server error");
        }
    }
    assert_eq!(ask(&server, CHAT, "replay-1", &chat).await.status, 500);
    let other = json!({"model": "m", "messages": [{"role": "user", "content": "Why is the sea blue?"}]});
    assert_eq!(ask(&server, CHAT, "mine", &other).await.status, 200);
}

#[tokio::test]
async fn an_error_that_was_served_comes_again_as_the_rules_say() {
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": WORDS}], "max_tokens": 1});
    for (on_exhausted, expected) in [
        (None, [(500, "request"), (500, "request"), (500, "request"), (500, "request;again")]),
        (Some(OnExhausted::Error), [(500, "request"), (500, "request"), (500, "request"), (422, "")]),
        (Some(OnExhausted::Cycle), [(500, "request"), (500, "request"), (500, "request"), (500, "request;again")]),
    ] {
        let (_, server) = replayed(3, |config| config.on_exhausted = on_exhausted).await;
        for (status, by) in expected {
            let answer = ask(&server, CHAT, "mine", &chat).await;
            assert_eq!(
                (answer.status, answer.header("x-vcr-match").unwrap_or_default()),
                (status, by),
                "{on_exhausted:?}"
            );
        }
    }
}
