//! Faults in the words of each endpoint.

use serde_json::{Value, json};

use super::{Ending, ask, faults, request, served};
use crate::support::{
    CHAT,
    cassettes::{Shelf, tape},
    play_server::start,
};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

fn body(path: &str, is_stream: bool) -> Value {
    let messages = json!([{"role": "user", "content": "x"}]);
    match path {
        RESPONSES => json!({"model": "m", "input": "x", "stream": is_stream}),
        MESSAGES => json!({"model": "m", "messages": messages, "max_tokens": 50, "stream": is_stream}),
        _ => json!({"model": "m", "messages": messages, "stream": is_stream, "stream_options":
            if is_stream { json!({"include_usage": true}) } else { Value::Null }}),
    }
}

/// The body of a response with this fault.
async fn with(line: &str, path: &str, is_stream: bool) -> String {
    let lines: &[&str] = if line.is_empty() { &[] } else { &[line] };
    let server = start(served(faults(lines, 0))).await;
    let heard = ask(server.address, &request(path, &body(path, is_stream)), None).await;
    assert_eq!(heard.ending, Ending::Whole, "{line} {path}");
    String::from_utf8(heard.body()).unwrap()
}

/// The values of a field in the order in which they come, as JSON.
fn values(text: &str, field: &str) -> Vec<String> {
    let pattern = regex::Regex::new(&format!(r#""{field}": ?("[^"]*"|[^,}}]*)"#)).unwrap();
    pattern.captures_iter(text).map(|found| found[1].to_owned()).collect()
}

#[tokio::test]
async fn an_error_in_a_stream_is_in_the_words_of_its_endpoint() {
    let chat = with("error-event:500,message=lost at event 0", CHAT, true).await;
    let error =
        "{\"error\": {\"message\": \"lost\", \"type\": \"InternalServerError\", \"param\": null, \"code\": 500}}";
    assert_eq!(chat, format!("data: {error}\n\ndata: [DONE]\n\n"));
    let messages = with("error-event:500,message=lost at event 0", MESSAGES, true).await;
    let error = json!({"type": "error", "error": {"type": "internal_error", "message": "lost"}});
    assert_eq!(messages, format!("event: error\ndata: {error}\n\n"));
    let responses = with("error-event:500,message=lost at event 2", RESPONSES, true).await;
    let last = responses.split_terminator("\n\n").last().unwrap();
    let error =
        json!({"type": "error", "sequence_number": 2, "code": "InternalServerError", "message": "lost", "param": null});
    assert_eq!(last, format!("event: error\ndata: {error}"));
    assert_eq!(responses.matches("\n\n").count(), 3);
}

#[tokio::test]
async fn refusals_are_in_the_words_of_the_endpoint() {
    let refused: Value = serde_json::from_str(&with("503", MESSAGES, true).await).unwrap();
    assert_eq!((&refused["type"], &refused["error"]["type"]), (&json!("error"), &json!("Service Unavailable")));
    assert_eq!(with("401", MESSAGES, true).await, r#"{"error":"Unauthorized"}"#);
    let unknown: Value = serde_json::from_str(&with("404", CHAT, false).await).unwrap();
    assert_eq!(unknown["error"]["message"], "The model `m` does not exist. Valid aliases: m.");
}

#[tokio::test]
async fn usage_is_wrong_on_each_wire() {
    for (path, field) in [(CHAT, "completion_tokens"), (MESSAGES, "output_tokens"), (RESPONSES, "output_tokens")] {
        for is_stream in [true, false] {
            let clean = values(&with("", path, is_stream).await, field);
            let wrong = values(&with("usage:3", path, is_stream).await, field);
            let more: Vec<String> = clean.iter().map(|count| (count.parse::<u64>().unwrap() + 3).to_string()).collect();
            assert!(!more.is_empty(), "{path}");
            assert_eq!(wrong, more, "{path} {is_stream}");
        }
    }
}

#[tokio::test]
async fn no_event_says_why_it_ends_on_each_wire() {
    for (path, field, ends) in [(CHAT, "finish_reason", "\"stop\""), (MESSAGES, "stop_reason", "\"end_turn\"")] {
        for is_stream in [true, false] {
            assert!(values(&with("", path, is_stream).await, field).contains(&ends.to_owned()));
            let without = values(&with("no-finish", path, is_stream).await, field);
            assert!(!without.is_empty() && without.iter().all(|value| value == "null"), "{path}: {without:?}");
        }
    }
    let status = |text: &str| {
        let event = text.trim_end().rsplit("\n\n").next().unwrap();
        let json = event.split_once("data: ").map_or(event, |(_, json)| json);
        let value: Value = serde_json::from_str(json).unwrap();
        value.get("response").unwrap_or(&value)["status"].clone()
    };
    for is_stream in [true, false] {
        assert_eq!(status(&with("", RESPONSES, is_stream).await), "completed");
        assert!(status(&with("no-finish", RESPONSES, is_stream).await).is_null());
    }
}

#[tokio::test]
async fn the_last_event_of_each_wire_is_missing() {
    for (path, last) in [(CHAT, "[DONE]"), (MESSAGES, "message_stop"), (RESPONSES, "response.completed")] {
        assert!(with("", path, true).await.contains(last));
        assert!(!with("no-done", path, true).await.contains(last), "{path}");
    }
}

#[tokio::test]
async fn the_arguments_of_a_tool_call_are_cut_inside() {
    let call = json!({"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"London\"}"}});
    let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let asked = json!({"model": "m", "messages": [{"role": "user", "content": "x"}]});
    let record = format!(
        "- request: POST {CHAT}\n  body: {asked}\n  answer: {{message: {message}, finish_reason: tool_calls, usage: \
         {{prompt_tokens: 3, completion_tokens: 2}}}}\n"
    );
    let shelf = Shelf::with(&tape(&[record]));
    let server = shelf.play(&["--fault", "split:tool"]);
    let mut streamed = asked;
    streamed["stream"] = json!(true);
    let heard = ask(server.address, &request(CHAT, &streamed), None).await;
    let parts: Vec<String> = heard.chunks.iter().map(|chunk| String::from_utf8(chunk.clone()).unwrap()).collect();
    let cut = parts.iter().position(|part| part.contains("\"arguments\":\"") && !part.ends_with("\n\n"));
    let cut = cut.unwrap_or_else(|| panic!("{parts:#?}"));
    assert!(parts[cut].ends_with("\"arguments\":\"{"), "{parts:#?}");
    assert!(parts[cut + 1].ends_with("\n\n") && heard.ending == Ending::Whole);
}
