//! An engine that answers with what it was given: the recipient and the password of a request come back as arguments of a call, or
//! as text, in every API family, and in streams one character at a time.

use serde_json::{Value, json};

use super::{
    CHAT,
    client::Answer,
    peer::{End, Script, Upstream, answer, event_stream},
};

/// The paths that it answers.
pub(crate) const FAMILIES: [&str; 4] = [CHAT, "/v1/completions", "/v1/messages", "/v1/responses"];

/// A request to one family that names these secrets, in JSON within a text.
pub(crate) fn mail(path: &str, stream: bool, email: &str, password: &str) -> Value {
    let words = json!({"to": email, "password": password}).to_string();
    let mut body = json!({"model": "m", "max_tokens": 99, "stream": stream});
    let (name, value) = match path {
        "/v1/completions" => ("prompt", json!(words)),
        "/v1/responses" => ("input", json!(words)),
        _ => ("messages", json!([{"role": "user", "content": words}])),
    };
    body[name] = value;
    body
}

/// The arguments of its call, or its text, as an agent reads them from an answer.
pub(crate) fn call_in(path: &str, stream: bool, answer: &Answer) -> String {
    if !stream {
        let body = answer.json();
        return match path {
            "/v1/completions" => text(&body["choices"][0]["text"]),
            "/v1/messages" => body["content"][0]["input"].to_string(),
            "/v1/responses" => text(&body["output"][0]["arguments"]),
            _ => text(&body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]),
        };
    }
    let data = |event: &String| serde_json::from_str(event.lines().find_map(|line| line.strip_prefix("data: "))?).ok();
    let events: Vec<Value> = answer.events().iter().filter_map(data).collect();
    let pieces = events.iter().map(|event| match path {
        "/v1/completions" => &event["choices"][0]["text"],
        "/v1/messages" => &event["delta"]["partial_json"],
        "/v1/responses" if event["type"] == "response.function_call_arguments.delta" => &event["delta"],
        "/v1/responses" => &Value::Null,
        _ => &event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"],
    });
    pieces.filter_map(Value::as_str).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// What it answers to these secrets; without a password the recipient is that too.
pub(crate) fn call_for(email: &str, password: &str) -> String {
    json!({"to": email, "password": password, "note": format!("to <{email}>")}).to_string()
}

/// Starts it.
pub(crate) async fn mailer() -> Upstream {
    Upstream::start(mailed).await
}

fn mailed(request: &[u8]) -> Script {
    let request = String::from_utf8_lossy(request).into_owned();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let path = head.split([' ', '?']).nth(1).unwrap();
    if !FAMILIES.contains(&path) {
        return Script { pieces: answer("404 Not Found", "{}"), end: End::KeepAlive };
    }
    let body: Value = serde_json::from_str(body).unwrap();
    let words = [&body["prompt"], &body["input"], &body["messages"][0]["content"]];
    let words: Value = serde_json::from_str(words.iter().find_map(|words| words.as_str()).unwrap()).unwrap_or_default();
    let to = words["to"].as_str().unwrap_or_default();
    let call = call_for(to, words["password"].as_str().unwrap_or(to));
    let pieces = if body["stream"] == true {
        let events = events(path, &call);
        event_stream(&events.iter().map(String::as_str).collect::<Vec<_>>())
    } else {
        answer("200 OK", &whole(path, &call).to_string())
    };
    Script { pieces, end: End::KeepAlive }
}

fn whole(path: &str, call: &str) -> Value {
    let function = json!({"name": "send_mail", "arguments": call});
    match path {
        "/v1/completions" => json!({"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "text": call, "logprobs": null, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}}),
        "/v1/messages" => json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "m",
            "content": [{"type": "tool_use", "id": "toolu_1", "name": "send_mail",
                "input": serde_json::from_str::<Value>(call).unwrap()}],
            "stop_reason": "tool_use", "stop_sequence": null, "usage": {"input_tokens": 3, "output_tokens": 3}}),
        "/v1/responses" => json!({"id": "resp_1", "object": "response", "created_at": 1, "model": "m",
            "status": "completed", "output": [function_call(call, "completed")],
            "usage": {"input_tokens": 3, "output_tokens": 3, "total_tokens": 6}}),
        _ => json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": null,
                "tool_calls": [{"id": "call_1", "type": "function", "function": function}]},
                "logprobs": null, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}}),
    }
}

