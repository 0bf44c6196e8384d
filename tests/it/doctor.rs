//! `doctor`: its lines, its advice and its exit code.

use serde_json::Value;

use crate::support::running::{Running, vcr};

/// Exit code, and a check by its name.
fn checked(arguments: &[&str]) -> (i32, impl Fn(&str) -> Value) {
    let output = vcr(&[&["doctor", "--json"], arguments].concat());
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let checks = found["checks"].as_array().unwrap().clone();
    let fails = checks.iter().any(|check| check["state"] == "fail");
    assert_eq!((found["fit"].as_bool(), output.status.code()), (Some(!fails), Some(i32::from(fails))), "{found}");
    assert!(found["build"]["version"].is_string());
    assert!(checks.iter().all(|check| check["state"] == "ok" || check["advice"].is_string()), "{found}");
    let of = move |name: &str| checks.iter().find(|check| check["check"] == name).cloned().unwrap_or_default();
    (output.status.code().unwrap(), of)
}

#[test]
fn the_machine_is_checked() {
    let (_, of) = checked(&[]);
    for name in ["cores", "descriptors", "timer", "loopback"] {
        assert!(of(name)["figures"].is_object(), "{name}: {}", of(name));
    }
    assert!(of("tokenizer")["found"].as_str().unwrap().contains("built-in"));
    assert!(of("upstream").is_null());
}

#[test]
fn an_engine_is_described() {
    let engine = Running::start(&["play", "--port", "0", "--max-model-len", "5000"]);
    let (_, of) = checked(&["--upstream", &format!("http://{}", engine.address)]);
    let upstream = of("upstream");
    assert_eq!(
        (&upstream["state"], &upstream["figures"]["vllm_version"]),
        (&"ok".into(), &"0.32.0".into()),
        "{upstream}"
    );
    assert!(upstream["found"].as_str().unwrap().contains("--max-model-len 5000"), "{upstream}");
}

#[test]
fn what_is_not_there_fails_with_advice() {
    let (code, of) = checked(&["--upstream", "http://127.0.0.1:9", "--tokenizer", "/nowhere/at/all"]);
    assert_eq!(code, 1);
    for (name, part) in [("upstream", "cannot be reached"), ("tokenizer", "/nowhere/at/all")] {
        let line = of(name);
        assert!(line["state"] == "fail" && line["found"].as_str().unwrap().contains(part), "{line}");
    }
    assert_eq!(vcr(&["doctor", "--upstream-ca", "x.pem"]).status.code(), Some(2));
}
