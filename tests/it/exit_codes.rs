//! Exit codes and error texts of the program as a whole.

use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::{Command, Output},
};

use crate::support::running::Running;

const SOUND: &str = "{\"prompt_tokens\":4,\"output_tokens\":2,\"ttft_ms\":1.0,\"itl_ms\":[1.0]}\n";
const BROKEN: &str = "{\"prompt_tokens\":4,\"output_tokens\":2,\"ttft_ms\":1.0}\n";

fn vcr(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vllm-vcr")).args(arguments).output().unwrap()
}

fn ends_with(arguments: &[&str], code: i32, part: &str) {
    let output = vcr(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    assert!(stderr.contains(part), "{arguments:?}: {stderr}");
}

fn file(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn usage_errors_exit_2_and_name_the_flag() {
    ends_with(&["play", "--time-scale", "fast"], 2, "--time-scale");
    ends_with(&["play", "--instant", "--time-scale", "2"], 2, "cannot be used with");
    ends_with(&["play", "--prot", "1"], 2, "--port");
    ends_with(&["tap", "--upstream", "http://127.0.0.1:9", "--port", "1"], 2, "`--listen HOST:PORT`");
    ends_with(&["play", "--synthetic", "echo", "--stop-rate", "0.5"], 2, "--stop-rate is about random answers");
    ends_with(&["play", "--strict", "--output-tokens", "5..9"], 2, "cannot be used with");
    ends_with(&["play", "--stop-rate", "2"], 2, "a share from 0 to 1");
    ends_with(&["play", "--output-tokens", "9..5"], 2, "lognormal:200,0.6");
    ends_with(&["tap", "--trace-out", "t.jsonl", "--upstream", "ftp://h"], 2, "--upstream");
    let tap = ["tap", "--upstream", "http://h:1", "--record-logprobs", "--trace-out"];
    ends_with(&[tap.as_slice(), &["t.jsonl"]].concat(), 2, "--record-tokens");
    let permuted = ["t.jsonl", "--record-tokens", "--permute-ids", "--hash-key-file", "key"];
    ends_with(&[tap.as_slice(), &permuted].concat(), 2, "cannot be used with");
    ends_with(&["--config", "/nowhere.toml", "play"], 2, "cannot read the configuration file");
    ends_with(&["inspect", "compare", "-", "-"], 2, "standard input can be one of the two traces, not both");
    ends_with(&["man", "sing"], 2, "there is no command `sing`");
}

#[test]
fn a_mistake_names_the_variable_or_the_file_where_it_stands() {
    let directory = tempfile::tempdir().unwrap();
    let config = file(directory.path(), "c.toml", "[replay]\nspeed = \"x\"\n[inspect.summary]\njson = \"maybe\"\n");
    let replay = ["replay", "t.jsonl", "--target", "http://127.0.0.1:9"];
    ends_with(&[&["--config", &config], &replay[..]].concat(), 2, &format!("'{config}: [replay] speed (--speed <X>)'"));
    ends_with(&["--config", &config, "inspect", "summary", "t.jsonl"], 2, "c.toml: [inspect.summary] json (--json)'");
    let quiet = file(directory.path(), "q.toml", "quiet = true");
    ends_with(&["--config", &quiet, "play"], 2, &format!("invalid value 'true' for '{quiet}: quiet (--quiet"));
    let with = |(name, value): (&str, &str), arguments: &[&str], part: &str| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"));
        let output = program.args(arguments).env(name, value).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains(part), "{arguments:?}: {stderr}");
    };
    with(("VLLM_VCR_ENGINE", "x"), &["play"], "invalid value 'x' for 'VLLM_VCR_ENGINE (--engine)'");
    let tag = "VLLM_VCR_TAG (--tag) has no effect on the built-in trace";
    with(("VLLM_VCR_TAG", "x"), &["play", "--port", "0"], tag);
    let of_variable = |arguments: &[&str], part: &str| with(("VLLM_VCR_RATE", "abc"), arguments, part);
    of_variable(&replay, "invalid value 'abc' for 'VLLM_VCR_RATE (--rate <N>)'");
    of_variable(&[&replay[..], &["--rate", "fast"]].concat(), "invalid value 'fast' for '--rate <N>'");
    let burst = ["--arrivals=burst", "--rate=1", "--timeout", "5"];
    of_variable(&[&replay[..], &burst].concat(), "for '--timeout <");
}

