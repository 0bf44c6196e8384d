//! The published JSON Schema against what is read and written.

use jsonschema::Validator;
use serde_json::Value;
use vllm_vcr::{
    recording::trace::{self, CaptureEnd, CreateMode, FORMAT, Meta, Record, TraceWriter},
    text::prompt::{BlockHashAlgorithm, BlockHasher, HashKey},
};

use super::bad_lines::BAD_LINES;
use crate::support::traces::{json_lines, own_shapes, upstream};

fn schema() -> Validator {
    let text = include_str!("../../../docs/src/reference/trace.schema.json");
    jsonschema::validator_for(&serde_json::from_str(text).unwrap()).unwrap()
}

#[test]
fn every_line_read_or_written_validates() {
    let schema = schema();
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.jsonl");
    for path in upstream().into_iter().chain(own_shapes()) {
        let trace = trace::read(&path).unwrap();
        let meta = Meta { format: Some(FORMAT), ..trace.meta };
        let mut writer = TraceWriter::create(&copy, &meta, CreateMode::Truncate).unwrap();
        trace.records.iter().for_each(|record| assert!(writer.append(record).unwrap().is_empty()));
        writer.finish(CaptureEnd::default()).unwrap();
        for line in json_lines(&path).into_iter().chain(json_lines(&copy)) {
            let errors: Vec<String> = schema.iter_errors(&line).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{}: {line}: {errors:?}", path.display());
        }
    }
}

#[test]
fn keyed_traces_validate() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keyed.jsonl");
    let key = HashKey::new(b"a key that is long enough");
    let mut meta = Meta {
        format: Some(FORMAT),
        block_size: Some(2),
        block_hash: Some(BlockHashAlgorithm::SipHash24),
        hash_key_id: Some(key.id()),
        ..Meta::default()
    };
    meta.extra.insert("ids_permuted".to_owned(), true.into());
    let block_hashes = BlockHasher::keyed(key, 2).hash(&[1, 2, 3]).blocks.into();
    let record = Record { prompt_tokens: 3, block_hashes, ..Record::default() };
    let mut writer = TraceWriter::create(&path, &meta, CreateMode::New).unwrap();
    assert!(writer.append(&record).unwrap().is_empty());
    writer.finish(CaptureEnd::default()).unwrap();
    let (lines, schema) = (json_lines(&path), schema());
    assert_eq!(lines[0]["meta"]["block_hash"], "siphash-2-4-64");
    assert!(lines.iter().all(|line| schema.is_valid(line)), "{lines:?}");
}

#[test]
fn bad_lines_do_not_validate_unless_only_a_count_is_wrong() {
    let schema = schema();
    for bad in BAD_LINES {
        let Ok(line) = serde_json::from_str::<Value>(bad.line) else { continue };
        assert_eq!(schema.is_valid(&line), bad.is_beyond_schema, "{}", bad.line);
    }
}
