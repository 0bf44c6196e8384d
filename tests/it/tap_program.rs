//! The program as an operator runs it: signals, ports, files after a kill.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
    time::Duration,
};

use tokio::time::Instant;
use vllm_vcr::recording::trace;

use crate::tapping;

pub(crate) const WHOLE: &str = r#"{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;

/// An engine on threads of its own that answers everything at once.
pub(crate) fn engine() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            std::thread::spawn(move || {
                let mut seen = Vec::new();
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    seen.extend_from_slice(&buffer[..count]);
                    let text = String::from_utf8_lossy(&seen).into_owned();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                    let length = head.to_ascii_lowercase().lines().find_map(|line| {
                        line.strip_prefix("content-length:").map(|value| value.trim().parse::<usize>().unwrap())
                    });
                    if body.len() < length.unwrap_or(0) {
                        continue;
                    }
                    seen.clear();
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{WHOLE}",
                        WHOLE.len()
                    );
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// A running tap that is killed when it is dropped.
pub(crate) struct Program {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    notes: BufReader<ChildStderr>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}

impl Program {
    pub(crate) fn start(upstream: SocketAddr, trace: &Path, more: &[&str]) -> Self {
        Self::run(Command::new(env!("CARGO_BIN_EXE_vllm-vcr")), upstream, trace, more)
    }

    /// A tap to which no file may grow over 4 KiB.
    pub(crate) fn with_small_disk(upstream: SocketAddr, trace: &Path, more: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -f 8; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_vllm-vcr")]);
        Self::run(shell, upstream, trace, more)
    }

    fn run(mut command: Command, upstream: SocketAddr, trace: &Path, more: &[&str]) -> Self {
        let mut child = command
            .args(["-q", "tap", "--upstream", &format!("http://{upstream}"), "--listen", "127.0.0.1:0", "--trace-out"])
            .arg(trace)
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut notes = BufReader::new(child.stderr.take().unwrap());
        let mut greeting = line(&mut notes);
        if greeting.contains(" ERROR ") {
            greeting = line(&mut notes);
        }
        let address = greeting.strip_prefix("tap on http://").and_then(|rest| rest.split(' ').next());
        let Some(address) = address.and_then(|address| address.parse().ok()) else {
            let _ended = child.kill();
            panic!("{greeting}");
        };
        line(&mut notes);
        Self { child, address, notes }
    }

    /// Where its counts are; it was started with `--admin-listen`.
    pub(crate) fn admin(&mut self) -> SocketAddr {
        let counts = line(&mut self.notes);
        let address = counts.strip_prefix("counts at http://").and_then(|rest| rest.strip_suffix("/metrics"));
        address.unwrap().parse().unwrap()
    }

    /// Ends it with Ctrl-C: its code, and the rest of what it said.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        self.signal("-INT");
        let code = self.child.wait().unwrap().code();
        let mut rest = String::new();
        self.notes.read_to_string(&mut rest).unwrap();
        (code, rest)
    }

    pub(crate) fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }
}

fn line(notes: &mut impl BufRead) -> String {
    let mut line = String::new();
    notes.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn say(address: SocketAddr, request: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Waits until the counts have this line.
pub(crate) fn until(admin: SocketAddr, line: &str) {
    let request = "GET /metrics HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n";
    for _ in 0..600 {
        if say(admin, request).unwrap().contains(line) {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{line} was not counted in time");
}

pub(crate) fn ask(address: SocketAddr, id: &str) -> bool {
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nconnection: close\r\nx-request-id: {id}\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    say(address, &request).is_some_and(|answer| answer.ends_with(WHOLE))
}

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
fn other_machines_are_let_in_only_where_somebody_said_so() {
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
}

/// Kills a tap at some moment and looks at what is left: everything that was answered a second before.
pub(crate) fn killed_after(run: Duration, name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let mut program = Program::start(engine(), &path, &[]);
    let (start, mut answered) = (Instant::now(), Vec::new());
    while start.elapsed() < run {
        let id = format!("r{}", answered.len());
        assert!(ask(program.address, &id));
        answered.push((id, Instant::now()));
    }
    program.child.kill().unwrap();
    let killed = Instant::now();
    program.child.wait().unwrap();
    let trace = trace::read(&path).unwrap();
    let kept: std::collections::HashSet<&str> =
        trace.records.iter().filter_map(|record| record.request_id.as_deref()).collect();
    for (id, at) in &answered {
        let is_old = killed.duration_since(*at) > Duration::from_secs(1);
        assert!(
            !is_old || kept.contains(id.as_str()),
            "{id} is missing after {run:?}: {} of {}",
            kept.len(),
            answered.len()
        );
    }
}

#[test]
fn a_kill_loses_at_most_the_last_second() {
    for (millis, name) in [(2300, "a.jsonl"), (1850, "b.jsonl.gz")] {
        killed_after(Duration::from_millis(millis), name);
    }
}
