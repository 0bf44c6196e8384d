//! `inspect report` as a program: its figures are those of the other commands, and nothing that a trace holds becomes markup.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::support::{
    running::vcr,
    traces::{Trace, own_shapes},
};

/// Two hundred requests of families that share prefixes; every twentieth failed.
fn trace(slower: f64, more: &Value) -> Trace {
    let line = |number: u32| {
        let (ttft, failed) = (f64::from(20 + number * 7 % 10) * slower, number.is_multiple_of(20));
        let mut line = json!({"prompt_tokens": 48, "cached_tokens": 16, "output_tokens": 3, "ttft_ms": ttft,
            "itl_ms": [5.0, 6.0], "e2e_ms": ttft + 12.0, "arrival_ms": number * 50, "endpoint": "completions", "stream": true,
            "block_hashes": [1 + number % 2, 10 + number % 4, 1000 + number], "finish_reason": "length",
            "request_id": format!("request-{number}"), "status": if failed { 500 } else { 200 },
            "outcome": if failed { "error" } else { "finished" }});
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        line
    };
    Trace::of(&(0..200).map(line).collect::<Vec<_>>())
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Makes a page, and reads it.
fn page(traces: &[&Path]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("report.html");
    let files: Vec<&str> = traces.iter().map(|file| path(file)).collect();
    let made = vcr(&[&["inspect", "report", "-o", path(&output)], &files[..]].concat());
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::read_to_string(output).unwrap()
}

/// The JSON that a page holds.
fn figures(page: &str) -> Value {
    let (_, json) = page.split_once("<script type=\"application/json\" id=\"figures\">").unwrap();
    serde_json::from_str(json.split_once("</script>").unwrap().0).unwrap()
}

fn printed(arguments: &[&str]) -> Value {
    let mut printed: Value = serde_json::from_slice(&vcr(arguments).stdout).unwrap();
    // Which program printed it is no figure.
    printed.as_object_mut().unwrap().remove("build");
    printed
}

/// The numbers that a page shows, each with its place in the JSON.
fn shown(page: &str) -> Vec<(String, Value)> {
    let data = page.split("<data value=\"").skip(1);
    let figure = |text: &str| {
        let (value, rest) = text.split_once("\" data-figure=\"").unwrap();
        (rest.split_once('"').unwrap().0.to_owned(), serde_json::from_str(value).unwrap())
    };
    data.map(figure).collect()
}

/// What `inspect summary` prints of a trace.
fn summary(file: &Path) -> Value {
    printed(&["inspect", "summary", path(file), "--json"])
}

#[test]
fn figures_are_those_of_summary_and_compare() {
    let (before, after) = (trace(1.0, &json!({})), trace(2.0, &json!({})));
    let page = page(&[&before.file, &after.file]);
    let figures = figures(&page);
    for (run, trace) in [&before, &after].into_iter().enumerate() {
        assert_eq!(figures["runs"][run]["summary"], summary(&trace.file));
    }
    let comparison = printed(&["inspect", "compare", path(&before.file), path(&after.file), "--json"]);
    assert_eq!(figures["comparison"], comparison);
    let shown = shown(&page);
    for (pointer, value) in &shown {
        assert_eq!(figures.pointer(pointer), Some(value), "{pointer}");
    }
    for pointer in
        ["/runs/1/summary/latencies/ttft/p99", "/comparison/metrics/ttft_p50/change_percent", "/runs/0/failed/count"]
    {
        assert!(shown.iter().any(|(shown, _)| shown == pointer), "{pointer}");
    }
    let run = &figures["runs"][1];
    assert_eq!(run["failed"]["count"], 10);
    assert_eq!(run["failed"]["by_kind"], json!([{"status": 500, "outcome": "error", "count": 10}]));
    assert_eq!(run["slowest_ttft"][0]["ttft_ms"], 58.0);
    let reused =
        run["prefixes"]["shared"].as_array().unwrap().iter().map(|prefix| prefix["reused_blocks"].as_u64().unwrap());
    assert_eq!(json!(reused.sum::<u64>()), run["summary"]["sharing"]["shared_blocks"]);
    let rate = &run["output_tokens_per_s"];
    let tokens: f64 = rate["series"].as_array().unwrap().iter().map(|rate| rate.as_f64().unwrap()).sum();
    assert!((tokens * rate["bucket_ms"].as_f64().unwrap() / 1000.0 - 600.0).abs() < 1e-6, "{rate}");
    let median = figures["quantiles"]["ttft"]
        .as_array()
        .unwrap()
        .iter()
        .find(|point| (point[0].as_f64().unwrap() - 24.0).abs() < 0.1)
        .unwrap();
    assert!((median[1].as_f64().unwrap() - 48.0).abs() < 1.0, "{median}");
}

#[test]
fn nothing_of_a_trace_becomes_markup() {
    let hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u{202e}<!--";
    let more =
        json!({"model": hostile, "session": hostile, "request_id": hostile, "error": {"body": hostile}, "status": 500});
    let trace = trace(1.0, &more);
    let named = trace.file.with_file_name("<b>&'\"name.jsonl");
    fs::copy(&trace.file, &named).unwrap();
    let page = page(&[&named, &trace.file]);
    let figures = figures(&page);
    assert_eq!(figures["runs"][0]["slowest_e2e"][0]["session"], hostile);
    assert_eq!(figures["runs"][0]["failed"]["first"][0]["error"], hostile);
    assert_eq!(page.matches("<script").count(), 2);
    assert_eq!(page.matches("</script").count(), 2);
    for markup in ["<img", "<b>", "<!--", "\u{202e}"] {
        assert!(!page.contains(markup), "{markup}");
    }
    // Attributes end where this program ends them: each quote within is written as an entity.
    assert!(page.contains("&lt;b&gt;&amp;&#39;&quot;name.jsonl"));
    assert!(page.contains("default-src 'none'") && !page.contains("http://") && !page.contains("https://"));
}

#[test]
fn traces_of_every_shape_make_a_page() {
    for file in own_shapes() {
        let page = page(&[&file]);
        let figures = figures(&page);
        assert_eq!(figures["runs"][0]["summary"], summary(&file));
        assert!(shown(&page).iter().all(|(pointer, value)| figures.pointer(pointer) == Some(value)), "{file:?}");
        assert!(!page.contains("NaN") && !page.contains("inf\"") && !page.contains("inf "), "{file:?}");
    }
    let nothing = Trace::of(&[]);
    let page = page(&[&nothing.file]);
    assert!(page.contains("no arrival times") && page.contains("no block hashes"), "{page}");
}

#[test]
fn a_page_is_bounded() {
    let line = |number: u32| {
        json!({"prompt_tokens": 32, "output_tokens": 2, "ttft_ms": 1.0 + f64::from(number % 997), "itl_ms": [f64::from(number % 89)],
            "arrival_ms": number, "block_hashes": [number / 2, 100_000 + number], "status": 500, "session": format!("{number}").repeat(200)})
    };
    let large = Trace::of(&(0..5000).map(line).collect::<Vec<_>>());
    let page = page(&[&large.file]);
    assert!(page.len() < 600_000, "{}", page.len());
    let run = &figures(&page)["runs"][0];
    let lengths = [
        "/survival/ttft",
        "/ttft_over_time/p50",
        "/output_tokens_per_s/series",
        "/prefixes/shared",
        "/slowest_e2e",
        "/failed/first",
    ]
    .map(|list| run.pointer(list).unwrap().as_array().unwrap().len());
    assert!(
        lengths.iter().zip([250, 120, 120, 200, 20, 50]).all(|(length, most)| *length <= most && *length > 0),
        "{lengths:?}"
    );
}

#[test]
fn one_trace_may_come_from_a_pipe() {
    let trace = trace(1.0, &json!({}));
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("report.html");
    let mut child = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"))
        .args(["-q", "inspect", "report", "-", "-o", path(&output)])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&fs::read(&trace.file).unwrap()).unwrap();
    assert!(child.wait().unwrap().success());
    let figures = figures(&fs::read_to_string(output).unwrap());
    assert_eq!((&figures["runs"][0]["summary"]["requests"], &figures["comparison"]), (&json!(200), &Value::Null));
}

