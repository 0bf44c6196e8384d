//! Errors of requests without a record.

use serde_json::{Value, json};

use super::{CHAT, Shelf, agent, chat, engine, record, said, tape};

#[tokio::test]
async fn a_miss_names_the_edited_message_and_the_closest_record() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    agent(&tap, "Weather in London?", json!(false)).await.ok().unwrap();
    tap.stop();
    let play = shelf.play(&["--strict"]);
    let miss = agent(&play, "Weather in Paris?", json!(false)).await.unwrap_err();
    assert_eq!(
        (miss.status, miss.header("x-should-retry"), miss.header("x-vcr-miss")),
        (422, Some("false"), Some("no_match"))
    );
    let error = &miss.json()["error"];
    assert_eq!((&error["type"], &error["code"]), (&json!("vcr_miss"), &json!("no_match")));
    assert_eq!(error["param"], "messages[1].content");
    let told = &error["vcr"];
    assert_eq!((&told["closest"]["record"], &told["closest"]["consumed"]), (&json!(0), &json!(false)));
    assert_eq!(
        told["diffs"],
        json!([{"path": "$.messages[1].content", "op": "replace", "recorded": "Weather in London?",
        "received": "Weather in Paris?", "at": 11}])
    );
    let line = told["closest"]["line"].as_u64().unwrap();
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(&format!("#0 ({}:{line}), 1 difference:", shelf.name())), "{message}");
    assert_eq!(shelf.text().lines().nth(usize::try_from(line).unwrap() - 1), Some("- id: 0"));
    assert!(
        message.contains("'Weather in London?' received 'Weather in Paris?' (first difference at char 11)"),
        "{message}"
    );
    assert_eq!(play.get("/vcr/misses").await[0]["error"], *error);
    let (code, log) = play.stop();
    assert_eq!(code, 1, "{log}");
    assert!(
        log.contains("Closest recorded request") && log.contains("failed: miss") && !log.contains("failed: unconsumed"),
        "{log}"
    );
}

#[tokio::test]
async fn an_inserted_message_is_reported_as_one_difference() {
    let shelf = Shelf::with(&tape(&[record(&["x"], "X"), record(&["a", "b", "c"], "C")]));
    let play = shelf.play(&[]);
    let miss = play.send(CHAT, &chat(&["a", "b", "c", "d", "e"])).await.json();
    let message = miss["error"]["message"].as_str().unwrap();
    assert!(message.contains("messages: recorded has 3, received 5; first extra at [3] (role assistant)"), "{message}");
    assert_eq!(miss["error"]["vcr"]["closest"]["record"], 1);
    let missing = play.send(CHAT, &chat(&["a", "b"])).await.json();
    let message = missing["error"]["message"].as_str().unwrap();
    assert!(message.contains("recorded has 3, received 2; first missing at [2] (role user)"), "{message}");
}

#[tokio::test]
async fn a_turn_that_was_left_out_is_unconsumed() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A"), record(&["b"], "B")]));
    let report = shelf.folder.path().join("report.json");
    let play = shelf.play(&["--strict", "--report", report.to_str().unwrap()]);
    play.send(CHAT, &chat(&["b"])).await;
    let (code, log) = play.stop();
    assert_eq!(code, 1, "{log}");
    let line = format!("unconsumed: tape.yaml#0 ({}:3) POST {CHAT} a", shelf.name());
    assert!(log.contains(&line) && log.contains("failed: unconsumed"), "{log}");
    let report: Value = serde_json::from_str(&super::read(&report)).unwrap();
    assert_eq!((&report["failing"], &report["sessions"]["default"]["served"]), (&json!(["unconsumed"]), &json!(1)));
}

#[tokio::test]
async fn exhausted_is_its_own_error() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let play = shelf.play(&[]);
    play.send(CHAT, &chat(&["a"])).await;
    let miss = play.send(CHAT, &chat(&["a"])).await.json();
    let message = miss["error"]["message"].as_str().unwrap();
    assert!(message.contains("all of them were already served (to requests 1 of this session)"), "{message}");
    assert_eq!((&miss["error"]["code"], &miss["error"]["vcr"]["served_to"]), (&json!("exhausted"), &json!([1])));
    assert!(miss["error"]["vcr"]["diffs"].is_null());
    let other = play.send(CHAT, &json!({"model": "other", "messages": []})).await.json();
    assert_eq!(other["error"]["code"], "no_records_for_boundary");
    assert!(other["error"]["message"].as_str().unwrap().contains("Recorded: llm:m."), "{other}");
    let cycle = shelf.play(&["--on-exhausted", "cycle"]);
    for expected in [None, Some("canonical;again")] {
        let answer = cycle.send(CHAT, &chat(&["a"])).await;
        assert!(expected.is_none_or(|expected| answer.header("x-vcr-match") == Some(expected)));
        assert_eq!(said(&answer), "A");
    }
}

