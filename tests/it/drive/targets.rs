//! Targets behind TLS, HTTP/2 and Unix sockets.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use serde_json::json;

use crate::support::{
    running::{Running, vcr},
    tree,
};

/// Drives the built-in trace at a target; all of it has to come back as it was recorded.
fn drive(target: &str, flags: &[&str]) {
    let trace = tree::root().join("traces/builtin.jsonl.gz");
    let fixed = ["replay", trace.to_str().unwrap(), "--target", target, "--json", "--check", "--arrivals", "burst"];
    let output = vcr(&[&fixed[..], flags].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
    assert_eq!(printed["results"]["check"]["differ"], 0, "{target} {said}");
    assert_eq!(printed["results"]["by_status"], json!({"200": printed["results"]["requests"]}), "{target} {said}");
}

#[test]
fn requests_reach_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let server = Running::start(&["play", "--instant", "--port", "0"]);
    drive(&format!("h2c://{}", server.address), &[]);
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    fs::write(path("a.pem"), made.cert.pem()).unwrap();
    fs::write(path("a.key"), made.signing_key.serialize_pem()).unwrap();
    let tls = ["--ssl-certfile", &path("a.pem"), "--ssl-keyfile", &path("a.key")];
    let (_tls, said) = Started::until("https://", &[&["play", "--instant", "--port", "0"][..], &tls].concat());
    let port =
        said.split("https://").nth(1).and_then(|rest| rest.split_whitespace().next()?.rsplit_once(':')).unwrap().1;
    drive(&format!("https://localhost:{port}"), &["--target-ca", &path("a.pem")]);
    let socket = path("play.sock");
    let _unix = Started::until(&socket, &["play", "--instant", "--uds", &socket]);
    drive(&format!("unix:{socket}"), &[]);
}

#[test]
fn without_a_file_the_built_in_trace_is_sent() {
    let server = Running::start(&["play", "--instant", "--port", "0"]);
    let target = format!("http://{}", server.address);
    let sent = vcr(&["replay", "--target", &target, "--arrivals", "burst"]);
    let (printed, said) = (String::from_utf8_lossy(&sent.stdout), String::from_utf8_lossy(&sent.stderr));
    assert!(printed.contains("19 sent and ended, 0 failed"), "{printed}{said}");
    assert!(said.contains("the built-in trace: 19 requests"), "{said}");
    let missing = vcr(&["replay", "traces/nope.jsonl.gz", "--target", &target]);
    let said = String::from_utf8_lossy(&missing.stderr);
    assert!(said.contains("without a PATH, the built-in trace is sent"), "{said}");
}

/// A server that is not at an address of plain HTTP.
struct Started(Child);

impl Started {
    /// Starts it, and waits for a line with this word.
    fn until(word: &str, arguments: &[&str]) -> (Self, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"));
        let mut child =
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let started = Self(child);
        let mut lines = String::new();
        while !lines.contains(word) {
            assert!(said.read_line(&mut lines).unwrap() > 0, "it ended at once: {lines}");
        }
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        (started, lines)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}
