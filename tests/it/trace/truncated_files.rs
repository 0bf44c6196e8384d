//! Files that stop early: every complete record is kept, and the reader gets a warning.

use std::path::Path;
use std::time::Duration;

use vllm_vcr::recording::trace::{
    self, CaptureEnd, Chunk, CreateMode, FORMAT, Meta, Record, TraceError, TraceWriter, Warning,
};

fn record(id: usize) -> Record {
    Record {
        prompt_tokens: 7,
        output_tokens: 2,
        chunks: vec![
            Chunk { gap: Duration::from_micros(1500), tokens: 1, step: None },
            Chunk { gap: Duration::from_nanos(21_604_001), tokens: 1, step: None },
        ],
        request_id: Some(format!("é\"{id}")),
        ..Record::default()
    }
}

fn meta() -> Meta {
    Meta { format: Some(FORMAT), ..Meta::default() }
}

/// Writes three records, each flushed, and returns how long the file was after the meta and after each of them.
fn capture(path: &Path) -> Vec<usize> {
    let mut writer = TraceWriter::create(path, &meta(), CreateMode::New).unwrap();
    let length = || usize::try_from(std::fs::metadata(path).unwrap().len()).unwrap();
    let mut lengths = vec![length()];
    for id in 0..3 {
        writer.append(&record(id)).unwrap();
        writer.flush().unwrap();
        lengths.push(length());
    }
    writer.finish(CaptureEnd::default()).unwrap();
    lengths
}

#[test]
fn a_cut_at_any_byte_keeps_every_complete_record() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["whole.jsonl", "whole.jsonl.gz"] {
        let path = folder.path().join(name);
        let lengths = capture(&path);
        let whole = std::fs::read(&path).unwrap();
        let cut = folder.path().join(format!("cut-{name}"));
        for length in 0..whole.len() {
            std::fs::write(&cut, &whole[..length]).unwrap();
            let trace = trace::read(&cut).unwrap_or_else(|error| panic!("{name} at {length}: {error}"));
            let flushed = lengths.iter().skip(1).filter(|end| **end <= length).count();
            // The newline, and gzip's trailer, add nothing to a record.
            assert!((flushed..=flushed + 1).contains(&trace.records.len()), "{name} at {length}");
            assert!(trace.records.iter().enumerate().all(|(id, kept)| *kept == record(id)));
            let records = trace.records.len() as u64;
            let told = trace.warnings.iter().all(|warning| match warning {
                Warning::Cut { records: kept, .. } | Warning::NoEnd { records: kept } => *kept == records,
                Warning::NewerFormat { .. } | Warning::MissingParts { .. } | Warning::Unhashed { .. } => false,
            });
            assert!(told, "{name} at {length}: {:?}", trace.warnings);
            // A cut of a plain file between two lines cannot be detected.
            let is_between = whole[..length].ends_with(b"\n") || whole[length] == b'\n';
            let may_be_complete = trace.end.is_some() || (name == "whole.jsonl" && is_between);
            assert!(may_be_complete || length == 0 || !trace.warnings.is_empty(), "{name} at {length}");
            let checked = trace::check(&cut).unwrap();
            assert_eq!((checked.findings, checked.warnings), (Vec::new(), trace.warnings));
        }
        assert_eq!(trace::read(&path).unwrap().records.len(), 3);
    }
}

#[test]
fn a_damaged_byte_is_an_error_or_a_warning_never_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("whole.jsonl.gz");
    capture(&path);
    let whole = std::fs::read(&path).unwrap();
    for position in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[position] ^= 0x55;
        let damaged = folder.path().join("damaged.jsonl.gz");
        std::fs::write(&damaged, bytes).unwrap();
        let _ = trace::read(&damaged);
    }
}

#[test]
fn damage_says_what_is_still_readable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("whole.jsonl.gz");
    let lengths = capture(&path);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[lengths[2] - 6] ^= 1; // the checksum of the second record's member
    std::fs::write(&path, bytes).unwrap();
    let error = trace::read(&path).unwrap_err();
    assert!(matches!(error, TraceError::Corrupt { line: 4, records: 2, .. }), "{error}");
    assert!(error.to_string().contains("whole.jsonl.gz:4: the gzip data is damaged here"), "{error}");
}

#[test]
fn appending_goes_on_after_a_cut_and_after_an_end() {
    let folder = tempfile::tempdir().unwrap();
    for (name, keep) in [("a.jsonl", 20), ("a.jsonl.gz", 3), ("b.jsonl", 0), ("b.jsonl.gz", 0)] {
        let path = folder.path().join(name);
        let lengths = capture(&path);
        let whole = std::fs::read(&path).unwrap();
        let kept = if keep > 0 { 2 } else { 3 };
        if keep > 0 {
            std::fs::write(&path, &whole[..lengths[2] + keep]).unwrap();
        }
        let mut writer = TraceWriter::create(&path, &meta(), CreateMode::Append).unwrap();
        assert_eq!(writer.records(), kept);
        writer.append(&record(9)).unwrap();
        writer.finish(CaptureEnd::default()).unwrap();
        let trace = trace::read(&path).unwrap();
        assert_eq!(trace.warnings, [], "{name}");
        assert_eq!(trace.records.len() as u64, kept + 1);
        assert_eq!(trace.end.map(|end| end.records), name.ends_with("gz").then_some(kept + 1));
        assert_eq!(trace.records.last(), Some(&record(9)));
    }
}

#[test]
fn an_appended_capture_arrives_after_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl.gz");
    let at = |arrival| Record {
        arrival: Some(Duration::from_millis(arrival)),
        e2e: Some(Duration::from_millis(50)),
        ..record(1)
    };
    for (mode, arrivals) in [(CreateMode::New, [0, 30]), (CreateMode::Append, [10, 5]), (CreateMode::Append, [1, 2])] {
        let mut writer = TraceWriter::create(&path, &meta(), mode).unwrap();
        for arrival in arrivals {
            writer.append(&at(arrival)).unwrap();
        }
        writer.finish(CaptureEnd { dropped: 1, ..CaptureEnd::default() }).unwrap();
    }
    let trace = trace::read(&path).unwrap();
    let arrivals: Vec<_> = trace.records.iter().map(|record| record.arrival.unwrap().as_millis()).collect();
    assert_eq!(arrivals, [0, 30, 90, 85, 141, 142]);
    assert_eq!(trace.end.unwrap().dropped, 3);
}
