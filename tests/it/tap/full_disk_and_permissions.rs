//! The tap where the system gives it little: files that may not grow, names that are others' to read.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use vllm_vcr::recording::trace;

use crate::support::{
    tap_program::{Program, ask, engine, until, until_page},
    tapping,
};

#[test]
fn a_file_that_may_not_grow_does_not_end_the_tap() {
    let folder = tempfile::tempdir().unwrap();
    let tap = Program::with_small_disk(engine(), &folder.path().join("t.jsonl"), &[]);
    assert!((0..100).all(|at| ask(tap.address, &format!("r{at}"))));
    let (code, rest) = tap.end();
    assert!(code.is_some(), "{rest}");
    assert!(rest.contains("forwarded 100 requests") && rest.contains("records dropped"), "{rest}");
}

#[test]
fn what_a_full_disk_lost_is_counted_exactly() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["t.jsonl", "t.jsonl.gz"] {
        let path = folder.path().join(name);
        let mut tap = Program::with_small_disk(engine(), &path, &["--admin-listen", "127.0.0.1:0"]);
        let admin = tap.admin();
        let noise =
            |at: u64| (0..12).map(move |part| format!("{:x}", (at * 12 + part).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        assert!((0..300).all(|at| ask(tap.address, &noise(at).collect::<String>())));
        // It may have gone on already.
        let none = "vcr_records_dropped_total{reason=\"write_failed\"} 0\n";
        until_page(admin, "a failed write", |page| !page.contains(none));
        until(admin, "vcr_recording 1\n");
        assert!((0..3).all(|at| ask(tap.address, &format!("late{at}"))));
        let (code, rest) = tap.end();
        assert_eq!(code, Some(0), "{rest}");
        let number = |after: &str| -> u64 {
            let before = rest.split(after).next().filter(|before| before.len() < rest.len());
            let last = before.and_then(|before| before.trim_end().rsplit([' ', '\n']).next());
            last.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{after}: {rest}"))
        };
        // It names the file that failed, not the next one.
        assert!(rest.contains(&format!("recording continued after: {}: cannot write", path.display())), "{rest}");
        let (written, dropped) = (number(" records\n"), number(" records dropped"));
        let stem = name.split('.').next().unwrap();
        let suffix = &name[stem.len()..];
        let traces: Vec<trace::Trace> = ["", ".1", ".2", ".3", ".4", ".5"]
            .into_iter()
            .map(|part| folder.path().join(format!("{stem}{part}{suffix}")))
            .filter(|path| path.exists())
            .map(|path| tapping::load(&path))
            .collect();
        let found: usize = traces.iter().map(|trace| trace.records.len()).sum();
        assert_eq!((written, written + dropped), (found as u64, 303), "{rest}");
        assert_eq!(rest.contains("its last line will have"), suffix == ".jsonl.gz", "{rest}");
        if suffix == ".jsonl" {
            continue; // a plain file has no place for it
        }
        let told: u64 = traces.iter().filter_map(|trace| trace.end.as_ref()).map(|end| end.dropped).sum();
        assert_eq!(told, dropped);
    }
}

#[test]
fn a_tap_whose_disk_came_back_ends_well_and_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl.gz");
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    let more = ["--overwrite", "--start-anyway", "--admin-listen", "127.0.0.1:0"];
    let mut tap = Program::start(engine(), &path, &more);
    let admin = tap.admin();
    assert!(ask(tap.address, "lost") && ask(tap.address, "too"));
    until(admin, "vcr_recording 1\n");
    assert!(ask(tap.address, "kept"));
    let (code, rest) = tap.end();
    assert_eq!(code, Some(0), "{rest}");
    assert!(rest.contains("wrote 1 record") && rest.contains("2 records dropped"), "{rest}");
    let trace = tapping::load(&folder.path().join("t.1.jsonl.gz"));
    assert_eq!((trace.records.len(), trace.end.unwrap().dropped), (1, 2));
}

#[test]
fn a_tap_that_cannot_write_at_its_end_says_so_with_its_code() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gone").join("t.jsonl");
    let tap = Program::start(engine(), &path, &["--start-anyway"]);
    assert!(ask(tap.address, "lost"));
    let (code, rest) = tap.end();
    assert_eq!(code, Some(4), "{rest}");
    assert!(rest.contains("error: 1 record could not be written: ") && rest.contains("t.jsonl"), "{rest}");
}

#[test]
fn a_file_that_others_could_read_is_closed_to_them() {
    let folder = tempfile::tempdir().unwrap();
    for flag in ["--overwrite", "--append"] {
        let path = folder.path().join(format!("t{flag}.jsonl"));
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let mut tap = Program::start(engine(), &path, &[flag]);
        assert!(ask(tap.address, "one"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{flag}");
        tap.signal("-INT");
        assert!(tap.child.wait().unwrap().success());
        assert_eq!(trace::read(&path).unwrap().records.len(), 1);
    }
}

#[test]
fn a_password_in_an_url_is_not_repeated() {
    for url in ["http://jane:hunter22@h:1", "jane:hunter22@h:1", "/v1=http://jane:hunter22@h", "http://h/?key=hunter22"]
    {
        let refused = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"))
            .args(["tap", "--trace-out", "-", "--upstream", url])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(!said.contains("hunter22"), "{said}");
    }
}
