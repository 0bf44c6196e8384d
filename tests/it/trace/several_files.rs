//! Several files that are one trace.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use vllm_vcr::{
    inspect,
    play::{Config, PlayError, Player, Source},
    recording::trace::{
        self, CaptureEnd, CreateMode, Meta, Record, RotationLimits, Sources, Store, TraceParts, TraceWriter,
    },
};

fn record(prompt_tokens: u32, arrival: u64) -> Record {
    let time = |ms| Some(Duration::from_millis(ms));
    Record { prompt_tokens, arrival: time(arrival), e2e: time(50), ..Record::default() }
}

fn write(path: &Path, meta: &Meta, records: &[Record]) {
    let mut writer = TraceWriter::create(path, meta, CreateMode::New).unwrap();
    records.iter().for_each(|record| assert!(writer.append(record).unwrap().is_empty()));
    writer.finish(CaptureEnd::default()).unwrap();
}

fn started(at: &str) -> Meta {
    Meta { started_at: Some(format!("2026-11-22T{at}Z")), ..Meta::default() }
}

fn load(paths: &[PathBuf]) -> Result<Store, trace::TraceError> {
    let mut store = trace::load_all(&Sources::gather(paths)?, &Arc::default())?;
    store.sort();
    Ok(store)
}

/// The prompts' lengths, which tell the records apart, and the arrivals in milliseconds.
fn order(store: &Store) -> Vec<(u32, u128)> {
    let record = |record: Record| (record.prompt_tokens, record.arrival.unwrap().as_millis());
    store.iter().map(|kept| record(kept.record())).collect()
}

fn names(sources: &Sources) -> Vec<String> {
    sources.paths().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

#[test]
fn files_are_placed_by_their_clocks_and_else_follow_one_another() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    write(&path("late.jsonl"), &started("10:00:10"), &[record(1, 0), record(2, 500)]);
    write(&path("early.json.gz"), &started("10:00:00.5"), &[record(3, 100), record(4, 9700)]);
    write(&path("public.gz"), &Meta::default(), &[record(5, 7)]);
    let store = load(&["late.jsonl", "early.json.gz", "public.gz"].map(path)).unwrap();
    assert_eq!(order(&store), [(3, 100), (1, 9500), (4, 9700), (2, 10_000), (5, 10_057)]);
    assert_eq!(store.files.iter().map(|file| file.records).collect::<Vec<_>>(), [2, 2, 1]);
    let report = inspect::summary(
        &Sources::gather(&["late.jsonl", "early.json.gz"].map(path)).unwrap(),
        &std::sync::Arc::default(),
    )
    .unwrap();
    assert_eq!((report.records, report.duration_ms), (4, Some(9950.0)));
    assert!(report.path.ends_with("early.json.gz") && report.path.contains("late.jsonl, "), "{}", report.path);
}

#[test]
fn a_directory_stands_for_its_traces_and_the_first_of_a_capture_for_its_others() {
    let folder = tempfile::tempdir().unwrap();
    let day = folder.path().join("day.jsonl.gz");
    let limits = RotationLimits { records: Some(1), ..RotationLimits::default() };
    let mut parts = TraceParts::create(&day, started("10:00:00"), CreateMode::New, limits).unwrap();
    for at in 0..11 {
        parts.append(&record(at, u64::from(at))).unwrap();
        parts.rotate(CaptureEnd::default()).unwrap();
    }
    parts.close(CaptureEnd::default()).unwrap();
    // Another capture beside it, and something else.
    write(&folder.path().join("day.12.jsonl.gz"), &started("11:00:00"), &[record(99, 0)]);
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    let own: Vec<String> =
        ["day.jsonl.gz".to_owned()].into_iter().chain((1..12).map(|n| format!("day.{n}.jsonl.gz"))).collect();
    let of_first = Sources::gather(std::slice::from_ref(&day)).unwrap();
    assert_eq!(names(&of_first), own);
    assert!(of_first.name().ends_with("day.jsonl.gz and 11 further files"), "{}", of_first.name());
    let prompts = |store: &Store| order(store).into_iter().map(|(prompt, _)| prompt).collect::<Vec<_>>();
    assert_eq!(prompts(&load(std::slice::from_ref(&day)).unwrap()), (0..11).collect::<Vec<_>>());
    let all = [own, vec!["day.12.jsonl.gz".to_owned()]].concat();
    assert_eq!(names(&Sources::gather(&[folder.path().to_owned()]).unwrap()), all);
    assert_eq!(names(&Sources::gather(&[day, folder.path().to_owned()]).unwrap()), all, "each once");
    let later = folder.path().join("day.3.jsonl.gz");
    assert_eq!(names(&Sources::gather(&[later]).unwrap()), ["day.3.jsonl.gz"]);
}

#[test]
fn missing_parts_of_a_capture_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let part = |part: u64| {
        let mut meta = started("10:00:00");
        meta.extra.extend((part > 1).then(|| ("part".to_owned(), part.into())));
        meta
    };
    for (name, number) in [("day.jsonl", 1), ("day.1.jsonl", 2), ("day.4.jsonl", 5)] {
        write(&path(name), &part(number), &[record(1, number)]);
    }
    let store = load(&[path("day.jsonl")]).unwrap();
    let warnings: Vec<String> =
        store.files.iter().flat_map(|file| &file.warnings).map(trace::Warning::to_string).collect();
    assert_eq!(warnings, ["parts 3 to 4 of the capture are missing before it"]);
    assert!(load(&[path("day.4.jsonl")]).unwrap().files[0].warnings.is_empty(), "one file alone was meant so");
}

