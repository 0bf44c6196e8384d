//! Chats with images, audio and video.

use serde_json::{Value, json};
use vllm_vcr::{
    play::{Config, Source, Synthetic},
    recording::trace::Record,
    replay::matching::MatchBy,
};

use crate::support::{
    CHAT,
    client::{self, Answer, post},
    peer::{self, End, Script, Upstream, answer, exchange},
    play_server::{Server, config, start},
    tapping::Tapping,
};

fn about(url: &str, question: &str) -> Value {
    let parts = json!([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]);
    json!({"messages": [{"role": "user", "content": parts}], "max_tokens": 9, "return_token_ids": true})
}

async fn ask(server: &Server, body: &Value) -> Answer {
    client::send(server.address, &post(CHAT, body)).await
}

/// Records of questions about two images, whose answers are tokens 100 and 200: prompts of the same 40 ids.
async fn recorded() -> Vec<Record> {
    let engine = |request: &[u8]| {
        let id = if String::from_utf8_lossy(request).contains("data:one") { 100 } else { 200 };
        let body = json!({
            "id": "chatcmpl-1", "prompt_token_ids": vec![7; 40],
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "length", "token_ids": [id]}],
            "usage": {"prompt_tokens": 40, "completion_tokens": 1, "total_tokens": 41}
        });
        Script { pieces: answer("200 OK", &body.to_string()), end: End::KeepAlive }
    };
    let upstream = Upstream::start(engine).await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    for url in ["data:one", "data:two"] {
        exchange(tap.address, &peer::post(CHAT, &about(url, "What is it?").to_string())).await;
    }
    tap.records().await.1
}

#[tokio::test]
async fn the_image_decides_which_record_answers() {
    let records = recorded().await;
    assert!(records.iter().all(|record| matches!(record.mm_hashes.as_slice(), [hash] if hash.starts_with("vcr:"))));
    assert_ne!(records[0].mm_hashes, records[1].mm_hashes);
    assert!(!format!("{records:?}").contains("data:"), "no content is recorded");
    let server = start(config(&[MatchBy::Prefix], records)).await;
    for (url, question, id) in [
        ("data:two", "What is it?", Some(200)),
        ("data:one", "What is it?", Some(100)),
        ("data:one", "Another question?", Some(100)),
        ("data:three", "What is it?", None),
    ] {
        let answer = ask(&server, &about(url, question)).await;
        let by = answer.header("x-vcr-match").unwrap().split(';').next().unwrap();
        assert_eq!(by, if id.is_some() { "prefix" } else { "random" }, "{url} {question}");
        if let Some(id) = id {
            assert_eq!(answer.json()["choices"][0]["token_ids"], json!([id]), "{url} {question}");
            assert_eq!(answer.json()["usage"]["prompt_tokens"], 40, "as the engine counted them");
        }
    }
}

#[tokio::test]
async fn media_are_refused_unless_the_trace_has_some_or_the_flag_is_given() {
    let text_only =
        recorded().await.into_iter().map(|record| Record { mm_hashes: Vec::new().into(), ..record }).collect();
    let server = start(config(&[MatchBy::Index], text_only)).await;
    let refused = ask(&server, &about("data:one", "What is it?")).await;
    assert_eq!((refused.status, &refused.json()["error"]["message"]), (400, &json!("m is not a multimodal model")));
    let flag = |multimodal| Config {
        source: Source::Synthetic(Synthetic::Random),
        served_model_names: vec!["m".to_owned()],
        multimodal,
        ..Config::default()
    };
    let taking = start(flag(true)).await;
    let with = ask(&taking, &about("data:one", "What is it?")).await;
    let question = json!({"messages": [{"role": "user", "content": "What is it?"}], "max_tokens": 9});
    let without = ask(&taking, &question).await;
    let tokens = |answer: &Answer| answer.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!((with.status, without.status), (200, 200));
    assert!(tokens(&with) > tokens(&without), "the placeholder counts");
}
