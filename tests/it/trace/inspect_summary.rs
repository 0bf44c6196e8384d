//! `inspect` on whole files.

use std::time::Duration;

use vllm_vcr::inspect;
use vllm_vcr::recording::redaction::RedactionRules;
use vllm_vcr::recording::trace::{Record, Sources, replay_order};

use crate::support::traces::{own_shapes, upstream};

#[test]
fn every_public_shape_can_be_summed_up() {
    for path in upstream().into_iter().chain(own_shapes()) {
        let report = inspect::summary(&Sources::one(&path), &std::sync::Arc::default()).unwrap();
        assert!(report.records > 0 && report.tokens.output_total > 0);
        let text = report.to_string();
        assert!(text.contains("TTFT") && text.contains("finish reason"), "{text}");
        assert!(serde_json::to_value(&report).unwrap()["latencies"]["ttft"]["p50"].is_number());
        assert_eq!(inspect::check(&path).unwrap().findings, []);
    }
}

#[test]
fn figures_are_those_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let lines = [
        r#"{"meta":{"model":"m","format":1}}"#,
        r#"{"prompt_tokens":40,"output_tokens":2,"ttft_ms":20.0,"itl_ms":[30.0],"arrival_ms":0,"block_hashes":[1,2],"prompt_hash":5,"endpoint":"chat","status":200}"#,
        r#"{"prompt_tokens":40,"output_tokens":1,"ttft_ms":25.0,"arrival_ms":25,"block_hashes":[1,2],"prompt_hash":5}"#,
    ];
    std::fs::write(&path, lines.join("\n")).unwrap();
    let report = inspect::summary(&Sources::one(&path), &std::sync::Arc::default()).unwrap();
    assert_eq!((report.records, report.requests, report.duration_ms), (2, 2, Some(50.0)));
    assert_eq!(report.arrival_rate, Some(40.0));
    assert_eq!(report.concurrency.as_ref().unwrap().max, 2);
    let sharing = report.sharing.as_ref().unwrap();
    assert_eq!((sharing.shared_blocks, sharing.duplicate_prompts), (2, 1));
    assert_eq!(report.by.endpoint["chat"], 1);
    assert_eq!(report.by.endpoint["unknown"], 1);
    assert_eq!(report.warnings, [""; 0]);
}

#[test]
fn the_replay_order_is_by_arrival_and_stable() {
    let at = |ms: Option<u64>| Record { arrival: ms.map(Duration::from_millis), ..Record::default() };
    let records: Vec<Record> = [None, Some(5), Some(1), None, Some(5), Some(0)].map(at).into();
    assert_eq!(replay_order(&records), [5, 2, 1, 4, 0, 3]);
}

#[test]
fn recorded_line_feeds_begin_no_line_of_a_summary_or_an_audit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let lines = [
        r#"{"meta":{"model":"m\nforged by meta","vllm_version":"1\nforged by version","format":1}}"#,
        r#"{"prompt_tokens":4,"output_tokens":1,"ttft_ms":20.0,"model":"m\nforged by model","request":{"a\nforged by key":{"password":"hunter2x"}}}"#,
    ];
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    let summary = inspect::summary(&Sources::one(&path), &std::sync::Arc::default()).unwrap().to_string();
    let audit = inspect::audit(&path, &RedactionRules::default()).unwrap();
    assert_eq!(audit.secrets_found, 1);
    for text in [summary, audit.to_string()] {
        assert!(text.contains(r"\nforged"), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("forged")), "{text}");
    }
}
