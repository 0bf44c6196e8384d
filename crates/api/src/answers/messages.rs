//! Messages of the Anthropic API: accumulated from events, and written as events.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    append,
    cut::{EventSink, split},
    extend, list, with,
};

pub(super) fn of_text(text: &str, model: Option<&Value>) -> Value {
    json!({"id": "msg_vcr", "type": "message", "role": "assistant", "model": model,
        "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "stop_sequence": null,
        "usage": {"input_tokens": 0, "output_tokens": 0}})
}

/// Puts the blocks of a stream together; `None` where it ends in an error or is no message.
pub(super) fn accumulate(events: &[Value]) -> Option<Map<String, Value>> {
    let mut message = events.iter().find_map(|event| event.get("message"))?.clone();
    let mut blocks: Vec<OpenBlock> = Vec::new();
    for event in events {
        match event.get("type").and_then(Value::as_str)? {
            "content_block_start" => {
                let fields = event.get("content_block")?.as_object()?.clone();
                blocks.push(OpenBlock { fields, input: String::new() });
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
    message.insert("content".to_owned(), blocks.into_iter().map(OpenBlock::whole).collect());
    Some(message)
}

struct OpenBlock {
    fields: Map<String, Value>,
    /// The input of a tool, JSON as text.
    input: String,
}

impl OpenBlock {
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

/// An event of a message's stream; its fields are in the engine's order.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum MessageEvent<'a> {
    MessageStart {
        message: &'a Value,
    },
    ContentBlockStart {
        content_block: &'a Value,
        index: usize,
    },
    ContentBlockDelta {
        delta: BlockDelta<'a>,
        index: usize,
    },
    ContentBlockStop {
        index: usize,
    },
    MessageDelta {
        delta: MessageEnd<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage: Option<&'a Value>,
    },
    MessageStop,
}

/// Text that an event adds to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub(crate) enum BlockDelta<'a> {
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    /// Text of the reasoning.
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'a str },
    /// More of a tool's input, JSON as text.
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: &'a str },
}

/// Reason of a message's end.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct MessageEnd<'a> {
    pub(crate) stop_reason: Option<&'a str>,
    pub(crate) stop_sequence: Option<&'a str>,
}

/// Writer of a message's stream: opens, fills and closes its blocks in order.
#[derive(Debug, Default)]
pub(crate) struct MessageWriter {
    /// Index of the open block, or of the next one.
    pub(crate) index: usize,
}

impl MessageWriter {
    /// Starts a message that has no content yet.
    pub(crate) fn start(&self, message: &Value, out: &mut impl EventSink) {
        out.put_event("message_start", &MessageEvent::MessageStart { message });
    }

    /// Opens a block that has no content yet.
    pub(crate) fn open(&self, content_block: &Value, out: &mut impl EventSink) {
        let index = self.index;
        out.put_event("content_block_start", &MessageEvent::ContentBlockStart { content_block, index });
    }

    pub(crate) fn add(&self, delta: BlockDelta<'_>, out: &mut impl EventSink) {
        out.put_event("content_block_delta", &MessageEvent::ContentBlockDelta { delta, index: self.index });
    }

    /// Closes the open block.
    pub(crate) fn close(&mut self, out: &mut impl EventSink) {
        out.put_event("content_block_stop", &MessageEvent::ContentBlockStop { index: self.index });
        self.index += 1;
    }

    pub(crate) fn end(&self, delta: MessageEnd<'_>, usage: Option<&Value>, out: &mut impl EventSink) {
        out.put_event("message_delta", &MessageEvent::MessageDelta { delta, usage });
        out.put_event("message_stop", &MessageEvent::MessageStop);
    }
}

pub(super) fn events(body: &Map<String, Value>, out: &mut impl EventSink) {
    let mut writer = MessageWriter::default();
    let begun = json!({"content": [], "stop_reason": null, "stop_sequence": null});
    writer.start(&with(&Value::Object(body.clone()), begun), out);
    for block in list(body, "content") {
        put_block(&mut writer, block, out);
    }
    let text = |name: &str| body.get(name).and_then(Value::as_str);
    let end = MessageEnd { stop_reason: text("stop_reason"), stop_sequence: text("stop_sequence") };
    writer.end(end, body.get("usage"), out);
}

fn put_block(writer: &mut MessageWriter, block: &Value, out: &mut impl EventSink) {
    let words = |name: &str| split(block.get(name).and_then(Value::as_str).unwrap_or_default(), None);
    match block.get("type").and_then(Value::as_str) {
        Some("text") => {
            writer.open(&with(block, json!({"text": ""})), out);
            words("text").iter().for_each(|text| writer.add(BlockDelta::Text { text }, out));
        }
        Some("thinking") => {
            let signature = block.get("signature").and_then(Value::as_str);
            let mut empty = with(block, json!({"thinking": ""}));
            if signature.is_some() {
                empty = with(&empty, json!({"signature": ""}));
            }
            writer.open(&empty, out);
            words("thinking").iter().for_each(|thinking| writer.add(BlockDelta::Thinking { thinking }, out));
            if let Some(signature) = signature {
                writer.add(BlockDelta::Signature { signature }, out);
            }
        }
        Some("tool_use") => {
            writer.open(&with(block, json!({"input": {}})), out);
            let input = block.get("input").map(Value::to_string).unwrap_or_default();
            writer.add(BlockDelta::InputJson { partial_json: &input }, out);
        }
        _ => writer.open(block, out),
    }
    writer.close(out);
}