#[tokio::test]
async fn each_family_gets_its_own_error_envelope() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let play = shelf.play(&[]);
    let body = json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]});
    let miss = play.send("/v1/messages", &body).await;
    assert_eq!((miss.status, miss.json()["type"].clone()), (422, json!("error")));
    assert_eq!(miss.json()["error"]["type"], "vcr_miss");
    let short = shelf.play(&["--miss-detail", "summary", "--miss-status", "404"]);
    let miss = short.send(CHAT, &chat(&["z"])).await;
    assert_eq!((miss.status, miss.json()["error"]["vcr"].clone()), (404, Value::Null));
}

#[tokio::test]
async fn a_miss_may_be_made_up_or_named() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "A")]));
    let random = shelf.play(&["--on-miss", "random"]);
    let answer = random
        .send(CHAT, &json!({"model": "m", "messages": [{"role": "user", "content": "z"}], "max_tokens": 3}))
        .await;
    assert_eq!(
        (answer.status, answer.json()["usage"]["completion_tokens"].clone()),
        (200, json!(3)),
        "{}",
        answer.text()
    );
    let stub = shelf.play(&["--on-miss", "stub"]);
    let answer = stub.send(CHAT, &chat(&["z"])).await;
    assert!(said(&answer).starts_with("<novel: "), "{}", answer.text());
    assert_eq!(stub.get("/vcr/report").await["sessions"]["default"]["misses"], json!({"no_match": 1}));
}

#[tokio::test]
async fn a_turn_that_is_left_out_is_named_with_its_words() {
    let (first, said, second, third) =
        ("What is the weather in London?", "It is 15 degrees.", "And in Paris?", "Which of them is warmer?");
    let whole = [first, said, second, "The same.", third];
    let shelf = Shelf::with(&tape(&[1, 3, 5].map(|turns| record(whole.get(..turns).unwrap(), "A"))));
    let play = shelf.play(&[]);
    let missed = async |texts: &[&str]| play.send(CHAT, &chat(texts)).await.json()["error"].clone();
    let within = missed(&[first, said, third]).await;
    let message = within["message"].as_str().unwrap();
    let named = "recorded has 5, received 3; first missing at [2] (role user) 'And in Paris?' (tape.yaml#2).";
    assert!(message.starts_with(&format!("No recorded interaction matched: messages: {named}")), "{message}");
    let line =
        "  - messages[2] to messages[3] were recorded and not received: user 'And in Paris?', assistant 'The same.'";
    assert!(message.lines().any(|it| it == line), "{message}");
    assert!(message.lines().filter(|line| line.contains("recorded has 5")).count() == 1, "{message}");
    let extra = missed(&[first, said, "Is it far away, by train or by plane, for two?", "Yes.", second]).await;
    let message = extra["message"].as_str().unwrap();
    let named =
        "recorded has 3, received 5; first extra at [2] (role user) 'Is it far away, by train or by plane, fo…'";
    assert!(message.contains(named) && message.len() < 600, "{message}");
}

#[test]
fn an_unconsumed_record_is_named_by_the_words_of_its_parts() {
    let result =
        json!([{"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "15 degrees"}]}]);
    let of = |path: &str, list: &str, content: &Value| {
        format!(
            "- request: POST {path}\n  body: {}\n  answer: {{status: 200}}\n",
            json!({"model": "m", list: [{"role": "user", "content": content}]})
        )
    };
    let asked = json!([{"type": "input_text", "text": "And in Paris?"}, {"type": "input_image", "image_url": "u"}]);
    let shelf = Shelf::with(&tape(&[of("/v1/messages", "messages", &result), of("/v1/responses", "input", &asked)]));
    let output = super::vcr(&["play", "--strict", "--cassette", shelf.name(), "--", "true"]);
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let ends = |line: &str| log.lines().any(|it| it.ends_with(line));
    assert!(ends(" POST /v1/messages 15 degrees") && ends(" POST /v1/responses And in Paris?"), "{log}");
}
