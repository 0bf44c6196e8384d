//! Encoder of a chat's response as a message: blocks are opened and closed as the deltas change their kind.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{REFUSED, ToolCompletion, signature, stop, usage};
use crate::answers::{
    ChatStep, ChoicePart, FromChat, RawText, TokenCounts, WholeChat,
    messages::{BlockDelta, MessageEnd, MessageWriter},
    words::TextKind,
};
use crate::issues::fault;
use net::wire::EventBuffer;
use text::parsers::CallDelta;

/// Fields of a chunk that an event about a failure does not have.
const MISSING: [&str; 2] = ["model", "choices"];

/// Encoder of a message.
#[derive(Debug, Default)]
pub struct MessageEncoder {
    writer: MessageWriter,
    id: String,
    /// Kind of the open block; a refusal is a text there.
    block: Option<TextKind>,
    /// Index and id of the call in the open block, where it is one.
    call: (usize, String),
    /// Text that came inside a tool call and follows it.
    held: String,
    finish: Option<String>,
    stop: Option<String>,
    refuses: bool,
    used_tools: bool,
    /// Arguments of the latest call.
    arguments: String,
    ids: HashMap<usize, String>,
    counts: TokenCounts,
}

impl FromChat for MessageEncoder {
    fn start(&mut self, id: &str, model: &str, counts: TokenCounts, out: &mut EventBuffer) {
        id.clone_into(&mut self.id);
        let message = json!({
            "id": id, "type": "message", "role": "assistant", "content": [], "model": model,
            "stop_reason": null, "stop_sequence": null, "usage": usage(counts),
        });
        self.writer.start(&message, out);
    }

    fn take_prompt(&mut self, _: RawText<'_>) {}

    fn add(&mut self, step: &ChatStep<'_>, out: &mut EventBuffer) {
        if step.finish.is_some() {
            self.finish = step.finish.map(str::to_owned);
            self.stop = step.stop.map(str::to_owned);
        }
        if let Some(thinking) = step.reasoning.filter(|text| !text.is_empty()) {
            if self.block != Some(TextKind::Reasoning) {
                self.open(TextKind::Reasoning, &json!({"type": "thinking", "thinking": ""}), out);
            }
            self.writer.add(BlockDelta::Thinking { thinking }, out);
        }
        for (kind, text) in [(TextKind::Text, step.content), (TextKind::Refusal, step.refusal)] {
            let Some(text) = text.filter(|text| !text.is_empty()) else { continue };
            self.refuses |= kind == TextKind::Refusal;
            match self.block {
                Some(TextKind::Arguments) => self.held.push_str(text),
                Some(open) if open == kind => self.writer.add(BlockDelta::Text { text }, out),
                Some(_) | None => self.open_text(kind, text, out),
            }
        }
        for call in step.calls {
            self.call(call, out);
        }
    }

    fn count(&mut self, counts: TokenCounts, _: Option<Value>) {
        self.counts = counts;
    }

    /// Reports a validation error: the engine cannot read the failure of its chat as a chunk.
    fn fail(&mut self, payload: &str, out: &mut EventBuffer) -> bool {
        let event = serde_json::from_str(payload).unwrap_or_default();
        let faults = MISSING.map(|field| fault(field, "missing", "Field required", &event)).join("\n");
        let message = format!("2 validation errors for ChatCompletionStreamResponse\n{faults}");
        out.put_named("error", &json!({"type": "error", "error": {"type": "internal_error", "message": message}}));
        true
    }

    fn end(&mut self, out: &mut EventBuffer) {
        self.close(out);
        let is_complete = serde_json::from_str::<Value>(&self.arguments).is_ok();
        let tools = match (self.used_tools, is_complete) {
            (false, _) => ToolCompletion::Unused,
            (true, false) => ToolCompletion::Cut,
            (true, true) => ToolCompletion::Complete,
        };
        let finish = if self.refuses { REFUSED } else { self.finish.as_deref().unwrap_or("stop") };
        let (stop_reason, stop_sequence) = stop(Some(finish), self.stop.as_deref(), tools);
        self.writer.end(MessageEnd { stop_reason, stop_sequence }, Some(&usage(self.counts)), out);
    }

    fn body(&self, chat: &WholeChat<'_>) -> String {
        message_body(chat)
    }
}

impl MessageEncoder {
    fn call(&mut self, call: &CallDelta, out: &mut EventBuffer) {
        if let Some(id) = &call.id {
            self.ids.insert(call.index, id.clone());
            if let Some(name) = call.name.as_ref().filter(|_| !self.is_open(call.index, id)) {
                let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.open(TextKind::Arguments, &block, out);
                self.call = (call.index, id.clone());
                self.used_tools = true;
                self.arguments.clear();
            }
        }
        let is_open = self.ids.get(&call.index).is_some_and(|id| self.is_open(call.index, id));
        if let Some(partial_json) = call.arguments.as_deref().filter(|text| is_open && !text.is_empty()) {
            self.arguments.push_str(partial_json);
            self.writer.add(BlockDelta::InputJson { partial_json }, out);
        }
    }

