//! `--match exec:COMMAND`: a command that chooses records.

use serde_json::{Value, json};

use super::{CHAT, Shelf, chat, read, record, said, tape, vcr};

/// A cassette of two records.
fn shelf() -> Shelf {
    Shelf::with(&tape(&[record(&["a"], "A"), record(&["b"], "B")]))
}

#[tokio::test]
async fn a_command_chooses_where_no_other_way_finds_a_record() {
    let shelf = shelf();
    let file = |name: &str| shelf.folder.path().join(name);
    let (log, pid) = (file("log"), file("pid"));
    let script = format!(
        "exec:echo $$ > {}; while read -r line; do echo \"$line\" >> {}; echo '{{\"id\": 1}}'; done",
        pid.display(),
        log.display()
    );
    let play = shelf.play(&["--match", &format!("canonical,{script}")]);
    assert_eq!(said(&play.send(CHAT, &chat(&["a"])).await), "A");
    assert!(!pid.exists(), "it is started when it is needed");
    let chosen = play.send(CHAT, &chat(&["something else"])).await;
    assert_eq!((said(&chosen).as_str(), chosen.header("x-vcr-match")), ("B", Some("exec")));
    let line: Value = serde_json::from_str(&read(&log)).unwrap();
    assert_eq!(line["request"]["body"]["messages"][0]["content"], "something else");
    assert_eq!((&line["request"]["at"], &line["request"]["route"]), (&json!("llm:m"), &json!(format!("POST {CHAT}"))));
    let mut candidates: Vec<(u64, u64, &str)> = line["candidates"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["id"].as_u64().unwrap(), it["served"].as_u64().unwrap(), it["record"].as_str().unwrap()))
        .collect();
    candidates.sort_unstable();
    assert_eq!(candidates, [(0, 1, "tape.yaml#0"), (1, 0, "tape.yaml#1")]);
    let again = play.send(CHAT, &chat(&["another one"])).await;
    assert_eq!(again.header("x-vcr-miss"), Some("exhausted"), "{}", again.text());
    assert_eq!(play.get("/vcr/report").await["sessions"]["default"]["loose"], json!({"exec": 1}));
    let id = read(&pid).trim().to_owned();
    let state = || std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    assert!(!state().is_empty());
    play.stop();
    // A process that was killed may wait for its new parent; the test ends when it is gone.
    while !(state().is_empty() || state().contains(") Z ")) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_command_that_chooses_none_or_fails_leaves_a_miss() {
    for (script, miss, part) in [
        ("while read -r line; do echo null; done", "no_match", "Closest recorded request"),
        ("while read -r line; do echo 7; done", "matcher_failed", "it chose 7, which is none of the candidates"),
        ("exit 1", "matcher_failed", "it ended, or closed its output, without an answer"),
    ] {
        let shelf = shelf();
        let play = shelf.play(&["--match", &format!("exec:{script}"), "--fail-on", "miss"]);
        let answer = play.send(CHAT, &chat(&["z"])).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, answer.header("x-vcr-miss")), (422, Some(miss)), "{error}");
        assert!(play.stop().1.contains(part), "{script}: {error}");
    }
}

#[tokio::test]
async fn commands_are_run_for_a_flag_only() {
    let shelf = shelf();
    let refused = |flags: &[&str], part: &str| {
        let output = vcr(&[&["play", "--cassette", shelf.name()], flags, &["--", "true"]].concat());
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && log.contains(part), "{flags:?}: {log}");
    };
    refused(&["--match", "semantic"], "no embeddings are built in; exec:COMMAND");
    refused(&["--match", "exec:"], "name the command");
    refused(&["--match", "exec:cat,canonical"], "must be the last way");
    let play = shelf.play(&[]);
    let session = play.send("/vcr/sessions", &json!({"name": "one", "match": "exec:touch /tmp/owned"})).await;
    assert!(session.status == 400 && session.text().contains("which only --match names"), "{}", session.text());
    std::fs::write(&shelf.file, shelf.text().replace("vcr: 1\n", "vcr: 1\nmatch: ['exec:touch /tmp/owned']\n"))
        .unwrap();
    refused(&[], "which only --match names");
}
