//! The program as an operator runs it: signals, ports, files after a kill.

use std::{
    io::{BufReader, Read},
    process::{Command, Stdio},
    time::Duration,
};

use crate::support::{
    tap_program::{Program, ask, engine, killed_after, line, until},
    tapping,
};

#[test]
fn a_hangup_begins_a_new_file_and_the_end_tells_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("day.jsonl.gz");
    let mut program = Program::start(engine(), &path, &["--admin-listen", "127.0.0.1:0"]);
    let admin = program.admin();
    assert!(ask(program.address, "one"));
    std::fs::rename(&path, folder.path().join("moved.jsonl.gz")).unwrap();
    program.signal("-HUP");
    until(admin, "vcr_trace_files 2\n");
    assert!(ask(program.address, "two"));
    program.signal("-INT");
    assert!(program.child.wait().unwrap().success());
    let mut rest = String::new();
    program.notes.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("forwarded 2 requests, wrote 2 records") && rest.contains("in 2 files"), "{rest}");
    for (name, id) in [("moved.jsonl.gz", "one"), ("day.jsonl.gz", "two")] {
        let trace = tapping::load(&folder.path().join(name));
        assert_eq!(trace.records.iter().map(|record| record.request_id.as_deref()).collect::<Vec<_>>(), [Some(id)]);
        assert!(trace.end.is_some());
    }
}

#[test]
fn other_machines_are_let_in_only_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("t.jsonl");
    let refused = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"))
        .args(["tap", "--upstream", "http://127.0.0.1:9", "--listen", "0.0.0.0:0", "--trace-out"])
        .arg(&trace)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("--allow-remote-record") && !trace.exists(), "{said}");
    let mut let_in = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"))
        .args([
            "tap",
            "--upstream",
            "http://127.0.0.1:9",
            "--listen",
            "0.0.0.0:0",
            "--allow-remote-record",
            "--trace-out",
        ])
        .arg(&trace)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let greeting = line(&mut BufReader::new(let_in.stderr.take().unwrap()));
    let_in.kill().unwrap();
    let_in.wait().unwrap();
    assert!(greeting.starts_with("tap on http://0.0.0.0:"), "{greeting}");
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (flags, hint) in [
        (["--admin-listen", "0.0.0.0:0"], "--allow-remote-record"),
        (["--answer-timeout", "0s"], "leave the flag out"),
        (["--rotate-every", "0"], "leave the flag out"),
        (["--rotate-every", "60"], "60s for seconds, 60ms for milliseconds"),
        (["--drain-timeout", "5"], "5s for seconds"),
        (["--mode", "once"], "--cassette"),
        (["--report", "r.json"], "--cassette"),
    ] {
        let refused = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"))
            .args(["tap", "--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0"])
            .args(flags)
            .arg("--trace-out")
            .arg(folder.path().join("t.jsonl"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(hint), "{said}");
    }
}

#[test]
fn a_command_runs_beside_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let ran = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"))
        .args(["tap", "--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0", "--trace-out"])
        .arg(folder.path().join("t.jsonl"))
        .args(["--", "sh", "-c", "echo at $OPENAI_BASE_URL; exit 7"])
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(7), "{ran:?}");
    assert!(String::from_utf8_lossy(&ran.stdout).starts_with("at http://127.0.0.1:"), "{ran:?}");
}

#[test]
fn an_audit_answers_by_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let audit = |line: &str, more: &[&str]| {
        std::fs::write(&path, format!("{line}\n")).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"))
            .args(["inspect", "audit"])
            .arg(&path)
            .args(more)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let record = |text: &str| format!(r#"{{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1,"text":["{text}"]}}"#);
    let (code, said) = audit(&record("mail jane@example.org"), &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("t.jsonl:1: text: email: jane… (16 characters)"), "{said}");
    assert_eq!(audit(&record("nothing"), &[]).0, Some(0));
    assert_eq!(audit(&record("case 17"), &["--redact-pattern", "case=case \\d+"]).0, Some(1));
    assert_eq!(audit(&record("x"), &["--redact-pattern", "case=("]).0, Some(2));
    let (code, said) = audit(&record("nothing"), &["--json"]);
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, report["secrets_found"].as_u64()), (Some(0), Some(0)));
    let (_, said) = audit(r#"{"prompt_tokens":1,"output_tokens":1,"ttft_ms":1,"params":{"max_tokens":16}}"#, &[]);
    assert!(said.contains(r#"such as {"max_tokens":16}"#), "{said}");
}

#[test]
fn a_kill_loses_at_most_the_last_second() {
    std::thread::scope(|scope| {
        for (millis, name) in [(2300, "a.jsonl"), (1850, "b.jsonl.gz")] {
            scope.spawn(move || killed_after(Duration::from_millis(millis), name));
        }
    });
}
