//! The tap where the system gives it little: files that may not grow, names that are others' to read.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
};

use vllm_vcr::trace;

use crate::tap_program::{Program, ask, engine};

#[test]
fn a_file_that_may_not_grow_does_not_end_the_tap() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let mut tap = Command::new("sh")
        .args(["-c", "ulimit -f 8; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_vllm-vcr"), "-q", "tap", "--upstream"])
        .arg(format!("http://{}", engine()))
        .args(["--listen", "127.0.0.1:0", "--trace-out"])
        .arg(&path)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut notes = BufReader::new(tap.stderr.take().unwrap());
    let mut greeting = String::new();
    notes.read_line(&mut greeting).unwrap();
    let address: SocketAddr =
        greeting.strip_prefix("tap on http://").and_then(|rest| rest.split(' ').next()).unwrap().parse().unwrap();
    assert!((0..100).all(|at| ask(address, &format!("r{at}"))));
    assert!(Command::new("kill").args(["-INT", &tap.id().to_string()]).status().unwrap().success());
    let ended = tap.wait().unwrap();
    let mut rest = String::new();
    notes.read_to_string(&mut rest).unwrap();
    assert!(ended.code().is_some(), "{ended}: {rest}");
    assert!(rest.contains("forwarded 100 requests") && rest.contains("records dropped"), "{rest}");
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
