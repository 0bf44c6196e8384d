//! Rules before each source: what they do not take goes on to it.

use serde_json::json;

use super::{CHAT, Rules, chat, said, vcr};
use crate::cassettes::{Shelf, record};

const RULE: &str = "- {match: {contains: ruled}, answer: by rule}\n";

#[tokio::test]
async fn what_no_rule_takes_goes_on() {
    let rules = Rules::new(RULE);
    for flags in [
        &["--synthetic", "echo"][..],
        &["--synthetic", "random", "--engine"],
        &["--engine"],
        &["--replay-tokens", "traces/builtin.jsonl.gz"],
    ] {
        let play = rules.play(flags);
        let ruled = play.send(CHAT, &json!({"messages": chat(&["ruled"])["messages"]})).await;
        assert_eq!(
            (said(&ruled).as_str(), ruled.header("x-vcr-record")),
            ("by rule", Some("answers.yaml#0")),
            "{flags:?}"
        );
        let other = play.send(CHAT, &json!({"messages": chat(&["other"])["messages"], "max_tokens": 5})).await;
        assert_eq!(other.status, 200, "{flags:?}: {}", other.text());
        assert!(other.header("x-vcr-record").is_none_or(|record| !record.starts_with("answers")), "{flags:?}");
        let (code, log) = play.stop();
        assert_eq!(code, 0, "{log}");
        assert!(!log.contains("miss"), "a request that goes on is no miss: {log}");
    }
}

#[tokio::test]
async fn rules_come_before_recorded_requests() {
    let shelf =
        Shelf::with(&format!("vcr: 1\nrecords:\n{}{}", record(&["ruled"], "recorded"), record(&["other"], "recorded")));
    let rules = Rules::new(RULE);
    let play = rules.play(&["--cassette", shelf.name()]);
    assert_eq!(said(&play.send(CHAT, &chat(&["ruled"])).await), "by rule");
    assert_eq!(said(&play.send(CHAT, &chat(&["other"])).await), "recorded");
    assert_eq!(play.send(CHAT, &chat(&["none"])).await.status, 422);
}

#[tokio::test]
async fn a_cassette_takes_the_same_records() {
    let shelf = Shelf::with(
        "vcr: 1\nrecords:\n- {match: {contains: a, nth: 2}, answer: {verdict: yes-no, unsafe: true}}\n\
         - {match: {role: user, header: {x-a: false}}, answer: {parts: [{after: 1ms, text: One}]}}\n",
    );
    let play = shelf.play(&[]);
    assert_eq!(said(&play.send(CHAT, &chat(&["a"])).await), "One");
    assert_eq!(said(&play.send(CHAT, &chat(&["a"])).await), "Yes");
    let before = shelf.text();
    assert!(vcr(&["cassette", "fmt", shelf.name()]).status.success());
    assert_ne!(before, shelf.text());
    let again = shelf.play(&[]);
    assert_eq!(said(&again.send(CHAT, &chat(&["a"])).await), "One");
    assert_eq!(said(&again.send(CHAT, &chat(&["a"])).await), "Yes", "{}", shelf.text());
}

#[tokio::test]
async fn a_fault_may_name_a_rule() {
    let rules = Rules::new("- {match: {contains: busy}, answer: fine}\n- {match: any, answer: fine too}\n");
    let play =
        rules.play(&["--fault", "503 where record=answers.yaml#0", "--fault", "no-done where record=answers.yaml#1"]);
    assert_eq!(play.send(CHAT, &chat(&["busy"])).await.status, 503);
    let mut body = chat(&["other"]);
    body["stream"] = json!(true);
    let stream = play.send(CHAT, &body).await;
    assert!(stream.text().contains("fine ") && !stream.text().contains("[DONE]"), "{}", stream.text());
}
