//! Sessions that fail or are not ended: nothing of what they recorded is taken for a whole cassette.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::{Value, json};

use super::{CHAT, Running, chat, engine, said};
use crate::support::{
    client::{self, Answer, Request, post},
    peer::Upstream,
};

/// The files below a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false => drop(found.insert(entry.path().display().to_string(), fs::read(entry.path()).unwrap())),
        }
    }
    found
}

fn tap(upstream: &Upstream, folder: &Path) -> Running {
    let url = format!("http://{}", upstream.address);
    let fixed = ["tap", "--sessions-only", "--admin-overwrite", "--redact", "all", "--listen", "127.0.0.1:0"];
    Running::start(&[&fixed[..], &["--upstream", &url, "--cassette", &format!("{}/", folder.display())]].concat())
}

async fn open(server: &Running, more: Value) -> Answer {
    let mut body = json!({"name": "one", "cassette": "one.yaml"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    client::send(server.address, &post("/vcr/sessions", &body)).await
}

async fn end(server: &Running, query: &str) -> Answer {
    let path = format!("/vcr/sessions/one{query}");
    client::send(server.address, &Request { method: "DELETE", path: &path, headers: Vec::new(), body: Vec::new() })
        .await
}

async fn ask(server: &Running, words: &str) -> Answer {
    server.send(&format!("/vcr/s/one{CHAT}"), &chat(&[words])).await
}

/// Words with a secret in them, and with a text that stands in a file of its own.
fn words(number: usize) -> String {
    format!("{number} for jane.doe@example.org: {}", "rain ".repeat(40_000 + number))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_unended_session_recorded_is_dropped_whatever_ended_it() {
    let (upstream, place) = (engine().await, tempfile::tempdir().unwrap());
    for is_there in [false, true] {
        if is_there {
            let recording = tap(&upstream, place.path());
            assert_eq!(open(&recording, json!({"mode": "once", "if_unended": "drop"})).await.status, 201);
            assert_eq!(ask(&recording, &words(0)).await.status, 200);
            assert_eq!(end(&recording, "").await.status, 200);
            let (code, log) = recording.stop();
            assert!(code == 0 && log.contains("recorded 1 interaction ") && !log.contains("dropped"), "{log}");
        }
        let before = files(place.path());
        assert_eq!(before.len() > 2, is_there, "a cassette, its times and a text: {:?}", before.keys());
        for mode in ["once", "new-episodes", "all"].into_iter().skip(usize::from(is_there)) {
            for ending in ["stop", "drop", "open"] {
                let recording = tap(&upstream, place.path());
                let requested = json!({"mode": mode, "if_unended": "drop"});
                assert_eq!(open(&recording, requested.clone()).await.status, 201);
                assert_eq!(ask(&recording, &words(1)).await.status, 200);
                assert_eq!(ask(&recording, &words(2)).await.status, 200);
                match ending {
                    "drop" => assert_eq!(end(&recording, "?recorded=drop").await.status, 200),
                    "open" => assert_eq!(open(&recording, requested).await.status, 201),
                    _ => {}
                }
                let (code, log) = recording.stop();
                let count = "  2 interactions dropped with a session that failed or was not ended\n";
                assert!(code == 0 && log.contains("recorded 0 interactions") && log.contains(count), "{ending}: {log}");
                assert!(!log.contains("values were redacted"), "{log}");
                assert_eq!(files(place.path()), before, "{mode} {ending}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_server_left_is_neither_played_nor_in_the_way() {
    let (upstream, place) = (engine().await, tempfile::tempdir().unwrap());
    let partial = place.path().join("one.yaml.partial");
    let recording = tap(&upstream, place.path());
    assert_eq!(open(&recording, json!({"mode": "once", "if_unended": "drop"})).await.status, 201);
    // Its text is a file of its own.
    assert_eq!(ask(&recording, &words(1)).await.status, 200);
    assert_eq!(ask(&recording, "half").await.status, 200);
    while !fs::read_to_string(&partial).is_ok_and(|text| text.contains("half")) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    // A kill, not a signal that it could take.
    drop(recording);
    let recording = tap(&upstream, place.path());
    let refused = open(&recording, json!({"mode": "none"})).await;
    assert!(refused.status == 400 && refused.text().contains("does not exist"), "{}", refused.text());
    let refused = open(&recording, json!({"mode": "once"})).await;
    assert!(refused.status == 400 && refused.text().contains("one.yaml.partial"), "{}", refused.text());
    let bodies = place.path().join("one.vcr/blobs");
    assert!(partial.exists() && fs::read_dir(&bodies).unwrap().count() > 0, "who says nothing loses nothing");
    assert_eq!(open(&recording, json!({"mode": "once", "if_unended": "drop"})).await.status, 201);
    assert!(!bodies.exists(), "nothing names them any more");
    assert_eq!(ask(&recording, "whole").await.status, 200);
    assert_eq!(end(&recording, "").await.status, 200);
    let text = fs::read_to_string(place.path().join("one.yaml")).unwrap();
    assert!(text.contains("whole") && !text.contains("half") && !partial.exists(), "{text}");
    let (code, log) = recording.stop();
    assert!(code == 0 && log.contains("one.yaml.partial belongs to an unfinished recording and is removed"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_opened_again_plays_what_the_one_before_recorded() {
    let (upstream, place) = (engine().await, tempfile::tempdir().unwrap());
    let recording = tap(&upstream, place.path());
    for _ in 0..2 {
        assert_eq!(open(&recording, json!({"mode": "once"})).await.status, 201);
        assert_eq!(said(&ask(&recording, "a").await), "You said a.");
    }
    assert_eq!(upstream.bodies().len(), 1);
    let (code, log) = recording.stop();
    assert!(code == 0 && log.contains("recorded 1 interaction "), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_over_a_missing_cassette_misses_and_says_what_records_it() {
    let place = tempfile::tempdir().unwrap();
    let folder = format!("{}/", place.path().display());
    let playing = Running::start(&["play", "--port", "0", "--sessions-only", "--strict", "--cassette", &folder]);
    let requested = json!({"if_missing": "open", "on_miss": "stub", "record_with": "make record"});
    assert_eq!(open(&playing, requested).await.status, 201);
    let verify = async |fail_on: &str| {
        let verified = playing.send("/vcr/verify", &json!({"session": "one", "fail_on": [fail_on]})).await;
        verified.json()["failing"].clone()
    };
    assert_eq!((verify("miss").await, verify("no_cassette").await), (json!([]), json!([])), "nothing was sent");
    let missed = ask(&playing, "a").await;
    let said = "one.yaml does not exist; record it: make record";
    let message = missed.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(missed.status == 422 && message.lines().next() == Some(said), "{message}");
    assert_eq!(missed.header("x-vcr-miss"), Some("no_cassette"));
    assert!(!message.contains("Open a session") && message.contains("  Cassette: none (0 records, "), "{message}");
    assert_eq!((verify("miss").await, verify("no_cassette").await), (json!(["miss"]), json!(["no_cassette"])));
    assert_eq!(end(&playing, "").await.status, 200);
    for (body, said) in [
        (json!({"if_missing": "sing"}), "`if_missing` has to be refuse or open, not `sing`"),
        (json!({"if_missing": "refuse"}), "one.yaml does not exist"),
        (
            json!({"if_unended": "sing"}),
            "`if_unended`: what a session recorded can be kept or dropped (keep, drop), not `sing`",
        ),
    ] {
        let refused = open(&playing, body).await;
        assert!(refused.status == 400 && refused.text().contains(said), "{}", refused.text());
    }
    let refused = end(&playing, "?recorded=sing").await;
    assert!(refused.status == 400 && refused.text().contains("not `sing`"), "{}", refused.text());
    let (code, log) = playing.stop();
    assert!(code == 1 && log.contains("failed: miss"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_may_lack_its_cassette_and_sends_nothing_is_no_warning() {
    let (upstream, place) = (engine().await, tempfile::tempdir().unwrap());
    for if_missing in ["open", "refuse"] {
        let recording = tap(&upstream, place.path());
        assert_eq!(open(&recording, json!({"mode": "once", "if_missing": if_missing})).await.status, 201);
        assert_eq!(end(&recording, "").await.status, 200);
        let (code, log) = recording.stop();
        assert!(code == 0 && log.contains("nothing was recorded") == (if_missing == "refuse"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cassettes_that_cannot_be_written_at_the_end_do_not_keep_the_others_open() {
    let (upstream, place) = (engine().await, tempfile::tempdir().unwrap());
    let recording = tap(&upstream, place.path());
    let file = |name: &str| place.path().join(format!("{name}.yaml"));
    for name in ["a", "b", "c", "d"] {
        let session = json!({"name": name, "cassette": format!("{name}.yaml"), "mode": "once"});
        assert_eq!(open(&recording, session).await.status, 201);
        assert_eq!(recording.send(&format!("/vcr/s/{name}{CHAT}"), &chat(&[name])).await.status, 200);
    }
    ["b", "c"].iter().for_each(|name| fs::create_dir(file(name)).unwrap());
    let (code, log) = recording.stop();
    assert!(code == 4 && log.contains("b.yaml: ") && log.contains("c.yaml: "), "{log}");
    assert!(file("a").is_file() && file("d").is_file(), "{log}");
}
