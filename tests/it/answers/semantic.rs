//! Valid responses that are wrong in what they say, on each endpoint.

use serde_json::{Value, json};

use super::{CHAT, Rules, Running, chat, data, said, tool};

/// The body of a request to each endpoint.
fn body(path: &str, tools: bool, stream: bool) -> Value {
    let function = tool("weather")["function"].clone();
    let (named, schema) = (&function["name"], &function["parameters"]);
    let mut body = match path {
        "/v1/messages" => {
            json!({"max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}], "tools": [{"name": named, "input_schema": schema}]})
        }
        "/v1/responses" => json!({"input": "Hi", "tools": [{"type": "function", "name": named, "parameters": schema}]}),
        "/v1/completions" => json!({"prompt": "Hi", "max_tokens": 64}),
        _ => json!({"messages": [{"role": "user", "content": "Hi"}], "tools": [tool("weather")]}),
    };
    let fields = body.as_object_mut().unwrap();
    fields.insert("model".to_owned(), "m".into());
    fields.insert("stream".to_owned(), stream.into());
    if !tools {
        fields.remove("tools");
    }
    body
}

async fn play_of(fault: &str) -> (Rules, Running) {
    let rules = Rules::new(&format!("- {{match: any, answer: {{semantic: {fault}}}}}\n"));
    let play = rules.play(&[]);
    (rules, play)
}

async fn message(play: &Running) -> (Value, String) {
    let answer = play.send(CHAT, &body(CHAT, true, false)).await.json();
    let choice = &answer["choices"][0];
    (choice["message"].clone(), choice["finish_reason"].as_str().unwrap_or_default().to_owned())
}

fn arguments(message: &Value, at: usize) -> &str {
    message["tool_calls"][at]["function"]["arguments"].as_str().unwrap()
}

#[tokio::test]
async fn calls_are_wrong_in_exactly_one_way() {
    let (_rules, play) = play_of("bad-arguments").await;
    let (call, finish) = message(&play).await;
    assert!(serde_json::from_str::<Value>(arguments(&call, 0)).is_err() && finish == "tool_calls", "{call}");
    let (_rules, play) = play_of("cut-call").await;
    let (call, finish) = message(&play).await;
    assert!(serde_json::from_str::<Value>(arguments(&call, 0)).is_err() && finish == "length", "{call}");
    let (_rules, play) = play_of("schema-violation").await;
    let (call, _) = message(&play).await;
    let value: Value = serde_json::from_str(arguments(&call, 0)).unwrap();
    assert!(
        !value["city"].is_string() && value["days"].is_i64() && call["tool_calls"][0]["function"]["name"] == "weather",
        "{call}"
    );
    let (_rules, play) = play_of("unknown-tool").await;
    let (call, _) = message(&play).await;
    assert!(serde_json::from_str::<Value>(arguments(&call, 0)).is_ok(), "{call}");
    assert_ne!(call["tool_calls"][0]["function"]["name"], "weather");
    let (_rules, play) = play_of("duplicate-call").await;
    let (call, _) = message(&play).await;
    assert_eq!(call["tool_calls"].as_array().unwrap().len(), 2);
    assert_eq!(call["tool_calls"][0]["id"], call["tool_calls"][1]["id"]);
    let of_message = play.send("/v1/messages", &body("/v1/messages", true, true)).await;
    let blocks: Vec<Value> = data(&of_message)
        .into_iter()
        .map(|event| event["content_block"]["id"].clone())
        .filter(Value::is_string)
        .collect();
    assert!(blocks.len() == 2 && blocks[0] == blocks[1], "{}", of_message.text());
    let (_rules, play) = play_of("call-in-text").await;
    let (call, finish) = message(&play).await;
    assert!(
        call["content"].as_str().unwrap().starts_with("<tool_call>\n{\"name\": \"weather\"") && finish == "stop",
        "{call}"
    );
    assert!(call.get("tool_calls").is_none());
}

#[tokio::test]
async fn texts_are_wrong_in_exactly_one_way() {
    for (fault, field, begins, finish) in [
        ("empty", "content", "", "stop"),
        ("refusal", "refusal", "I'm sorry", "stop"),
        ("content-filter", "content", "Here is", "content_filter"),
        ("reasoning-only", "reasoning", "The user", "stop"),
        ("think-tag", "content", "<think>\n", "stop"),
        ("wrong-language", "content", "这", "stop"),
        ("repetition", "content", "I will look into that for you. I will look into that for you.", "length"),
    ] {
        let (_rules, play) = play_of(fault).await;
        let (message, ended) = message(&play).await;
        assert!(message[field].as_str().is_some_and(|text| text.starts_with(begins)), "{fault}: {message}");
        assert_eq!(ended, finish, "{fault}");
        let others = ["content", "refusal", "reasoning"].iter().filter(|other| **other != field);
        assert!(others.into_iter().all(|other| message[*other].is_null()), "{fault}: {message}");
    }
    let (_rules, play) = play_of("wrong-language").await;
    assert!(said(&play.send(CHAT, &chat(&["今日の天気はどうですか"])).await).starts_with("This answer"));
}

#[tokio::test]
async fn every_endpoint_says_it_or_gives_the_reason() {
    for fault in [
        "bad-arguments",
        "schema-violation",
        "unknown-tool",
        "duplicate-call",
        "cut-call",
        "empty",
        "refusal",
        "content-filter",
        "reasoning-only",
        "think-tag",
        "call-in-text",
        "wrong-language",
        "repetition",
    ] {
        let (_rules, play) = play_of(fault).await;
        let needs_tools =
            fault.contains("tool") || fault.contains("call") || fault.contains("arguments") || fault.contains("schema");
        for (path, stream) in [CHAT, "/v1/completions", "/v1/messages", "/v1/responses"]
            .into_iter()
            .flat_map(|path| [(path, false), (path, true)])
        {
            let answer = play.send(path, &body(path, true, stream)).await;
            let reason = match path {
                "/v1/completions" if needs_tools => Some("a completion has no tool calls"),
                "/v1/completions" if fault == "refusal" => Some("a completion has no field"),
                "/v1/completions" if fault == "reasoning-only" => Some("a completion has no reasoning"),
                "/v1/messages" if !stream && ["bad-arguments", "cut-call"].contains(&fault) => Some("stream it"),
                _ => None,
            };
            let text = answer.text();
            match reason {
                Some(reason) => {
                    assert!(answer.status == 422 && text.contains(reason), "{fault} {path} {stream}: {text}")
                }
                None => assert!(
                    answer.status == 200 && (!stream || !data(&answer).is_empty()),
                    "{fault} {path} {stream}: {text}"
                ),
            }
        }
        if needs_tools {
            let without = play.send(CHAT, &body(CHAT, false, false)).await;
            assert!(without.text().contains("the request offers no tools"), "{fault}: {}", without.text());
        }
    }
    let (_rules, play) = play_of("content-filter").await;
    let message = play.send("/v1/messages", &body("/v1/messages", true, false)).await.json();
    assert_eq!(message["stop_reason"], "refusal");
    let response = play.send("/v1/responses", &body("/v1/responses", true, false)).await.json();
    assert_eq!(
        (&response["status"], &response["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("content_filter"))
    );
}
