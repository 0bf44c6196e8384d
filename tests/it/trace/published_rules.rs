//! What a tap writes keeps the published rules, as the public reader checks them.

use crate::support::{
    CHAT,
    peer::{End, Script, Upstream, answer, exchange, post},
    public_reader::load,
    tapping::Tapping,
    traces::upstream,
    tree,
};

#[test]
fn it_keeps_the_published_rules() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let loads = |line: &str| {
        std::fs::write(&path, format!("{{\"meta\":{{\"tp\":2}}}}\n{line}\n")).unwrap();
        load(&path).map(|(meta, records)| (meta.tp, records.len()))
    };
    assert_eq!(
        loads(r#"{"prompt_tokens":1,"output_tokens":3,"ttft_ms":1,"itl_ms":[1],"itl_tokens":[2],"x":1}"#),
        Ok((Some(2), 1))
    );
    for line in [
        r#"{"end":{"records":0,"dropped":0}}"#,
        r#"{"prompt_tokens":1,"output_tokens":2,"ttft_ms":1}"#,
        r#"{"prompt_tokens":1,"output_tokens":2,"ttft_ms":1,"itl_ms":[1],"itl_tokens":[2]}"#,
        r#"{"prompt_tokens":1,"output_tokens":2,"ttft_ms":1,"itl_ms":[1],"output_token_ids":[1]}"#,
        r#"{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1,"finish_reason":"bored"}"#,
    ] {
        assert!(loads(line).is_err(), "{line}");
    }
}

#[test]
fn it_takes_public_files_and_the_one_that_is_built_in() {
    let built_in = tree::root().join("traces/builtin.jsonl.gz");
    for path in upstream().into_iter().chain([built_in]) {
        assert!(!load(&path).unwrap().1.is_empty());
    }
}

/// Nobody saw when its tokens came, and no time to a first token is as short as nothing.
#[tokio::test]
async fn a_whole_answer_gives_a_fit_no_gap_and_an_error_no_short_wait() {
    let whole = r#"{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":9}}"#;
    let engine = Upstream::start(move |request| {
        let status = if String::from_utf8_lossy(request).contains("fail") { "400 Bad Request" } else { "200 OK" };
        Script { pieces: answer(status, whole), end: End::KeepAlive }
    })
    .await;
    let tap = Tapping::start(engine.address, |_| {}).await;
    for body in [r#"{"messages":[]}"#, r#"{"messages":["fail"]}"#] {
        exchange(tap.address, &post(CHAT, body)).await;
    }
    tap.until("vcr_records_written_total", 2.0).await;
    let records = load(&tap.folder.path().join("trace.jsonl.gz")).unwrap().1;
    assert_eq!(records.iter().map(|record| record.output_tokens).collect::<Vec<_>>(), [9, 0]);
    assert!(records.iter().all(|record| record.gaps().is_empty() && record.ttft_ms > 0.0), "{records:?}");
    tap.stop().await;
}
