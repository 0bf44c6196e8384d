//! Tags that are typed, and the run that recorded a cassette last.

use serde_json::json;

use super::{CHAT, Shelf, chat, engine, read, record, tape, vcr};
use crate::support::client::{self, Request, post};

fn log_of(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_stand_at_the_top_and_a_key_has_one_value() {
    let (upstream, shelf) = (engine().await, Shelf::empty());
    for (tags, top) in [
        (&["--tag", "nightly", "--tag", "build=1"][..], "tags: [nightly, build=1]"),
        (&["--mode", "all", "--tag", "build=2", "--tag", "nightly"], "tags: [nightly, build=2]"),
        (&["--mode", "all"], "tags: [nightly, build=2]"),
    ] {
        let tap = shelf.tap(&upstream, tags);
        assert_eq!(tap.send(CHAT, &chat(&["a"])).await.status, 200);
        let (code, log) = tap.stop();
        assert!(code == 0 && shelf.text().contains(top), "{log}{}", shelf.text());
    }
    let output = vcr(&["cassette", "validate", shelf.name()]);
    let runs = read(&shelf.folder.path().join("tape.vcr/runs.jsonl"));
    let last: serde_json::Value = serde_json::from_str(runs.lines().last().unwrap()).unwrap();
    let (created, run) = (last["created"].as_str().unwrap(), last["run_id"].as_str().unwrap());
    let line = format!("  recorded {created}, run_id {run}, mode all; tags: nightly, build=2\n");
    assert!(output.status.success() && log_of(&output).contains(&line), "{}", log_of(&output));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cassettes_of_sessions_have_them_too() {
    let (upstream, place) = (engine().await, tempfile::tempdir().unwrap());
    // The folder's own cassette is there: it is only played.
    std::fs::write(place.path().join("default.yaml"), tape(&[record(&["x"], "X")])).unwrap();
    let shelf = Shelf { file: place.path().to_owned(), folder: place };
    let tap = shelf.tap(&upstream, &["--tag", "suite=agents"]);
    let opened = post("/vcr/sessions", &json!({"name": "one", "cassette": "one.yaml", "mode": "once"}));
    assert_eq!(client::send(tap.address, &opened).await.status, 201);
    assert_eq!(tap.send(&format!("/vcr/s/one{CHAT}"), &chat(&["a"])).await.status, 200);
    let ended = Request { method: "DELETE", path: "/vcr/sessions/one", headers: Vec::new(), body: Vec::new() };
    assert_eq!(client::send(tap.address, &ended).await.status, 200);
    assert_eq!(tap.stop().0, 0);
    let text = read(&shelf.file.join("one.yaml"));
    assert!(text.contains("tags: [suite=agents]"), "{text}");
}

#[test]
fn what_cannot_be_written_is_refused() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let file = shelf.name();
    let trace = shelf.folder.path().join("t.jsonl");
    let upstream = ["tap", "--upstream", "http://127.0.0.1:1"];
    for (flags, message) in [
        (&["--cassette", file, "--mode", "all", "--tag", ""][..], "a tag is NAME or KEY=VALUE"),
        (&["--cassette", file, "--mode", "all", "--tag", "=v"], "a tag is NAME or KEY=VALUE"),
        (&["--cassette", file, "--mode", "all", "--tag", "a\nb"], "a tag is NAME or KEY=VALUE"),
        (&["--cassette", file, "--mode", "new-episodes", "--tag", "a"], "does not change its top"),
        (
            &["--cassette", file, "--mode", "none", "--no-admin", "--tag", "a"],
            "--tag has no effect: nothing is recorded",
        ),
        (&["--trace-out", trace.to_str().unwrap(), "--tag", "a"], "--tag has no effect on a trace"),
    ] {
        let output = vcr(&[&upstream[..], flags, &["--", "true"]].concat());
        assert!(output.status.code() == Some(2) && log_of(&output).contains(message), "{flags:?}: {}", log_of(&output));
    }
    let secret = "key=sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD";
    let output = vcr(&[&upstream[..], &["--cassette", file, "--mode", "all", "--tag", secret, "--", "true"]].concat());
    let log = log_of(&output);
    assert!(
        output.status.code() == Some(2) && log.contains("--tag holds a secret") && !log.contains("sk-proj"),
        "{log}"
    );
    assert_eq!(shelf.text(), tape(&[record(&["a"], "A")]));
}
