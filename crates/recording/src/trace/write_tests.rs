//! Files that are emptied, cut or torn while they are written or before they are appended to.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::Path,
    time::Duration,
};

use flate2::{Compression, write::GzEncoder};

use super::{CaptureEnd, CreateMode, Meta, Record, TraceError, TraceWriter, Warning, read, source::Packing, tail};

const NAMES: [&str; 2] = ["a.jsonl", "a.jsonl.gz"];

fn record(number: u32) -> Record {
    Record { prompt_tokens: number, ..Record::default() }
}

fn create(path: &Path, mode: CreateMode) -> TraceWriter {
    TraceWriter::create(path, &Meta { format: Some(1), ..Meta::default() }, mode).unwrap()
}

fn cut(path: &Path, length: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
}

fn prompts(path: &Path) -> Vec<u32> {
    read(path).unwrap().records.iter().map(|record| record.prompt_tokens).collect()
}

fn packed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn an_emptied_file_is_begun_again_with_its_first_line() {
    let folder = tempfile::tempdir().unwrap();
    for name in NAMES {
        let path = folder.path().join(name);
        let mut writer = create(&path, CreateMode::New);
        for number in 0..3 {
            writer.append(&record(number)).unwrap();
        }
        writer.flush().unwrap();
        writer.append(&record(3)).unwrap();
        cut(&path, 0);
        writer.append(&record(4)).unwrap();
        writer.flush().unwrap();
        assert_eq!((prompts(&path), writer.take_emptied(), writer.take_emptied()), (vec![3, 4], 1, 0), "{name}");
        cut(&path, 0);
        writer.append(&record(5)).unwrap();
        writer.finish(CaptureEnd::default()).unwrap();
        let trace = read(&path).unwrap();
        assert_eq!((trace.meta.format, trace.records.len(), trace.warnings), (Some(1), 1, vec![]), "{name}");
        assert_eq!(trace.end.map(|end| end.records), name.ends_with("gz").then_some(1));
    }
}

#[test]
fn a_file_that_is_cut_in_the_middle_is_given_up_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    for name in NAMES {
        let path = folder.path().join(name);
        let mut writer = create(&path, CreateMode::New);
        writer.append(&record(1)).unwrap();
        writer.flush().unwrap();
        cut(&path, 10);
        writer.append(&record(2)).unwrap();
        let error = writer.flush().unwrap_err();
        assert!(error.to_string().contains("another program cut the file to 10 bytes"), "{error}");
        writer.abandon();
        assert_eq!(fs::metadata(&path).unwrap().len(), 10);
    }
}

#[test]
fn appending_keeps_every_byte_that_was_there() {
    let folder = tempfile::tempdir().unwrap();
    for name in NAMES {
        let path = folder.path().join(name);
        let mut writer = create(&path, CreateMode::New);
        writer.append(&record(1)).unwrap();
        writer.finish(CaptureEnd { dropped: 2, ..CaptureEnd::default() }).unwrap();
        let old = fs::read(&path).unwrap();
        let mut writer = create(&path, CreateMode::Append);
        assert_eq!(fs::read(&path).unwrap(), old, "nothing is written before there is something to write");
        writer.append(&record(2)).unwrap();
        writer.finish(CaptureEnd { dropped: 1, ..CaptureEnd::default() }).unwrap();
        assert!(fs::read(&path).unwrap().starts_with(&old), "{name}");
        let trace = read(&path).unwrap();
        assert_eq!((trace.records.len(), trace.warnings), (2, vec![]));
        assert_eq!(trace.end.map(|end| (end.records, end.dropped)), name.ends_with("gz").then_some((2, 3)));
    }
}

