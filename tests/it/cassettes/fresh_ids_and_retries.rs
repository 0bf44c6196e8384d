//! Ids, retries, large bodies, and what only traces have.

use serde_json::json;

use super::{CHAT, Shelf, agent, chat, engine, read, record, said, tape, vcr};
use crate::support::{
    client::{self, get, post},
    peer::{End, Script, Upstream},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fresh_ids_are_counted_and_calls_can_be_answered() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    let live = agent(&tap, "What is the weather?", json!(true)).await.unwrap();
    tap.stop();
    let ids = |answer: &client::Answer| answer.json()["id"].as_str().unwrap().to_owned();
    let play = shelf.play(&["--ids", "fresh", "--on-exhausted", "cycle"]);
    for round in [json!(true), json!(false)] {
        let seen = agent(&play, "What is the weather?", round).await.unwrap();
        assert_eq!(seen, live, "fresh ids of calls come back and match");
    }
    play.stop();
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let play = shelf.play(&["--ids", "fresh", "--on-exhausted", "last"]);
    let told: Vec<String> =
        vec![ids(&play.send(CHAT, &chat(&["a"])).await), ids(&play.send(CHAT, &chat(&["a"])).await)];
    assert_eq!(told, ["chatcmpl-vcr-1", "chatcmpl-vcr-2"]);
    let play = shelf.play(&["--on-exhausted", "last"]);
    let told = [ids(&play.send(CHAT, &chat(&["a"])).await), ids(&play.send(CHAT, &chat(&["a"])).await)];
    assert_eq!(told[0], told[1], "recorded ids are told again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_try_is_recorded_as_one_and_needed_only_where_the_first_one_failed() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    for count in ["0", "1"] {
        let body = chat(&["a"]);
        let mut request = post(CHAT, &body);
        request.headers.push(("x-stainless-retry-count", count));
        assert_eq!(client::send(tap.address, &request).await.status, 200);
    }
    tap.send(CHAT, &chat(&["a"])).await;
    tap.stop();
    let text = shelf.text();
    assert_eq!(text.matches("retry_of: 0").count(), 1, "{text}");
    let play = shelf.play(&["--strict"]);
    for _ in 0..2 {
        assert_eq!(said(&play.send(CHAT, &chat(&["a"])).await), "You said a.");
    }
    let (code, log) = play.stop();
    assert_eq!(code, 0, "a client that does not try again leaves nothing over: {log}");
    let first_failed = text.replacen("  answer:", "  aborted: 0\n  answer:", 1);
    std::fs::write(&shelf.file, first_failed).unwrap();
    let play = shelf.play(&["--strict"]);
    let answer = play.send(CHAT, &chat(&["a"])).await;
    assert_eq!(answer.header("x-vcr-record"), Some("tape.yaml#1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_that_are_no_text_are_files_of_the_sidecar() {
    let bytes: Vec<u8> = (0..200).flat_map(|_| 128..=227).collect();
    let told = bytes.clone();
    let upstream = Upstream::start(move |request| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ncontent-length: 20000\r\n\r\n";
        let is_speech = String::from_utf8_lossy(request).contains("/v1/audio/speech");
        let nothing = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec();
        let pieces = if is_speech { vec![head.as_bytes().to_vec(), told.clone()] } else { vec![nothing] };
        Script { pieces, end: End::KeepAlive }
    })
    .await;
    let shelf = Shelf::empty();
    let ask = json!({"model": "m", "input": "Say it.", "voice": "x"});
    let tap = shelf.tap(&upstream, &[]);
    assert_eq!(tap.send("/v1/audio/speech", &ask).await.body, bytes);
    tap.stop();
    let text = shelf.text();
    assert!(text.contains("body_blob: sha256-") && text.len() < 2000, "{text}");
    let blobs: Vec<_> = std::fs::read_dir(shelf.folder.path().join("tape.vcr/blobs")).unwrap().collect();
    assert_eq!(blobs.len(), 1);
    let play = shelf.play(&["--strict"]);
    let answer = play.send("/v1/audio/speech", &ask).await;
    assert_eq!((answer.header("content-type"), &answer.body), (Some("audio/wav"), &bytes));
    assert_eq!(play.stop().0, 0);
    std::fs::remove_file(blobs.into_iter().next().unwrap().unwrap().path()).unwrap();
    let gone = vcr(&["play", "--cassette", shelf.name(), "--", "true"]);
    let log = String::from_utf8_lossy(&gone.stderr).into_owned();
    assert_eq!(gone.status.code(), Some(3));
    assert!(log.contains("tape.yaml:") && log.contains("body_blob"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_without_a_body_are_played() {
    let upstream = Upstream::start(|request| {
        let nothing: &[u8] = match String::from_utf8_lossy(request) {
            request if request.contains("/v1/nothing") => b"HTTP/1.1 204 No Content\r\n\r\n",
            request if request.contains("/v1/empty") => b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            _ => b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        };
        Script { pieces: vec![nothing.to_vec()], end: End::KeepAlive }
    })
    .await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    for (path, status) in [("/v1/nothing", 204), ("/v1/empty", 200)] {
        assert_eq!(tap.send(path, &json!({"a": 1})).await.status, status);
    }
    tap.stop();
    assert!(!shelf.text().contains("aborted"), "{}", shelf.text());
    let play = shelf.play(&["--strict"]);
    for (path, status) in [("/v1/nothing", 204), ("/v1/empty", 200)] {
        let answer = play.send(path, &json!({"a": 1})).await;
        assert_eq!((answer.status, answer.body.len()), (status, 0), "{path}");
    }
    assert_eq!(play.stop().0, 0);
}

#[test]
fn a_cassette_refuses_what_only_traces_have() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new.yaml");
    let name = file.to_str().unwrap();
    for flags in [
        &["--rotate-size", "1MB"][..],
        &["--rotate-every", "60m"],
        &["--rotate-records", "5"],
        &["--next"],
        &["--start-anyway"],
        &["--record-text"],
        &["--record-requests"],
        &["--block-size", "32"],
        &["--block-hash", "fnv1a-64"],
    ] {
        let fixed = ["tap", "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--cassette", name];
        let output = vcr(&[&fixed[..], flags, &["--", "true"]].concat());
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {log}");
        assert!(log.contains(flags[0]) && log.contains("has no effect on a cassette"), "{log}");
    }
    assert!(!file.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_top_of_a_cassette_stays_when_it_is_recorded_again() {
    let upstream = engine().await;
    let top = "vcr: 1\nignore: [$.nonce]\nscrub: [s/x/y/]\nmatch: [canonical, ordered]\nredact: {keys: [tenant]}\n";
    let shelf = Shelf::with(&format!("{top}records:\n{}", record(&["a"], "A")));
    let tap = shelf.tap(&upstream, &["--mode", "all", "--ignore", "$.more"]);
    let mut body = chat(&["b"]);
    body["tenant"] = json!("acme-corporation");
    tap.send(CHAT, &body).await;
    tap.stop();
    let text = shelf.text();
    for part in
        ["ignore: [$.nonce, $.more]", "s/x/y/", "match: [canonical, ordered]", "keys: [tenant]", "[REDACTED:tenant:1]"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("acme"), "{text}");
    let play = shelf.play(&["--match", "canonical"]);
    assert_eq!(said(&play.send(CHAT, &body).await), "You said b.", "requests are compared by the same rules");
    let missed = play.send(CHAT, &json!({"model": "m", "tenant": "acme-corporation", "messages": []})).await;
    assert!(missed.status == 422 && !missed.text().contains("acme"), "{}", missed.text());
    assert_eq!(
        client::send(play.address, &get("/vcr/records/0")).await.json()["body"]["tenant"],
        "[REDACTED:tenant:1]"
    );
    let leaking = shelf.text().replace("\"[REDACTED:tenant:1]\"", "acme-corporation");
    std::fs::write(&shelf.file, leaking).unwrap();
    assert_eq!(vcr(&["cassette", "validate", shelf.name()]).status.code(), Some(3));
    assert_eq!(vcr(&["play", "--cassette", shelf.name(), "--", "true"]).status.code(), Some(3));
    vcr(&["cassette", "redact", shelf.name()]);
    assert!(!shelf.text().contains("acme"));
    let wrong = read(&shelf.file).replace("keys: [tenant]", "names: [tenant]");
    std::fs::write(&shelf.file, wrong).unwrap();
    let output = vcr(&["cassette", "validate", shelf.name()]);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(3) && log.contains("names") && log.contains("tape.yaml:"), "{log}");
}

#[test]
fn validate_notes_what_is_never_played_asked_twice_or_different_the_next_time() {
    let left = record(&["gone"], "G").replace("  answer:", "  aborted: 1\n  answer:");
    let dated = record(&["it is 2026-06-17T12:00:00 now"], "D");
    let shelf = Shelf::with(&tape(&[record(&["a"], "A"), left, dated, record(&["a"], "B")]));
    let output = vcr(&["cassette", "validate", shelf.name()]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "notes are no mistakes: {text}");
    for part in [
        "record 1 is never played",
        "the request of record 2 has `2026-06-17T12:00:00`",
        "record 3 has the same request as record 0",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let scrubbed = shelf.text().replace("records:", "scrub: ['s/it is .* now/NOW/']\nrecords:");
    std::fs::write(&shelf.file, scrubbed).unwrap();
    let output = vcr(&["cassette", "validate", shelf.name()]);
    assert!(!String::from_utf8_lossy(&output.stdout).contains("asks with"));
    let of_tenant =
        |name: &str| record(&["a"], "A").replace("  answer:", &format!("  headers: {{x-tenant: {name}}}\n  answer:"));
    let tenants = tape(&[of_tenant("a"), of_tenant("b"), of_tenant("a")]);
    let shelf = Shelf::with(&tenants.replace("records:", "match_headers: [X-Tenant]\nrecords:"));
    let output = vcr(&["cassette", "validate", shelf.name()]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("record 2 has the same") && !text.contains("record 1 has the same"), "{text}");
}

#[test]
fn a_command_can_ask_when_its_cassette_was_recorded() {
    let text = tape(&[record(&["a"], "A")]);
    let shelf = Shelf::with(&text.replace("records:", "clock: \"2026-06-17T12:00:00Z\"\nrecords:"));
    let run = |script: &str| vcr(&["play", "--cassette", shelf.name(), "--", "sh", "-c", script]).status.code();
    assert_eq!(run("test \"$VLLM_VCR_BASE_TIME\" = 2026-06-17T12:00:00Z"), Some(0));
    std::fs::write(&shelf.file, text).unwrap();
    assert_eq!(run("test -z \"$VLLM_VCR_BASE_TIME\""), Some(0), "nothing is known without a sidecar");
    std::fs::create_dir(shelf.folder.path().join("tape.vcr")).unwrap();
    let side = "{\"id\":0,\"answer\":\"\",\"recorded_at\":\"2026-01-02T03:04:05Z\",\"ms\":1.0}\n";
    std::fs::write(shelf.folder.path().join("tape.vcr/timing.jsonl"), side).unwrap();
    assert_eq!(run("test \"$VLLM_VCR_BASE_TIME\" = 2026-01-02T03:04:05Z"), Some(0));
}