    fn is_open(&self, place: usize, call: &str) -> bool {
        self.block == Some(TextKind::Arguments) && self.call.0 == place && self.call.1 == call
    }

    fn open(&mut self, block: TextKind, content: &Value, out: &mut EventBuffer) {
        self.close(out);
        self.writer.open(content, out);
        self.block = Some(block);
    }

    fn open_text(&mut self, kind: TextKind, text: &str, out: &mut EventBuffer) {
        self.open(kind, &json!({"type": "text", "text": ""}), out);
        self.writer.add(BlockDelta::Text { text }, out);
    }

    /// Closes the open block; text that was held back by a tool call gets a block of its own.
    fn close(&mut self, out: &mut EventBuffer) {
        let Some(block) = self.block.take() else { return };
        if block == TextKind::Reasoning {
            let signature = signature(&self.id, self.writer.index);
            self.writer.add(BlockDelta::Signature { signature: &signature }, out);
        }
        self.writer.close(out);
        let held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            self.open_text(TextKind::Text, &held, out);
            self.close(out);
        }
    }
}

/// The body of a message; what is null is left out.
fn message_body(chat: &WholeChat<'_>) -> String {
    let (id, choice) = (chat.id, &chat.choice);
    let block = |part: &ChoicePart<'_>| match part {
        ChoicePart::Words(TextKind::Reasoning, thought) => {
            Some(json!({"type": "thinking", "thinking": thought, "signature": signature(id, 0)}))
        }
        ChoicePart::Words(TextKind::Text | TextKind::Refusal, text) => Some(json!({"type": "text", "text": text})),
        ChoicePart::Words(TextKind::Arguments, _) => None,
        ChoicePart::Call(call) => {
            let input: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
            Some(json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input}))
        }
    };
    let mut content: Vec<Value> = choice.parts.iter().filter_map(block).collect();
    if content.is_empty() {
        content.push(json!({"type": "text", "text": ""}));
    }
    let has_calls = choice.parts.iter().any(|part| matches!(part, ChoicePart::Call(_)));
    let tools = if has_calls { ToolCompletion::Complete } else { ToolCompletion::Unused };
    let refuses = choice.parts.iter().any(|part| matches!(part, ChoicePart::Words(TextKind::Refusal, _)));
    let finish = if refuses { Some(REFUSED) } else { choice.finish_reason };
    let (reason, sequence) = stop(finish, choice.stop, tools);
    let mut body = Map::new();
    let mut put = |name: &str, value: Value| {
        if !value.is_null() {
            body.insert(name.to_owned(), value);
        }
    };
    put("id", id.into());
    put("type", "message".into());
    put("role", "assistant".into());
    put("content", Value::Array(content));
    put("model", chat.model.into());
    put("stop_reason", reason.into());
    put("stop_sequence", sequence.into());
    put("usage", usage(chat.counts));
    Value::Object(body).to_string()
}
