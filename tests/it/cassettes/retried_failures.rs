//! Failures and the tries after them: each try gets what was recorded for it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde_json::json;
use tokio::io::AsyncReadExt;

use super::{CHAT, Shelf, chat, record, said, tape};
use crate::support::{
    client::{self, Answer, post},
    peer::{End, Script, Upstream, answer},
    running::Running,
};

/// An engine that is overloaded for the first two chats.
async fn overloaded() -> Upstream {
    let chats = AtomicU64::new(0);
    Upstream::start(move |request| {
        let pieces = match request.starts_with(b"POST") {
            false => answer("404 Not Found", "{}"),
            true if chats.fetch_add(1, Relaxed) % 3 < 2 => answer("500 X", "{\"error\": {\"message\": \"busy\"}}"),
            true => {
                let message = json!({"role": "assistant", "content": "at last"});
                let choice = json!({"index": 0, "message": message, "logprobs": null, "finish_reason": "stop"});
                let body = json!({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice],
                    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}});
                answer("200 OK", &body.to_string())
            }
        };
        Script { pieces, end: End::KeepAlive }
    })
    .await
}

/// An engine whose chats have these statuses, and say which one each is.
async fn of_statuses(statuses: &'static [&'static str]) -> Upstream {
    let chats = AtomicU64::new(0);
    Upstream::start(move |request| {
        let at = if request.starts_with(b"POST") { chats.fetch_add(1, Relaxed) } else { u64::MAX };
        let status = usize::try_from(at).ok().and_then(|at| statuses.get(at)).copied().unwrap_or("404 Not Found");
        let choice =
            json!({"index": 0, "message": {"role": "assistant", "content": at.to_string()}, "finish_reason": "stop"});
        Script { pieces: answer(status, &json!({"id": "c", "choices": [choice]}).to_string()), end: End::KeepAlive }
    })
    .await
}

/// One of the tries of a client library.
async fn attempt(server: &Running, count: &'static str) -> Answer {
    let mut request = post(CHAT, &chat(&["a"]));
    request.headers.push(("x-stainless-retry-count", count));
    client::send(server.address, &request).await
}

