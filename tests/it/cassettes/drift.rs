//! What is not as it was recorded.

use serde_json::{Value, json};

use super::{CHAT, Shelf, chat, read, said, vcr};
use crate::support::{
    peer::{End, Script, Upstream, answer},
    tokenizers::smollm2_json,
};

/// An engine of a version that cuts texts into these ids.
async fn engine(version: &'static str, ids: &'static [u32]) -> Upstream {
    Upstream::start(move |request| {
        let text = String::from_utf8_lossy(request).into_owned();
        let body = match text.split(' ').nth(1).unwrap() {
            "/version" => json!({"version": version}),
            "/v1/models" => json!({"object": "list", "data": [{"id": "m"}]}),
            "/tokenize" => json!({"count": ids.len(), "max_model_len": 100, "tokens": ids}),
            _ => json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [
                {"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}]}),
        };
        Script { pieces: answer("200 OK", &body.to_string()), end: End::KeepAlive }
    })
    .await
}

fn with_tool(words: &str, description: &str, place: &str) -> Value {
    let mut body = chat(&[words]);
    body["tools"] = json!([{"type": "function", "function": {"name": "weather", "description": description,
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": place}}}}}]);
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_and_its_tokenizer_are_compared() {
    let (old, new) = (engine("0.32.0", &[1, 2, 3]).await, engine("0.33.0", &[1, 2, 4]).await);
    let shelf = Shelf::empty();
    let tap = shelf.tap(&old, &[]);
    tap.send(CHAT, &chat(&["a"])).await;
    tap.stop();
    let text = shelf.text();
    assert!(text.contains("engine: vllm 0.32.0, models: [m], tokenizer: ") && text.contains("probe:"), "{text}");
    let same = format!("http://{}", old.address);
    let play = shelf.play(&["--upstream", &same, "--fail-on", "drift"]);
    assert_eq!(play.get("/vcr/report").await["environment"], json!([]));
    assert_eq!(play.stop().0, 0);
    let report = shelf.folder.path().join("report.json");
    let other = format!("http://{}", new.address);
    let play = shelf.play(&["--upstream", &other, "--fail-on", "drift", "--report", report.to_str().unwrap()]);
    let changes = play.get("/vcr/report").await["environment"].clone();
    assert_eq!(
        changes[0],
        json!({"cassette": "tape.yaml", "what": "engine", "recorded": "vllm 0.32.0", "now": "vllm 0.33.0"})
    );
    assert_eq!(changes[1]["what"], "tokenizer");
    let (code, log) = play.stop();
    assert_eq!(code, 1, "{log}");
    assert!(log.matches("drift: tape.yaml: recorded with engine vllm 0.32.0, now vllm 0.33.0").count() >= 2, "{log}");
    assert!(log.contains("failed: drift"), "{log}");
    let written: Value = serde_json::from_str(&read(&report)).unwrap();
    assert_eq!((&written["failing"], &written["environment"]), (&json!(["drift"]), &changes));
    let tap = shelf.tap(&new, &["--mode", "new-episodes"]);
    assert_eq!(tap.get("/vcr/report").await["environment"][0]["now"], "vllm 0.33.0", "tap tells it too");
}

#[tokio::test]
async fn a_tokenizer_that_is_named_is_compared_where_nothing_is_asked() {
    let shelf = Shelf::with(
        "vcr: 1\nrecorded: {tokenizer: \"probe:0000000000000000\"}\nrecords:\n- request: POST /x\n  answer: {status: 200}\n",
    );
    std::fs::write(shelf.folder.path().join("tokenizer.json"), smollm2_json()).unwrap();
    let play = shelf.play(&["--tokenizer", shelf.folder.path().to_str().unwrap()]);
    assert_eq!(play.get("/vcr/report").await["environment"][0]["what"], "tokenizer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_that_changed_are_reported_by_their_names() {
    let upstream = engine("0.32.0", &[1]).await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    tap.send(CHAT, &with_tool("a", "Tells the weather", "A city")).await;
    tap.stop();
    let play = shelf.play(&["--fail-on", "drift", "--on-exhausted", "last"]);
    assert_eq!(said(&play.send(CHAT, &with_tool("a", "Tells the weather", "A city")).await), "Hello.");
    assert_eq!(play.send("/vcr/verify", &json!({"fail_on": ["drift"]})).await.status, 200);
    let other = play.send(CHAT, &with_tool("a", "Tells the weather", "Any city")).await;
    assert_eq!(said(&other), "Hello.", "the prose of schemas is not matched");
    let report = play.get("/vcr/report").await;
    let tool = &report["sessions"]["default"]["tools"]["weather"];
    assert_eq!(tool["requests"], 1, "{report}");
    let change = tool["changes"][0].as_str().unwrap();
    assert_eq!(change, r#"$.parameters.properties.city.description: "A city" -> "Any city""#);
    assert_eq!(play.send("/vcr/verify", &json!({"fail_on": ["drift"]})).await.status, 409);
    let mut extra = with_tool("a", "Tells the weather", "A city");
    extra["tools"].as_array_mut().unwrap().push(json!({"type": "function", "function": {"name": "clock"}}));
    assert_eq!(play.send(CHAT, &extra).await.status, 422);
    let report = play.get("/vcr/report").await;
    let tools = &report["sessions"]["default"]["tools"];
    assert_eq!(tools["clock"]["changes"], json!(["was not recorded"]), "a miss tells it too: {report}");
    let (code, log) = play.stop();
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("drift: tool weather in 1 request: $.parameters") && log.contains("failed: drift"), "{log}");
}

#[tokio::test]
async fn an_edit_of_a_tools_documentation_is_drift_and_no_miss() {
    let chat = with_tool("a", "Tells the weather", "A city");
    let other = with_tool("a", "Reports the weather of today", "The name of a city");
    let messages = |words: &str| {
        json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}],
        "tools": [{"name": "weather", "description": words, "input_schema": {"type": "object", "properties": {}}}]})
    };
    let responses = |words: &str| {
        json!({"model": "m", "input": "a", "tools": [{"type": "function", "name": "weather", "description": words,
        "parameters": {"type": "object", "properties": {}}}]})
    };
    let cases = [
        (CHAT, chat, other),
        ("/v1/messages", messages("one"), messages("two")),
        ("/v1/responses", responses("one"), responses("two")),
    ];
    for (path, body, edited) in cases {
        let shelf = Shelf::with(&format!(
            "vcr: 1\nrecords:\n- request: POST {path}\n  body: {body}\n  answer: {{json: {{a: 1}}}}\n"
        ));
        let play = shelf.play(&[]);
        let answer = play.send(path, &edited).await;
        assert_eq!((answer.status, answer.json()), (200, json!({"a": 1})), "{path}: {}", answer.text());
        let report = play.get("/vcr/report").await;
        let changes = &report["sessions"]["default"]["tools"]["weather"]["changes"];
        assert!(changes[0].as_str().unwrap().starts_with("$.description: "), "{report}");
        let strict = shelf.play(&["--canonical", "strict"]);
        assert_eq!(strict.send(path, &edited).await.status, 422, "{path}");
        assert_eq!(strict.send(path, &body).await.status, 200, "{path}");
    }
}

#[test]
fn drift_is_a_word_that_flags_know() {
    let shelf = Shelf::with("vcr: 1\nrecords: []\n");
    let fail = |on: &str| vcr(&["play", "--cassette", shelf.name(), "--fail-on", on, "--", "true"]).status.code();
    assert_eq!((fail("drift,miss"), fail("drifting")), (Some(0), Some(2)));
}

#[tokio::test]
async fn each_change_of_a_tool_is_a_line_of_the_report() {
    let ask = |words: &str, parameter: Option<&str>| {
        let mut body = with_tool(words, "d", "p");
        let new = parameter.map(|name| (name.to_owned(), json!({"type": "string"})));
        let properties = body["tools"][0]["function"]["parameters"]["properties"].as_object_mut().unwrap();
        properties.extend(new);
        body
    };
    let upstream = engine("0.32.0", &[1]).await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    for words in ["a", "b", "c"] {
        tap.send(CHAT, &ask(words, None)).await;
    }
    tap.stop();
    let play = shelf.play(&["--ignore", "$.tools"]);
    for (at, words) in ["a", "b", "c"].into_iter().enumerate() {
        assert_eq!(play.send(CHAT, &ask(words, Some(&format!("u{at}")))).await.status, 200);
    }
    let log = play.stop().1;
    for parameter in ["u0", "u1", "u2"] {
        let line = format!("drift: tool weather in 1 request: $.parameters.properties.{parameter}: ");
        assert!(log.contains(&line), "{line}: {log}");
    }
}