#[test]
fn a_variable_yields_to_the_command_line_and_an_empty_one_is_none() {
    let with = |(name, value): (&str, &str), arguments: &[&str], code: i32, part: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_vllm-vcr")).args(arguments).env(name, value).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && stderr.contains(part), "{name}={value} {arguments:?}: {stderr}");
    };
    let (trace, replay) = ("/nowhere.jsonl", ["replay", "/nowhere.jsonl", "--target", "http://127.0.0.1:9"]);
    let summary = ["inspect", "summary", trace];
    with(("VLLM_VCR_RATE", "3"), &[&replay[..], &["--concurrency", "2"]].concat(), 3, trace);
    with(("VLLM_VCR_LOG", "debug"), &[&summary[..], &["-v"]].concat(), 3, trace);
    let play = ["play", "--engine", "--replay-tokens", trace];
    with(("VLLM_VCR_NO_ENABLE_PREFIX_CACHING", "1"), &[&play[..], &["--enable-prefix-caching"]].concat(), 3, trace);
    for name in ["JSON", "CONFIG", "LOG", "VERBOSE"] {
        with((&format!("VLLM_VCR_{name}"), ""), &summary, 3, trace);
    }
    for name in ["PORT", "CASSETTE", "REPORT", "REDACT", "ENGINE"] {
        with((&format!("VLLM_VCR_{name}"), ""), &["play", "--replay-tokens", trace], 3, trace);
    }
    with(("VLLM_VCR_CASSETTE", "zz.txt"), &["tap", "--upstream", "http://127.0.0.1:9"], 2, "zz.txt: the name says");
}

#[test]
fn a_usage_error_shows_no_credentials_of_a_url() {
    let url = "http://user:hunter2@h";
    for arguments in [
        &[url][..],
        &["play", "a", url],
        &["play", &format!("--{url}")],
        &["play", "--help", url],
        &["tap", "--upstream", "http://h:1", "--listen", url],
        &["man", url],
    ] {
        let output = vcr(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(2) && stderr.contains("http://…@h") && !stderr.contains("hunter2"),
            "{stderr}"
        );
    }
}

#[test]
fn health_is_well_unwell_or_unknown() {
    let starting = Running::start(&["play", "--port", "0", "--instant", "--startup-duration", "60m"]);
    let unwell = format!("http://{}", starting.address);
    let ready = Running::start(&["play", "--port", "0", "--instant"]);
    let well = format!("http://{}", ready.address);
    let output = vcr(&["health", &well]);
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{well}: 200 OK\n"));
    let output = vcr(&["health", &unwell]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("503"));
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", nobody.local_addr().unwrap());
    ends_with(&["health", &silent, "--timeout", "50ms"], 4, "no response");
    ends_with(&["health", "http://127.0.0.1:9"], 4, "refused");
    ends_with(&["health", "localhost"], 2, "http://");
}

#[cfg(not(feature = "object-storage"))]
#[test]
fn the_url_of_an_object_is_a_usage_error_without_object_storage() {
    let (trace, cassette) = ("gs://bucket/a.jsonl", "gs://bucket/a.yaml");
    for arguments in [
        ["inspect", "summary", trace].as_slice(),
        &["play", "--port", "0", "--replay-tokens", trace],
        &["play", "--port", "0", "--cassette", cassette],
        &["cassette", "validate", cassette],
        &["replay", trace, "--target", "http://127.0.0.1:9"],
        &["tap", "--upstream", "http://127.0.0.1:9", "--trace-out", trace],
    ] {
        ends_with(arguments, 2, "built without object storage");
    }
}

#[test]
fn bad_input_exits_3() {
    let directory = tempfile::tempdir().unwrap();
    let broken = file(directory.path(), "broken.jsonl", BROKEN);
    let text = file(directory.path(), "trace.txt", SOUND);
    ends_with(&["inspect", "summary", "/nowhere.jsonl"], 3, "/nowhere.jsonl");
    ends_with(&["inspect", "summary", &broken], 3, "broken.jsonl:1");
    ends_with(&["inspect", "check", &text], 3, ".jsonl");
    ends_with(&["play", "--port", "0", "--replay-tokens", "/nowhere.jsonl"], 3, "/nowhere.jsonl");
    ends_with(&["play", "--port", "0", "--tokenizer", "/nowhere"], 3, "/nowhere");
    ends_with(&["play", "--port", "0", "--synthetic", "random", "--output-tokens", "trace"], 3, "--replay-tokens FILE");
}

