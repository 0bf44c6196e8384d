//! A message's events from a chat's events: blocks are opened and closed as the deltas change their kind.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Tools, signature, stop, usage};
use crate::{
    api::{
        chunk::{ChatChunk, ChatEvent, FromChat, Said, ToolCall},
        escape::escaped,
    },
    net::wire::encode_event,
};

/// The engine's error when its chat stream fails: it cannot read the failure as a chunk.
const FAILURE: &str = "2 validation errors for ChatCompletionStreamResponse\nmodel\n  Field required [type=missing, \
    input_value={'error': {'message': 'In...am': None, 'code': 500}}, input_type=dict]\n    For further information \
    visit https://errors.pydantic.dev/2.14/v/missing\nchoices\n  Field required [type=missing, input_value={'error': \
    {'message': 'In...am': None, 'code': 500}}, input_type=dict]\n    For further information visit \
    https://errors.pydantic.dev/2.14/v/missing";

#[derive(Debug, Clone, PartialEq, Eq)]
enum Block {
    Text,
    Thinking,
    ToolUse { id: String },
}

/// Makes the events of a message.
#[derive(Debug, Default)]
pub struct MessageEvents {
    id: Option<String>,
    failed: bool,
    block: Option<Block>,
    /// Index of the open block, or of the next one.
    index: usize,
    /// Text that came inside a tool call and follows it.
    held: String,
    finish: Option<String>,
    stop_reason: Option<Value>,
    used_tools: bool,
    /// Arguments of the latest call.
    arguments: String,
    ids: HashMap<usize, String>,
}

impl FromChat for MessageEvents {
    fn add(&mut self, event: &ChatEvent, out: &mut VecDeque<Bytes>) {
        match event {
            _ if self.failed => {}
            ChatEvent::Other => {}
            ChatEvent::Failed => {
                self.failed = true;
                let error = json!({"type": "error", "error": {"type": "internal_error", "message": FAILURE}});
                out.push_back(encode_event(Some("error"), &error.to_string()));
            }
            ChatEvent::Done => {
                self.close(out);
                out.push_back(encode_event(Some("message_stop"), r#"{"type":"message_stop"}"#));
            }
            ChatEvent::Chunk(chunk) if self.id.is_none() => self.start(chunk, out),
            ChatEvent::Chunk(chunk) if chunk.choices.is_empty() => self.end(chunk, out),
            ChatEvent::Chunk(chunk) => self.chunk(chunk, out),
        }
    }
}

impl MessageEvents {
    /// Makes the events of one message.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn start(&mut self, chunk: &ChatChunk, out: &mut VecDeque<Bytes>) {
        self.id = Some(chunk.id.clone());
        let message = json!({
            "id": chunk.id, "type": "message", "role": "assistant", "content": [], "model": chunk.model,
            "stop_reason": null, "stop_sequence": null, "usage": usage(chunk.usage.as_ref()),
        });
        out.push_back(encode_event(
            Some("message_start"),
            &json!({"type": "message_start", "message": message}).to_string(),
        ));
    }

    fn end(&mut self, chunk: &ChatChunk, out: &mut VecDeque<Bytes>) {
        self.close(out);
        let is_complete = serde_json::from_str::<Value>(&self.arguments).is_ok();
        let tools = match (self.used_tools, is_complete) {
            (false, _) => Tools::Unused,
            (true, false) => Tools::Cut,
            (true, true) => Tools::Complete,
        };
        let finish = self.finish.as_deref().unwrap_or("stop");
        let (reason, sequence) = stop(Some(finish), self.stop_reason.as_ref(), tools);
        let delta = json!({
            "type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": usage(chunk.usage.as_ref()),
        });
        out.push_back(encode_event(Some("message_delta"), &delta.to_string()));
    }

    fn chunk(&mut self, chunk: &ChatChunk, out: &mut VecDeque<Bytes>) {
        let Some(choice) = chunk.choices.first() else { return };
        if choice.finish_reason.is_some() {
            self.finish.clone_from(&choice.finish_reason);
            self.stop_reason.clone_from(&choice.stop_reason);
        }
        let Said { content, reasoning, tool_calls } = &choice.delta;
        if let Some(thought) = reasoning.as_deref().filter(|thought| !thought.is_empty()) {
            if self.block != Some(Block::Thinking) {
                self.open(Block::Thinking, r#"{"type":"thinking","thinking":""}"#, out);
            }
            self.delta("thinking_delta", "thinking", thought, out);
        }
        if let Some(text) = content.as_deref().filter(|text| !text.is_empty()) {
            if matches!(self.block, Some(Block::ToolUse { .. })) {
                self.held.push_str(text);
            } else {
                if self.block != Some(Block::Text) {
                    self.open(Block::Text, r#"{"type":"text","text":""}"#, out);
                }
                self.delta("text_delta", "text", text, out);
            }
        }
        tool_calls.iter().for_each(|call| self.tool_call(call, out));
    }

    fn tool_call(&mut self, call: &ToolCall, out: &mut VecDeque<Bytes>) {
        let function = call.function.as_ref();
        let id = match &call.id {
            Some(id) => {
                self.ids.insert(call.index, id.clone());
                let name = function.and_then(|function| function.name.as_ref());
                if let Some(name) = name.filter(|_| !self.is_open(id)) {
                    let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                    self.open(Block::ToolUse { id: id.clone() }, &block.to_string(), out);
                    self.used_tools = true;
                    self.arguments.clear();
                }
                Some(id.clone())
            }
            None => self.ids.get(&call.index).cloned(),
        };
        let arguments = function.and_then(|function| function.arguments.as_deref()).filter(|text| !text.is_empty());
        if let Some(text) = arguments.filter(|_| id.is_some_and(|id| self.is_open(&id))) {
            self.arguments.push_str(text);
            self.delta("input_json_delta", "partial_json", text, out);
        }
    }

    fn is_open(&self, call: &str) -> bool {
        matches!(&self.block, Some(Block::ToolUse { id }) if id == call)
    }

    fn open(&mut self, block: Block, content: &str, out: &mut VecDeque<Bytes>) {
        self.close(out);
        let index = self.index;
        let data = format!(r#"{{"type":"content_block_start","content_block":{content},"index":{index}}}"#);
        out.push_back(encode_event(Some("content_block_start"), &data));
        self.block = Some(block);
    }

    fn delta(&self, kind: &str, name: &str, text: &str, out: &mut VecDeque<Bytes>) {
        let (text, index) = (escaped(text), self.index);
        let data =
            format!(r#"{{"type":"content_block_delta","delta":{{"type":"{kind}","{name}":{text}}},"index":{index}}}"#);
        out.push_back(encode_event(Some("content_block_delta"), &data));
    }

    /// Closes the open block; text that was held back by a tool call gets a block of its own.
    fn close(&mut self, out: &mut VecDeque<Bytes>) {
        let Some(block) = self.block.take() else { return };
        if block == Block::Thinking {
            let signature = signature(self.id.as_deref().unwrap_or_default(), self.index);
            self.delta("signature_delta", "signature", &signature, out);
        }
        let data = format!(r#"{{"type":"content_block_stop","index":{}}}"#, self.index);
        out.push_back(encode_event(Some("content_block_stop"), &data));
        self.index += 1;
        let held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            self.open(Block::Text, r#"{"type":"text","text":""}"#, out);
            self.delta("text_delta", "text", &held, out);
            self.close(out);
        }
    }
}
