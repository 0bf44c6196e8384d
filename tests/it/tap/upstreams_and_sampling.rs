//! Several upstreams, what is recorded of them, and what the operator sees.

use std::time::Duration;

use tokio::{net::TcpListener, sync::oneshot};
use vllm_vcr::{recording::trace::Outcome, tap::Filter};

use crate::support::{
    CHAT,
    peer::{End, Script, Upstream, answer, event_stream, exchange, post},
    tapping::Tapping,
};

async fn named(name: &'static str) -> Upstream {
    Upstream::start(move |_| Script { pieces: answer("200 OK", name), end: End::KeepAlive }).await
}

#[tokio::test]
async fn paths_and_models_find_their_upstreams() {
    let (main, embeddings, qwen) = (named("main").await, named("embeddings").await, named("qwen").await);
    let tap = Tapping::start(main.address, |setup| {
        setup.routes = vec![
            format!("/v1/embeddings=http://{}", embeddings.address).parse().unwrap(),
            format!("model:qwen*=http://{}", qwen.address).parse().unwrap(),
        ];
    })
    .await;
    for (path, body, upstream) in [
        (CHAT, r#"{"model":"llama"}"#, "main"),
        (CHAT, r#"{"model":"qwen3-8b"}"#, "qwen"),
        ("/v1/embeddings", r#"{"model":"qwen3-8b"}"#, "embeddings"),
        ("/tokenize", r#"{"model":"qwen3-8b"}"#, "qwen"),
        ("/v1/embeddingsx", "{}", "main"),
    ] {
        assert_eq!(exchange(tap.address, &post(path, body)).await.body(), upstream, "{path} {body}");
    }
    assert_eq!(tap.metric(&format!("vcr_upstream_requests_total{{upstream=\"http://{}\"}}", qwen.address)), 2.0);
    let (report, records) = tap.records().await;
    assert_eq!((report.forwarded, records.len()), (5, 5));
}

#[tokio::test]
async fn only_what_was_asked_for_is_recorded_and_the_counts_add_up() {
    let upstream = named("{}").await;
    let tap = Tapping::start(upstream.address, |setup| {
        setup.filter = Filter { paths: vec!["/v1/*".to_owned()], models: vec!["m".to_owned()], sample: Some(1.0) };
    })
    .await;
    for (path, body) in [(CHAT, r#"{"model":"m"}"#), (CHAT, r#"{"model":"n"}"#), ("/tokenize", r#"{"model":"m"}"#)] {
        assert_eq!(exchange(tap.address, &post(path, body)).await.body(), "{}");
    }
    exchange(tap.address, b"GET /v1/models HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").await;
    for (reason, count) in [("kind", 1.0), ("path", 1.0), ("model", 1.0), ("sample", 0.0), ("incomplete", 0.0)] {
        assert_eq!(tap.metric(&format!("vcr_requests_not_recorded_total{{reason=\"{reason}\"}}")), count, "{reason}");
    }
    assert_eq!(tap.metric("vcr_requests_total"), 4.0);
    // A request that is left out is not amended either.
    assert_eq!(upstream.bodies().iter().filter(|body| body.contains("return_token_ids")).count(), 1);
    let (_, records) = tap.records().await;
    assert_eq!(records.len(), 1);
}

#[tokio::test]
async fn a_sample_of_none_records_nothing() {
    let upstream = named("{}").await;
    let tap = Tapping::start(upstream.address, |setup| setup.filter.sample = Some(0.0)).await;
    for _ in 0..5 {
        exchange(tap.address, &post(CHAT, "{}")).await;
    }
    let (report, traces) = tap.stop().await;
    assert_eq!((report.forwarded, traces[0].records.len()), (5, 0));
    assert_eq!(traces[0].meta.extra["sample"], 0.0);
}

#[tokio::test]
async fn the_operator_sees_counts_times_and_health() {
    let events = [
        r#"{"id":"1","choices":[{"index":0,"delta":{"content":"a"}}]}"#,
        r#"{"id":"1","choices":[{"index":0,"delta":{"content":"b"}}]}"#,
        r#"{"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
        "[DONE]",
    ];
    let upstream = Upstream::start(move |_| Script { pieces: event_stream(&events), end: End::KeepAlive }).await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(tap.handle.clone().serve(listener, async {
        let _stopped = stopped.await;
    }));
    exchange(tap.address, &post(CHAT, r#"{"stream":true}"#)).await;
    tap.until("vcr_time_to_first_token_seconds_count", 1.0).await;
    tap.until("vcr_records_written_total", 1.0).await;
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").into_bytes();
    let page = exchange(admin, &get("/metrics")).await;
    assert!(page.head.contains("text/plain; version=0.0.4"), "{}", page.head);
    for line in [
        "vcr_requests_total 1",
        "vcr_exchanges_total{outcome=\"finished\"} 1",
        "vcr_streams_total 1",
        "vcr_inter_token_latency_seconds_count 1.0",
        "vcr_records_dropped_total{reason=\"queue_full\"} 0",
        "vcr_recording 1",
    ] {
        assert!(page.body().lines().any(|found| found == line), "{line} in {}", page.body());
    }
    for (path, status) in [("/health", 200), ("/health/recording", 200), ("/v1/models", 404)] {
        assert_eq!(exchange(admin, &get(path)).await.status, status, "{path}");
    }
    for path in ["/metrics", "/health", "/health/recording"] {
        let refused = exchange(admin, &post(path, "")).await;
        assert_eq!((refused.status, refused.body()), (405, "only GET\n".to_owned()), "{path}");
        assert!(refused.head.to_ascii_lowercase().contains("\r\nallow: get,head\r\n"), "{path}: {}", refused.head);
    }
    stop.send(()).unwrap();
    serving.await.unwrap();
    tap.stop().await;
}

#[tokio::test]
async fn limits_of_time_end_what_takes_too_long() {
    let silent = Upstream::start(|request| {
        let text = String::from_utf8_lossy(request);
        if text.contains("begin") {
            let mut pieces = event_stream(&[r#"{"id":"1","choices":[{"index":0,"delta":{"content":"a"}}]}"#]);
            pieces.pop();
            return Script { pieces, end: End::Silence };
        }
        Script { pieces: Vec::new(), end: End::Silence }
    })
    .await;
    let tap = Tapping::start(silent.address, |setup| {
        setup.reach.response_timeout = Some(Duration::from_secs(1));
        setup.idle = Some(Duration::from_secs(1));
    })
    .await;
    let never = exchange(tap.address, &post(CHAT, r#"{"stream":true}"#)).await;
    assert_eq!(never.status, 504);
    let stalled = exchange(tap.address, &post(CHAT, r#"{"stream":true,"x":"begin"}"#)).await;
    assert_eq!((stalled.status, stalled.complete), (200, false));
    let (_, records) = tap.records().await;
    let outcomes: Vec<_> = records.iter().map(|record| (record.outcome, record.output_tokens)).collect();
    assert_eq!(outcomes, [(Some(Outcome::TimedOut), 0), (Some(Outcome::TimedOut), 1)]);
}
