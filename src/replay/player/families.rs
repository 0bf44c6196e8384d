//! Answers of the Messages and Responses families that were recorded as one body, told as a stream.

use serde_json::{Map, Value, json};

use super::serve::Timed;
use crate::recording::cassette::Side;

/// The answer with the fields that no two runs share.
pub(super) fn with_head(value: &Value, side: Option<&Side>) -> Value {
    let (Some(fields), Some(side)) = (value.as_object(), side) else { return value.clone() };
    let head = side.head.iter().filter(|(name, _)| !fields.contains_key(*name));
    let mut whole: Map<String, Value> = head.map(|(name, value)| (name.clone(), value.clone())).collect();
    whole.extend(fields.clone());
    Value::Object(whole)
}

/// The events of an answer; `None` where its family has no streams that are known here.
pub(super) fn events(path: &str, answer: &Value, ms: f64) -> Option<Vec<Timed>> {
    let events = match path {
        "/v1/messages" => message(answer),
        "/v1/responses" => response(answer),
        _ => return None,
    };
    let name = |event: &Value| event.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    Some(events.iter().map(|event| Timed::new(ms, Some(&name(event)), &event.to_string())).collect())
}

/// A made-up answer.
pub(super) fn stub(path: &str, text: &str, model: Option<&Value>) -> Value {
    match path {
        "/v1/messages" => json!({"id": "msg_vcr", "type": "message", "role": "assistant", "model": model,
            "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "stop_sequence": null,
            "usage": {"input_tokens": 0, "output_tokens": 0}}),
        "/v1/responses" => json!({"id": "resp_vcr", "object": "response", "created_at": 0, "status": "completed",
            "model": model, "output": [{"type": "message", "id": "msg_vcr", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}]}],
            "parallel_tool_calls": true, "tool_choice": "auto", "tools": []}),
        _ => json!({"stub": text}),
    }
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn with(value: &Value, changes: Value) -> Value {
    let mut value = value.clone();
    if let (Some(fields), Value::Object(changes)) = (value.as_object_mut(), changes) {
        fields.extend(changes);
    }
    value
}

fn message(answer: &Value) -> Vec<Value> {
    let begun = with(answer, json!({"content": [], "stop_reason": null, "stop_sequence": null}));
    let mut events = vec![json!({"type": "message_start", "message": begun})];
    for (index, block) in list(answer, "content").iter().enumerate() {
        let (empty, deltas) = block_deltas(block);
        events.push(json!({"type": "content_block_start", "index": index, "content_block": empty}));
        let delta = |delta| json!({"type": "content_block_delta", "index": index, "delta": delta});
        events.extend(deltas.into_iter().map(delta));
        events.push(json!({"type": "content_block_stop", "index": index}));
    }
    let delta = json!({"stop_reason": answer.get("stop_reason"), "stop_sequence": answer.get("stop_sequence")});
    events.push(json!({"type": "message_delta", "delta": delta, "usage": answer.get("usage")}));
    events.push(json!({"type": "message_stop"}));
    events
}

/// A block before anything was said of it, and what is said then.
fn block_deltas(block: &Value) -> (Value, Vec<Value>) {
    let words = |name: &str| {
        let text = block.get(name).and_then(Value::as_str).unwrap_or_default();
        text.split_inclusive(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    match block.get("type").and_then(Value::as_str) {
        Some("text") => {
            let deltas = words("text").into_iter().map(|text| json!({"type": "text_delta", "text": text}));
            (with(block, json!({"text": ""})), deltas.collect())
        }
        Some("thinking") => {
            let deltas = words("thinking").into_iter().map(|text| json!({"type": "thinking_delta", "thinking": text}));
            let signature = block.get("signature").map(|it| json!({"type": "signature_delta", "signature": it}));
            (with(block, json!({"thinking": "", "signature": ""})), deltas.chain(signature).collect())
        }
        Some("tool_use") => {
            let input = block.get("input").map(Value::to_string).unwrap_or_default();
            let delta = json!({"type": "input_json_delta", "partial_json": input});
            (with(block, json!({"input": {}})), vec![delta])
        }
        _ => (block.clone(), Vec::new()),
    }
}

fn response(answer: &Value) -> Vec<Value> {
    let begun = with(answer, json!({"status": "in_progress", "output": [], "usage": null}));
    let mut events = vec![
        json!({"type": "response.created", "response": begun}),
        json!({"type": "response.in_progress", "response": begun}),
    ];
    for (index, item) in list(answer, "output").iter().enumerate() {
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
        for (at, part) in list(item, "content").iter().enumerate() {
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
    let mut tell = |event: Value| events.push(with(&event, place.clone()));
    tell(json!({"type": "response.content_part.added", "part": with(part, json!({"text": ""}))}));
    for piece in text.split_inclusive(' ') {
        tell(json!({"type": format!("response.{kind}.delta"), "delta": piece, "logprobs": []}));
    }
    tell(json!({"type": format!("response.{kind}.done"), "text": text, "logprobs": []}));
    tell(json!({"type": "response.content_part.done", "part": part}));
}
