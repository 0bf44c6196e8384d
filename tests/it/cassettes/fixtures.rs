//! Records that were written by hand: `match`, `times`, short answers and values of the request.

use serde_json::json;

use super::{CHAT, Shelf, chat, engine, read, record, said, streamed, vcr};
use crate::support::{client::Answer, running::Running};

/// A cassette of these records.
fn fixtures(records: &str) -> Shelf {
    Shelf::with(&format!("vcr: 1\nrecords:\n{records}"))
}

async fn answered(play: &Running, words: &str) -> String {
    said(&play.send(CHAT, &chat(&[words])).await)
}

fn way(answer: &Answer) -> (Option<&str>, Option<&str>) {
    (answer.header("x-vcr-record"), answer.header("x-vcr-match"))
}

#[tokio::test]
async fn conditions_are_tried_in_order_and_any_comes_last() {
    let shelf = fixtures(
        "- {match: any, answer: default}\n\
         - {match: {contains: weather}, answer: rain}\n\
         - {match: {contains: [weather, London]}, answer: never reached}\n\
         - {match: {regex: '(?i)order \\d+'}, answer: ordered}\n\
         - {match: {model: other}, answer: another model}\n",
    );
    let play = shelf.play(&["--strict"]);
    for (words, expected) in [
        ("the weather in London", "rain"),
        ("the weather in Paris", "rain"),
        ("Order 66", "ordered"),
        ("hello", "default"),
        ("Weather", "default"),
    ] {
        assert_eq!(answered(&play, words).await, expected, "{words}");
    }
    let mut other = chat(&["hello"]);
    other["model"] = json!("other");
    let answer = play.send(CHAT, &other).await;
    assert_eq!((said(&answer).as_str(), way(&answer)), ("another model", (Some("tape.yaml#4"), Some("fixture"))));
    let report = play.get("/vcr/report").await;
    let session = &report["sessions"]["default"];
    assert_eq!((&session["by_hand"], &session["unconsumed"], &report["unused"]), (&json!(6), &json!([]), &json!([])));
    let models = play.get("/v1/models").await;
    assert_eq!(models["data"][0]["id"], "other", "{models}");
    let (code, log) = play.stop();
    assert_eq!(code, 0, "hand-written records that were not served are no failure: {log}");
    assert!(log.contains("answered by hand-written records: 6"), "{log}");
}

#[tokio::test]
async fn a_recorded_request_comes_before_every_condition() {
    let recorded = record(&["hello"], "recorded");
    let shelf = fixtures(&format!("- {{match: {{contains: hello}}, answer: by hand}}\n{recorded}"));
    let play = shelf.play(&[]);
    let first = play.send(CHAT, &chat(&["hello"])).await;
    assert_eq!((said(&first).as_str(), first.header("x-vcr-match")), ("recorded", Some("canonical")));
    let second = play.send(CHAT, &chat(&["hello"])).await;
    assert_eq!(
        (second.status, second.header("x-vcr-miss")),
        (422, Some("exhausted")),
        "no default hides what is missing"
    );
    assert_eq!(answered(&play, "hello you").await, "by hand");
    let loose = shelf.play(&["--loose-after-exhausted"]);
    assert_eq!(answered(&loose, "hello").await, "recorded");
    assert_eq!(answered(&loose, "hello").await, "by hand");
}

