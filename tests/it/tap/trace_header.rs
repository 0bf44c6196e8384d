//! A trace's first line tells of the engine, whenever the engine came.

use serde_json::json;
use tokio::net::TcpListener;
use vllm_vcr::tap::Deployment;

use crate::support::{
    CHAT,
    peer::{End, Script, Upstream, answer, exchange, post},
    public_reader,
    tapping::Tapping,
};

const MODELS: &str = r#"{"object":"list","data":[{"id":"m","parent":null,"max_model_len":4096}]}"#;
const METRICS: &str = "vllm:cache_config_info{block_size=\"128\",cache_dtype=\"auto\",num_gpu_blocks=\"16384\"} 1.0\n";
const WHOLE: &str = r#"{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;

fn engine(request: &[u8]) -> Script {
    let path = String::from_utf8_lossy(request).split(' ').nth(1).unwrap().to_owned();
    let body = match path.as_str() {
        "/version" => r#"{"version":"0.32.0"}"#,
        "/v1/models" => MODELS,
        "/metrics" => METRICS,
        _ => WHOLE,
    };
    Script { pieces: answer("200 OK", body), end: End::KeepAlive }
}

async fn ask(tap: &Tapping) -> String {
    exchange(tap.address, &post(CHAT, r#"{"messages":[]}"#)).await.body()
}

/// The first line of the only file, as the public reader has it.
async fn meta(tap: Tapping) -> public_reader::Meta {
    let path = tap.folder.path().join("trace.jsonl.gz");
    tap.until("vcr_records_written_total", 1.0).await;
    let (meta, records) = public_reader::load(&path).unwrap();
    assert_eq!(records.len(), 1);
    tap.stop().await;
    meta
}

fn is_complete(meta: &public_reader::Meta) {
    assert_eq!((meta.model.as_deref(), meta.vllm_version.as_deref()), (Some("m"), Some("0.32.0")));
    let cache = json!({"block_size": 128, "cache_dtype": "auto", "num_gpu_blocks": 16384});
    assert_eq!(meta.extra["upstream"], json!({"models": ["m"], "max_model_len": 4096, "cache": cache}));
}

#[tokio::test]
async fn an_engine_that_is_up_tells_what_it_is_and_flags_tell_the_rest() {
    let upstream = Upstream::start(engine).await;
    let tap = Tapping::start(upstream.address, |setup| {
        setup.deployment =
            Deployment { gpu: Some("H100".to_owned()), tensor_parallel: Some(8), max_num_seqs: Some(256) };
    })
    .await;
    assert_eq!(ask(&tap).await, WHOLE);
    let meta = meta(tap).await;
    is_complete(&meta);
    assert_eq!((meta.gpu.as_deref(), meta.tp, meta.max_num_seqs), (Some("H100"), Some(8), Some(256)));
}

#[tokio::test]
async fn an_engine_that_comes_later_does_too() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let tap = Tapping::start(address, |_| {}).await;
    let _upstream = Upstream::on(TcpListener::bind(address).await.unwrap(), engine);
    assert_eq!(ask(&tap).await, WHOLE);
    is_complete(&meta(tap).await);
}

/// An engine that never returns its facts; the record is written all the same.
#[tokio::test]
async fn an_engine_that_keeps_it_to_itself_is_recorded() {
    let upstream = Upstream::start(|request| {
        let is_asked = String::from_utf8_lossy(request).contains("user-agent: vllm-vcr/");
        let pieces = if is_asked { Vec::new() } else { answer("200 OK", WHOLE) };
        Script { pieces, end: if is_asked { End::Silence } else { End::KeepAlive } }
    })
    .await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    assert_eq!(ask(&tap).await, WHOLE);
    let meta = meta(tap).await;
    assert!(meta.model.is_none() && meta.vllm_version.is_none());
}
