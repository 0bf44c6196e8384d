//! Responses of the Responses API: the last event of a stream has all of it; cut into events item by item.

use serde_json::{Map, Value, json};

use super::{cut::split, list, with};
use crate::api::ends_response;

/// Makes up a response.
pub(super) fn of_text(text: &str, model: Option<&Value>) -> Value {
    json!({"id": "resp_vcr", "object": "response", "created_at": 0, "status": "completed",
        "model": model, "output": [{"type": "message", "id": "msg_vcr", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}]}],
        "parallel_tool_calls": true, "tool_choice": "auto", "tools": []})
}

/// The response of the event that ends a stream; `None` where there is none.
pub(super) fn accumulate(events: &[Value]) -> Option<Map<String, Value>> {
    let ends = |event: &&Value| event.get("type").and_then(Value::as_str).is_some_and(ends_response);
    events.iter().rev().find(ends)?.get("response")?.as_object().cloned()
}

/// The events of a response.
pub(super) fn events(body: &Map<String, Value>) -> Vec<Value> {
    let answer = Value::Object(body.clone());
    let begun = with(&answer, json!({"status": "in_progress", "output": [], "usage": null}));
    let mut events = vec![
        json!({"type": "response.created", "response": begun}),
        json!({"type": "response.in_progress", "response": begun}),
    ];
    for (index, item) in list(body, "output").iter().enumerate() {
        item_events(index, item, &mut events);
    }
    events.push(json!({"type": "response.completed", "response": answer}));
    for (number, event) in events.iter_mut().enumerate() {
        *event = with(event, json!({"sequence_number": number}));
    }
    events
}

fn item_events(index: usize, item: &Value, events: &mut Vec<Value>) {
    let id = item.get("id").cloned().unwrap_or_default();
    let place = json!({"output_index": index, "item_id": id});
    let begun = with(item, json!({"status": "in_progress"}));
    let is_call = item.get("type").and_then(Value::as_str) == Some("function_call");
    let empty = if is_call { with(&begun, json!({"arguments": ""})) } else { with(&begun, json!({"content": []})) };
    events.push(json!({"type": "response.output_item.added", "output_index": index, "item": empty}));
    if is_call {
        let arguments = item.get("arguments").cloned().unwrap_or_default();
        let delta = json!({"type": "response.function_call_arguments.delta", "delta": arguments});
        let name = item.get("name");
        let done = json!({"type": "response.function_call_arguments.done", "arguments": arguments, "name": name});
        events.extend([with(&delta, place.clone()), with(&done, place)]);
    } else {
        let parts = item.as_object().map(|item| list(item, "content")).unwrap_or_default();
        for (at, part) in parts.iter().enumerate() {
            let place = with(&place, json!({"content_index": at}));
            part_events(&place, part, events);
        }
    }
    events.push(json!({"type": "response.output_item.done", "output_index": index, "item": item}));
}

fn part_events(place: &Value, part: &Value, events: &mut Vec<Value>) {
    let text = part.get("text").and_then(Value::as_str).unwrap_or_default();
    let kind = match part.get("type").and_then(Value::as_str) {
        Some("reasoning_text") => "reasoning_text",
        _ => "output_text",
    };
    let mut add = |event: Value| events.push(with(&event, place.clone()));
    add(json!({"type": "response.content_part.added", "part": with(part, json!({"text": ""}))}));
    for piece in split(text, None) {
        add(json!({"type": format!("response.{kind}.delta"), "delta": piece, "logprobs": []}));
    }
    add(json!({"type": format!("response.{kind}.done"), "text": text, "logprobs": []}));
    add(json!({"type": "response.content_part.done", "part": part}));
}
