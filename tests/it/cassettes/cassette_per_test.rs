//! A cassette per test, as a test framework has it: a session for each test, recorded and played from a folder.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use serde_json::{Value, json};

use super::{CHAT, Running, chat, engine};
use crate::support::{
    client::{self, Answer, Request, post},
    peer::{End, Script, Upstream, answer},
};

async fn open(server: &Running, name: &str, mode: &str) -> Answer {
    let body = json!({"name": name, "cassette": format!("{name}.yaml"), "mode": mode});
    client::send(server.address, &post("/vcr/sessions", &body)).await
}

/// One test: opens its session, sends what it sends, ends the session.
async fn test(server: &Running, name: &str, mode: &str, words: &[&str]) {
    let opened = open(server, name, mode).await;
    assert_eq!(opened.status, 201, "{}", opened.text());
    let base = opened.json()["base_url"].as_str().unwrap().to_owned();
    for word in words {
        server.send(&format!("{base}{}", CHAT.strip_prefix("/v1").unwrap()), &chat(&[word])).await;
    }
    let path = format!("/vcr/sessions/{name}");
    let request = Request { method: "DELETE", path: &path, headers: Vec::new(), body: Vec::new() };
    assert_eq!(client::send(server.address, &request).await.status, 200);
}

fn tap(upstream: &Upstream, folder: &str, flags: &[&str]) -> Running {
    let url = format!("http://{}", upstream.address);
    let fixed = ["tap", "--upstream", &url, "--listen", "127.0.0.1:0", "--cassette", folder];
    Running::start(&[&fixed[..], flags].concat())
}

