//! Which record answers.

use serde_json::json;

use super::{CHAT, Shelf, chat, record, said, tape};
use crate::support::client::{self, post};

#[tokio::test]
async fn drifting_requests_find_their_record() {
    let shelf = Shelf::with(&tape(&[record(&["took 0.42s"], "A")]));
    let play = shelf.play(&[
        "--scrub",
        r"s/\d+\.\d+s/Xs/",
        "--ignore",
        "$.meta.run",
        "--match-header",
        "x-tenant",
        "--on-exhausted",
        "last",
    ]);
    let mut body = json!({"user": "u7", "stream_options": null, "meta": {"run": 7}, "n": 1});
    body["messages"] = chat(&["took 1.57s"])["messages"].clone();
    body["model"] = json!("m");
    let answer = play.send(CHAT, &body).await;
    assert_eq!(answer.status, 422, "meta itself is left: {}", answer.text());
    body["meta"] = json!(null);
    assert_eq!(said(&play.send(CHAT, &body).await), "A");
    let mut request = post(CHAT, &body);
    request.headers.push(("x-tenant", "other"));
    assert_eq!(client::send(play.address, &request).await.status, 422);
}

#[tokio::test]
async fn parallel_duplicates_get_records_of_their_own() {
    let records: Vec<String> = (0..8).map(|at| record(&["same"], &format!("answer {at}"))).collect();
    let shelf = Shelf::with(&tape(&records));
    let play = shelf.play(&[]);
    let body = chat(&["same"]);
    let answers = futures_util::future::join_all((0..8).map(|_| play.send(CHAT, &body))).await;
    let mut texts: Vec<String> = answers.iter().map(said).collect();
    texts.sort();
    assert_eq!(texts, (0..8).map(|at| format!("answer {at}")).collect::<Vec<_>>());
    let one_more = play.send(CHAT, &body).await;
    assert_eq!((one_more.status, one_more.header("x-vcr-miss")), (422, Some("exhausted")));
}

#[tokio::test]
async fn a_looser_way_takes_over_only_where_it_may() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A"), record(&["b"], "B")]));
    for (flags, expected) in [
        (&["--match", "canonical,ordered"][..], 422),
        (&["--match", "canonical,ordered", "--loose-after-exhausted"], 200),
    ] {
        let play = shelf.play(flags);
        assert_eq!(said(&play.send(CHAT, &chat(&["a"])).await), "A");
        assert_eq!(play.send(CHAT, &chat(&["a"])).await.status, expected);
    }
    let play = shelf.play(&["--match", "exact,ordered,prefix", "--fail-on", "loose"]);
    let other = play.send(CHAT, &chat(&["z"])).await;
    assert_eq!((said(&other).as_str(), other.header("x-vcr-match")), ("A", Some("ordered")));
    let (code, log) = play.stop();
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("1 ordered") && log.contains("failed: loose"), "{log}");
}

#[tokio::test]
async fn a_conversation_is_found_by_its_start_and_an_index_by_its_number() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A"), record(&["a", "x", "b"], "B"), record(&["c"], "C")]));
    let play = shelf.play(&["--match", "prefix"]);
    assert_eq!(said(&play.send(CHAT, &chat(&["a", "x", "b", "y", "new"])).await), "B");
    assert_eq!(said(&play.send(CHAT, &chat(&["c", "d"])).await), "C");
    assert_eq!(said(&play.send(CHAT, &chat(&["c", "d"])).await), "C", "the last one again");
    let play = shelf.play(&["--match", "index"]);
    for (id, text) in [("run-2", "C"), ("run-0", "A"), ("run-2", "C")] {
        let mut request = post(CHAT, &chat(&["whatever"]));
        request.headers.push(("x-request-id", id));
        assert_eq!(said(&client::send(play.address, &request).await), text);
    }
}

#[tokio::test]
async fn another_try_gets_the_same_record() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "1"), record(&["a"], "2"), record(&["a"], "3")]));
    let play = shelf.play(&[]);
    let ask = async |name: &'static str, value: &'static str| {
        let mut request = post(CHAT, &chat(&["a"]));
        request.headers.push((name, value));
        let answer = client::send(play.address, &request).await;
        (said(&answer), answer.header("x-vcr-match").unwrap().to_owned())
    };
    assert_eq!(ask("x-stainless-retry-count", "0").await, ("1".to_owned(), "canonical".to_owned()));
    assert_eq!(ask("x-stainless-retry-count", "1").await, ("1".to_owned(), "canonical;retry".to_owned()));
    assert_eq!(ask("idempotency-key", "k").await.0, "2");
    assert_eq!(ask("idempotency-key", "k").await.0, "2");
    assert_eq!(ask("x-other", "k").await.0, "3");
}

#[tokio::test]
async fn sessions_consume_for_themselves() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "1"), record(&["a"], "2")]));
    let play = shelf.play(&[]);
    let body = chat(&["a"]);
    for session in ["one", "two"] {
        let path = format!("/vcr/s/{session}{CHAT}");
        for expected in ["1", "2"] {
            let answer = play.send(&path, &body).await;
            assert_eq!((said(&answer).as_str(), answer.header("x-vcr-session")), (expected, Some(session)));
        }
    }
    let mut request = post(CHAT, &body);
    request.headers.push(("x-vcr-session", "three"));
    assert_eq!(said(&client::send(play.address, &request).await), "1");
    let report = play.get("/vcr/report").await;
    assert_eq!(report["sessions"]["one"]["unconsumed"], json!([]));
    assert_eq!(report["sessions"]["three"]["unconsumed"].as_array().unwrap().len(), 1);
    let verify = async |session: &str| play.send("/vcr/verify", &json!({"session": session})).await.status;
    assert_eq!((verify("one").await, verify("three").await), (200, 409));
    assert_eq!(play.send("/vcr/reset", &json!({"session": "one"})).await.status, 200);
    assert_eq!(said(&play.send(&format!("/vcr/s/one{CHAT}"), &body).await), "1");
    let made = play.send("/vcr/sessions", &json!({"name": "four"})).await;
    assert_eq!((made.status, made.json()["base_url"].clone()), (201, json!("/vcr/s/four/v1")));
    let records = play.get("/vcr/records?session=two").await;
    assert_eq!((records[0]["served"].clone(), records[0]["at"].clone()), (json!(1), json!("llm:m")));
}

#[tokio::test]
async fn several_cassettes_are_played_as_one() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    std::fs::write(shelf.folder.path().join("more.yaml"), tape(&[record(&["b"], "B")])).unwrap();
    let folder = shelf.folder.path().to_str().unwrap().to_owned();
    let play = super::Running::start(&["play", "--port", "0", "--cassette", &folder]);
    assert_eq!(said(&play.send(CHAT, &chat(&["b"])).await), "B");
    let answer = play.send(CHAT, &chat(&["a"])).await;
    assert_eq!((said(&answer).as_str(), answer.header("x-vcr-record")), ("A", Some("tape.yaml#0")));
}
