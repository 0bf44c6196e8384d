//! What the tap writes down about answers that are no vLLM stream, and about those that go wrong.

use vllm_vcr::recording::trace::{FinishReason, Outcome};

use crate::support::{
    CHAT,
    peer::{End, Script, Upstream, event_stream, exchange, post},
    tapping::Tapping,
};

async fn answering(head: &'static str, body: &'static [u8]) -> Upstream {
    Upstream::start(move |_| Script {
        pieces: vec![format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes(), body.to_vec()],
        end: End::KeepAlive,
    })
    .await
}

#[tokio::test]
async fn an_undecodable_response_is_finished_when_its_bytes_are() {
    for (head, body, outcome) in [
        ("200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip", &b"\x1f\x8b"[..], Outcome::Finished),
        ("200 OK\r\ncontent-type: text/plain", b"hello", Outcome::Finished),
        ("200 OK", b"", Outcome::Finished),
        ("401 Unauthorized", b"", Outcome::Error),
        ("503 Service Unavailable\r\ncontent-type: text/html", b"<p>later</p>", Outcome::Error),
    ] {
        let upstream = answering(head, body).await;
        let tap = Tapping::before(upstream.address).await;
        let direct = exchange(upstream.address, &post(CHAT, "{}")).await;
        assert_eq!(exchange(tap.address, &post(CHAT, "{}")).await.body(), direct.body(), "{head}");
        let (_, records) = tap.sound().await;
        assert_eq!(records.iter().map(|record| record.outcome).collect::<Vec<_>>(), [Some(outcome)], "{head}");
    }
}

#[tokio::test]
async fn only_events_with_words_are_tokens() {
    let events = [
        r#"{"id":"1","choices":[{"index":0,"delta": {"role": "assistant", "content": ""}}]}"#,
        r#"{"id":"1","choices":[{"index":0,"delta": {"content": "a"}}]}"#,
        r#"{"id":"1","choices":[{"index":0,"delta": {"reasoning_content": "b"}}]}"#,
        r#"{"id":"1","choices":[{"index":0,"delta": {}, "finish_reason": "stop"}]}"#,
        "[DONE]",
    ];
    let upstream = Upstream::start(move |_| Script { pieces: event_stream(&events), end: End::KeepAlive }).await;
    let tap = Tapping::before(upstream.address).await;
    exchange(tap.address, &post(CHAT, r#"{"stream":true}"#)).await;
    let (_, records) = tap.sound().await;
    assert_eq!((records[0].output_tokens, records[0].chunks.len()), (2, 2));
    assert_eq!(records[0].outcome, Some(Outcome::Finished));
}

#[tokio::test]
async fn a_stream_that_breaks_inside_an_event_breaks_at_the_same_byte() {
    let whole = r#"{"id":"1","choices":[{"index":0,"delta":{"content":"a"},"token_ids":null}]}"#;
    let upstream = Upstream::start(move |_| {
        let mut pieces = event_stream(&[whole]);
        pieces.truncate(2);
        pieces.push(b"9\r\ndata: {\"i\r\n".to_vec());
        Script { pieces, end: End::Close }
    })
    .await;
    let tap = Tapping::before(upstream.address).await;
    let direct = exchange(upstream.address, &post(CHAT, r#"{"stream":true}"#)).await;
    let tapped = exchange(tap.address, &post(CHAT, r#"{"stream":true}"#)).await;
    assert_eq!((direct.body(), direct.complete), (tapped.body(), tapped.complete));
    assert!(tapped.body().ends_with("data: {\"i"), "{}", tapped.body());
    let (_, records) = tap.sound().await;
    assert_eq!(records[0].outcome, Some(Outcome::UpstreamFailed));
}

#[tokio::test]
async fn an_answer_that_is_too_short_is_recorded_with_the_status_that_its_client_got() {
    let upstream = Upstream::start(|_| Script {
        pieces: vec![b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{".to_vec()],
        end: End::Close,
    })
    .await;
    let tap = Tapping::before(upstream.address).await;
    assert_eq!(exchange(tap.address, &post(CHAT, "{}")).await.status, 502);
    let (_, records) = tap.sound().await;
    assert_eq!((records[0].outcome, records[0].status), (Some(Outcome::UpstreamFailed), Some(502)));
}

#[tokio::test]
async fn an_event_that_is_too_long_marks_the_record() {
    let event = |text: &str| format!(r#"{{"id":"1","choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}"#);
    let events = [event("a"), event(&"b".repeat(17 << 20)), event("c"), "[DONE]".to_owned()];
    let upstream = Upstream::start(move |_| Script {
        pieces: event_stream(&events.each_ref().map(String::as_str)),
        end: End::KeepAlive,
    })
    .await;
    let tap = Tapping::before(upstream.address).await;
    exchange(tap.address, &post(CHAT, r#"{"stream":true}"#)).await;
    let (_, records) = tap.sound().await;
    assert_eq!((records[0].output_tokens, &records[0].extra["unread_events"]), (1, &1.into()));
}

#[tokio::test]
async fn an_error_event_before_the_end_is_an_error() {
    let events = [r#"{"error":{"message":"no","code":500}}"#, "[DONE]"];
    let upstream = Upstream::start(move |_| Script { pieces: event_stream(&events), end: End::KeepAlive }).await;
    let tap = Tapping::before(upstream.address).await;
    exchange(tap.address, &post(CHAT, r#"{"stream":true}"#)).await;
    let (_, records) = tap.sound().await;
    assert_eq!(records[0].outcome, Some(Outcome::Error));
}

/// More cached tokens than the prompt has, and more answered ones than any engine gives.
#[tokio::test]
async fn counts_that_no_reader_takes_are_mended_and_counted() {
    let usage = br#"{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4000000000,"prompt_tokens_details":{"cached_tokens":9}}}"#;
    let upstream = answering("200 OK\r\ncontent-type: application/json", usage).await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    exchange(tap.address, &post(CHAT, "{}")).await;
    tap.until("vcr_records_repaired_total", 1.0).await;
    let (report, records) = tap.records().await;
    assert_eq!((report.recorder.written, report.recorder.repaired), (1, 1));
    let record = &records[0];
    assert_eq!((record.prompt_tokens, record.cached_tokens, record.finish_reason), (3, None, Some(FinishReason::Stop)));
    assert_eq!(record.extra["repaired"], serde_json::json!(["cached_tokens", "output_tokens"]));
}
