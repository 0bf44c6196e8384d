//! What a rule answers.

use serde_json::{Value, json};

use crate::cassettes::{Shelf, record};

use super::{Answer, CHAT, Rules, asked, chat, data, said, streamed, vcr};

/// The texts that a stream's events add, in order.
fn added(answer: &Answer, field: &str) -> Vec<String> {
    let events = data(answer);
    let deltas = events.iter().filter_map(|event| event["choices"][0]["delta"][field].as_str());
    deltas.filter(|text| !text.is_empty()).map(str::to_owned).collect()
}

#[tokio::test]
async fn parts_are_streamed_as_they_are_written() {
    let rules = Rules::new(
        "- match: {regex: 'my name is (?<name>\\w+)'}\n  answer:\n    parts:\n    - {after: 1ms, reasoning: 'A name. '}\n    \
         - {after: 5ms, text: 'Hello {{ match.name }}'}\n    - {text: '!'}\n    tool_calls: [{name: greet, arguments: {name: '{{ match[1] }}'}}]\n",
    );
    let play = rules.play(&["--synthetic", "random"]);
    let words = "my name is Ada";
    let stream =
        play.send(CHAT, &asked(words, &json!({"stream": true, "stream_options": {"include_usage": true}}))).await;
    assert_eq!(added(&stream, "reasoning"), ["A name. "]);
    assert_eq!(added(&stream, "content"), ["Hello Ada", "!"]);
    let events = data(&stream);
    assert!(events.iter().any(|event| event["choices"][0]["finish_reason"] == "tool_calls"), "{events:?}");
    assert!(events.iter().any(|event| event["usage"]["completion_tokens"].is_u64()), "{events:?}");
    let whole = play.send(CHAT, &chat(&[words])).await.json();
    let message = &whole["choices"][0]["message"];
    assert_eq!((&message["content"], &message["reasoning"]), (&json!("Hello Ada!"), &json!("A name. ")));
    assert_eq!(message["tool_calls"][0]["function"], json!({"name": "greet", "arguments": "{\"name\": \"Ada\"}"}));
    let of_message =
        json!({"model": "m", "max_tokens": 9, "stream": true, "messages": [{"role": "user", "content": words}]});
    let message = play.send("/v1/messages", &of_message).await;
    let texts: Vec<Value> =
        data(&message).into_iter().map(|event| event["delta"]["text"].clone()).filter(Value::is_string).collect();
    assert_eq!(texts, ["Hello Ada", "!"], "{}", message.text());
    let completion = play.send("/v1/completions", &json!({"model": "m", "prompt": words})).await;
    assert_ne!(
        completion.header("x-vcr-match"),
        Some("fixture"),
        "reasoning and calls are nothing that a completion has"
    );
}

#[tokio::test]
async fn arguments_may_be_no_json() {
    let rules = Rules::new("- {match: any, answer: {tool_calls: [{name: f, arguments: '{\"city\": '}]}}\n");
    let play = rules.play(&[]);
    let call = play.send(CHAT, &chat(&["x"])).await.json()["choices"][0]["message"]["tool_calls"][0].clone();
    assert_eq!(call["function"]["arguments"], "{\"city\": ");
    assert!(call["id"].is_string());
}

#[tokio::test]
async fn json_fits_the_schema_of_the_request() {
    let rules = Rules::new(
        "- {match: {contains: own}, answer: {schema: {type: object, properties: {only: {const: 7}}, required: [only], additionalProperties: false}}}\n\
         - {match: any, answer: {schema: request}}\n",
    );
    let play = rules.play(&[]);
    let schema = json!({"type": "object", "properties": {"age": {"type": "integer"}, "name": {"type": "string", "maxLength": 9},
        "kind": {"enum": ["a", "b"]}}, "required": ["age", "name", "kind"], "additionalProperties": false});
    let format = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}}});
    let first = said(&play.send(CHAT, &asked("who", &format)).await);
    let value: Value = serde_json::from_str(&first).unwrap();
    assert!(
        value["age"].is_i64() && value["name"].is_string() && ["a", "b"].contains(&value["kind"].as_str().unwrap()),
        "{value}"
    );
    assert_eq!(said(&play.send(CHAT, &asked("who", &format)).await), first, "the same request has the same answer");
    let response = json!({"model": "m", "input": "who", "text": {"format": {"type": "json_schema", "name": "p", "schema": schema}}});
    let text = play.send("/v1/responses", &response).await.json()["output"][0]["content"][0]["text"].clone();
    assert!(serde_json::from_str::<Value>(text.as_str().unwrap()).unwrap()["age"].is_i64(), "{text}");
    assert_eq!(said(&play.send(CHAT, &chat(&["own"])).await), "{\"only\": 7}");
    let free = play.send(CHAT, &chat(&["who"])).await;
    assert!(free.status == 422 && free.text().contains("has no schema for its answer"), "{}", free.text());
}

