//! What is kept of times and token ids.

use serde_json::{Value, json};

use super::{CHAT, Shelf, agent, chat, engine, read, record, said, streamed, tape, vcr};
use crate::support::{
    client::{self, post},
    peer::{End, Script, Upstream, answer, event_stream},
};

/// A cassette without the times that its records show.
fn without_times(text: &str) -> String {
    let (mut kept, mut in_timing) = (String::new(), false);
    for line in text.split_inclusive('\n') {
        in_timing = line.starts_with("  timing:") || (in_timing && line.starts_with("    "));
        if !in_timing {
            kept.push_str(line);
        }
    }
    kept
}

fn beside(shelf: &Shelf, name: &str) -> std::path::PathBuf {
    shelf.folder.path().join("tape.vcr").join(name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_stand_beside_in_the_records_or_nowhere() {
    let upstream = engine().await;
    let mut texts = Vec::new();
    for flags in [&[][..], &["--timing", "sidecar"], &["--timing", "inline"], &["--timing", "none"]] {
        let shelf = Shelf::empty();
        let tap = shelf.tap(&upstream, flags);
        let live = agent(&tap, "Weather?", json!(true)).await.ok().unwrap();
        let (code, log) = tap.stop();
        assert_eq!(code, 0, "{log}");
        let has_sidecar = flags.is_empty() || flags.contains(&"sidecar");
        assert_eq!(shelf.folder.path().join("tape.vcr").exists(), has_sidecar, "{flags:?}");
        assert_eq!(shelf.text().matches("  timing:").count(), if flags.contains(&"inline") { 2 } else { 0 });
        assert!(vcr(&["cassette", "fmt", "--check", shelf.name()]).status.success(), "{}", shelf.text());
        let play = shelf.play(&["--strict"]);
        assert_eq!(agent(&play, "Weather?", json!(true)).await.ok().unwrap(), live, "{flags:?}");
        let (code, log) = play.stop();
        assert!(code == 0 && !log.contains("edited"), "{log}");
        texts.push(without_times(&shelf.text()));
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recording_again_without_times_changes_no_line_and_leaves_none_behind() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let mut texts = Vec::new();
    for flags in [&[][..], &["--mode", "all", "--timing", "none"], &["--mode", "all", "--timing", "none"]] {
        let tap = shelf.tap(&upstream, flags);
        agent(&tap, "Weather?", json!(false)).await.ok().unwrap();
        tap.stop();
        assert_eq!(beside(&shelf, "timing.jsonl").exists(), flags.is_empty());
        texts.push(shelf.text());
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_with_its_own_times_is_whole() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &["--timing", "inline"]);
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "one"}], "stream": true,
        "stream_options": {"include_usage": true}});
    let live = streamed(&tap.send(CHAT, &body).await);
    tap.stop();
    let moved = Shelf::with(&shelf.text());
    let play = moved.play(&[]);
    assert_eq!(streamed(&play.send(CHAT, &body).await), live, "as many pieces as were recorded");
    play.stop();
    // New records may keep less than the old ones.
    let tap = moved.tap(&upstream, &["--mode", "new-episodes", "--timing", "none"]);
    assert_eq!(said(&tap.send(CHAT, &chat(&["two"])).await), "You said two.");
    tap.stop();
    assert!(
        moved.text().starts_with(&shelf.text()) && moved.text().matches("timing:").count() == 1,
        "{}",
        moved.text()
    );
    let trace = moved.folder.path().join("t.jsonl");
    let converted = vcr(&["cassette", "convert", shelf.name(), trace.to_str().unwrap()]);
    assert!(converted.status.success(), "{}", String::from_utf8_lossy(&converted.stderr));
    assert!(read(&trace).contains("ttft_ms"), "{}", read(&trace));
}

#[test]
fn times_that_cannot_be_are_named_with_their_line() {
    let whole = tape(&[record(&["a"], "A")]);
    for (timing, wrong) in [
        ("{ms: -1}", "`timing.ms`"),
        ("{ms: 1.5, events: [1, x]}", "`timing.events`"),
        ("{ms: 1e300}", "`timing.ms`"),
        ("{events: 3}", "`timing.events`"),
        ("{recorded_at: yesterday}", "recorded_at"),
        ("{at: 3}", "`at` is none of"),
        ("soon", "has to be a map"),
    ] {
        let shelf = Shelf::with(&format!("{whole}  timing: {timing}\n"));
        let checked = vcr(&["cassette", "validate", shelf.name()]);
        let log = String::from_utf8_lossy(&checked.stderr).into_owned() + &String::from_utf8_lossy(&checked.stdout);
        assert!(!checked.status.success() && log.contains(wrong) && log.contains("tape.yaml:6"), "{timing}: {log}");
    }
}

