//! Records of chats that answer requests of other families.

use serde_json::{Value, json};

use super::{CHAT, Shelf};

const TAPE: &str = r#"vcr: 1
records:
- request: POST /v1/chat/completions
  body:
    model: m
    messages:
    - {role: system, content: Be brief.}
    - {role: user, content: [{type: text, text: Weather?}]}
    tools: [{$ref: '#/tools/weather'}]
  answer:
    message:
      role: assistant
      content: Let me look.
      tool_calls: [{id: call_1, name: weather, arguments: {city: London}}]
    finish_reason: tool_calls
    usage: {prompt_tokens: 11, completion_tokens: 7}
- like: 0
  body:
    messages+: [{role: tool, tool_call_id: call_1, content: 15 degrees}]
  answer:
    message: {role: assistant, content: It is 15 degrees.}
    finish_reason: stop
    usage: {prompt_tokens: 30, completion_tokens: 5}
- request: POST /v1/chat/completions
  body: {model: m, messages: [{role: user, content: Too much}]}
  answer: {status: 400, error: {message: too long, type: BadRequestError, code: 400}}
tools:
  weather: {description: Tells, parameters: {type: object, properties: {city: {type: string}}}}
"#;

fn first_message(stream: bool) -> Value {
    json!({"model": "m", "max_tokens": 512, "system": "Be brief.", "stream": stream,
        "messages": [{"role": "user", "content": "Weather?"}],
        "tools": [{"name": "weather", "description": "Tells",
            "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]})
}

fn first_response(stream: bool) -> Value {
    json!({"model": "m", "instructions": "Be brief.", "stream": stream, "store": false,
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}],
        "tools": [{"type": "function", "name": "weather", "description": "Tells",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]})
}

fn data(events: &[String]) -> Vec<Value> {
    let data = |event: &String| serde_json::from_str(event.lines().find_map(|line| line.strip_prefix("data: "))?).ok();
    events.iter().filter_map(data).collect()
}

#[tokio::test]
async fn a_chat_answers_messages_where_it_may() {
    let shelf = Shelf::with(TAPE);
    let closed = shelf.play(&[]);
    assert_eq!(closed.send("/v1/messages", &first_message(false)).await.status, 422, "only with --cross-api");
    let play = shelf.play(&["--cross-api", "--on-exhausted", "last"]);
    let first = play.send("/v1/messages", &first_message(false)).await;
    assert_eq!((first.status, first.header("x-vcr-match")), (200, Some("canonical;cross-api")), "{}", first.text());
    assert_eq!(first.header("x-vcr-record"), Some("tape.yaml#0"));
    let body = first.json();
    let called = json!({"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "London"}});
    assert_eq!(body["content"], json!([{"type": "text", "text": "Let me look."}, called]));
    assert_eq!((&body["type"], &body["stop_reason"]), (&json!("message"), &json!("tool_use")));
    assert_eq!(body["usage"], json!({"input_tokens": 11, "output_tokens": 7}));
    // The next turn, with the answer as this family repeats it.
    let mut next = first_message(true);
    next["messages"].as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": body["content"]}),
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "15 degrees"}]}),
    ]);
    let second = play.send("/v1/messages", &next).await;
    assert_eq!(second.header("x-vcr-record"), Some("tape.yaml#1"), "{}", second.text());
    let events = data(&second.events());
    assert_eq!(events[0]["type"], "message_start");
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], 30);
    let text: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(text, "It is 15 degrees.");
    let end = &events[events.len() - 2];
    assert_eq!((&end["delta"]["stop_reason"], &end["usage"]["output_tokens"]), (&json!("end_turn"), &json!(5)));
    assert_eq!(events.last().unwrap()["type"], "message_stop");
    let refused = json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Too much"}]});
    let refused = play.send("/v1/messages", &refused).await;
    let envelope = json!({"type": "error", "error": {"type": "BadRequestError", "message": "too long"}});
    assert_eq!((refused.status, refused.json()), (400, envelope));
}

#[tokio::test]
async fn a_chat_answers_responses_where_it_may() {
    let shelf = Shelf::with(TAPE);
    let play = shelf.play(&["--cross-api", "--on-exhausted", "last"]);
    let whole = play.send("/v1/responses", &first_response(false)).await;
    assert_eq!(whole.header("x-vcr-match"), Some("canonical;cross-api"), "{}", whole.text());
    let body = whole.json();
    assert_eq!((&body["object"], &body["status"]), (&json!("response"), &json!("completed")));
    assert_eq!(body["output"][0]["content"][0]["text"], "Let me look.");
    assert_eq!((&body["output"][1]["name"], &body["output"][1]["call_id"]), (&json!("weather"), &json!("call_1")));
    assert_eq!((&body["usage"]["input_tokens"], &body["usage"]["total_tokens"]), (&json!(11), &json!(18)));
    let streamed = play.send("/v1/responses", &first_response(true)).await;
    let events = data(&streamed.events());
    assert_eq!(events[0]["type"], "response.created");
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["response"]["usage"]["total_tokens"]), (&json!("response.completed"), &json!(18)));
    assert_eq!(last["response"]["output"][1]["arguments"], r#"{"city": "London"}"#);
    // What a chat asks is answered as ever.
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "Too much"}]});
    assert_eq!(play.send(CHAT, &chat).await.header("x-vcr-match"), Some("canonical"));
}

#[tokio::test]
async fn reasoning_has_either_name_in_a_stream() {
    for name in ["reasoning", "reasoning_content"] {
        let said = format!("message: {{role: assistant, {name}: Hmm. So, content: It is}}");
        let shelf = Shelf::with(&TAPE.replace("message: {role: assistant, content: It is 15 degrees.}", &said));
        let play = shelf.play(&["--cross-api", "--on-exhausted", "last"]);
        let mut next = first_message(true);
        next["messages"].as_array_mut().unwrap().extend([
            json!({"role": "assistant", "content": [{"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "London"}}]}),
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "15 degrees"}]}),
        ]);
        let answer = play.send("/v1/messages", &next).await;
        let events = data(&answer.events());
        let thinking: String = events.iter().filter_map(|event| event["delta"]["thinking"].as_str()).collect();
        assert_eq!(thinking, "Hmm. So", "{name}: {}", answer.text());
    }
}
