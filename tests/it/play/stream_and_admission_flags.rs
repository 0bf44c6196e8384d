//! Server flags that change streams and admission.

use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncReadExt;
use vllm_vcr::{
    play::{Config, ServerOptions},
    recording::trace::FinishReason,
    replay::matching::MatchBy,
    replay::timing::Pacing,
};

use crate::support::{
    client::{self, get, post},
    play_server::{Server, config, record, start},
};

/// Three tokens, 150 ms before each.
async fn server(options: ServerOptions) -> Server {
    server_at(Duration::from_millis(150), options).await
}

/// Three tokens, so much time before each.
async fn server_at(gap: Duration, options: ServerOptions) -> Server {
    let record = record(&[20, 21, 22], gap, FinishReason::Stop);
    let pacing = Pacing::Recorded { scale: vllm_vcr::base::units::TimeScale::REAL };
    start(Config { server: options, pacing, ..config(&[MatchBy::Next], vec![record]) }).await
}

#[tokio::test]
async fn silent_streams_are_kept_alive_by_comments() {
    let keep_alive = Some(Duration::from_millis(60));
    let server = server_at(Duration::from_millis(500), ServerOptions { keep_alive, ..ServerOptions::default() }).await;
    let request = post("/v1/completions", &json!({"prompt": "x", "stream": true}));
    let answer = client::send(server.address, &request).await;
    let kinds: String = answer.events().iter().map(|event| if event == ": keep-alive" { ':' } else { 'd' }).collect();
    // On an idle machine eight before each token: 60 to 480 ms after the start and after the token before, whose events come every
    // 500 ms, and none before [DONE]. On a busy one a token comes late and the next soon after it.
    assert_eq!(kinds.replace(':', ""), "dddd");
    assert!(kinds.starts_with(':') && kinds.ends_with("dd"), "{kinds}");
    let comments = kinds.matches(':').count();
    assert!(comments >= 2, "{kinds}");
    let body = client::send(server.address, &post("/v1/completions", &json!({"prompt": "x"}))).await;
    assert_eq!(body.header("content-type"), Some("application/json"));
}

#[tokio::test]
async fn usage_may_be_forced_on_every_event() {
    let options = ServerOptions { force_usage: true, ..ServerOptions::default() };
    let server = server(options).await;
    let request = post("/v1/completions", &json!({"prompt": [5, 6], "stream": true}));
    let events = client::send(server.address, &request).await.events();
    assert_eq!(events.len(), 5);
    for (at, event) in events[..4].iter().enumerate() {
        let event: serde_json::Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(event["usage"]["completion_tokens"], (at + 1).min(3));
    }
    assert!(events[3].contains(r#""choices":[]"#));
}

#[tokio::test]
async fn one_request_too_many_is_refused_before_its_prompt_is_read() {
    // Long enough for the requests that come meanwhile, on a busy machine too.
    let options = ServerOptions { max_queued: Some(2), ..ServerOptions::default() };
    let server = server_at(Duration::from_secs(1), options).await;
    let both = json!({"prompt": "x", "n": 2, "stream": true});
    let mut first = client::open(server.address, &post("/v1/completions", &both)).await;
    first.read_u8().await.unwrap();
    let long = "x ".repeat(9000);
    let refused = client::send(server.address, &post("/v1/completions", &json!({"prompt": long}))).await;
    let busy = concat!(
        r#"{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later "#,
        r#"or on a different instance.","type":"Service Unavailable","param":null,"code":503}}"#
    );
    assert_eq!((refused.status, refused.text().as_str()), (503, busy));
    let unknown = json!({"prompt": "x", "model": "nope"});
    assert_eq!(client::send(server.address, &post("/v1/completions", &unknown)).await.status, 404);
    let page = client::send(server.address, &get("/metrics")).await.text();
    assert!(page.contains(r#"vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 1.0"#));
    let mut rest = Vec::new();
    first.read_to_end(&mut rest).await.unwrap();
    let next = client::send(server.address, &post("/v1/completions", &json!({"prompt": "x"}))).await;
    assert_eq!(next.status, 200);
}