#[test]
fn the_environment_exits_4() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    ends_with(&["play", "--port", &address.port().to_string()], 4, "is in use");
    let listen = address.to_string();
    ends_with(&["tap", "--upstream", "http://h:1", "--trace-out", "-", "--listen", &listen], 4, "choose another port");
}

#[test]
fn a_page_that_does_not_fit_on_the_disk_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let (sound, page) = (file(directory.path(), "sound.jsonl", SOUND), directory.path().join("r.html"));
    let script = format!(
        "trap '' XFSZ; ulimit -f 4; exec {} inspect report {sound} -o {}",
        env!("CARGO_BIN_EXE_vllm-vcr"),
        page.display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!((output.status.code(), page.exists()), (Some(4), false), "{output:?}");
}

#[test]
fn a_trace_that_exists_is_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let sound = file(directory.path(), "sound.jsonl", SOUND);
    let arguments = ["tap", "--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0", "--trace-out", &sound];
    ends_with(&arguments, 2, "--append");
    assert_eq!(fs::read_to_string(&sound).unwrap(), SOUND);
}

#[test]
fn a_check_answers_by_its_exit_code() {
    let directory = tempfile::tempdir().unwrap();
    let sound = file(directory.path(), "sound.jsonl", SOUND);
    let broken = file(directory.path(), "broken.jsonl", BROKEN);
    assert_eq!(vcr(&["inspect", "check", &sound]).status.code(), Some(0));
    let output = vcr(&["inspect", "check", &broken, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["path"], &found["findings"][0]["line"]), (&broken.into(), &1.into()));
}

#[test]
fn what_is_missing_of_a_trace_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let cut = file(directory.path(), "cut.jsonl", &format!("{SOUND}{}", &SOUND[..20]));
    let checked = vcr(&["inspect", "check", &cut]);
    assert_eq!(
        (checked.status.code(), String::from_utf8(checked.stdout).unwrap()),
        (
            Some(1),
            format!("{cut}: warning: the file was cut at line 2; kept 1 complete record before it\n{cut}: not whole\n")
        )
    );
    ends_with(&["inspect", "convert", &cut, "-o", "-"], 0, "the file was cut at line 2");
    ends_with(&["inspect", "simulate", &cut], 3, "the file was cut at line 2");
    ends_with(
        &["replay", &cut, "--target", "http://127.0.0.1:9", "--duration", "1ms"],
        1,
        "the file was cut at line 2",
    );
    let audited = vcr(&["inspect", "audit", &cut]);
    assert!(String::from_utf8_lossy(&audited.stdout).contains("warning: the file was cut at line 2"));
    assert_eq!(audited.status.code(), Some(1));
    // A capture that ended just after a rotation.
    let rotated = directory.path().join("rotated");
    fs::create_dir(&rotated).unwrap();
    file(&rotated, "day.jsonl", SOUND);
    let last = file(&rotated, "day.1.jsonl", "{\"meta\":{\"part\":2}}\n");
    assert_eq!(vcr(&["inspect", "check", rotated.to_str().unwrap()]).status.code(), Some(0));
    assert_eq!(vcr(&["inspect", "check", &last]).status.code(), Some(1));
    // One of whose files is gone.
    let gone = directory.path().join("gone");
    fs::create_dir(&gone).unwrap();
    let part = |part: u32| format!("{{\"meta\":{{\"part\":{part},\"started_at\":\"2026-01-01T00:00:00Z\"}}}}\n{SOUND}");
    for (name, number) in [("day.jsonl", 1), ("day.2.jsonl", 3)] {
        file(&gone, name, &part(number));
    }
    for (command, code) in [("check", 1), ("summary", 0)] {
        let output = vcr(&["inspect", command, gone.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(code));
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(shown.contains("part 2 of the capture is missing before it"), "{command}: {shown}");
    }
    ends_with(&["drift", &cut, "--live", "http://127.0.0.1:9"], 3, "this is a trace, not a cassette");
}

#[test]
fn results_go_to_stdout() {
    let directory = tempfile::tempdir().unwrap();
    let sound = file(directory.path(), "sound.jsonl", SOUND);
    let output = vcr(&["inspect", "summary", &sound, "--json"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap();
    for arguments in [&["completions", "zsh"][..], &["man"], &["man", "inspect", "check"], &["--version"]] {
        let output = vcr(arguments);
        assert!(output.status.success() && !output.stdout.is_empty(), "{arguments:?}");
    }
}