#[test]
fn wrong_flags_and_files_are_told_apart() {
    let trace = trace(1.0, &json!({}));
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("report.html");
    let run = |flags: &[&str]| {
        let output = vcr(&[&["inspect", "report"], flags].concat());
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let file = path(&trace.file);
    assert_eq!(run(&[file]).0, Some(2), "no output");
    assert_eq!(run(&["-o", path(&output)]).0, Some(2), "no trace");
    let before = fs::read(&trace.file).unwrap();
    let (code, said) = run(&[file, "-o", file]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("ends in .html") && fs::read(&trace.file).unwrap() == before, "{said}");
    let (code, said) = run(&[&[file; 9][..], &["-o", path(&output)]].concat());
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("9 traces are too many"), "{said}");
    let (code, said) = run(&[file, "-", "-o", path(&output)]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("standard input"), "{said}");
    let (code, said) = run(&["/nothing/here.jsonl", "-o", path(&output)]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("/nothing/here.jsonl"), "{said}");
    let (code, said) = run(&[file, "-o", "/nothing/report.html"]);
    assert_eq!(code, Some(4), "{said}");
    assert!(!output.exists());
    let damaged: PathBuf = folder.path().join("damaged.jsonl");
    let text = fs::read_to_string(&trace.file).unwrap().replacen("\"output_tokens\":3", "\"output_tokens\":-3", 1);
    fs::write(&damaged, text).unwrap();
    assert_eq!(run(&[path(&damaged), "-o", path(&output)]).0, Some(0));
    assert_eq!(figures(&fs::read_to_string(&output).unwrap())["runs"][0]["summary"]["bad_lines"]["count"], 1);
}