#[test]
fn a_trace_that_was_torn_anywhere_is_appended_to() {
    let folder = tempfile::tempdir().unwrap();
    for name in NAMES {
        let path = folder.path().join(name);
        let mut writer = create(&path, CreateMode::New);
        for number in 0..2 {
            writer.append(&record(number)).unwrap();
            writer.append(&record(number + 10)).unwrap();
            writer.flush().unwrap();
        }
        writer.finish(CaptureEnd::default()).unwrap();
        let whole = fs::read(&path).unwrap();
        for length in 1..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let kept = prompts(&path);
            let mut writer = create(&path, CreateMode::Append);
            assert_eq!(prompts(&path), kept, "{name} at {length}, as if it were killed now");
            writer.append(&record(99)).unwrap();
            writer.finish(CaptureEnd::default()).unwrap();
            let trace = read(&path).unwrap();
            assert_eq!((prompts(&path), trace.warnings), ([kept, vec![99]].concat(), vec![]), "{name} at {length}");
            assert_eq!(trace.meta.format, Some(1), "{name} at {length}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{name} at {length}");
        }
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn tails_of_other_programs_are_mended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl.gz");
    let line =
        |number: u32| format!("{{\"prompt_tokens\":{number},\"output_tokens\":0,\"ttft_ms\":0,\"itl_ms\":[]}}\n");
    let meta = "{\"meta\":{\"format\":1}}\n";
    let long = format!("{meta}{}{}", line(1), line(2));
    let (half, rest) = long.split_at(meta.len() + 9);
    let cases = [
        // Members that begin within a line, the second one torn or whole.
        ([packed(half), packed(rest)].concat(), vec![1, 2]),
        ([packed(half), packed(rest.trim_end())].concat(), vec![1, 2]),
        ([packed(half), packed(&rest[..rest.len() - 5])].concat(), vec![1]),
        // A closing line.
        (packed(&format!("{long}{{\"end\":{{\"records\":2}}}}\n")), vec![1, 2]),
    ];
    for (at, (bytes, kept)) in cases.into_iter().enumerate() {
        fs::write(&path, bytes).unwrap();
        let mut writer = create(&path, CreateMode::Append);
        writer.append(&record(9)).unwrap();
        writer.finish(CaptureEnd::default()).unwrap();
        let trace = read(&path).unwrap();
        assert_eq!((prompts(&path), trace.warnings), ([kept, vec![9]].concat(), vec![]), "{at}");
    }
    fs::write(&path, [packed(&long), vec![0; 9]].concat()).unwrap();
    let refused = TraceWriter::create(&path, &Meta::default(), CreateMode::Append).unwrap_err();
    assert!(matches!(refused, TraceError::Io { doing: "append to", .. }), "{refused}");
}

#[test]
fn of_a_long_trace_only_the_tail_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = 1_u64;
    let mut noise = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        format!("{state:016x}")
    };
    for name in NAMES {
        let path = folder.path().join(name);
        let mut writer = create(&path, CreateMode::New);
        for number in 0..80 {
            let request_id = Some((0..12_000).map(|_| noise()).collect());
            let arrival = Some(Duration::from_secs(number));
            writer.append(&Record { request_id, arrival, ..record(1) }).unwrap();
            writer.flush().unwrap();
        }
        drop(writer);
        let file = fs::File::open(&path).unwrap();
        assert!(file.metadata().unwrap().len() > 6 << 20, "{name}");
        let found = tail::survey(&file, Packing::of(&path).unwrap()).unwrap();
        assert!(!found.is_whole && found.records < 50 && found.repair.is_none(), "{name}: {found:?}");
        assert_eq!(found.last, Duration::from_secs(79), "{name}");
        let length = file.metadata().unwrap().len();
        cut(&path, length - 70_000);
        let mut writer = create(&path, CreateMode::Append);
        writer.append(&Record { arrival: Some(Duration::from_secs(1)), ..record(2) }).unwrap();
        writer.finish(CaptureEnd::default()).unwrap();
        let trace = read(&path).unwrap();
        assert_eq!((trace.records.len(), trace.records.last().unwrap().arrival), (80, Some(Duration::from_secs(79))));
        // The earlier capture was not closed.
        let expected = if name.ends_with("gz") { vec![Warning::NoEnd { records: 80 }] } else { vec![] };
        assert_eq!(trace.warnings, expected, "{name}");
    }
}

#[test]
fn a_pipe_that_nobody_reads_is_refused_and_one_that_is_read_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    for mode in [CreateMode::Append, CreateMode::Truncate] {
        let refused = TraceWriter::create(&path, &Meta::default(), mode).unwrap_err();
        assert!(matches!(refused, TraceError::Io { doing: "open", .. }), "{refused}");
        let mut reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        drop(create(&path, mode));
        assert!(std::io::Read::read(&mut reader, &mut [0; 99]).unwrap() > 0);
    }
}