fn function_call(arguments: &str, status: &str) -> Value {
    json!({"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "send_mail", "arguments": arguments,
        "status": status})
}

/// The events of a stream, a character of the call in each.
fn events(path: &str, call: &str) -> Vec<String> {
    let chars: Vec<String> = call.chars().map(String::from).collect();
    match path {
        "/v1/messages" => message_events(&chars),
        "/v1/responses" => response_events(call, &chars),
        _ => choice_events(path, &chars),
    }
}

fn choice_events(path: &str, chars: &[String]) -> Vec<String> {
    let is_chat = path == CHAT;
    let event = |mut choice: Value, finish: Value| {
        choice["index"] = json!(0);
        choice["finish_reason"] = finish;
        let (id, object) =
            if is_chat { ("chatcmpl-1", "chat.completion.chunk") } else { ("cmpl-1", "text_completion") };
        json!({"id": id, "object": object, "created": 1, "model": "m", "choices": [choice]}).to_string()
    };
    let mut events = Vec::new();
    if is_chat {
        let call =
            json!({"index": 0, "id": "call_1", "type": "function", "function": {"name": "send_mail", "arguments": ""}});
        events.push(event(json!({"delta": {"role": "assistant", "content": null, "tool_calls": [call]}}), Value::Null));
    }
    let piece = |text: &String| match is_chat {
        true => json!({"delta": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}}),
        false => json!({"text": text}),
    };
    events.extend(chars.iter().map(|text| event(piece(text), Value::Null)));
    let (last, finish) = if is_chat { (json!({"delta": {}}), "tool_calls") } else { (json!({"text": ""}), "stop") };
    events.push(event(last, json!(finish)));
    events.push("[DONE]".to_owned());
    events
}

/// An event with its name behind its data, where it may stand too.
fn named(data: &Value) -> String {
    format!("{data}\nevent: {}", data["type"].as_str().unwrap())
}

fn message_events(chars: &[String]) -> Vec<String> {
    let message = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 3, "output_tokens": 0}});
    let block = json!({"type": "tool_use", "id": "toolu_1", "name": "send_mail", "input": {}});
    let mut events = vec![
        json!({"type": "message_start", "message": message}),
        json!({"type": "content_block_start", "index": 0, "content_block": block}),
    ];
    let delta = |text: &String| json!({"type": "input_json_delta", "partial_json": text});
    events.extend(chars.iter().map(|text| json!({"type": "content_block_delta", "index": 0, "delta": delta(text)})));
    events.push(json!({"type": "content_block_stop", "index": 0}));
    events.push(json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null},
        "usage": {"output_tokens": 3}}));
    events.push(json!({"type": "message_stop"}));
    events.iter().map(named).collect()
}

fn response_events(call: &str, chars: &[String]) -> Vec<String> {
    let mut begun = whole("/v1/responses", call);
    (begun["status"], begun["output"], begun["usage"]) = (json!("in_progress"), json!([]), Value::Null);
    let mut events = vec![
        json!({"type": "response.created", "response": begun}),
        json!({"type": "response.output_item.added", "output_index": 0, "item": function_call("", "in_progress")}),
    ];
    let delta = |text: &String| json!({"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 0, "delta": text});
    events.extend(chars.iter().map(delta));
    events.push(json!({"type": "response.function_call_arguments.done", "item_id": "fc_1", "output_index": 0,
        "arguments": call}));
    events.push(
        json!({"type": "response.output_item.done", "output_index": 0, "item": function_call(call, "completed")}),
    );
    events.push(json!({"type": "response.completed", "response": whole("/v1/responses", call)}));
    for (number, event) in events.iter_mut().enumerate() {
        event["sequence_number"] = json!(number);
    }
    events.iter().map(named).collect()
}