fn play(folder: &str, flags: &[&str]) -> Running {
    Running::start(&[&["play", "--port", "0", "--instant", "--cassette", folder], flags].concat())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_is_recorded_and_played_with_a_session_for_each_test() {
    let (upstream, place) = (engine().await, tempfile::tempdir().unwrap());
    let folder = format!("{}/cassettes/", place.path().display());
    let recording = tap(&upstream, &folder, &[]);
    test(&recording, "one", "once", &["a", "b"]).await;
    test(&recording, "two", "once", &["c"]).await;
    let (code, log) = recording.stop();
    assert!(code == 0 && log.contains("recorded 3 interactions (2 sessions recorded separately)"), "{log}");
    assert!(!Path::new(&folder).join("default.yaml").exists(), "{log}");
    let strict = ["--strict"];
    let all = ["--fail-on", "miss,unconsumed=all"];
    for (flags, tests, code) in [
        (&strict[..], &[("one", &["a", "b"][..]), ("two", &["c"])][..], 0),
        (&strict, &[("two", &["c"])], 0),
        (&strict, &[("one", &["a"]), ("two", &["c"])], 1),
        (&strict, &[("one", &["a", "b"]), ("two", &["changed"])], 1),
        (&strict, &[], 1),
        (&all, &[("one", &["a", "b"]), ("two", &["c"])], 0),
        (&all, &[("two", &["c"])], 1),
    ] {
        let playing = play(&folder, flags);
        for (name, words) in tests {
            test(&playing, name, "none", words).await;
        }
        let report: Value = playing.get("/vcr/report").await;
        assert_eq!(report["ended"].as_u64().unwrap_or(0), tests.len() as u64, "{report}");
        let (ended, log) = playing.stop();
        assert_eq!(ended, code, "{flags:?} {tests:?}: {log}");
        assert_eq!(log.contains(" ended\n"), !tests.is_empty(), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cassette_that_is_missing_is_recorded_alone() {
    let (upstream, place) = (engine().await, tempfile::tempdir().unwrap());
    let folder = format!("{}/", place.path().display());
    let recording = tap(&upstream, &folder, &["--mode", "once"]);
    test(&recording, "one", "once", &["a"]).await;
    test(&recording, "two", "once", &["b"]).await;
    assert_eq!(recording.stop().0, 0);
    let before = std::fs::read_to_string(place.path().join("two.yaml")).unwrap();
    std::fs::remove_file(place.path().join("one.yaml")).unwrap();
    let playing = play(&folder, &["--strict"]);
    let refused = open(&playing, "one", "none").await;
    let advice =
        format!("one.yaml does not exist; record it: vllm-vcr tap --upstream URL --cassette {folder} -- COMMAND");
    assert!(refused.status == 400 && refused.text().contains(&advice), "{}", refused.text());
    drop(playing);
    let asked = upstream.bodies().len();
    let recording = tap(&upstream, &folder, &[]);
    test(&recording, "one", "once", &["a"]).await;
    test(&recording, "two", "once", &["b"]).await;
    let (code, log) = recording.stop();
    assert!(code == 0 && log.contains("recorded 1 interaction"), "{log}");
    assert_eq!(upstream.bodies().len(), asked + 1);
    assert_eq!(std::fs::read_to_string(place.path().join("two.yaml")).unwrap(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cassette_of_a_session_that_is_recorded_again_keeps_its_top() {
    let (upstream, place) = (engine().await, tempfile::tempdir().unwrap());
    let folder = format!("{}/", place.path().display());
    let words = ["Write to jane.doe@example.org, token=sk-not-one-but-mine"];
    let first = ["--redact", "all", "--redact-pattern", "own=but-(mine)", "--ignore", "$.temperature", "--tag", "team"];
    let recording = tap(&upstream, &folder, &first);
    test(&recording, "one", "once", &words).await;
    assert_eq!(recording.stop().0, 0);
    let written = || std::fs::read_to_string(place.path().join("one.yaml")).unwrap();
    let before = written();
    let recording = tap(&upstream, &folder, &["--admin-overwrite", "--ignore", "$.seed", "--tag", "again"]);
    test(&recording, "one", "all", &words).await;
    assert_eq!(recording.stop().0, 0);
    let after = written();
    for (text, tags) in [(&before, "team"), (&after, "team, again")] {
        assert!(!text.contains("jane.doe") && text.contains("own=but-(mine)"), "{text}");
        assert!(text.contains("shapes: [all]") && text.contains(&format!("tags: [{tags}]")), "{text}");
    }
    assert!(after.contains("ignore: [$.temperature, $.seed]"), "{after}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_cassettes_of_a_folder_have_the_rules_of_its_default_one() {
    let (upstream, place) = (engine().await, tempfile::tempdir().unwrap());
    let folder = format!("{}/", place.path().display());
    let top = "vcr: 1\nignore: [$.user_day]\nredact: {shapes: [all]}\nrecords: []\n";
    std::fs::write(place.path().join("default.yaml"), top).unwrap();
    let recording = tap(&upstream, &folder, &[]);
    test(&recording, "one", "once", &["Write to jane.doe@example.org"]).await;
    assert_eq!(recording.stop().0, 0);
    let written = std::fs::read_to_string(place.path().join("one.yaml")).unwrap();
    assert!(written.contains("[REDACTED:email:1]") && !written.contains("jane.doe"), "{written}");
    assert!(written.contains("ignore: [$.user_day]") && written.contains("shapes: [all]"), "{written}");
    let playing = play(&folder, &["--strict"]);
    test(&playing, "one", "none", &["Write to anna.berg@example.net"]).await;
    assert_eq!(playing.stop().0, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_miss_in_a_cassette_of_a_session_advises_to_record_it_anew() {
    let (upstream, place) = (engine().await, tempfile::tempdir().unwrap());
    let folder = format!("{}/", place.path().display());
    let recording = tap(&upstream, &folder, &[]);
    test(&recording, "one", "once", &["What is the weather in London?"]).await;
    assert_eq!(recording.stop().0, 0);
    let playing = play(&folder, &[]);
    assert_eq!(open(&playing, "one", "none").await.status, 201);
    let missed = async |words: &str| {
        let miss = playing.send(&format!("/vcr/s/one{CHAT}"), &chat(&[words])).await;
        miss.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    let message = missed("What is the weather in Paris?").await;
    let advice = format!("delete one.yaml and run vllm-vcr tap --cassette {folder} --upstream URL -- COMMAND");
    assert!(message.contains(&format!("If intended, record it: {advice}.")), "{message}");
    assert!(!message.contains("new-episodes") && !message.contains("prune"), "{message}");
    // The advice helps.
    drop(playing);
    std::fs::remove_file(place.path().join("one.yaml")).unwrap();
    let recording = tap(&upstream, &folder, &[]);
    test(&recording, "one", "once", &["What is the weather in Paris?"]).await;
    assert_eq!(recording.stop().0, 0);
    let playing = play(&folder, &["--strict"]);
    test(&playing, "one", "none", &["What is the weather in Paris?"]).await;
    assert_eq!(playing.stop().0, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_upstream_is_dead_is_no_success() {
    let (upstream, place) = (engine().await, tempfile::tempdir().unwrap());
    let folder = format!("{}/", place.path().display());
    let dead = ["--upstream", "/v1/embeddings=http://127.0.0.1:9"];
    let recording = tap(&upstream, &folder, &dead);
    test(&recording, "one", "once", &["a"]).await;
    assert_eq!(open(&recording, "two", "once").await.status, 201);
    let failed = recording.send("/vcr/s/two/v1/embeddings", &json!({"model": "m", "input": "x"})).await;
    assert_eq!(failed.status, 502, "{}", failed.text());
    let (code, log) = recording.stop();
    assert!(code == 4 && log.contains("two.yaml is not written") && log.contains("recorded 1 interaction"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_end_of_a_session_waits_for_what_is_still_answered() {
    let (has_come, may_answer) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (came, gate) = (Arc::clone(&has_come), Arc::clone(&may_answer));
    let upstream = Upstream::start(move |request| {
        came.fetch_or(request.starts_with(b"POST"), Relaxed);
        // The thread may be the one that waits for sockets and timers: another takes its place meanwhile.
        tokio::task::block_in_place(|| {
            while request.starts_with(b"POST") && !gate.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let body = json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": "late"}, "finish_reason": "stop"}]});
        Script { pieces: answer("200 OK", &body.to_string()), end: End::KeepAlive }
    })
    .await;
    let place = tempfile::tempdir().unwrap();
    let recording = Arc::new(tap(&upstream, &format!("{}/", place.path().display()), &[]));
    assert_eq!(open(&recording, "one", "once").await.status, 201);
    let asking = Arc::clone(&recording);
    let asked = tokio::spawn(async move { asking.send(&format!("/vcr/s/one{CHAT}"), &chat(&["a"])).await });
    while !has_come.load(Relaxed) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let ending = Arc::clone(&recording);
    let mut ended = tokio::spawn(async move {
        let request = Request { method: "DELETE", path: "/vcr/sessions/one", headers: Vec::new(), body: Vec::new() };
        client::send(ending.address, &request).await
    });
    // Time to end too early.
    let _early = tokio::time::timeout(Duration::from_millis(300), &mut ended).await;
    may_answer.store(true, Relaxed);
    assert_eq!(asked.await.unwrap().status, 200);
    if !ended.is_finished() {
        assert_eq!(ended.await.unwrap().status, 200);
    }
    let text = std::fs::read_to_string(place.path().join("one.yaml")).unwrap();
    assert!(text.contains("late"), "{text}");
}
