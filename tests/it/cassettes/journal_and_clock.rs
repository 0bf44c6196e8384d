//! `/vcr/requests` and `/vcr/clock`.

use serde_json::{Value, json};

use super::{CHAT, Shelf, chat, record, said, vcr};
use crate::support::running::Running;

/// A cassette of these records.
fn fixtures(records: &str) -> Shelf {
    Shelf::with(&format!("vcr: 1\nrecords:\n{records}"))
}

/// The entries of the journal.
async fn journal(play: &Running, query: &str) -> Vec<Value> {
    play.get(&format!("/vcr/requests{query}")).await.as_array().unwrap().clone()
}

#[tokio::test]
async fn the_journal_has_what_came_and_what_became_of_it() {
    let shelf = fixtures(&format!("- {{match: {{contains: weather}}, answer: rain}}\n{}", record(&["a"], "A")));
    let play = shelf.play(&["--redact", "email"]);
    play.send(CHAT, &chat(&["a"])).await;
    play.send(&format!("/vcr/s/one{CHAT}"), &chat(&["the weather for jane.doe@example.org"])).await;
    play.send(CHAT, &chat(&["missed"])).await;
    let entries = journal(&play, "").await;
    let shown: Vec<(u64, &str, &str, &str, &str)> = entries
        .iter()
        .map(|it| {
            let text = |name: &str| it[name].as_str().unwrap_or_default();
            (it["number"].as_u64().unwrap(), text("session"), text("outcome"), text("record"), text("match"))
        })
        .collect();
    assert_eq!(
        shown,
        [
            (1, "default", "replayed", "tape.yaml#1", "canonical"),
            (2, "one", "replayed", "tape.yaml#0", "fixture"),
            (3, "default", "missed", "", "")
        ]
    );
    assert_eq!(
        (&entries[2]["reason"], &entries[2]["miss"], &entries[2]["status"]),
        (&json!("no_match"), &json!("/vcr/misses/1"), &json!(422))
    );
    assert_eq!((&entries[0]["request"], &entries[0]["at"]), (&json!(format!("POST {CHAT}")), &json!("llm:m")));
    assert_eq!(entries[0]["body"]["messages"][0]["content"], "a");
    let one = journal(&play, "?session=one").await;
    assert!(one.len() == 1 && one[0].to_string().contains("[REDACTED:email:1]"), "{one:?}");
    assert!(!Value::from(entries).to_string().contains("jane.doe"));
    let long = chat(&[&"x".repeat(100_000)]);
    play.send(CHAT, &long).await;
    let last = journal(&play, "").await.pop().unwrap();
    assert!(last.get("body").is_none() && last["body_bytes"].as_u64() > Some(100_000), "{last}");
    play.send("/vcr/reset", &json!({"session": "one"})).await;
    assert!(journal(&play, "?session=one").await.is_empty() && journal(&play, "").await.len() == 3);
}

#[tokio::test]
async fn the_clock_is_that_of_the_cassette() {
    let shelf = Shelf::with(
        "vcr: 1\nclock: 2026-06-17T12:00:00Z\nrecords:\n- {match: any, answer: 'It is {{ base_time }}.'}\n",
    );
    let play = shelf.play(&[]);
    assert_eq!(play.get("/vcr/clock").await, json!({"base_time": "2026-06-17T12:00:00Z", "unix": 1_781_697_600}));
    assert_eq!(said(&play.send(CHAT, &chat(&["What time is it?"])).await), "It is 2026-06-17T12:00:00Z.");
    let output = vcr(&["play", "--cassette", shelf.name(), "--", "sh", "-c", "echo at $VLLM_VCR_BASE_TIME"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "at 2026-06-17T12:00:00Z\n");
    let without = fixtures("- {match: any, answer: a}\n").play(&[]);
    assert_eq!(without.get("/vcr/clock").await, json!({"base_time": null, "unix": null}));
}
