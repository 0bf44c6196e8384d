//! A recording without records is not kept, and one that is missing says how it is recorded.

use serde_json::json;

use super::{CHAT, Shelf, chat, engine, record, said, tape, vcr};
use crate::support::running::Running;

/// An address that nobody listens on.
fn dead() -> String {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", taken.local_addr().unwrap())
}

fn log_of(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_upstream_leaves_no_cassette_and_the_next_run_records() {
    let shelf = Shelf::empty();
    let dead = dead();
    let ask = format!(
        "curl -s -o /dev/null -H 'content-type: application/json' -d '{}' $OPENAI_BASE_URL/chat/completions",
        chat(&["a"])
    );
    let once = |upstream: &str, script: &str| {
        let fixed = ["tap", "--mode", "once", "--upstream", upstream, "--cassette", shelf.name()];
        vcr(&[&fixed[..], &["--", "sh", "-c", script]].concat())
    };
    let output = once(&dead, &ask);
    let log = log_of(&output);
    assert_eq!(output.status.code(), Some(4), "{log}");
    for part in ["none of the requests was recorded", "tape.yaml is not written", "1 request without a response", &dead]
    {
        assert!(log.contains(part.trim_start_matches("http://")), "{part}: {log}");
    }
    assert!(std::fs::read_dir(shelf.folder.path()).unwrap().next().is_none(), "nothing is left: {log}");
    assert_eq!(once(&dead, &format!("{ask}; exit 7")).status.code(), Some(7), "the code of the command wins");
    let upstream = engine().await;
    let output = once(&format!("http://{}", upstream.address), &ask);
    assert_eq!(output.status.code(), Some(0), "{}", log_of(&output));
    assert!(shelf.text().contains("You said a."), "{}", shelf.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_not_recorded_leave_no_cassette_either() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &["--mode", "once"]);
    assert_eq!(tap.send(CHAT, &chat(&["status 500"])).await.status, 500);
    let (code, log) = tap.stop();
    assert!(code == 4 && !shelf.file.exists(), "{log}");
    assert!(log.contains("1 failed response not recorded (--record-errors all)"), "{log}");
    let unused = shelf.tap(&upstream, &["--mode", "once"]);
    let (code, log) = unused.stop();
    assert!(code == 0 && !shelf.file.exists(), "no request is no failure: {log}");
    assert!(log.contains("nothing was recorded"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recording_without_answers_replaces_nothing() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "old A")]));
    let dead = dead();
    let flags = ["tap", "--mode", "all", "--upstream", &dead, "--listen", "127.0.0.1:0", "--cassette", shelf.name()];
    let tap = Running::start(&flags);
    assert_eq!(tap.send(CHAT, &chat(&["b"])).await.status, 502);
    let (code, log) = tap.stop();
    assert_eq!(code, 4, "{log}");
    assert!(shelf.text().contains("old A") && log.contains("stays as it was"), "{log}");
    let play = shelf.play(&["--mode", "new-episodes", "--upstream", &dead]);
    assert_eq!(play.send(CHAT, &chat(&["b"])).await.status, 502);
    let (code, log) = play.stop();
    assert!(code == 0 && log.contains("1 request without a response"), "{log}");
    assert!(shelf.text().contains("old A"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_is_not_there_is_created() {
    let upstream = engine().await;
    let mut shelf = Shelf::empty();
    shelf.file = shelf.folder.path().join("new/deep/a.yaml");
    let tap = shelf.tap(&upstream, &[]);
    assert_eq!(said(&tap.send(CHAT, &chat(&["a"])).await), "You said a.");
    let (code, log) = tap.stop();
    assert!(code == 0 && shelf.text().contains("You said a."), "{log}");
}

#[test]
fn a_cassette_that_is_missing_says_how_it_is_recorded() {
    let shelf = Shelf::empty();
    let command = ["--", "pytest", "-q", "-k", "a b"];
    let output = vcr(&[&["play", "--cassette", shelf.name()], &command[..]].concat());
    let log = log_of(&output);
    assert_eq!(output.status.code(), Some(3), "{log}");
    let how =
        format!("vllm-vcr tap --upstream http://localhost:8000 --cassette {} -- pytest -q -k 'a b'", shelf.name());
    assert!(log.contains(&how), "{log}");
    let folder = shelf.folder.path().to_str().unwrap();
    let output = vcr(&["play", "--upstream", "http://gpu:8000", "--cassette", folder]);
    let how = format!("vllm-vcr tap --upstream http://gpu:8000 --cassette {folder}/NAME.yaml -- COMMAND");
    assert!(output.status.code() == Some(3) && log_of(&output).contains(&how), "{}", log_of(&output));
}

#[tokio::test]
async fn a_session_without_its_cassette_says_how_it_is_recorded() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let play = shelf.play(&[]);
    let answer = play.send("/vcr/sessions", &json!({"name": "s", "cassette": "b.yaml"})).await;
    let text = answer.text();
    assert!(answer.status == 400 && text.contains("b.yaml does not exist") && text.contains("mode once"), "{text}");
}

#[test]
fn a_conversion_that_leaves_out_everything_is_a_no() {
    let shelf =
        Shelf::with(&tape(&["- request: GET /v1/models\n  answer: {status: 200, json: {data: []}}\n".to_owned()]));
    let file = |name: &str| shelf.folder.path().join(name).to_str().unwrap().to_owned();
    let shapes = file("shapes.jsonl");
    std::fs::write(&shapes, "{\"prompt_tokens\":3,\"output_tokens\":1,\"ttft_ms\":5.0}\n").unwrap();
    for (from, to) in [(shelf.name(), file("t.jsonl")), (&shapes, file("new.yaml"))] {
        let output = vcr(&["cassette", "convert", from, &to, "--skip"]);
        let log = log_of(&output);
        assert_eq!(output.status.code(), Some(1), "{log}");
        assert!(log.contains("nothing of") && log.contains("is not written"), "{log}");
        assert!(!std::path::Path::new(&to).exists());
    }
}

#[test]
fn a_name_that_says_neither_cassette_nor_trace_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.json", "a", "a.yam", "a.yaml.gz", "a.json.gz"] {
        let file = folder.path().join(name);
        let output =
            vcr(&["tap", "--upstream", "http://127.0.0.1:9", "--cassette", file.to_str().unwrap(), "--", "true"]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("says neither cassette nor trace") && text.contains("FILE.yaml"), "{text}");
        assert!(!file.exists(), "{text}");
    }
}
