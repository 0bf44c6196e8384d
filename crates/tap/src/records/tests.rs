use http::HeaderMap;

use super::*;
use crate::{
    ContentRecording,
    assemble::{CONTINUOUS_USAGE, COUNTED_BY},
    event::StreamEvent,
    request::{RequestFacts, RequestFields, RequestTarget},
};
use recording::trace::{CreateMode, Endpoint, Meta, TraceWriter};
use text::prompt::{BlockHashAlgorithm, BlockHasher};

fn assembler() -> Assembler {
    let hasher = BlockHasher::new(BlockHashAlgorithm::Xxh3_64, 16);
    Assembler { hasher, record_tokens: true, tokenizer: None, content: ContentRecording::default(), permutation: None }
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
    let mut writer = TraceWriter::create(&path, &Meta::default(), CreateMode::New).unwrap();
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

/// The record of a completion whose tokens came 10 ms apart, this many an event, with ids or with the engine's count in each event.
fn streamed(per_event: u32, has_ids: bool, at_end: Option<u32>) -> Record {
    let mut observed = refused(r#"{"model":"m","prompt":"x","stream":true}"#, None);
    (observed.status, observed.outcome) = (Some(200), Some(Outcome::Finished));
    for so_far in (per_event..=64).step_by(per_event as usize) {
        let mut event = json!({"choices": [{"index": 0, "text": "word"}]});
        if has_ids {
            event["choices"][0]["token_ids"] = json!((so_far - per_event..so_far).collect::<Vec<u32>>());
        } else {
            event["usage"] = json!({"prompt_tokens": 5, "completion_tokens": so_far});
        }
        let payload = event.to_string();
        let event = StreamEvent::read(payload.as_bytes()).unwrap();
        observed.observe_event(&event, std::time::Duration::from_millis(40 + 10 * u64::from(so_far)));
    }
    let at_end = at_end
        .map(|count| json!({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": count}}).to_string());
    if let Some(event) = at_end.as_ref().and_then(|payload| StreamEvent::read(payload.as_bytes())) {
        observed.observe_event(&event, std::time::Duration::from_millis(700));
    }
    observed.done = true;
    observed.e2e = std::time::Duration::from_millis(680);
    assembler().records(observed).next().unwrap().record
}

#[test]
fn events_of_any_size_have_the_same_figures_by_ids_and_by_continuous_usage() {
    use replay::meter::{itl, tpot, ttft};
    const MS: std::time::Duration = std::time::Duration::from_millis(1);
    for per_event in [1, 2, 8] {
        let (by_ids, by_usage) = (streamed(per_event, true, Some(64)), streamed(per_event, false, Some(64)));
        assert_eq!(by_usage.chunks, by_ids.chunks);
        assert_eq!(by_usage.extra.get(COUNTED_BY), Some(&json!(CONTINUOUS_USAGE)));
        assert_eq!(by_ids.extra.get(COUNTED_BY), None);
        for record in [by_ids, by_usage] {
            assert_eq!(record.output_tokens, 64);
            assert!(itl(&record).all(|gaps| gaps.each == MS * 10 && gaps.tokens == per_event));
            assert_eq!((tpot(&record), ttft(&record)), (Some(MS * 10), Some(MS * (40 + 10 * per_event))));
        }
    }
}

#[test]
fn a_count_with_every_event_that_is_not_the_one_at_the_end_is_not_believed() {
    let record = streamed(8, false, Some(63));
    assert_eq!((record.output_tokens, record.extra.get(COUNTED_BY)), (63, None));
    assert_eq!(record.chunks.iter().map(|chunk| chunk.tokens).sum::<u32>(), 63);
    assert_eq!(streamed(8, false, None).extra.get(COUNTED_BY), Some(&json!(CONTINUOUS_USAGE)));
}

#[test]
fn a_count_of_none_does_not_hide_the_tokens_that_were_named() {
    let record = streamed(8, true, Some(0));
    assert_eq!((record.output_tokens, record.chunks.len()), (64, 8));
    assert_eq!(record.output_token_ids.unwrap().len(), 64);
}

#[test]
fn counts_of_several_choices_together_are_not_those_of_each() {
    for (counts, at_end, chunks) in
        [([2, 3, 4, 8], 12, [vec![2, 2], vec![3, 5]]), ([2, 5, 9, 12], 12, [vec![1, 1], vec![1, 1]])]
    {
        let mut observed = refused(r#"{"model":"m","prompt":"x","stream":true,"n":2}"#, None);
        (observed.status, observed.outcome) = (Some(200), Some(Outcome::Finished));
        let events = (0..).zip(counts).map(|(number, so_far)| {
            json!({"choices": [{"index": number % 2, "text": "word"}], "usage": {"prompt_tokens": 5, "completion_tokens": so_far}})
        });
        let last = json!({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": at_end}});
        for event in events.chain([last]) {
            let payload = event.to_string();
            let event = StreamEvent::read(payload.as_bytes()).unwrap();
            observed.observe_event(&event, std::time::Duration::from_millis(10));
        }
        let assembler = assembler();
        let records = assembler.records(observed).map(|redacted| redacted.record);
        let tokens = records.map(|record| record.chunks.iter().map(|chunk| chunk.tokens).collect::<Vec<_>>());
        assert_eq!(tokens.collect::<Vec<_>>(), chunks, "{counts:?}");
    }
}
