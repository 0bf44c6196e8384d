//! The tap between a scripted upstream and a raw client.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use vllm_vcr::{
    recording::trace::{FinishReason, Outcome, read},
    text::prompt::{BlockHashAlgorithm, BlockHasher},
};

use crate::support::{
    CHAT, free_address,
    peer::{End, Script, Upstream, answer, event_stream, exchange, post},
    tapping::Tapping,
};

/// Answers as a vLLM 0.32 would, with or without ids and usage as the request asks.
fn engine(request: &[u8]) -> Script {
    let request = String::from_utf8_lossy(request);
    if request.starts_with("GET /version") {
        return Script { pieces: answer("200 OK", r#"{"version":"0.32.0"}"#), end: End::KeepAlive };
    }
    if request.starts_with("GET ") {
        return Script { pieces: answer("404 Not Found", "{}"), end: End::KeepAlive };
    }
    let body: serde_json::Value = serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap();
    let ids = body["return_token_ids"] == true;
    let usage = body["stream_options"]["include_usage"] == true;
    let id = |list: &str| if ids { list.to_owned() } else { "null".to_owned() };
    let fingerprint = |here: bool| if here { r#","system_fingerprint":"fp-1""# } else { "" };
    let mut events = vec![
        format!(
            r#"{{"id":"chatcmpl-1","choices":[{{"index":0,"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}],"prompt_token_ids":{}}}"#,
            id("[1,2,3]")
        ),
        format!(
            r#"{{"id":"chatcmpl-1","choices":[{{"index":0,"delta":{{"content":"é"}},"logprobs":null,"finish_reason":null,"token_ids":{}}}]}}"#,
            id("[10,11]")
        ),
    ];
    if ids {
        events.push(r#"{"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":null,"token_ids":[12]}]}"#.to_owned());
    }
    events.push(format!(
        r#"{{"id":"chatcmpl-1","choices":[{{"index":0,"delta":{{"content":"!"}},"logprobs":null,"finish_reason":"stop","stop_reason":13,"token_ids":{}}}]{}}}"#,
        id("[13]"),
        fingerprint(!usage)
    ));
    if usage {
        events.push(r#"{"id":"chatcmpl-1","choices":[],"usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2}},"system_fingerprint":"fp-1"}"#.to_owned());
    }
    events.push("[DONE]".to_owned());
    Script { pieces: event_stream(&events.iter().map(String::as_str).collect::<Vec<_>>()), end: End::KeepAlive }
}

#[tokio::test]
async fn a_stream_without_a_content_type_is_read_and_restored_too() {
    let upstream = Upstream::start(|request| {
        let mut script = engine(request);
        let head = String::from_utf8_lossy(&script.pieces[0]);
        script.pieces[0] = head.replace("content-type: text/event-stream; charset=utf-8\r\n", "").into_bytes();
        script
    })
    .await;
    let tap = Tapping::before(upstream.address).await;
    let body = r#"{"messages":[],"stream":true}"#;
    let direct = exchange(upstream.address, &post(CHAT, body)).await;
    assert!(!direct.head.contains("content-type"), "{}", direct.head);
    assert_eq!(exchange(tap.address, &post(CHAT, body)).await.pieces, direct.pieces);
    let (_, records) = tap.sound().await;
    assert_eq!(records[0].output_token_ids.as_deref(), Some(&[10, 11, 12, 13][..]));
}

#[tokio::test]
async fn an_error_without_a_content_type_is_recorded_as_one() {
    let error = r#"{"error":{"message":"Internal Server Error","type":"InternalServerError","code":500}}"#;
    let refused = format!("HTTP/1.1 500 Internal Server Error\r\ncontent-length: {}\r\n\r\n{error}", error.len());
    let script = move |_: &[u8]| Script { pieces: vec![refused.clone().into_bytes()], end: End::KeepAlive };
    let upstream = Upstream::start(script).await;
    let tap = Tapping::before(upstream.address).await;
    exchange(tap.address, &post(CHAT, r#"{"messages":[],"stream":true}"#)).await;
    let (_, records) = tap.sound().await;
    assert_eq!(records[0].error.as_ref().and_then(|kept| kept.body.as_deref()), Some(error));
}

/// The engine's stream, silent after so many pieces.
fn stalling_after(pieces: usize, request: &[u8]) -> Script {
    let mut script = engine(request);
    if script.pieces.len() > 2 {
        script.pieces.truncate(pieces);
        script.end = End::Silence;
    }
    script
}

#[tokio::test]
async fn the_client_sees_the_engines_own_bytes_and_the_trace_holds_the_ids() {
    let upstream = Upstream::start(engine).await;
    let tap = Tapping::before(upstream.address).await;
    for body in [
        r#"{"messages":[],"stream":true}"#,
        r#"{"messages":[],"stream":true,"stream_options":{"include_usage":false}}"#,
        r#"{"messages":[],"stream":true,"stream_options":{"include_usage":true}}"#,
        r#"{"messages":[],"stream":true,"return_token_ids":true}"#,
    ] {
        let direct = exchange(upstream.address, &post(CHAT, body)).await;
        let tapped = exchange(tap.address, &post(CHAT, body)).await;
        assert_eq!(direct.pieces, tapped.pieces, "{body}");
        assert!(tapped.complete);
    }
    let (report, records) = tap.sound().await;
    assert_eq!((report.recorder.written, report.forwarded), (4, 4));
    let hashes = BlockHasher::new(BlockHashAlgorithm::Xxh3_64, 2).hash(&[1, 2, 3]);
    for (index, record) in records.iter().enumerate() {
        assert_eq!(record.output_token_ids.as_deref(), Some(&[10, 11, 12, 13][..]));
        assert_eq!(record.chunks.iter().map(|chunk| chunk.tokens).collect::<Vec<_>>(), [2, 1, 1]);
        assert_eq!(
            (record.prompt_tokens, &*record.block_hashes, record.prompt_hash),
            (3, &hashes.blocks, hashes.whole)
        );
        assert_eq!((record.finish_reason, record.stop_token), (Some(FinishReason::Stop), Some(13)));
        assert_eq!((record.outcome, record.status), (Some(Outcome::Finished), Some(200)));
        // The first stream taught the fingerprint; from then on usage is known too.
        assert_eq!(record.cached_tokens, (index == 1 || index == 2 || index == 3).then_some(2));
    }
}

#[tokio::test]
async fn streams_of_tokens_teach_nothing_of_fingerprints() {
    let upstream = Upstream::start(|request| match request.starts_with(b"POST /inference/") {
        true => {
            let last =
                r#"{"request_id":"generate-tokens-1","choices":[{"index":0,"finish_reason":"stop","token_ids":[13]}]}"#;
            Script { pieces: event_stream(&[last, "[DONE]"]), end: End::KeepAlive }
        }
        false => engine(request),
    })
    .await;
    let tap = Tapping::before(upstream.address).await;
    let tokens = r#"{"token_ids":[1],"sampling_params":{"max_tokens":1},"stream":true}"#;
    exchange(tap.address, &post("/inference/v1/generate", tokens)).await;
    for _ in 0..2 {
        let chat = post(CHAT, r#"{"messages":[],"stream":true}"#);
        assert_eq!(exchange(upstream.address, &chat).await.pieces, exchange(tap.address, &chat).await.pieces);
    }
    tap.sound().await;
}

#[tokio::test]
async fn a_refused_amendment_is_sent_again_as_the_client_wrote_it() {
    let upstream = Upstream::start(|request| {
        let text = String::from_utf8_lossy(request);
        let (status, body) = match (text.contains("return_token_ids"), text.contains("bad")) {
            (true, _) => ("400 Bad Request", r#"{"error":"3 fields"}"#),
            (false, true) => ("400 Bad Request", r#"{"error":"1 field"}"#),
            (false, false) => ("200 OK", r#"{"id":"x","choices":[{"index":0,"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#),
        };
        Script { pieces: answer(status, body), end: End::KeepAlive }
    })
    .await;
    let tap = Tapping::before(upstream.address).await;
    let bad = exchange(tap.address, &post(CHAT, r#"{"bad":1}"#)).await;
    assert_eq!((bad.status, bad.body().as_str()), (400, r#"{"error":"1 field"}"#));
    assert_eq!(exchange(tap.address, &post(CHAT, r#"{"good":1}"#)).await.status, 200);
    assert_eq!(exchange(tap.address, &post(CHAT, r#"{"good":2}"#)).await.status, 200);
    let asked: Vec<bool> = upstream.bodies().iter().map(|body| body.contains("return_token_ids")).collect();
    // The engine took a request only without the fields: it is not asked again.
    assert_eq!(asked, [true, false, true, false, false]);
    let (_, records) = tap.sound().await;
    let outcomes: Vec<_> = records.iter().map(|record| (record.outcome, record.output_tokens)).collect();
    assert_eq!(outcomes, [(Some(Outcome::Error), 0), (Some(Outcome::Finished), 2), (Some(Outcome::Finished), 2)]);
}

#[tokio::test]
async fn a_broken_upstream_is_a_broken_answer_and_a_record() {
    let upstream = Upstream::start(|request| {
        let mut script = engine(request);
        script.pieces.truncate(3);
        script.end = End::Close;
        script
    })
    .await;
    let tap = Tapping::before(upstream.address).await;
    let cut = exchange(tap.address, &post(CHAT, r#"{"stream":true}"#)).await;
    assert_eq!((cut.status, cut.pieces.len(), cut.complete), (200, 2, false));
    let (_, records) = tap.sound().await;
    assert_eq!(records.len(), 1);
    assert_eq!((records[0].outcome, records[0].output_tokens), (Some(Outcome::UpstreamFailed), 2));
}

#[tokio::test]
async fn an_upstream_that_is_down_is_a_502_and_a_record() {
    let tap = Tapping::before(free_address()).await;
    let failed = exchange(tap.address, &post(CHAT, r#"{"stream":true}"#)).await;
    assert_eq!(failed.status, 502);
    assert!(failed.body().contains("cannot be reached"), "{}", failed.body());
    let get = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert_eq!(exchange(tap.address, get).await.status, 502);
    let (_, records) = tap.sound().await;
    assert_eq!(records.len(), 1);
    assert_eq!((records[0].outcome, records[0].status), (Some(Outcome::UpstreamFailed), Some(502)));
}

#[tokio::test]
async fn a_client_that_leaves_is_a_record_of_how_far_it_got() {
    let upstream = Upstream::start(|request| stalling_after(4, request)).await;
    let tap = Tapping::before(upstream.address).await;
    let mut client = TcpStream::connect(tap.address).await.unwrap();
    client.write_all(&post(CHAT, r#"{"stream":true}"#)).await.unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains('é') {
        let mut buffer = [0; 4096];
        let count = client.read(&mut buffer).await.unwrap();
        seen.extend_from_slice(&buffer[..count]);
    }
    drop(client);
    // The tap notices by itself: no shutdown is needed for the record.
    let record = loop {
        if let Ok(trace) = read(&tap.folder.path().join("trace.jsonl.gz"))
            && let Some(record) = trace.records.first()
        {
            break record.clone();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(record.outcome, Some(Outcome::ClientGone));
    assert_eq!(record.finish_reason, Some(FinishReason::Abort));
    assert!(record.output_tokens >= 2, "{}", record.output_tokens);
    let (report, records) = tap.sound().await;
    assert_eq!((report.cut, records.len()), (0, 1));
}

#[tokio::test]
async fn a_stream_that_outlives_the_drain_is_cut_and_recorded() {
    let upstream = Upstream::start(|request| stalling_after(3, request)).await;
    let tap = Tapping::before(upstream.address).await;
    let mut client = TcpStream::connect(tap.address).await.unwrap();
    client.write_all(&post(CHAT, r#"{"stream":true}"#)).await.unwrap();
    client.read_exact(&mut [0; 64]).await.unwrap();
    let (report, records) = tap.sound().await;
    assert_eq!((report.cut, records.len()), (1, 1));
    assert_eq!(records[0].outcome, Some(Outcome::Cut));
}

#[tokio::test]
async fn whole_answers_lose_their_ids_and_nothing_else() {
    let body = |ids: &str, prompt: &str| {
        format!(
            r#"{{"id":"cmpl-1", "choices":[{{"index":0,"text":"a","finish_reason":"length","token_ids":{ids},"prompt_token_ids":{prompt}}},{{"index":1,"text":"b","finish_reason":"stop","token_ids":{ids},"prompt_token_ids":{prompt}}}],"usage":{{"prompt_tokens":3,"completion_tokens":4}}}}"#
        )
    };
    let (with, without) = (body("[5,6]", "[1,2,3]"), body("null", "null"));
    let with_ids = with.clone();
    let upstream = Upstream::start(move |_| Script { pieces: answer("200 OK", &with_ids), end: End::KeepAlive }).await;
    let tap = Tapping::before(upstream.address).await;
    let stripped = exchange(tap.address, &post("/v1/completions", r#"{"prompt":"x","n":2}"#)).await;
    assert_eq!(stripped.body(), without);
    assert!(stripped.head.contains(&format!("content-length: {}", without.len())), "{}", stripped.head);
    let asked =
        exchange(tap.address, &post("/v1/completions", r#"{"prompt":"x","n":2,"return_token_ids":true}"#)).await;
    assert_eq!(asked.body(), with);
    let (_, records) = tap.sound().await;
    assert_eq!(records.len(), 4);
    assert_eq!(records.iter().map(|record| record.choice).collect::<Vec<_>>(), [Some(0), Some(1), Some(0), Some(1)]);
    assert!(records.iter().all(|record| record.output_token_ids.as_deref() == Some(&[5, 6])));
    assert_eq!(records[0].group, records[1].group);
}

#[tokio::test]
async fn a_large_body_passes() {
    let upstream = Upstream::start(|request| {
        let length = request.len();
        Script { pieces: answer("200 OK", &format!(r#"{{"seen":{length}}}"#)), end: End::KeepAlive }
    })
    .await;
    let tap = Tapping::before(upstream.address).await;
    let body = format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, "x".repeat(20 << 20));
    let large = exchange(tap.address, &post(CHAT, &body)).await;
    assert_eq!(large.status, 200);
    assert!(upstream.bodies()[0].len() > body.len());
    tap.sound().await;
}
