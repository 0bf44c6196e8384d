//! `inspect compare` as a program: two traces, a gate, and the files for a test report and a pull request.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::support::{running::vcr, traces::Trace};

/// Two hundred requests with TTFTs of 20 to 29 ms, times `slower`; every twentieth failed.
fn trace(slower: f64) -> Trace {
    let line = |number: u32| {
        let (ttft, failed) = (f64::from(20 + number * 7 % 10) * slower, number.is_multiple_of(20));
        json!({"prompt_tokens": 100, "cached_tokens": number % 50, "output_tokens": 3, "ttft_ms": ttft,
            "itl_ms": [5.0, 6.0], "e2e_ms": ttft + 12.0, "arrival_ms": number * 50, "endpoint": "completions",
            "stream": true, "finish_reason": "length", "status": if failed { 500 } else { 200 },
            "outcome": if failed { "error" } else { "finished" }})
    };
    Trace::of(&(0..200).map(line).collect::<Vec<_>>())
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_doubled_ttft_is_worse_everywhere_it_is_said() {
    let (before, after) = (trace(1.0), trace(2.0));
    let folder = tempfile::tempdir().unwrap();
    let [gate, junit, table] = ["gate.toml", "gate.xml", "change.md"].map(|name| folder.path().join(name));
    fs::write(&gate, "[ttft_p50]\nmax_increase = \"10%\"\nmax = \"1s\"\n[error_share]\nmax = \"10%\"\n").unwrap();
    let files = ["--gate", path(&gate), "--junit", path(&junit), "--markdown", path(&table)];
    let traces = ["inspect", "compare", path(&before.file), path(&after.file)];
    let output = vcr(&[&traces[..], &files, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ttft = &printed["metrics"]["ttft_p50"];
    assert_eq!((&ttft["judgement"], &ttft["change_percent"]), (&json!("worse"), &json!(100.0)), "{printed:#}");
    assert_eq!(printed["metrics"]["itl_p50"]["judgement"], "no_change");
    assert_eq!(printed["metrics"]["error_share"]["b"], 0.05);
    let rose = "it rose by 100.0 %, to 50.00 ms, and may by 10.0 %";
    let gate = json!([{"metric": "error_share", "failure": null}, {"metric": "ttft_p50", "failure": rose}]);
    assert_eq!(printed["gate"], gate);
    let junit = fs::read_to_string(junit).unwrap();
    assert!(junit.contains("tests=\"2\" failures=\"1\"") && junit.contains(rose), "{junit}");
    let table = fs::read_to_string(table).unwrap();
    assert!(table.contains("| ttft_p50 | 25.00 ms | 50.00 ms | +100.0 % | +"), "{table}");
    assert!(table.contains(" | worse |") && table.contains("- **fail** `ttft_p50`: it rose"), "{table}");

    let backwards = vcr(&["inspect", "compare", path(&after.file), path(&before.file)]);
    let text = String::from_utf8(backwards.stdout).unwrap();
    let row = text.lines().find(|line| line.starts_with("ttft_p90")).unwrap();
    assert!(row.ends_with("better") && backwards.status.success(), "{text}");
    assert!(!text.contains("worse"), "{text}");
}

#[test]
fn wrong_flags_and_files_are_told_apart_and_bad_lines_are_not_hidden() {
    let before = trace(1.0);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        file
    };
    let run = |flags: &[&str]| {
        let output = vcr(&[&["inspect", "compare", path(&before.file)], flags].concat());
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    assert_eq!(run(&["--json"]).0, Some(2), "one trace");
    assert_eq!(run(&[path(&before.file), "--junit", "gate.xml"]).0, Some(2), "no gate");
    assert_eq!(run(&["/nothing/here.jsonl"]).0, Some(3));
    let gate = file("gate.toml", "[ttft_p99]\nmax = \"10%\"\n");
    let (code, said) = run(&[path(&before.file), "--gate", path(&gate)]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("gate.toml: [ttft_p99] max: `10%` is not a time"), "{said}");
    let damaged = fs::read_to_string(&before.file).unwrap().replacen("\"output_tokens\":3", "\"output_tokens\":-3", 1);
    let damaged = file("damaged.jsonl", &damaged);
    let (code, said) = run(&[path(&damaged)]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("damaged.jsonl: 1 bad lines are left out"), "{said}");
}
