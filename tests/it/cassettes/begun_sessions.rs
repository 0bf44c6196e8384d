//! What counts as unconsumed, and failures of sessions that have ended.

use serde_json::{Value, json};

use super::{CHAT, Running, Shelf, chat, record, tape};
use crate::support::client::{self, Request, post};

/// A folder with the cassettes of two tests.
fn two_tests() -> Shelf {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A"), record(&["a", "A", "b"], "B")]));
    std::fs::write(shelf.folder.path().join("other.yaml"), tape(&[record(&["x"], "X"), record(&["y"], "Y")])).unwrap();
    shelf
}

/// Plays, sends these words, each in its session, and ends.
async fn played(shelf: &Shelf, flags: &[&str], asked: &[(&str, &[&str])]) -> (i32, String) {
    let play = shelf.play(flags);
    for (session, words) in asked {
        let answer = play.send(&format!("/vcr/s/{session}{CHAT}"), &chat(words)).await;
        assert_eq!(answer.status, 200, "{words:?}: {}", answer.text());
    }
    play.stop()
}

async fn close(play: &Running, name: &str) {
    let path = format!("/vcr/sessions/{name}");
    let request = Request { method: "DELETE", path: &path, headers: Vec::new(), body: Vec::new() };
    assert_eq!(client::send(play.address, &request).await.status, 200);
}

async fn open(play: &Running, body: Value) {
    assert_eq!(client::send(play.address, &post("/vcr/sessions", &body)).await.status, 201);
}