#[tokio::test]
async fn a_record_of_a_cassette_is_an_answer() {
    let shelf = Shelf::with(&format!("vcr: 1\nrecords:\n{}", record(&["recorded question"], "recorded answer")));
    let rules = Rules::new("- {match: {contains: other}, answer: {record: tape.yaml#0}}\n");
    let play = rules.play(&["--cassette", shelf.name()]);
    for _ in 0..2 {
        let answer = play.send(CHAT, &chat(&["another question"])).await;
        assert_eq!(
            (said(&answer).as_str(), answer.header("x-vcr-record")),
            ("recorded answer", Some("answers.yaml#0"))
        );
    }
    let message = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "other"}]});
    assert_eq!(play.send("/v1/messages", &message).await.json()["content"][0]["text"], "recorded answer");
    assert_eq!(
        said(&play.send(CHAT, &chat(&["recorded question"])).await),
        "recorded answer",
        "rules consume no record"
    );
    let missing = Rules::new("- {match: any, answer: {record: tape.yaml#7}}\n");
    let ended = vcr(&["play", "--port", "0", "--cassette", shelf.name(), "--answers", &missing.file]);
    let log = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.code() == Some(3) && log.contains("answers.yaml#0: no record tape.yaml#7 is loaded"), "{log}");
}

#[tokio::test]
async fn as_many_choices_and_log_probabilities_come_as_are_asked_for() {
    let rules = Rules::new("- {match: any, answer: One two.}\n");
    let play = rules.play(&[]);
    let whole = play.send(CHAT, &asked("x", &json!({"n": 3, "logprobs": true, "top_logprobs": 1}))).await.json();
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    for choice in choices {
        let tokens = choice["logprobs"]["content"].as_array().unwrap();
        let text: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
        assert_eq!((text.as_str(), &choice["message"]["content"]), ("One two.", &json!("One two.")));
        assert!(tokens.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 1), "{tokens:?}");
    }
    let stream = play.send(CHAT, &asked("x", &json!({"n": 2, "stream": true}))).await;
    let texts = |index: u64| -> String {
        let events = data(&stream);
        let of = events.iter().filter(|event| event["choices"][0]["index"] == index);
        of.filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!((texts(0).as_str(), texts(1).as_str()), ("One two.", "One two."));
    let two = json!({"model": "m", "prompt": ["a", "b"], "n": 2, "logprobs": 2});
    let completion = play.send("/v1/completions", &two).await.json();
    assert_eq!(completion["choices"].as_array().unwrap().len(), 4);
    assert_eq!(completion["choices"][3]["logprobs"]["text_offset"], json!([0, 3]));
}

#[tokio::test]
async fn faults_and_errors_are_answers() {
    let rules = Rules::new(
        "- {match: {contains: busy}, times: 1, answer: {status: 429, headers: {retry-after: 1}, error: {message: later}}}\n\
         - {match: {contains: cut}, answer: {content: One two three, fault: truncate, after_events: 2}}\n\
         - {match: any, answer: fine}\n",
    );
    let play = rules.play(&[]);
    let busy = play.send(CHAT, &chat(&["busy"])).await;
    assert_eq!((busy.status, busy.header("retry-after")), (429, Some("1")));
    assert_eq!(said(&play.send(CHAT, &chat(&["busy"])).await), "fine");
    let cut = play.send(CHAT, &asked("cut", &json!({"stream": true}))).await;
    assert_eq!(streamed(&cut), ("One ".to_owned(), 2));
    assert!(!cut.text().contains("[DONE]"), "{}", cut.text());
}