#[test]
fn what_does_not_fit_together_is_refused_with_both_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let meta = |text: &str| serde_json::from_str::<Meta>(text).unwrap();
    write(
        &path("a.jsonl"),
        &meta(r#"{"block_size":16,"block_hash":"xxh3-64","tokenizer":{"name":"t","fingerprint":"1"}}"#),
        &[record(1, 0)],
    );
    for (other, said) in [
        (r#"{"block_size":32,"block_hash":"xxh3-64"}"#, "block_size differs (16 and 32)"),
        (r#"{"block_size":16}"#, "block_hash differs (xxh3-64 and fnv1a-64)"),
        (r#"{"block_size":16,"block_hash":"xxh3-64","hash_key_id":"k"}"#, "hash_key_id differs (none and k)"),
        (r#"{"tokenizer":{"name":"t","fingerprint":"2"}}"#, "tokenizer differs (1 and 2)"),
    ] {
        let _old = fs::remove_file(path("b.jsonl"));
        write(&path("b.jsonl"), &meta(other), &[record(1, 0)]);
        let refused = load(&[path("a.jsonl"), path("b.jsonl")]).unwrap_err().to_string();
        assert!(
            refused.contains("a.jsonl and ")
                && refused.contains(&format!("b.jsonl do not belong to one trace: their {said}")),
            "{refused}"
        );
    }
    let _old = fs::remove_file(path("b.jsonl"));
    write(&path("b.jsonl"), &meta("{}"), &[record(2, 0)]);
    let joined = load(&[path("b.jsonl"), path("a.jsonl")]).unwrap().meta;
    assert_eq!((joined.block_size, joined.tokenizer.unwrap().fingerprint.as_str()), (Some(16), "1"));
    // A file that names no hashes and has some has the public ones.
    let _old = fs::remove_file(path("b.jsonl"));
    write(&path("b.jsonl"), &meta("{}"), &[Record { block_hashes: vec![7].into(), ..record(2, 0) }]);
    for files in [["a.jsonl", "b.jsonl"], ["b.jsonl", "a.jsonl"]] {
        let refused = load(&files.map(path)).unwrap_err().to_string();
        assert!(refused.contains("their block_hash differs"), "{refused}");
    }
    fs::write(path("c.jsonl"), "{\"meta\":7}\n").unwrap();
    let broken = load(&[path("a.jsonl"), path("c.jsonl")]).unwrap_err().to_string();
    assert!(broken.contains("c.jsonl:1: meta: "), "{broken}");
    fs::create_dir(path("empty")).unwrap();
    let empty = load(&[path("empty")]).unwrap_err().to_string();
    assert!(empty.contains("empty: no file in this directory ends in .jsonl"), "{empty}");
}

#[test]
fn groups_of_two_captures_stay_apart_and_a_bad_record_costs_itself_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["a.jsonl", "b.jsonl"] {
        write(
            &path(name),
            &Meta::default(),
            &[Record { group: Some("@0".to_owned()), choice: Some(0), ..record(1, 0) }],
        );
    }
    let mut text = fs::read_to_string(path("b.jsonl")).unwrap();
    text.push_str("{\"prompt_tokens\":1,\"output_tokens\":8,\"ttft_ms\":1,\"itl_ms\":[1,1,1,1,1,1,1,1]}\n");
    fs::write(path("b.jsonl"), text).unwrap();
    let store = load(&[path("a.jsonl"), path("b.jsonl")]).unwrap();
    assert_eq!(store.iter().map(|kept| kept.group()).collect::<Vec<_>>(), [Some("@0"), Some("1/@0"), None]);
    assert!(store.get(2).unwrap().is_lost(), "it keeps its place");
    let bad = &store.files[1].bad_lines;
    assert_eq!((store.files[1].records, bad.count, bad.first[0].line), (1, 1, 3));
    let config = |strict_trace| Config {
        source: Source::Files(vec![path("a.jsonl"), path("b.jsonl")]),
        strict_trace,
        ..Config::default()
    };
    assert!(Player::load(config(false)).is_ok());
    let refused = Player::load(config(true)).unwrap_err();
    assert!(
        matches!(refused, PlayError::Trace(_)) && refused.to_string().contains("b.jsonl:3: itl_ms: the chunks after"),
        "{refused}"
    );
    let report = inspect::summary(&Sources::one(&path("b.jsonl")), &std::sync::Arc::default()).unwrap();
    assert_eq!((report.records, report.bad_lines.count), (1, 1));
    assert!(report.to_string().contains("bad line        3: itl_ms: "), "{report}");
    assert_eq!(inspect::check(&path("b.jsonl")).unwrap().findings.len(), 1);
}

#[test]
fn a_file_of_bad_lines_only_is_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    fs::write(&path, "{}\n[]\n").unwrap();
    let refused = load(&[path]).unwrap_err().to_string();
    assert!(refused.contains("a.jsonl:1: prompt_tokens: is missing"), "{refused}");
}