/// An engine that tells ids wherever it can.
async fn telling() -> Upstream {
    Upstream::start(|request| {
        let text = String::from_utf8_lossy(request).into_owned();
        let logprobs = json!({"content": [{"token": "token_id:4711", "logprob": -0.5, "top_logprobs": []}]});
        if !text.starts_with("POST /v1/chat") {
            let body = json!({"object": "x", "prompt_token_ids": [4711], "data": [{"token_ids": [4711], "ok": 1}]});
            return Script { pieces: answer("200 OK", &body.to_string()), end: End::KeepAlive };
        }
        let head = json!({"id": "chatcmpl-1", "created": 1, "model": "m", "prompt_token_ids": [4711]});
        let with = |object: &str, choice: Value| {
            let mut whole = head.clone();
            whole["object"] = object.into();
            whole["choices"] = json!([choice]);
            whole.to_string()
        };
        let pieces = if text.contains("\"stream\":true") {
            let event = |delta: Value, finish: Value| {
                with("chat.completion.chunk", json!({"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish, "token_ids": [4711]}))
            };
            let events = [
                event(json!({"role": "assistant", "content": ""}), Value::Null),
                event(json!({"content": "Hello "}), Value::Null),
                event(json!({"content": "to you"}), Value::Null),
                event(json!({}), json!("stop")),
                "[DONE]".to_owned(),
            ];
            event_stream(&events.each_ref().map(String::as_str))
        } else {
            let message = json!({"role": "assistant", "content": "Hello to you"});
            let choice = json!({"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop", "token_ids": [4711]});
            answer("200 OK", &with("chat.completion", choice))
        };
        Script { pieces, end: End::KeepAlive }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_ids_are_kept_or_are_nowhere() {
    let upstream = telling().await;
    let mut body = chat(&["a"]);
    for (tokens, keeps) in [("sidecar", true), ("none", false)] {
        let shelf = Shelf::empty();
        std::fs::create_dir(beside(&shelf, "")).unwrap();
        std::fs::write(beside(&shelf, "tokens.jsonl"), "{\"id\":0,\"answer\":\"0\",\"output\":[[4711]]}\n").unwrap();
        let tap = shelf.tap(&upstream, &["--tokens", tokens]);
        let mut told = Vec::new();
        for stream in [true, false] {
            body["stream"] = json!(stream);
            let live = tap.send(CHAT, &body).await;
            assert!(live.text().contains("4711"), "clients get what they asked for");
            told.push(live);
        }
        tap.send("/v1/other", &json!({"model": "m"})).await;
        assert_eq!(tap.stop().0, 0);
        let kept = shelf.text() + &read(&beside(&shelf, "timing.jsonl"));
        assert_eq!(kept.contains("4711"), keeps, "{kept}");
        assert!(!kept.is_empty() && kept.contains("Hello "), "{kept}");
        assert_eq!(beside(&shelf, "tokens.jsonl").exists(), keeps);
        let play = shelf.play(&["--match", "exact"]);
        body["stream"] = json!(true);
        assert_eq!(streamed(&play.send(CHAT, &body).await), streamed(&told[0]));
        body["stream"] = json!(false);
        assert_eq!(said(&play.send(CHAT, &body).await), said(&told[1]));
        let (_, log) = play.stop();
        assert!(!log.contains("edited"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_keep_as_little_as_their_server() {
    let upstream = engine().await;
    let url = format!("http://{}", upstream.address);
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let play = shelf.play(&["--upstream", &url, "--timing", "none"]);
    let asked = json!({"name": "new", "cassette": "new.yaml", "mode": "all"});
    assert_eq!(client::send(play.address, &post("/vcr/sessions", &asked)).await.status, 201);
    assert_eq!(said(&play.send(&format!("/vcr/s/new{CHAT}"), &chat(&["n"])).await), "You said n.");
    assert_eq!(play.stop().0, 0);
    assert!(read(&shelf.folder.path().join("new.yaml")).contains("You said n."));
    assert!(!shelf.folder.path().join("new.vcr").exists());
}

#[test]
fn where_nothing_is_recorded_nothing_is_kept() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let trace = shelf.folder.path().join("t.jsonl");
    let trace = trace.to_str().unwrap();
    let upstream = ["tap", "--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0", "--trace-out"];
    for flags in [["--timing", "none"], ["--tokens", "none"], ["--timing", "sidecar"]] {
        for command in [
            &["play", "--port", "0", "--cassette", shelf.name()][..],
            &["play", "--port", "0", "m"],
            &[&upstream[..], &[trace]].concat(),
        ] {
            let refused = vcr(&[command, &flags].concat());
            let log = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(refused.status.code() == Some(2) && log.contains(flags[0]), "{command:?} {flags:?}: {log}");
        }
    }
    let unknown = vcr(&["play", "--cassette", shelf.name(), "--tokens", "inline"]);
    assert_eq!(unknown.status.code(), Some(2));
}
