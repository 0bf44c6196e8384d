//! `--block-network`: calls of the wrapped command to other servers fail, are counted and can fail the run.

use std::process::Output;

use serde_json::Value;

use super::{CHAT, Shelf, chat, engine, read, record, tape, vcr};

/// Asks for what was recorded.
fn own_call() -> String {
    format!("curl -sf -H 'content-type: application/json' -d '{}' $OPENAI_BASE_URL/chat/completions", chat(&["a"]))
}

fn log(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn run(shelf: &Shelf, flags: &[&str], script: &str) -> Output {
    let script = format!("{} >/dev/null && {script}", own_call());
    vcr(&[&["play", "--cassette", shelf.name()], flags, &["--", "sh", "-c", &script]].concat())
}

#[test]
fn a_call_to_another_server_fails_loudly_and_fails_the_run() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let report = shelf.folder.path().join("report.json");
    let path = report.to_str().unwrap();
    // The command itself goes on.
    let call = "curl -s -d secret=1 http://user:pass@api.example.com/v1/chat?key=secret; true";
    for (flags, code) in [
        (&["--block-network", "--report", path][..], 0),
        (&["--block-network", "--report", path, "--strict"], 1),
        (&["--block-network", "--report", path, "--fail-on", "blocked"], 1),
    ] {
        let output = run(&shelf, flags, call);
        let (shown, log) = (String::from_utf8_lossy(&output.stdout).into_owned(), log(&output));
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {log}");
        for text in [&shown, &log] {
            assert!(text.contains("--block-network refuses POST to api.example.com:80"), "{text}");
            assert!(!text.contains("pass@") && !text.contains("key=") && !text.contains("secret=1"), "{text}");
        }
        assert!(log.contains("blocked: 1 call to api.example.com:80"), "{log}");
        assert_eq!(log.contains("failed: blocked"), code == 1, "{log}");
        let report: Value = serde_json::from_str(&read(&report)).unwrap();
        assert_eq!(report["blocked"]["api.example.com:80"], 1, "{report}");
    }
    let output = run(&shelf, &["--strict"], "true");
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
}

#[test]
fn a_tunnel_is_refused_with_a_reason_that_clients_show() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let output = run(&shelf, &["--block-network", "--strict"], "curl -sv https://api.example.com/v1/models; true");
    let log = log(&output);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains("403 Blocked by vllm-vcr --block-network: api.example.com:443"), "{log}");
    assert!(log.contains("blocked: 1 call to api.example.com:443"), "{log}");
}

#[test]
fn own_calls_pass_through_any_proxy_variable_and_allowed_hosts_directly() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A"), record(&["a"], "A")]));
    // A client that reads no ports in NO_PROXY sends its own calls as it sends those of a proxy.
    let proxied = own_call().replace("curl", "env -u NO_PROXY -u no_proxy curl -x $http_proxy");
    let output = run(&shelf, &["--block-network", "--strict"], &proxied);
    assert_eq!(output.status.code(), Some(0), "{}", log(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"content\":\"A\""));
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let shown = "for name in HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy; do \
                 test \"$(printenv $name)\" = \"$VLLM_VCR_URL\" || exit 9; done; echo $NO_PROXY; echo $no_proxy";
    let output = run(&shelf, &["--block-network", "--allow-host", "db.internal"], shown);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text} {}", log(&output));
    assert!(text.lines().count() == 2 && text.lines().all(|line| line.ends_with(",db.internal")), "{text}");
}

#[test]
fn a_command_calls_the_server_without_the_proxy_of_its_environment() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let shown = "echo \"$NO_PROXY\"; echo \"$no_proxy\"";
    for (variables, spared) in [
        (&[("HTTP_PROXY", "http://127.0.0.1:9"), ("no_proxy", "db.internal")][..], "db.internal,127.0.0.1"),
        (&[("https_proxy", "http://127.0.0.1:9")][..], "127.0.0.1"),
        (&[("https_proxy", "http://127.0.0.1:9"), ("NO_PROXY", "*")][..], "*"),
        (&[][..], ""),
    ] {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_vllm-vcr"));
        program.args(["play", "--port", "0", "--cassette", shelf.name(), "--", "sh", "-c", shown]);
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"] {
            program.env_remove(name).env_remove(name.to_ascii_lowercase());
        }
        let output = program.envs(variables.iter().copied()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text, format!("{spared}\n{spared}\n"), "{}", log(&output));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_passes_by_a_recording() {
    let upstream = engine().await;
    let (url, shelf) = (format!("http://{}", upstream.address), Shelf::empty());
    let script = format!("{} >/dev/null && curl -s http://api.example.com/x; true", own_call());
    let fixed = ["tap", "--upstream", &url, "--cassette", shelf.name(), "--block-network", "--fail-on", "blocked"];
    let arguments: Vec<String> =
        [&fixed[..], &["--", "sh", "-c", &script]].concat().iter().map(ToString::to_string).collect();
    let tapped = tokio::task::spawn_blocking(move || vcr(&arguments.iter().map(String::as_str).collect::<Vec<_>>()));
    let output = tapped.await.unwrap();
    let log = log(&output);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains("blocked: 1 call to api.example.com:80") && log.contains("recorded 1 interaction"), "{log}");
    assert!(upstream.bodies().iter().all(|body| body.contains("messages")), "{:?}", upstream.bodies());
    assert!(shelf.text().contains(CHAT) && !shelf.text().contains("example"), "{}", shelf.text());
}

#[test]
fn what_cannot_be_blocked_is_refused() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    for (arguments, part) in [
        (&["play", "--cassette", shelf.name(), "--block-network"][..], "COMMAND"),
        (&["play", "--cassette", shelf.name(), "--allow-host", "a", "--", "true"], "--block-network"),
        (&["play", "--block-network", "--", "true"], "cassette"),
        (
            &["play", "--cassette", shelf.name(), "--block-network", "--ssl-certfile", "x.pem", "--", "true"],
            "without TLS",
        ),
    ] {
        let output = vcr(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", log(&output));
        assert!(log(&output).contains(part), "{arguments:?}: {}", log(&output));
    }
}
