//! The program: its exit codes, the table, JUnit's file, and the command that repeats a cell.

use std::fs;

use tokio::task::spawn_blocking;

use super::rail::{CANARY, Rail, RunningRail};
use crate::support::{
    free_address,
    running::{Running, vcr},
};

async fn swept(rail: Rail, more: &[&str]) -> (i32, String) {
    let running = RunningRail::start(rail).await;
    let folder = tempfile::tempdir().unwrap();
    let junit = folder.path().join("junit.xml");
    let via = format!("http://{}", running.address);
    let own = ["sweep", "--via", &via, "--upstream-port", "0", "--canary", CANARY, "--junit", junit.to_str().unwrap()];
    let program = Running::start(&[own.as_slice(), more].concat());
    running.upstream.send_replace(Some(program.address));
    let code = spawn_blocking(move || program.wait()).await.unwrap();
    (code, fs::read_to_string(junit).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_holds_is_exit_code_0_and_what_leaks_1() {
    let (code, junit) = swept(Rail::Holds, &["--cells", "60"]).await;
    assert_eq!((code, junit.matches("<failure").count()), (0, 0), "{junit}");
    let one = ["--only", "chat/stream/content/plain/middle/at-3"];
    let (code, junit) = swept(Rail::CarryOver, &one).await;
    assert_eq!(code, 1, "{junit}");
    assert!(junit.contains("chat/stream/content/plain/middle/at-3: the client saw 3 of 14 bytes"), "{junit}");
    let (code, _) = swept(Rail::CarryOver, &[one.as_slice(), &["--allow-bytes", "3"]].concat()).await;
    assert_eq!(code, 0);
}

#[test]
fn a_cell_is_repeated_by_the_command_that_is_printed() {
    let server = free_address();
    // The server itself is a gateway without a rail.
    let (via, port) = (format!("http://{server}"), server.port().to_string());
    let arguments = [
        "sweep",
        "--via",
        &via,
        "--upstream-port",
        &port,
        "--canary",
        "it's 4711",
        "--only",
        "messages/body/arguments/at-2",
        "--allow-bytes",
        "2",
        "--compare",
        "bytes",
        "--pause",
        "1500us",
        "--timeout",
        "19s",
    ];
    let output = vcr(&arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let command = text.lines().find_map(|line| line.strip_prefix("   vllm-vcr ")).unwrap();
    assert!(command.contains("--only messages/body/arguments/plain/"), "{command}");
    assert!(command.contains("--allow-bytes 2 --compare bytes --pause 1.5ms --timeout 19s"), "{command}");
    assert!(text.contains("the client saw 9 of 9 bytes") && text.ends_with("does not hold\n"), "{text}");
    let again = std::process::Command::new("sh")
        .args(["-c", &format!("exec {} {command} --json", env!("CARGO_BIN_EXE_vllm-vcr"))])
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!((again.status.code(), &report["cells"], &report["holds"]), (Some(1), &1.into(), &false.into()));
    assert_eq!(report["report"]["failed"][0]["leaked"], 9);
}

#[test]
fn what_cannot_be_swept_is_no_verdict() {
    let nobody = free_address();
    let via = format!("http://{nobody}");
    let silent = format!(": no response from {via}");
    for (arguments, code, part) in [
        (vec!["--canary", "secret", "--wait", "0s"], 4, silent.as_str()),
        (vec!["--canary", "abc"], 2, "4 to 1024 bytes"),
        (vec!["--canary", "secret", "--only", "chat/nowhere"], 2, "no cell has the part `nowhere`"),
        (vec!["--canary", "secret", "--only", "messages/logprobs"], 2, "no cell has all of these parts"),
        (vec!["--canary", "secret", "--cells", "0"], 2, "--cells"),
        (vec![], 2, "--canary"),
    ] {
        let output = vcr(&[["sweep", "--via", &via, "--upstream-port", "0"].as_slice(), &arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part), "{arguments:?}: {stderr}");
    }
}
