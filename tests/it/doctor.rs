//! `doctor`: its lines, its advice and its exit code.

use std::net::TcpListener;

use serde_json::Value;

use crate::support::running::{Running, vcr};

/// Runs it; returns its exit code and its checks.
fn doctor(arguments: &[&str]) -> (i32, Vec<Value>) {
    let output = vcr(&[&["doctor", "--json"], arguments].concat());
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let checks = found["checks"].as_array().unwrap().clone();
    let fails = checks.iter().any(|check| check["state"] == "fail");
    assert_eq!((found["fit"].as_bool(), output.status.code()), (Some(!fails), Some(i32::from(fails))), "{found}");
    assert!(found["build"]["version"].is_string());
    assert!(checks.iter().all(|check| check["state"] == "ok" || check["advice"].is_string()), "{found}");
    (output.status.code().unwrap(), checks)
}

fn of<'c>(checks: &'c [Value], name: &str) -> &'c Value {
    checks.iter().find(|check| check["check"] == name).unwrap_or(&Value::Null)
}

#[test]
fn the_machine_is_checked() {
    let (_, checks) = doctor(&[]);
    for name in ["cores", "descriptors", "timer", "loopback"] {
        assert!(of(&checks, name)["figures"].is_object(), "{checks:?}");
    }
    assert!(of(&checks, "tokenizer")["found"].as_str().unwrap().contains("built-in"));
    assert!(of(&checks, "upstream").is_null());
}

#[test]
fn an_engine_is_described() {
    let engine = Running::start(&["play", "--port", "0", "--max-model-len", "5000"]);
    let url = format!("http://{}", engine.address);
    let (_, checks) = doctor(&["--upstream", &url]);
    let upstream = of(&checks, "upstream");
    assert_eq!(
        (&upstream["state"], &upstream["figures"]["vllm_version"]),
        (&"ok".into(), &"0.32.0".into()),
        "{upstream}"
    );
    assert!(upstream["found"].as_str().unwrap().contains("max_model_len 5000"), "{upstream}");
    for (path, part) in [("/v1", "leave it out"), ("/other", "other servers than vLLM")] {
        let (_, checks) = doctor(&["--upstream", &format!("{url}{path}")]);
        let upstream = of(&checks, "upstream");
        assert!(upstream["state"] == "warn" && upstream["advice"].as_str().unwrap().contains(part), "{upstream}");
    }
}

#[test]
fn what_is_not_there_fails_with_advice() {
    let hangs = TcpListener::bind("127.0.0.1:0").unwrap();
    let hanging = format!("http://{}", hangs.local_addr().unwrap());
    for (url, part) in [("http://127.0.0.1:9", "refused"), (hanging.as_str(), "does not respond")] {
        let (code, checks) = doctor(&["--upstream", url, "--tokenizer", "/nowhere/at/all"]);
        assert_eq!(code, 1);
        for (name, part) in [("upstream", part), ("tokenizer", "/nowhere/at/all")] {
            let line = of(&checks, name);
            assert!(line["state"] == "fail" && line["found"].as_str().unwrap().contains(part), "{line}");
        }
    }
    assert_eq!(vcr(&["doctor", "--upstream-ca", "x.pem"]).status.code(), Some(2));
}