async fn ask(play: &Running, session: &str, words: &[&str]) -> u16 {
    play.send(&format!("/vcr/s/{session}{CHAT}"), &chat(words)).await.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cassettes_that_no_test_began_are_not_unconsumed() {
    let shelf = two_tests();
    let folder = shelf.folder.path().to_str().unwrap().to_owned();
    let whole: &[(&str, &[&str])] = &[("default", &["a"]), ("default", &["a", "A", "b"])];
    for (flags, asked, code) in [
        (&["--strict"][..], whole, 0),
        (&["--strict"], &whole[..1], 1),
        (&["--strict"], &[], 1),
        (&["--fail-on", "miss,unconsumed=all"], whole, 1),
    ] {
        let fixed = ["play", "--port", "0", "--instant", "--cassette", &folder];
        let play = Running::start(&[&fixed[..], flags].concat());
        for (_, words) in asked {
            assert_eq!(play.send(CHAT, &chat(words)).await.status, 200);
        }
        let (ended, log) = play.stop();
        assert_eq!(ended, code, "{flags:?} {asked:?}: {log}");
        assert_eq!(log.contains("unconsumed: tape.yaml#1"), asked.len() < 2, "{log}");
        assert_eq!(log.contains("unconsumed: other.yaml#0"), asked.is_empty(), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_counts_once_it_has_begun_and_goes_on_with_its_conversation() {
    let grouped = |record: String, name: &str| record.replace("  body:", &format!("  group: {name}\n  body:"));
    let next = format!(
        "- like: 0\n  body: {{messages+: [{{role: user, content: more}}]}}\n  request: POST {CHAT}\n  answer: {{message: \
         {{role: assistant, content: M}}, finish_reason: stop}}\n"
    );
    let records = [grouped(record(&["a"], "A"), "one"), next, grouped(record(&["x"], "X"), "two")];
    let shelf = Shelf::with(&tape(&records));
    let one: &[(&str, &[&str])] = &[("s", &["a"]), ("s", &["a", "A", "more"])];
    assert_eq!(played(&shelf, &["--strict"], one).await.0, 0);
    let (code, log) = played(&shelf, &["--strict"], &one[..1]).await;
    assert!(code == 1 && log.contains("unconsumed: tape.yaml#1") && !log.contains("tape.yaml#2"), "{log}");
    // A group is judged in each session that began it.
    let both = [one[0], one[1], ("t", &["a"][..])];
    let (code, log) = played(&shelf, &["--strict"], &both).await;
    assert!(code == 1 && log.contains("failed: unconsumed"), "{log}");
    let formatted = super::vcr(&["cassette", "fmt", shelf.name()]);
    assert!(formatted.status.success() && shelf.text().matches("group: one").count() == 1, "{}", shelf.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_share_a_cassette_are_judged_together() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A"), record(&["b"], "B"), record(&["c"], "C")]));
    let all: &[(&str, &[&str])] = &[("gw0", &["a"]), ("gw1", &["b"]), ("gw1", &["c"])];
    let (code, log) = played(&shelf, &["--strict"], all).await;
    assert_eq!(code, 0, "{log}");
    let (code, log) = played(&shelf, &["--strict"], &all[..2]).await;
    assert!(code == 1 && log.contains("unconsumed: tape.yaml#2") && !log.contains("unconsumed: tape.yaml#0"), "{log}");
    let play = shelf.play(&["--strict"]);
    for (session, words) in &all[..2] {
        assert_eq!(ask(&play, session, words).await, 200);
        close(&play, session).await;
    }
    let report = play.get("/vcr/report").await;
    assert_eq!(report["earlier"]["gw0"]["begun_unconsumed"].as_array().unwrap().len(), 1, "{report}");
    let (code, log) = play.stop();
    assert!(code == 1 && log.contains("unconsumed: tape.yaml#2"), "ended sessions left it: {log}");
    let play = shelf.play(&["--strict"]);
    for (session, words) in all {
        assert_eq!(ask(&play, session, words).await, 200);
        close(&play, session).await;
    }
    let (code, log) = play.stop();
    assert_eq!(code, 0, "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_requests_of_workers_leave_nothing_unconsumed() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A"), record(&["a"], "A"), record(&["b"], "B")]));
    let all: &[(&str, &[&str])] = &[("gw0", &["a"]), ("gw1", &["a"]), ("gw1", &["b"])];
    for flags in [&["--strict"][..], &["--fail-on", "miss,unconsumed=all"]] {
        let (code, log) = played(&shelf, flags, all).await;
        assert_eq!(code, 0, "{log}");
        // One of them asks no more.
        let (code, log) = played(&shelf, flags, &all[1..]).await;
        assert!(code == 1 && log.contains("unconsumed: tape.yaml#1"), "{log}");
    }
    let play = shelf.play(&["--strict"]);
    for (session, words) in all {
        assert_eq!(ask(&play, session, words).await, 200);
        if *session == "gw0" {
            close(&play, session).await;
        }
    }
    let (code, log) = play.stop();
    assert_eq!(code, 0, "one had ended: {log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_with_its_own_cassette_is_judged_when_it_ends() {
    let shelf = two_tests();
    for (asked, code) in [(&["x", "y"][..], 0), (&["x"], 1), (&[], 1)] {
        let play = shelf.play(&["--strict"]);
        open(&play, json!({"name": "t", "cassette": "other.yaml"})).await;
        for word in asked {
            assert_eq!(ask(&play, "t", &[word]).await, 200);
        }
        close(&play, "t").await;
        assert_eq!((ask(&play, "default", &["a"]).await, ask(&play, "default", &["a", "A", "b"]).await), (200, 200));
        let (ended, log) = play.stop();
        assert_eq!(ended, code, "{asked:?}: {log}");
        assert_eq!(log.contains("earlier session t") && log.contains("other.yaml#1"), code == 1, "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_miss_stays_when_its_session_is_deleted_reset_or_opened_anew() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    for how in ["delete", "reset", "reset all", "open"] {
        let play = shelf.play(&["--strict"]);
        open(&play, json!({"name": "t"})).await;
        assert_eq!(ask(&play, "t", &["no such"]).await, 422);
        match how {
            "delete" => close(&play, "t").await,
            "open" => open(&play, json!({"name": "t"})).await,
            how => {
                let body = if how == "reset" { json!({"session": "t"}) } else { Value::Null };
                assert_eq!(play.send("/vcr/reset", &body).await.status, 200);
            }
        }
        assert_eq!(ask(&play, "t", &["a"]).await, 200, "{how}");
        let verified = play.send("/vcr/verify", &json!({"fail_on": ["miss", "unconsumed"]})).await;
        assert_eq!(verified.status, 200, "{how}: what is open now is fine: {}", verified.text());
        let report = play.get("/vcr/report").await;
        assert_eq!(report["earlier"]["t"]["misses"], json!({"no_match": 1}), "{how}: {report}");
        let (code, log) = play.stop();
        assert!(code == 1 && log.contains("failed: miss") && log.contains("earlier session t"), "{how}: {log}");
    }
}
