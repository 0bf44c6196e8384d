//! A body that comes again is answered as if it had come for the first time.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use vllm_vcr::{
    base::units::TimeScale,
    play::{Config, ServerOptions},
    recording::trace::FinishReason,
    replay::matching::MatchBy,
    replay::timing::Pacing,
};

use crate::support::{
    client::{self, get, post},
    play_server::{config, record, start},
};

const MS: Duration = Duration::from_millis(1);

#[tokio::test]
async fn every_time_it_takes_the_next_record_and_has_a_name_of_its_own() {
    let records = (0..4).map(|at| record(&[20 + at, 21], MS, FinishReason::Stop)).collect();
    let server = start(config(&[MatchBy::Next], records)).await;
    let request = post("/v1/completions", &json!({"prompt": "x", "return_token_ids": true}));
    let (mut firsts, mut ids) = (Vec::new(), Vec::new());
    for turn in 0..4 {
        let answer = client::send(server.address, &request).await;
        assert_eq!(answer.header("x-vcr-record"), Some(turn.to_string().as_str()));
        let body: Value = serde_json::from_str(&answer.text()).unwrap();
        firsts.push(body["choices"][0]["token_ids"][0].as_u64().unwrap());
        ids.push(body["id"].as_str().unwrap().to_owned());
    }
    assert_eq!(firsts, [20, 21, 22, 23]);
    ids.dedup();
    assert_eq!(ids.len(), 4);
}

#[tokio::test]
async fn the_same_bytes_are_another_request_at_another_endpoint() {
    let server = start(config(&[MatchBy::Next], vec![record(&[20, 21], MS, FinishReason::Stop)])).await;
    let body = json!({"prompt": "x", "messages": [{"role": "user", "content": "x"}]});
    for _ in 0..3 {
        for (path, object) in [("/v1/completions", "text_completion"), ("/v1/chat/completions", "chat.completion")] {
            let answer = client::send(server.address, &post(path, &body)).await;
            let answer: Value = serde_json::from_str(&answer.text()).unwrap();
            assert_eq!(answer["object"], object);
        }
    }
}

#[tokio::test]
async fn what_is_refused_is_refused_every_time() {
    let server = start(config(&[MatchBy::Next], vec![record(&[20, 21], MS, FinishReason::Stop)])).await;
    let request = post("/v1/completions", &json!({"prompt": "x", "temperature": -1}));
    let first = client::send(server.address, &request).await;
    assert_eq!(first.status, 400);
    for _ in 0..3 {
        assert_eq!(client::send(server.address, &request).await.text(), first.text());
    }
}

#[tokio::test]
async fn a_known_request_waits_for_room_like_any_other() {
    let slow = record(&[20, 21, 22], 100 * MS, FinishReason::Stop);
    let options = ServerOptions { max_queued: Some(1), ..ServerOptions::default() };
    let pacing = Pacing::Recorded { scale: TimeScale::REAL };
    let server = start(Config { server: options, pacing, ..config(&[MatchBy::Next], vec![slow]) }).await;
    let request = post("/v1/completions", &json!({"prompt": "x", "stream": true}));
    for _ in 0..2 {
        assert_eq!(client::send(server.address, &request).await.status, 200);
    }
    let mut running = client::open(server.address, &request).await;
    running.read_u8().await.unwrap();
    assert_eq!(client::send(server.address, &request).await.status, 503);
    let mut rest = Vec::new();
    running.read_to_end(&mut rest).await.unwrap();
    assert_eq!(client::send(server.address, &request).await.status, 200);
    let page = client::send(server.address, &get("/metrics")).await.text();
    assert!(page.contains(r#"vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 1.0"#));
}