#[tokio::test]
async fn the_turns_of_an_agent_are_told_apart() {
    let shelf = fixtures(
        "- match: {contains: weather, tool_result: false}\n  answer:\n    tool_calls:\n    - {name: weather, arguments: {city: '{{ last_user_message.split(\" \")|last }}'}}\n\
         - {match: {tool_result: true}, answer: 'It is {{ messages[-1].content }}.'}\n\
         - {match: {turn: 1}, answer: second}\n\
         - {match: {when: 'messages|length > 3 and tools is not defined'}, answer: long}\n",
    );
    let play = shelf.play(&[]);
    for stream in [json!(false), json!(true)] {
        let seen =
            super::agent(&play, "the weather in London", stream).await.unwrap_or_else(|miss| panic!("{}", miss.text()));
        assert_eq!(seen[0]["call"], json!({"name": "weather", "arguments": "{\"city\": \"London\"}"}));
        assert_eq!(seen[1]["content"], "It is 15 degrees.");
    }
    assert_eq!(said(&play.send(CHAT, &chat(&["a", "b", "c"])).await), "second");
    assert_eq!(said(&play.send(CHAT, &chat(&["a", "b", "c", "d", "e"])).await), "long");
    let calls = |answer: &Answer| answer.json()["choices"][0]["message"]["tool_calls"][0]["id"].clone();
    let (one, two) = (play.send(CHAT, &chat(&["weather"])).await, play.send(CHAT, &chat(&["weather"])).await);
    assert!(calls(&one).is_string() && calls(&one) != calls(&two), "ids of calls are not repeated");
    assert_ne!(one.json()["id"], two.json()["id"]);
    assert_eq!(one.json()["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn times_bound_how_often_a_record_is_served_in_each_session() {
    let recorded = record(&["asked"], "twice").replace("  answer:", "  times: 2\n  answer:");
    let shelf = fixtures(&format!(
        "- match: {{contains: busy}}\n  times: 1\n  answer: {{status: 503, error: {{message: later}}}}\n\
         - {{match: {{contains: busy}}, times: 2, answer: fine}}\n{recorded}"
    ));
    let play = shelf.play(&[]);
    for session in ["a", "b"] {
        let path = format!("/vcr/s/{session}{CHAT}");
        let first = play.send(&path, &chat(&["busy"])).await;
        assert_eq!((first.status, &first.json()["error"]["message"]), (503, &json!("later")));
        assert_eq!(said(&play.send(&path, &chat(&["busy"])).await), "fine");
        assert_eq!(said(&play.send(&path, &chat(&["busy"])).await), "fine");
        let last = play.send(&path, &chat(&["busy"])).await;
        let message = last.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(last.status == 422 && message.contains("it was served 1 time, which is its `times`"), "{message}");
        for _ in 0..2 {
            assert_eq!(said(&play.send(&path, &chat(&["asked"])).await), "twice");
        }
        assert_eq!(play.send(&path, &chat(&["asked"])).await.header("x-vcr-miss"), Some("exhausted"));
    }
    play.send("/vcr/reset", &json!({"session": "a"})).await;
    assert_eq!(play.send(&format!("/vcr/s/a{CHAT}"), &chat(&["busy"])).await.status, 503);
}

#[tokio::test]
async fn a_short_answer_is_written_in_the_form_of_each_family() {
    let shelf = fixtures(
        "- match: {contains: tool}\n  answer: {content: Calling., tool_calls: [{name: f, arguments: {a: 1}}]}\n\
         - {match: any, answer: 'Hi {{ model }}'}\n\
         - {match: any, request: POST /v1/embeddings, answer: {json: {data: [{embedding: [0.5], index: 0}], model: '{{ model }}'}}}\n\
         - {request: POST /v1/messages, body: {model: m, max_tokens: 9, messages: [{role: user, content: exact}]}, answer: short}\n\
         - {request: POST /v1/completions, body: {model: m, prompt: exact}, answer: short}\n",
    );
    let play = shelf.play(&[]);
    assert_eq!(
        streamed(
            &play
                .send(CHAT, &json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "x"}]}))
                .await
        )
        .0,
        "Hi m"
    );
    let completion = play.send("/v1/completions", &json!({"model": "m", "prompt": "x"})).await.json();
    assert_eq!((&completion["object"], &completion["choices"][0]["text"]), (&json!("text_completion"), &json!("Hi m")));
    let message = |words: &str, stream: bool| json!({"model": "m", "max_tokens": 9, "stream": stream, "messages": [{"role": "user", "content": [{"type": "text", "text": words}]}]});
    let whole = play.send("/v1/messages", &message("a tool", false)).await.json();
    assert_eq!((&whole["type"], &whole["stop_reason"]), (&json!("message"), &json!("tool_use")), "{whole}");
    assert_eq!(
        (&whole["content"][0]["text"], &whole["content"][1]["input"]),
        (&json!("Calling."), &json!({"a": 1})),
        "{whole}"
    );
    let events = play.send("/v1/messages", &message("x", true)).await.text();
    assert!(events.contains("event: content_block_delta") && events.contains("message_stop"), "{events}");
    let response =
        |stream: bool| json!({"model": "m", "input": "x", "stream": stream, "previous_response_id": "resp_1"});
    let whole = play.send("/v1/responses", &response(false)).await.json();
    assert_eq!(
        (&whole["object"], &whole["output"][0]["content"][0]["text"]),
        (&json!("response"), &json!("Hi m")),
        "{whole}"
    );
    let events = play.send("/v1/responses", &response(true)).await.text();
    assert!(events.contains("response.output_text.delta") && events.contains("response.completed"), "{events}");
    let vectors = play.send("/v1/embeddings", &json!({"model": "e", "input": "x"})).await.json();
    assert_eq!((&vectors["data"][0]["embedding"], &vectors["model"]), (&json!([0.5]), &json!("e")));
    let exact = play
        .send(
            "/v1/messages",
            &json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "exact"}]}),
        )
        .await;
    assert_eq!(
        (&exact.json()["content"][0]["text"], exact.header("x-vcr-match")),
        (&json!("short"), Some("canonical"))
    );
    let exact = play.send("/v1/completions", &json!({"model": "m", "prompt": "exact"})).await.json();
    assert_eq!((&exact["object"], &exact["choices"][0]["text"]), (&json!("text_completion"), &json!("short")));
}

