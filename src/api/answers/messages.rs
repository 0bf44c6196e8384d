//! Messages of the Anthropic API: accumulated from events, and cut into events.

use serde_json::{Map, Value, json};

use super::{append, cut::split, extend, list, with};

/// Makes up a message.
pub(super) fn of_text(text: &str, model: Option<&Value>) -> Value {
    json!({"id": "msg_vcr", "type": "message", "role": "assistant", "model": model,
        "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "stop_sequence": null,
        "usage": {"input_tokens": 0, "output_tokens": 0}})
}

/// Puts the blocks of a stream together; `None` where it ends in an error or is no message.
pub(super) fn accumulate(events: &[Value]) -> Option<Map<String, Value>> {
    let mut message = events.iter().find_map(|event| event.get("message"))?.clone();
    let mut blocks: Vec<Block> = Vec::new();
    for event in events {
        match event.get("type").and_then(Value::as_str)? {
            "content_block_start" => {
                let fields = event.get("content_block")?.as_object()?.clone();
                blocks.push(Block { fields, input: String::new() });
            }
            "content_block_delta" => {
                let index = usize::try_from(event.get("index")?.as_u64()?).ok()?;
                blocks.get_mut(index)?.add(event.get("delta")?.as_object()?);
            }
            "message_delta" => {
                extend(&mut message, event.get("delta")?);
                if let (Some(usage), Some(more)) = (message.get_mut("usage"), event.get("usage")) {
                    extend(usage, more);
                }
            }
            "error" => return None,
            _ => {}
        }
    }
    let Value::Object(mut message) = message else { return None };
    message.insert("content".to_owned(), blocks.into_iter().map(Block::whole).collect());
    Some(message)
}

/// A block on its way.
struct Block {
    fields: Map<String, Value>,
    /// The input of a tool, JSON as text.
    input: String,
}

impl Block {
    fn add(&mut self, delta: &Map<String, Value>) {
        for (name, value) in delta {
            match (name.as_str(), value) {
                ("type", _) => {}
                ("partial_json", Value::String(more)) => self.input.push_str(more),
                (_, Value::String(more)) => append(&mut self.fields, name, more),
                (_, value) => drop(self.fields.insert(name.clone(), value.clone())),
            }
        }
    }

    fn whole(mut self) -> Value {
        if let Ok(input) = serde_json::from_str::<Value>(&self.input) {
            self.fields.insert("input".to_owned(), input);
        }
        Value::Object(self.fields)
    }
}

/// The events of a message.
pub(super) fn events(body: &Map<String, Value>) -> Vec<Value> {
    let answer = Value::Object(body.clone());
    let begun = with(&answer, json!({"content": [], "stop_reason": null, "stop_sequence": null}));
    let mut events = vec![json!({"type": "message_start", "message": begun})];
    for (index, block) in list(body, "content").iter().enumerate() {
        let (empty, deltas) = block_deltas(block);
        events.push(json!({"type": "content_block_start", "index": index, "content_block": empty}));
        let delta = |delta| json!({"type": "content_block_delta", "index": index, "delta": delta});
        events.extend(deltas.into_iter().map(delta));
        events.push(json!({"type": "content_block_stop", "index": index}));
    }
    let delta = json!({"stop_reason": body.get("stop_reason"), "stop_sequence": body.get("stop_sequence")});
    events.push(json!({"type": "message_delta", "delta": delta, "usage": body.get("usage")}));
    events.push(json!({"type": "message_stop"}));
    events
}

/// A block as it starts, and its deltas.
fn block_deltas(block: &Value) -> (Value, Vec<Value>) {
    let words = |kind: &str, name: &str| -> Vec<Value> {
        let text = block.get(name).and_then(Value::as_str).unwrap_or_default();
        split(text, None).into_iter().map(|piece| json!({"type": kind, name: piece})).collect()
    };
    match block.get("type").and_then(Value::as_str) {
        Some("text") => (with(block, json!({"text": ""})), words("text_delta", "text")),
        Some("thinking") => {
            let mut deltas = words("thinking_delta", "thinking");
            let mut empty = with(block, json!({"thinking": ""}));
            if let Some(signature) = block.get("signature") {
                empty = with(&empty, json!({"signature": ""}));
                deltas.push(json!({"type": "signature_delta", "signature": signature}));
            }
            (empty, deltas)
        }
        Some("tool_use") => {
            let input = block.get("input").map(Value::to_string).unwrap_or_default();
            let delta = json!({"type": "input_json_delta", "partial_json": input});
            (with(block, json!({"input": {}})), vec![delta])
        }
        _ => (block.clone(), Vec::new()),
    }
}
