//! What is written is what is read, and public files come through unchanged.

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use vllm_vcr::recording::trace::{
    self, CaptureEnd, Chunk, CreateMode, Endpoint, FORMAT, FinishReason, ItlSummary, Meta, Outcome, Record,
    StepContext, TraceWriter,
};

use crate::support::traces::{json_lines, own_shapes, upstream};

fn write(path: &Path, meta: &Meta, records: &[Record]) {
    let mut writer = TraceWriter::create(path, meta, CreateMode::Truncate).unwrap();
    for record in records {
        assert!(writer.append(record).unwrap().is_empty());
    }
    writer.finish(CaptureEnd::default()).unwrap();
}

/// Equal as JSON, numbers to the nanosecond of a millisecond.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(a), Value::Number(b)) if a.is_u64() && b.is_u64() => a == b,
        (Value::Number(a), Value::Number(b)) => (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() <= 1e-6,
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, value)| b.get(key).is_some_and(|other| same(value, other)))
        }
        (a, b) => a == b,
    }
}

#[test]
fn public_files_come_through_unchanged() {
    for path in upstream().into_iter().chain(own_shapes()) {
        let trace = trace::read(&path).unwrap();
        assert_eq!(trace.warnings, []);
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("copy.jsonl");
        write(&copy, &trace.meta, &trace.records);
        let (before, mut after) = (json_lines(&path), json_lines(&copy));
        if before[0].get("meta").is_none() {
            assert_eq!(after.remove(0), json!({"meta": {}}));
        }
        assert_eq!(before.len(), after.len(), "{}", path.display());
        for (before, after) in before.iter().zip(&after) {
            assert!(same(before, after), "{}:\n{before}\n{after}", path.display());
        }
    }
}

fn gaps() -> impl Strategy<Value = Duration> {
    (0_u64..1 << 48).prop_map(Duration::from_nanos)
}

fn chunks() -> impl Strategy<Value = Vec<Chunk>> {
    let chunk = (gaps(), 1_u32..9, 0_u32..9).prop_map(|(gap, tokens, n)| Chunk {
        gap,
        tokens,
        step: Some(StepContext { num_running: n, prefill_tokens: n * 7 }),
    });
    (prop::collection::vec(chunk, 0..12), any::<bool>()).prop_map(|(mut chunks, steps)| {
        for (index, chunk) in chunks.iter_mut().enumerate() {
            if index == 0 || !steps {
                chunk.step = None;
            }
        }
        chunks
    })
}

fn shape() -> impl Strategy<Value = Record> {
    (chunks(), prop::option::of((1_u32..90, 0_u32..1_000_000)), gaps(), any::<(u32, bool)>()).prop_map(
        |(mut chunks, summary, ttft, (prompt_tokens, ids))| {
            let mut output_tokens: u32 = chunks.iter().map(|chunk| chunk.tokens).sum();
            let mut itl_summary = None;
            if let Some((count, mean)) = summary.filter(|_| !chunks.is_empty()) {
                chunks.truncate(1);
                output_tokens = chunks[0].tokens + count;
                itl_summary = Some(ItlSummary { mean_ms: f64::from(mean) / 1000.0, count });
            }
            Record {
                prompt_tokens,
                output_tokens,
                ttft_without_tokens: if chunks.is_empty() { ttft } else { Duration::ZERO },
                chunks,
                itl_summary,
                output_token_ids: ids.then(|| (0..output_tokens).collect()),
                ..Record::default()
            }
        },
    )
}

fn with_public(base: impl Strategy<Value = Record>) -> impl Strategy<Value = Record> {
    let reason = prop::option::of(prop::sample::select(vec![
        FinishReason::Stop,
        FinishReason::Length,
        FinishReason::Abort,
        FinishReason::Error,
        FinishReason::Repetition,
    ]));
    let hashes = prop::collection::vec(any::<u64>(), 0..5);
    let media = prop::collection::vec(".{0,9}", 0..3);
    (base, any::<(Option<u32>, Option<u32>)>(), prop::option::of(gaps()), hashes, media, reason).prop_map(
        |(record, (cached_tokens, concurrency), arrival, block_hashes, mm_hashes, finish_reason)| Record {
            cached_tokens: cached_tokens.map(|cached: u32| cached.min(record.prompt_tokens)),
            concurrency,
            arrival,
            block_hashes: block_hashes.into(),
            mm_hashes: mm_hashes.into(),
            finish_reason,
            ..record
        },
    )
}

fn with_ours(base: impl Strategy<Value = Record>) -> impl Strategy<Value = Record> {
    let endpoint = prop::option::of(prop::sample::select(vec![Endpoint::Chat, Endpoint::Completions]));
    let outcome = prop::option::of(prop::sample::select(vec![
        Outcome::Finished,
        Outcome::Error,
        Outcome::ClientGone,
        Outcome::UpstreamFailed,
        Outcome::TimedOut,
        Outcome::Cut,
    ]));
    let names = prop::array::uniform5(prop::option::of(".{0,12}"));
    let numbers = any::<(Option<u64>, Option<u32>, Option<u32>, Option<u16>, Option<bool>)>();
    (base, endpoint, outcome, names, numbers, prop::option::of(gaps())).prop_map(
        |(record, endpoint, outcome, [request_id, group, model, request_key, session], numbers, e2e)| Record {
            endpoint,
            outcome,
            request_id,
            group,
            model,
            request_key,
            session,
            prompt_hash: numbers.0,
            stop_token: numbers.1,
            choice: numbers.2,
            status: numbers.3,
            stream: numbers.4,
            e2e,
            first_event: e2e.map(|e2e| e2e / 3),
            ..record
        },
    )
}

fn with_content(base: impl Strategy<Value = Record>) -> impl Strategy<Value = Record> {
    let value =
        prop_oneof![any::<i64>().prop_map(Value::from), ".*".prop_map(Value::from), Just(json!([{"a": [1.5]}]))];
    let map = prop::collection::btree_map("x_[a-z]{1,5}", value.clone(), 0..4)
        .prop_map(|map| map.into_iter().collect::<Map<String, Value>>());
    let strings = prop::option::of(prop::collection::vec("\\PC*", 0..4));
    (base, map.clone(), map, prop::option::of(value), strings.clone(), strings).prop_map(
        |(record, params, extra, request, text, events)| Record { params, extra, request, text, events, ..record },
    )
}

fn records() -> impl Strategy<Value = Record> {
    with_content(with_ours(with_public(shape())))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]
    #[test]
    fn written_records_are_read_back(records in prop::collection::vec(records(), 0..6), packed in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(if packed { "trace.jsonl.gz" } else { "trace.jsonl" });
        let meta = Meta { format: Some(FORMAT), block_size: Some(16), ..Meta::default() };
        write(&path, &meta, &records);
        let trace = trace::read(&path).unwrap();
        prop_assert_eq!(&trace.meta, &meta);
        prop_assert_eq!(&trace.records, &records);
        prop_assert_eq!(&trace.warnings, &[]);
        prop_assert_eq!(trace.end.map(|end| end.records), packed.then_some(records.len() as u64));
        prop_assert_eq!(trace::check(&path).unwrap().findings, []);
    }
}