#[tokio::test]
async fn values_that_a_request_lacks_leave_the_record_out() {
    let shelf = fixtures(
        "- match: {contains: name}\n  answer: 'You are {{ metadata.name }} in {{ session }}'\n\
         - match: {contains: name}\n  answer: 'A stranger. {% raw %}{{ model }}{% endraw %} }}'\n\
         - match: {contains: lost}\n  answer: '{{ metadata.name }}'\n",
    );
    let play = shelf.play(&[]);
    assert_eq!(answered(&play, "my name").await, "A stranger. {{ model }} }}");
    let mut named = chat(&["my name"]);
    named["metadata"] = json!({"name": "Ada \"Quote\"\n\\u0041 {{ model }}"});
    assert_eq!(said(&play.send(CHAT, &named).await), "You are Ada \"Quote\"\n\\u0041 {{ model }} in default");
    let miss = play.send(CHAT, &chat(&["lost"])).await;
    assert!(miss.status == 422 && miss.text().contains("undefined"), "{}", miss.text());
}

#[tokio::test]
async fn a_miss_names_the_conditions_that_fail() {
    let shelf = fixtures(
        "- {match: {contains: weather}, answer: a}\n- {match: {equals: {temperature: 0}}, answer: b}\n\
         - {match: {contains: {'tools[0].function.name': search}}, answer: c}\n",
    );
    let play = shelf.play(&[]);
    let miss = play.send(CHAT, &chat(&["Hi"])).await;
    let message = miss.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
    for part in [
        "tape.yaml#0: the last user message 'Hi' does not contain 'weather'",
        "tape.yaml#1: temperature is missing, not '0'",
        "tape.yaml#2: there is no tools[0].function.name",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(message.len() <= 600 && miss.header("x-vcr-miss") == Some("no_match"), "{message}");
    let page = play.get("/vcr/misses/1").await;
    assert_eq!(page["error"]["vcr"]["by_hand"].as_array().map(Vec::len), Some(3), "{page}");
}

#[tokio::test]
async fn what_no_condition_matches_goes_upstream_under_new_episodes() {
    let shelf = fixtures("- {match: {contains: weather}, answer: by hand}\n");
    let upstream = engine().await;
    let tap = shelf.tap(&upstream, &["--mode", "new-episodes"]);
    assert_eq!(answered(&tap, "the weather").await, "by hand");
    assert_eq!(tap.send(CHAT, &chat(&["something else"])).await.status, 200);
    let (_, log) = tap.stop();
    let text = shelf.text();
    assert!(text.starts_with("vcr: 1\nrecords:\n- {match: {contains: weather}, answer: by hand}\n"), "{text}");
    assert_eq!(text.matches("request: POST").count(), 1, "{text}\n{log}");
    let play = shelf.play(&[]);
    assert_eq!(play.send(CHAT, &chat(&["something else"])).await.status, 200);
}

fn ran(arguments: &[&str]) -> (i32, String) {
    let output = vcr(arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap(), text)
}

#[test]
fn what_is_wrong_is_refused_with_its_line() {
    for (record, line, part) in [
        ("- match: all\n  answer: a\n", 3, "has to be `any`, or a map"),
        ("- match: {}\n  answer: a\n", 3, "has to be `any`, or a map"),
        (
            "- match:\n    contains: a\n    contain: b\n  answer: a\n",
            5,
            "`match.contain` is no condition: any, contains",
        ),
        ("- match:\n    regex: 'a('\n  answer: a\n", 4, "is no regular expression"),
        ("- match:\n    contains: {'[': a}\n  answer: a\n", 4, "names no field of a request"),
        ("- match:\n    when: 'a =='\n  answer: a\n", 4, "`match.when`"),
        ("- match: {any: true, model: m}\n  answer: a\n", 3, "stands alone"),
        ("- match: any\n  times: 0\n  answer: a\n", 4, "a number from 1 on, or always"),
        ("- match: any\n  answer:\n    content: '{{ model'\n", 5, "the answer is no template"),
        (
            "- match: any\n  request: POST /v1/completions\n  body: {}\n  answer: a\n",
            3,
            "no `match` of its own beside `body`",
        ),
        ("- match: any\n  like: 0\n  answer: a\n", 3, "no `match` of its own beside `like`"),
        ("- match: any\n  cached: [0]\n  answer: a\n", 3, "no `match` of its own beside `cached`"),
        ("- match: any\n", 3, "the record has no `answer`"),
        ("- match: any\n  answer: {content: a, text: b}\n", 4, "fields of a message beside it"),
    ] {
        let shelf = fixtures(record);
        let (code, text) = ran(&["cassette", "validate", shelf.name()]);
        assert!(
            code == 3 && text.contains(&format!("{}:{line}: ", shelf.name())) && text.contains(part),
            "{record}{text}"
        );
    }
    let shelf = Shelf::with("vcr: 1\nclock: tomorrow\nrecords: []\n");
    let (code, text) = ran(&["cassette", "validate", shelf.name()]);
    assert!(code == 3 && text.contains(":2: `clock` has to be a date"), "{text}");
}

#[test]
fn the_tools_take_hand_written_records() {
    let text = "- match: {contains: a}\n  times: always\n  tags: [x]\n  answer: A\n\
                - {match: any, times: 3, answer: {tool_calls: [{name: f, arguments: {}}]}}\n\
                - {match: {contains: a}, request: POST /v1/completions, answer: {text: A, finish_reason: length}}\n\
                - {match: any, answer: {status: 404}}\n";
    let shelf = fixtures(text);
    assert_eq!(ran(&["cassette", "fmt", shelf.name()]).0, 0);
    let written = shelf.text();
    for part in [
        "- id: 0\n  match: {contains: a}\n  times: always\n  tags: [x]\n  answer: A\n",
        "  match: any\n  times: 3\n  answer:\n    tool_calls:\n    - {name: f, arguments: {}}\n",
        "  request: POST /v1/completions\n  match: {contains: a}\n",
    ] {
        assert!(written.contains(part), "{part}\n{written}");
    }
    assert_eq!(ran(&["cassette", "fmt", "--check", shelf.name()]), (0, String::new()));
    assert_eq!(ran(&["cassette", "fmt", "--check", "--expand", shelf.name()]), (0, String::new()));
    let other = fixtures(&text.replace("contains: a}\n  times: always", "contains: b}\n  times: always"));
    let (code, diff) = ran(&["cassette", "diff", shelf.name(), other.name()]);
    assert!(code == 1 && diff.contains(r#"request $.match.contains: "a" -> "b""#), "{diff}");
    let never = fixtures("- {match: {contains: a}, answer: A}\n- {match: {contains: a}, answer: B}\n");
    let (code, notes) = ran(&["cassette", "validate", never.name()]);
    assert!(code == 0 && notes.contains("record 1 is never played: record 0 has the same `match`"), "{notes}");
    let trace = shelf.folder.path().join("t.jsonl");
    let (code, text) = ran(&["cassette", "convert", shelf.name(), trace.to_str().unwrap()]);
    assert!(code != 0 && text.contains("a hand-written record (`match`) has no request of its own"), "{text}");
    let leaking = fixtures("- {match: {contains: jane.doe@example.org}, answer: A}\n");
    assert_eq!(ran(&["cassette", "validate", leaking.name(), "--redact", "email"]).0, 3);
    assert_eq!(ran(&["cassette", "redact", leaking.name(), "--redact", "email"]).0, 0);
    assert!(leaking.text().contains("[REDACTED:email:1]"), "{}", leaking.text());
}

#[tokio::test]
async fn a_new_cassette_is_valid_and_plays() {
    let shelf = Shelf::empty();
    let file = shelf.folder.path().join("deep/er/fixtures.yaml");
    let name = file.to_str().unwrap();
    let (code, log) = ran(&["cassette", "new", name]);
    assert!(code == 0 && log.contains(&format!("vllm-vcr play --cassette {name}")), "{log}");
    assert_eq!(ran(&["cassette", "validate", name]), (0, format!("{name}: 6 records\n")));
    let before = read(&file);
    let (code, log) = ran(&["cassette", "new", name]);
    assert!(code == 2 && log.contains("exists") && read(&file) == before, "{log}");
    assert_eq!(ran(&["cassette", "new", "fixtures.json"]).0, 2);
    let play = Running::start(&["play", "--port", "0", "--cassette", name]);
    assert_eq!(answered(&play, "hello").await, "Hello! I am m.");
    assert_eq!(answered(&play, "what now").await, "I have no answer for that.");
    let busy = play.send(CHAT, &chat(&["are you busy?"])).await;
    assert_eq!(busy.status, 503);
    assert_eq!(answered(&play, "are you busy?").await, "Thank you for trying again.");
    let seen = super::agent(&play, "the weather", json!(true)).await.unwrap_or_else(|miss| panic!("{}", miss.text()));
    assert_eq!(seen[1]["content"], json!("It is 15 degrees in London."));
    let (_, log) = play.stop();
    assert!(log.contains(r#""content":"hello""#), "a request to try is shown: {log}");
    // What is shown behind # is right too.
    let more: String = before
        .lines()
        .map(|line| {
            line.strip_prefix("# - match:").map_or_else(
                || {
                    line.strip_prefix("#   ")
                        .filter(|rest| !rest.starts_with("vllm"))
                        .map_or_else(|| line.to_owned(), |rest| format!("  {rest}"))
                },
                |rest| format!("- match:{rest}"),
            )
        })
        .map(|line| line + "\n")
        .collect();
    std::fs::write(&file, more).unwrap();
    assert_eq!(ran(&["cassette", "validate", name]), (0, format!("{name}: 7 records\n")));
}
