//! What the page about stability promises: flags and metrics that are there, and files of earlier versions that are read.

use std::{
    collections::{BTreeSet, HashSet},
    ffi::OsStr,
};

use clap::Command;
use serde_json::{Value, json};

use crate::support::{
    client::{self, get},
    running::{Running, vcr},
    tap_program::{Program, ask, engine, until},
    tree,
};

/// The lines of the page's lists, by their number on the page.
fn list(number: usize) -> Vec<String> {
    let page = tree::read("docs/src/reference/stability.md");
    let list = page.split("```text\n").nth(number + 1).unwrap().split("```").next().unwrap();
    list.lines().map(str::to_owned).collect()
}

/// The flags of a command that are also variables of their name, and the two that are none.
fn flags_of<'a>(mut command: &'a Command, path: &[&str]) -> HashSet<&'a str> {
    for name in path {
        command = command.find_subcommand(name).unwrap_or_else(|| panic!("there is no {path:?}"));
    }
    let variable = |flag: &str| format!("VLLM_VCR_{}", flag.to_ascii_uppercase().replace('-', "_"));
    let expected = |flag: &&str| !matches!(*flag, "mode" | "url");
    let with_variables = command
        .get_arguments()
        .filter(|it| it.get_env() == it.get_long().filter(expected).map(variable).as_deref().map(OsStr::new));
    with_variables.filter_map(|it| it.get_long_and_visible_aliases()).flatten().collect()
}

#[test]
fn flags_that_are_promised_are_there_and_those_of_a_screen_are_promised() {
    let program = vllm_vcr::cli::command();
    for line in list(0) {
        let (path, promised): (Vec<&str>, Vec<&str>) = line.split(' ').partition(|word| !word.starts_with("--"));
        let known = flags_of(&program, &path);
        let promised: BTreeSet<&str> = promised.into_iter().map(|flag| flag.trim_start_matches('-')).collect();
        let gone: Vec<_> = promised.iter().filter(|flag| !known.contains(*flag)).collect();
        assert!(gone.is_empty(), "{path:?} has lost {gone:?}, or their variables");
        let screen = vcr(&[path.as_slice(), &["-h"]].concat());
        let screen = String::from_utf8(screen.stdout).unwrap();
        let screen = screen.split("\nExample").next().unwrap();
        let shown =
            screen.lines().filter_map(|line| line.trim().split("--").nth(1).filter(|_| line.trim().starts_with('-')));
        let shown = shown.map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next().unwrap());
        let missing: Vec<_> = shown.filter(|flag| *flag != "help" && !promised.contains(flag)).collect();
        assert!(missing.is_empty(), "{path:?} shows {missing:?}, which the page does not promise");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_that_are_promised_are_there() {
    let play = Running::start(&["play", "--port", "0", "--vcr-metrics", "--instant"]);
    let folder = tempfile::tempdir().unwrap();
    let mut tap = Program::start(engine(), &folder.path().join("t.jsonl"), &["--admin-listen", "127.0.0.1:0"]);
    let admin = tap.admin();
    // A family with labels is there once one of them is.
    assert!(ask(tap.address, "one"));
    until(admin, "vcr_records_written_total 1\n");
    for (number, address) in [(1, admin), (2, play.address)] {
        let page = client::send(address, &get("/metrics")).await.text();
        for metric in list(number) {
            assert!(page.contains(&format!("# TYPE {metric}\n")), "{metric}: {page}");
        }
    }
}

const OLD: [&str; 1] = ["0.1"];

/// A request to a cassette, and what the version that recorded it answered.
#[derive(serde::Deserialize)]
struct Kept {
    path: String,
    request: Value,
    status: u16,
    answer: Value,
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_earlier_versions_give_the_same_answers() {
    for version in OLD {
        let file = |name: &str| tree::root().join("tests/stable").join(version).join(name).to_str().unwrap().to_owned();
        let played = Running::start(&["play", "--port", "0", "--strict", "--cassette", &file("agent.yaml")]);
        let kept: Vec<Kept> = serde_json::from_str(&tree::read(file("agent.json"))).unwrap();
        for Kept { path, request, status, answer } in kept {
            let got = played.send(&path, &request).await;
            let stream = request["stream"] == true;
            let body = if stream { json!(got.events()) } else { got.json() };
            assert_eq!((got.status, body), (status, answer), "{version}: {request}");
        }
        let models = played.get("/v1/models").await["data"].clone();
        let models: Vec<&Value> = models.as_array().unwrap().iter().map(|model| &model["id"]).collect();
        assert_eq!(models, ["smollm2-135m"], "no server knew the other one that was asked for");
        let summary: Value =
            serde_json::from_slice(&vcr(&["inspect", "summary", "--json", &file("day.jsonl")]).stdout).unwrap();
        assert_eq!((&summary["records"], &summary["tokens"]["output_total"]), (&json!(9), &json!(68)), "{version}");
        let played = Running::start(&["play", "--port", "0", "--instant", "--replay-tokens", &file("day.jsonl")]);
        let body = json!({"messages": [{"role": "user", "content": "Where is Rome?"}]});
        let answer = played.send("/v1/chat/completions", &body).await.json();
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert_eq!(text, "files really bec partial period Direct accepted relation", "{version}: {answer}");
    }
}
