//! `--mode compare`: requests go upstream, and the answers are compared with the recorded ones.

use serde_json::{Value, json};

use super::{CHAT, Shelf, agent, chat, engine, said, vcr};

/// A cassette of an agent and of two chats, recorded from the scripted engine.
async fn recorded() -> Shelf {
    let shelf = Shelf::empty();
    let upstream = engine().await;
    let tap = shelf.tap(&upstream, &[]);
    agent(&tap, "weather", json!(true)).await.unwrap_or_else(|miss| panic!("{}", miss.text()));
    for words in ["hello", "status 404"] {
        tap.send(CHAT, &chat(&[words])).await;
    }
    tap.stop();
    shelf
}

#[tokio::test]
async fn the_same_answers_are_no_difference() {
    let shelf = recorded().await;
    let before = shelf.text();
    let upstream = engine().await;
    let tap = shelf.tap(&upstream, &["--mode", "compare", "--fail-on", "miss,unconsumed,drift,text"]);
    agent(&tap, "weather", json!(false)).await.unwrap_or_else(|miss| panic!("{}", miss.text()));
    assert_eq!(said(&tap.send(CHAT, &chat(&["hello"])).await), "You said hello.");
    assert_eq!(tap.send(CHAT, &chat(&["status 404"])).await.status, 404);
    let (code, log) = tap.stop();
    assert!(code == 0 && log.contains("compared: 4 answers, 0 of another structure, 0 with other texts"), "{log}");
    assert_eq!(shelf.text(), before);
    let files: Vec<_> = std::fs::read_dir(shelf.folder.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(files.len(), 2, "nothing is written beside the cassette and its sidecar: {files:?}");
}

#[tokio::test]
async fn differences_are_reported_by_their_kind_and_the_client_gets_the_answer_of_now() {
    let shelf = recorded().await;
    let edited = shelf.text().replace("You said hello.", "You said something!");
    let edited = edited.replace("name: weather, arguments", "name: forecast, arguments");
    assert!(edited.contains("forecast") && edited.contains("something"), "{edited}");
    std::fs::write(&shelf.file, &edited).unwrap();
    let upstream = engine().await;
    let report = shelf.folder.path().join("report.json");
    let run = |fail_on: &'static str| {
        shelf.tap(&upstream, &["--mode", "compare", "--fail-on", fail_on, "--report", report.to_str().unwrap()])
    };
    for (fail_on, failing, code) in [
        ("drift", json!(["drift"]), 1),
        ("text", json!(["text"]), 1),
        ("miss", json!(["miss"]), 1),
        ("loose", json!([]), 0),
    ] {
        let tap = run(fail_on);
        assert_eq!(said(&tap.send(CHAT, &chat(&["hello"])).await), "You said hello.");
        let tool = json!({"type": "function", "function": {"name": "weather", "description": "Tells the weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "A city"}}}}});
        let asked = json!({"model": "m", "tools": [tool], "messages": [{"role": "system", "content": "A weather bot."}, {"role": "user", "content": "weather"}]});
        assert_eq!(tap.send(CHAT, &asked).await.status, 200);
        assert_eq!(tap.send(CHAT, &chat(&["never recorded"])).await.status, 200);
        let (exit, log) = tap.stop();
        assert_eq!(exit, code, "{fail_on}: {log}");
        let report: Value = serde_json::from_str(&super::read(&report)).unwrap();
        assert_eq!(report["failing"], failing);
        let session = &report["sessions"]["default"];
        let compared = &session["compared"];
        assert_eq!(
            (&compared["answers"], &compared["structure"], &compared["text"]),
            (&json!(2), &json!(1), &json!(1)),
            "{compared}"
        );
        assert_eq!(session["misses"], json!({"no_match": 1}));
        for part in [
            "text: $.message.content is 'You said hello.', recorded 'You said something!'",
            "structure: $.message.tool_calls[0].name is 'weather', recorded 'forecast'",
            "tape.yaml#",
        ] {
            assert!(log.contains(part) && compared["changes"].to_string().contains(part), "{part}: {log}");
        }
    }
    assert_eq!(shelf.text(), edited);
}

#[tokio::test]
async fn play_compares_too_and_a_dead_upstream_is_a_difference() {
    let shelf = recorded().await;
    let play = shelf.play(&["--mode", "compare", "--upstream", "http://127.0.0.1:9", "--fail-on", "drift"]);
    assert_eq!(play.send(CHAT, &chat(&["hello"])).await.status, 502);
    let entries = play.get("/vcr/requests").await;
    assert_eq!(entries[0]["outcome"], "compared", "{entries}");
    let (code, log) = play.stop();
    assert!(code == 1 && log.contains("structure: the upstream did not answer"), "{log}");
}

#[test]
fn it_needs_a_cassette_and_an_upstream() {
    let refused = |arguments: &[&str], code: i32, part: &str| {
        let output = vcr(arguments);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && log.contains(part), "{arguments:?}: {log}");
    };
    let shelf = Shelf::with("vcr: 1\nrecords: []\n");
    refused(&["play", "--cassette", shelf.name(), "--mode", "compare", "--", "true"], 2, "--upstream URL");
    let missing = shelf.folder.path().join("missing.yaml");
    let missing = missing.to_str().unwrap();
    refused(
        &["play", "--cassette", missing, "--mode", "compare", "--upstream", "http://127.0.0.1:9", "--", "true"],
        3,
        "record it: vllm-vcr tap",
    );
    refused(
        &[
            "play",
            "--cassette",
            shelf.name(),
            "--mode",
            "compare",
            "--upstream",
            "http://127.0.0.1:9",
            "--live",
            "llm",
            "--",
            "true",
        ],
        2,
        "leave out --live and --frozen",
    );
}
