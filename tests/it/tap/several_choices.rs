//! One record for every choice that was asked for, also of those that never spoke.

use tokio::{io::AsyncWriteExt, net::TcpStream};
use vllm_vcr::recording::trace::{Outcome, Record};

use crate::support::{
    CHAT,
    peer::{End, Script, Upstream, answer, event_stream, exchange, post},
    tapping::Tapping,
};

const COMPLETIONS: &str = "/v1/completions";

/// The records of one request to an upstream that does what `script` says.
async fn recorded(script: fn(&[u8]) -> Script, path: &str, body: &str) -> Vec<Record> {
    let upstream = Upstream::start(script).await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    exchange(tap.address, &post(path, body)).await;
    told(tap).await
}

/// The records of a tap, which are as many as its counters say.
async fn told(tap: Tapping) -> Vec<Record> {
    let handle = tap.handle.clone();
    let (report, records) = tap.records().await;
    let page = handle.metrics();
    let counted = |name: &str| -> u64 {
        page.lines()
            .filter(|line| line.starts_with(name))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    };
    let due = counted("vcr_choices_total");
    assert_eq!((records.len() as u64, report.recorder.written), (due, due), "{page}");
    assert_eq!(counted("vcr_exchanges_total"), 1);
    records
}

/// Every choice once, all of one request, all with this outcome.
fn assert_choices(records: &[Record], count: u32, outcome: Outcome) {
    let mut indices: Vec<u32> = records.iter().filter_map(|record| record.choice).collect();
    indices.sort_unstable();
    assert_eq!(indices, (0..count).collect::<Vec<_>>(), "{records:?}");
    assert!(records.iter().all(|record| record.outcome == Some(outcome)), "{records:?}");
    assert!(records.iter().all(|record| record.group.is_some() && record.group == records[0].group));
}

fn refuse(_: &[u8]) -> Script {
    Script { pieces: answer("500 Internal Server Error", r#"{"error":"x"}"#), end: End::KeepAlive }
}

fn reset(_: &[u8]) -> Script {
    Script { pieces: Vec::new(), end: End::Close }
}

#[tokio::test]
async fn choices_that_never_spoke_have_outcomes() {
    assert_choices(&recorded(refuse, CHAT, r#"{"n":3,"stream":true}"#).await, 3, Outcome::Error);
    let several = r#"{"n":2,"prompt":["a","b","c"]}"#;
    assert_choices(&recorded(refuse, COMPLETIONS, several).await, 6, Outcome::Error);
    assert_choices(&recorded(reset, COMPLETIONS, several).await, 6, Outcome::UpstreamFailed);
    assert_choices(&recorded(reset, COMPLETIONS, r#"{"prompt":[[1,2],[3]]}"#).await, 2, Outcome::UpstreamFailed);
    let absurd = recorded(reset, CHAT, r#"{"n":4000000000}"#).await;
    assert_choices(&absurd, 128, Outcome::UpstreamFailed);
    let single = recorded(reset, COMPLETIONS, r#"{"prompt":[1,2,3]}"#).await;
    assert_eq!((single.len(), single[0].choice, &single[0].group), (1, None, &None));
}

#[tokio::test]
async fn a_stream_that_breaks_off_tells_of_the_choices_that_had_not_begun() {
    let script = |_: &[u8]| {
        let first = r#"{"id":"1","choices":[{"index":1,"delta":{"content":"a"},"finish_reason":null}]}"#;
        let mut pieces = event_stream(&[first]);
        pieces.pop();
        Script { pieces, end: End::Close }
    };
    let records = recorded(script, CHAT, r#"{"n":3,"stream":true}"#).await;
    assert_choices(&records, 3, Outcome::UpstreamFailed);
    let tokens: Vec<u32> = records.iter().map(|record| record.output_tokens).collect();
    assert_eq!(tokens, [0, 1, 0]);
}

#[tokio::test]
async fn ids_of_one_choice_stay_where_another_has_no_token_when_the_stream_is_cut() {
    let script = |_: &[u8]| {
        let role = r#"{"id":"1","choices":[{"index":0,"delta":{"role":"assistant","content":""}},{"index":1,"delta":{"role":"assistant","content":""}}]}"#;
        let first =
            r#"{"id":"1","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null,"token_ids":[7]}]}"#;
        let mut pieces = event_stream(&[role, first]);
        pieces.pop();
        Script { pieces, end: End::Close }
    };
    let records = recorded(script, CHAT, r#"{"n":2,"stream":true,"return_token_ids":true}"#).await;
    assert_choices(&records, 2, Outcome::UpstreamFailed);
    let ids: Vec<Option<&[u32]>> = records.iter().map(|record| record.output_token_ids.as_deref()).collect();
    assert_eq!(ids, [Some(&[7][..]), None]);
}

#[tokio::test]
async fn an_engine_that_makes_one_choice_of_several_has_one_record() {
    let script = |_: &[u8]| {
        let event = r#"{"id":"1","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}"#;
        Script { pieces: event_stream(&[event, "[DONE]"]), end: End::KeepAlive }
    };
    let records = recorded(script, CHAT, r#"{"n":3,"stream":true}"#).await;
    assert_eq!((records.len(), records[0].outcome), (1, Some(Outcome::Finished)));
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_byte_leaves_every_choice() {
    let upstream = Upstream::start(|_| Script { pieces: Vec::new(), end: End::Silence }).await;
    let tap = Tapping::start(upstream.address, |_| {}).await;
    let mut stream = TcpStream::connect(tap.address).await.unwrap();
    stream.write_all(&post(CHAT, r#"{"n":2,"stream":true}"#)).await.unwrap();
    tap.until("vcr_exchanges_in_flight", 1.0).await;
    drop(stream);
    tap.until("vcr_exchanges_total{outcome=\"client_gone\"}", 1.0).await;
    assert_choices(&told(tap).await, 2, Outcome::ClientGone);
}
