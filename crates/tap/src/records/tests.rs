use http::HeaderMap;

use super::*;
use crate::{
    Content,
    event::StreamEvent,
    request::{RequestFacts, RequestFields, RequestTarget},
};
use recording::trace::{CreateMode, Endpoint, Meta, Writer};
use text::prompt::{BlockHash, BlockHasher};

fn assembler() -> Assembler {
    let hasher = BlockHasher::new(BlockHash::Xxh3_64, 16);
    Assembler { hasher, record_tokens: true, tokenizer: None, content: Content::default(), permutation: None }
}

/// An exchange that ended in an error of the engine.
fn refused(body: &str, request_id: Option<&str>) -> ObservedExchange {
    let target = RequestTarget { endpoint: Endpoint::Completions, path: "/v1/completions" };
    let id = request_id.map(|id| (http::HeaderName::from_static("x-request-id"), id.parse().unwrap()));
    let headers = HeaderMap::from_iter(id);
    let facts = RequestFacts::new(target, &headers, body.as_bytes(), RequestFields::read(body.as_bytes()).as_ref());
    let mut observed = ObservedExchange::default();
    (observed.facts, observed.status, observed.outcome) = (facts, Some(401), Some(Outcome::Error));
    observed
}

/// Writes the records of an exchange; returns them and the bytes of their trace.
fn written(observed: ObservedExchange) -> (Vec<Record>, u64) {
    let (folder, assembler) = (tempfile::tempdir().unwrap(), assembler());
    let path = folder.path().join("a.jsonl");
    let mut writer = Writer::create(&path, &Meta::default(), CreateMode::New).unwrap();
    let due = observed.records();
    let records: Vec<Record> = assembler.records(observed).map(|redacted| redacted.record).collect();
    records.iter().for_each(|record| assert!(writer.append(record).unwrap().is_empty()));
    writer.flush().unwrap();
    assert_eq!(records.len() as u64, due, "what is announced is made");
    (records, std::fs::metadata(&path).unwrap().len())
}

#[test]
fn a_request_for_many_silent_choices_costs_less_than_it_is_long() {
    let body = format!(r#"{{"model":"{}","prompt":[{}""]}}"#, "m".repeat(60_000), r#""","#.repeat(99_999));
    let (records, bytes) = written(refused(&body, None));
    assert!(records.len() <= 1024 && bytes < body.len() as u64, "{} records, {bytes} bytes", records.len());
    assert_eq!(records[0].extra.get("choices_left_out"), Some(&json!(100_000 - 1024)));
    assert!(records.iter().all(|record| record.extra.get("long_names") == Some(&json!(["model"]))));
    assert!(records[1].model.is_none() && records[1].extra.get("choices_left_out").is_none());
}

#[test]
fn long_names_are_left_out_of_every_choice_and_others_stay() {
    let body = format!(r#"{{"model":"{}","prompt":"x","n":128}}"#, "m".repeat(256));
    let (records, bytes) = written(refused(&body, Some(&"r".repeat(60_000))));
    assert_eq!((records.len(), records[0].extra.get("choices_left_out")), (128, None));
    assert_eq!(records[0].extra.get("long_names"), Some(&json!(["request_id"])));
    assert_eq!((records[127].model.as_ref().map(String::len), records[127].request_id.as_ref()), (Some(256), None));
    assert!(bytes < 2 * 60_000, "{bytes} bytes");
}

#[test]
fn a_response_with_very_many_choices_has_a_record_for_each_up_to_the_limit() {
    let mut observed = refused(r#"{"prompt":"x","n":70000}"#, None);
    (observed.status, observed.outcome) = (Some(200), Some(Outcome::Finished));
    let choices: Vec<String> =
        (0..70_000).rev().map(|index| format!(r#"{{"index":{index},"text":"a","token_ids":[1]}}"#)).collect();
    let usage = r#"{"prompt_tokens":1,"completion_tokens":70000}"#;
    let body = format!(r#"{{"choices":[{}],"usage":{usage}}}"#, choices.join(","));
    observed.observe_response(&StreamEvent::read(body.as_bytes()).unwrap(), std::time::Duration::from_millis(1));
    assert!(observed.ids_are_complete());
    // A choice costs its own struct, a chunk and a place.
    assert!(observed.weigh() < 32 * body.len(), "{} bytes for {}", observed.weigh(), body.len());
    let (records, _) = written(observed);
    assert_eq!(records.len(), super::super::observed_choices::MAX_CHOICES);
    assert_eq!(records[0].extra.get("choices_left_out"), Some(&json!(70_000 - records.len())));
    assert!(records.iter().all(|record| record.output_token_ids.as_deref() == Some(&[1])));
}

#[test]
fn equal_prompts_in_a_row_are_hashed_alike() {
    let mut observed = refused(r#"{"prompt":["x","y"],"n":2}"#, None);
    (observed.status, observed.outcome) = (Some(200), Some(Outcome::Finished));
    let prompt = |index: u32| (0..40).map(|token| (token + index / 2 * 1000).to_string()).collect::<Vec<_>>().join(",");
    let choices: Vec<String> = (0..4)
        .map(|index| {
            format!(r#"{{"index":{index},"text":"a","token_ids":[1],"prompt_token_ids":[{}]}}"#, prompt(index))
        })
        .collect();
    let body = format!(r#"{{"choices":[{}]}}"#, choices.join(","));
    observed.observe_response(&StreamEvent::read(body.as_bytes()).unwrap(), std::time::Duration::from_millis(1));
    let (records, _) = written(observed);
    let hashes: Vec<_> = records.iter().map(|record| (record.block_hashes.clone(), record.prompt_hash)).collect();
    assert!(hashes[0].0.len() == 2 && hashes[0] == hashes[1] && hashes[2] == hashes[3] && hashes[0] != hashes[2]);
    assert!(records.iter().all(|record| record.prompt_tokens == 40));
}

#[test]
fn an_exchange_weighs_what_it_holds() {
    let mut observed = refused(r#"{"prompt":"x"}"#, None);
    let empty = observed.weigh();
    let event = br#"{"choices":[{"index":0,"text":"a"}]}"#;
    for _ in 0..10_000 {
        observed.observe_event(&StreamEvent::read(event).unwrap(), std::time::Duration::from_millis(1));
    }
    let chunks = 10_000 * size_of::<recording::trace::Chunk>();
    assert!(observed.weigh() >= empty + chunks, "{} bytes", observed.weigh());
    observed.body = Some(Bytes::from(vec![0; 1 << 20]));
    assert!(observed.weigh() > 1 << 20);
    let with_body = observed.weigh();
    assert!(observed.drop_body() && observed.weigh() + (1 << 20) == with_body && !observed.drop_body());
}