fn failed(words: &[&str]) -> String {
    format!("- request: POST {CHAT}\n  body: {}\n  answer: {{status: 500, error: {{message: busy}}}}\n", chat(words))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tries_after_failures_are_played_in_order() {
    let upstream = overloaded().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &["--record-errors", "all"]);
    let mut recorded = Vec::new();
    for count in ["0", "1", "2"] {
        recorded.push(attempt(&tap, count).await.status);
    }
    assert_eq!((recorded.as_slice(), tap.stop().0), (&[500, 500, 200][..], 0));
    assert_eq!(shelf.text().matches("retry_of: 0").count(), 2, "{}", shelf.text());
    for flags in [&["--strict"][..], &["--strict", "--retries", "consume"]] {
        let play = shelf.play(flags);
        let mut played = Vec::new();
        for count in ["0", "1", "2"] {
            played.push(attempt(&play, count).await.status);
        }
        let (code, log) = play.stop();
        assert_eq!((played.as_slice(), code), (recorded.as_slice(), 0), "{flags:?}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_belongs_to_the_try_that_failed() {
    let [first, second, third] = ["500 X", "200 OK", "200 OK"].map(|status| answer(status, "{}"));
    let answers = [first, second, third];
    let chats = AtomicU64::new(0);
    let upstream = Upstream::start(move |request| {
        let none = answer("404 Not Found", "{}");
        let is_chat = request.starts_with(b"POST");
        let at = if is_chat { usize::try_from(chats.fetch_add(1, Relaxed)).unwrap() } else { usize::MAX };
        Script { pieces: answers.get(at).cloned().unwrap_or(none), end: End::KeepAlive }
    })
    .await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &["--record-errors", "all"]);
    // Two clients ask the same; only the first one has to try again.
    for count in ["0", "0", "1"] {
        attempt(&tap, count).await;
    }
    tap.stop();
    assert!(shelf.text().contains("retry_of: 0"), "{}", shelf.text());
    let play = shelf.play(&["--strict"]);
    let mut served = Vec::new();
    for count in ["0", "1", "0"] {
        let answer = attempt(&play, count).await;
        served.push((answer.status, answer.header("x-vcr-record").unwrap_or_default().to_owned()));
    }
    let expected = [(500, "tape.yaml#0"), (200, "tape.yaml#1"), (200, "tape.yaml#2")];
    assert_eq!(served, expected.map(|(status, record)| (status, record.to_owned())));
    assert_eq!(play.stop().0, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_that_its_client_did_not_get_is_served_again() {
    let shelf = Shelf::with(&tape(&[failed(&["a"]), record(&["a"], "A")]));
    let fixed = ["play", "--port", "0", "--cassette", shelf.name(), "--time-to-first-token", "60m"];
    let play = Running::start(&fixed);
    // The head comes at once, the body does not come.
    let head = async |count: &'static str| {
        let mut request = post(CHAT, &chat(&["a"]));
        request.headers.push(("x-stainless-retry-count", count));
        let mut stream = client::open(play.address, &request).await;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        String::from_utf8(head).unwrap()
    };
    let first = head("0").await;
    assert!(first.contains("x-vcr-record: tape.yaml#0"), "{first}");
    let again = head("1").await;
    assert!(again.contains("x-vcr-record: tape.yaml#0") && again.contains("canonical;retry"), "{again}");
    let whole = shelf.play(&[]);
    assert_eq!(attempt(&whole, "0").await.status, 500);
    let next = attempt(&whole, "1").await;
    assert_eq!((next.status, next.header("x-vcr-record")), (200, Some("tape.yaml#1")));
}

#[tokio::test]
async fn a_failure_that_was_written_alone_answers_every_try() {
    let shelf = Shelf::with(&tape(&[failed(&["a"]), record(&["b"], "B")]));
    let play = shelf.play(&["--match", "canonical,ordered", "--loose-after-exhausted"]);
    for count in ["0", "1", "2"] {
        assert_eq!(attempt(&play, count).await.status, 500, "try {count}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_that_comes_late_has_its_length_as_the_engine_sends_it() {
    let shelf = Shelf::with(&tape(&[format!("{}  timing: {{ms: 20}}\n", failed(&["a"]))]));
    let play = Running::start(&["play", "--port", "0", "--cassette", shelf.name(), "--strict"]);
    let answer = play.send(CHAT, &chat(&["a"])).await;
    let names: Vec<&str> = answer.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(answer.header("content-length"), Some(answer.body.len().to_string().as_str()), "{names:?}");
    let place = |name: &str| names.iter().position(|header| *header == name);
    assert!(place("transfer-encoding").is_none() && place("content-length") < place("content-type"), "{names:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_of_a_failure_that_is_not_recorded_is_a_record_of_its_own() {
    let upstream = of_statuses(&["200 OK", "500 X", "200 OK"]).await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    for count in ["0", "0", "1"] {
        attempt(&tap, count).await;
    }
    tap.stop();
    assert!(!shelf.text().contains("retry_of"), "{}", shelf.text());
    let play = shelf.play(&["--strict"]);
    let served = [said(&attempt(&play, "0").await), said(&attempt(&play, "0").await)];
    assert_eq!((served, play.stop().0), (["0", "2"].map(str::to_owned), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_of_a_request_that_had_no_record_goes_where_that_went() {
    let upstream = of_statuses(&["500 X", "200 OK"]).await;
    let shelf = Shelf::with(&tape(&[record(&["a"], "recorded")]));
    let tap = shelf.tap(&upstream, &["--mode", "new-episodes"]);
    assert_eq!(said(&attempt(&tap, "0").await), "recorded");
    assert_eq!(attempt(&tap, "0").await.status, 500);
    assert_eq!(said(&attempt(&tap, "1").await), "1");
    tap.stop();
    let play = shelf.play(&["--strict"]);
    let served = [said(&attempt(&play, "0").await), said(&attempt(&play, "0").await)];
    assert_eq!((served, play.stop().0), (["recorded", "1"].map(str::to_owned), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_of_a_request_that_a_fault_answered_has_the_next_record() {
    let shelf = Shelf::with(&tape(&["A", "B", "C"].map(|said| record(&["a"], said))));
    let play = shelf.play(&["--strict", "--fault", "503 where nth=2"]);
    assert_eq!(said(&attempt(&play, "0").await), "A");
    assert_eq!(attempt(&play, "0").await.status, 503);
    assert_eq!([said(&attempt(&play, "1").await), said(&attempt(&play, "0").await)], ["B", "C"].map(str::to_owned));
    assert_eq!(play.stop().0, 0);
}
