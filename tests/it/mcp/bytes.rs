//! Case 1, as far as stdio goes: the tap changes nothing.

use std::{
    io::{Read, Write},
    process::{Command, Output, Stdio},
};

use super::{PROGRAM, Shelf};

/// Runs a shell script as a server behind the tap, and gives it this input.
pub(super) fn through(shelf: &Shelf, script: &str, input: &[u8]) -> Output {
    let mut child = Command::new(PROGRAM)
        .args(["mcp-tap", "--cassette", shelf.name(), "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, bytes) = (child.stdin.take().unwrap(), input.to_vec());
    let writing = std::thread::spawn(move || {
        let _gone = stdin.write_all(&bytes);
    });
    let (mut stdout, mut out) = (child.stdout.take().unwrap(), Vec::new());
    let reading = std::thread::spawn(move || {
        stdout.read_to_end(&mut out).unwrap();
        out
    });
    let mut stderr = Vec::new();
    child.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    writing.join().unwrap();
    Output { status: child.wait().unwrap(), stdout: reading.join().unwrap(), stderr }
}

#[test]
fn case_1_bytes_pass_as_they_are() {
    let odd = "\u{feff}{\"jsonrpc\":\"2.0\",  \"id\":1.0,\"method\":\"tools/call\",\"params\":{\"b\":1,\"a\":1e2,\"n\":123456789012345678901234}}\r\n\n\u{85}not json\n{\"half";
    let binary: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    for input in [odd.as_bytes(), &binary, b""] {
        let shelf = Shelf::empty();
        let output = through(&shelf, "cat", input);
        assert!(output.stdout == input && output.status.success());
    }
}

#[test]
fn case_16_the_servers_notes_and_exit_code_pass() {
    let shelf = Shelf::empty();
    let output = through(&shelf, "cat; echo 'noise {\"jsonrpc\"' >&2; exit 7", b"{\"method\":\"x\"}\n");
    assert_eq!(output.status.code(), Some(7));
    assert!(String::from_utf8_lossy(&output.stderr).contains("noise {\"jsonrpc\""));
    assert!(shelf.text().contains("method: x"), "{}", shelf.text());
    let killed = through(&Shelf::empty(), "kill -9 $$", b"");
    assert_eq!(killed.status.code(), Some(137));
}
