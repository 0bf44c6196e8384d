//! Input items as chat messages: a turn of the assistant may take several items.

use serde_json::{Map, Value, json};

use crate::{ApiError, python};

/// The messages of a request: instructions, what came before, then the input.
/// Errors: an item of a kind that the engine does not take.
pub(super) fn messages(
    instructions: Option<&str>,
    history: Vec<Value>,
    input: Option<&Value>,
) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::new();
    if let Some(text) = instructions.filter(|text| !text.is_empty()) {
        messages.push(json!({"role": "system", "content": text}));
    }
    messages.extend(history);
    let first = messages.len();
    match input {
        Some(Value::Array(items)) => {
            for item in items {
                put(item, first, &mut messages)?;
            }
        }
        Some(text) => messages.push(json!({"role": "user", "content": text})),
        None => {}
    }
    Ok(messages)
}

/// Returns whether the last item is an answer that is to go on.
pub(super) fn continues(input: Option<&Value>) -> bool {
    let Some(last) = input.and_then(Value::as_array).and_then(|items| items.last()) else { return false };
    let is_output = ["message", "reasoning"].iter().any(|kind| last.get("type").is_none_or(|is| is == kind));
    is_output && ["in_progress", "incomplete"].iter().any(|status| last["status"] == *status)
}

fn put(item: &Value, first: usize, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let text_of = |part: &Value| part.get("text").and_then(Value::as_str).map(str::to_owned);
    match item["type"].as_str() {
        Some("function_call") => put_tool_call(function_call(item), first, messages),
        Some("custom_tool_call") => put_tool_call(custom_call(item), first, messages),
        Some("reasoning") => {
            if python::truthy(item.get("encrypted_content")) {
                return Err(ApiError::parameter("input", "Encrypted content is not supported."));
            }
            let parts = [&item["content"], &item["summary"]];
            let thought = parts.into_iter().find_map(|parts| text_of(parts.get(0)?)).unwrap_or_default();
            put_output("reasoning", thought, first, messages);
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            let (content, id) = (&item["output"], &item["call_id"]);
            messages.push(json!({"role": "tool", "content": content, "tool_call_id": id}));
        }
        kind if item["role"] == "assistant" => {
            let text = match &item["content"] {
                Value::String(text) => Some(text.clone()),
                Value::Array(parts) => parts.first().and_then(text_of),
                _ => None,
            };
            match text {
                Some(text) => put_output("content", text, first, messages),
                None if kind.is_none_or(|kind| kind == "message") => messages.push(item.clone()),
                None => return Err(unsupported(item)),
            }
        }
        _ if item.get("role").is_some() => messages.push(item.clone()),
        _ => return Err(unsupported(item)),
    }
    Ok(())
}

fn unsupported(item: &Value) -> ApiError {
    let kind = item.get("type").map_or_else(|| "None".to_owned(), python::display);
    ApiError::parameter("input", &format!("Unsupported input item type: {kind}"))
}

/// The turn of the assistant that the next item may add to.
fn open_turn(first: usize, messages: &mut [Value]) -> Option<&mut Map<String, Value>> {
    let turn = messages.get_mut(first..)?.last_mut()?.as_object_mut()?;
    (turn.get("role")? == "assistant").then_some(turn)
}

fn put_output(what: &str, text: String, first: usize, messages: &mut Vec<Value>) {
    if let Some(turn) = open_turn(first, messages).filter(|turn| turn.get(what).is_none_or(Value::is_null)) {
        turn.insert(what.to_owned(), text.into());
        return;
    }
    let role = ("role".to_owned(), "assistant".into());
    messages.push(Value::Object(Map::from_iter([role, (what.to_owned(), text.into())])));
}

fn put_tool_call(call: Value, first: usize, messages: &mut Vec<Value>) {
    let Some(turn) = open_turn(first, messages) else {
        messages.push(json!({"role": "assistant", "tool_calls": [call]}));
        return;
    };
    match turn.get_mut("tool_calls").and_then(Value::as_array_mut) {
        Some(calls) => calls.push(call),
        None => drop(turn.insert("tool_calls".to_owned(), Value::Array(vec![call]))),
    }
}

fn function_call(item: &Value) -> Value {
    let name = item["name"].as_str().unwrap_or_default();
    let name = match item["namespace"].as_str().filter(|space| !space.is_empty()) {
        Some(space) => format!("{space}__{name}"),
        None => name.to_owned(),
    };
    json!({"id": item["call_id"], "type": "function", "function": {"name": name, "arguments": item["arguments"]}})
}

fn custom_call(item: &Value) -> Value {
    let arguments = json!({"input": item["input"].as_str().unwrap_or_default()}).to_string();
    json!({"id": item["call_id"], "type": "function", "function": {"name": item["name"], "arguments": arguments}})
}

/// The tools that a chat template can show: functions, and custom tools as functions of one text.
pub(super) fn chat_tools(tools: &[Value]) -> Vec<Value> {
    let tool = |tool: &Value| match tool["type"].as_str() {
        Some("function") => {
            let field = |name: &str| Some((name.to_owned(), tool.get(name).filter(|value| !value.is_null())?.clone()));
            let names = ["name", "description", "parameters", "strict"];
            let function: Map<String, Value> = names.into_iter().filter_map(field).collect();
            Some(json!({"type": "function", "function": function}))
        }
        Some("custom") => Some(json!({"type": "function", "function": {
            "name": tool["name"], "description": tool["description"],
            "parameters": {"type": "object", "properties": {"input": {"type": "string",
                "description": "The freeform text payload for this tool."}},
                "required": ["input"], "additionalProperties": false},
        }})),
        _ => None,
    };
    tools.iter().filter_map(tool).collect()
}
