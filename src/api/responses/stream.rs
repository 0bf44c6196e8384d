//! A response's events from a chat's events: items are opened and closed as the deltas change their kind.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    ResponseHead, ResponsesRequest,
    answer::{Spent, Status, function_call, message, pending, reasoning, response, text_part},
    item_id,
};
use crate::{
    api::chunk::{ChatChunk, ChatEvent, FromChat, Said, ToolCall, put},
    net::wire::encode_event,
};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    Message,
    Reasoning,
    Call { index: usize, call_id: String, name: String },
}

impl Item {
    fn prefix(&self) -> &'static str {
        match self {
            Self::Message => "msg",
            Self::Reasoning => "rs",
            Self::Call { .. } => "fc",
        }
    }
}

/// Makes the events of a response.
#[derive(Debug)]
pub struct ResponseEvents {
    request: Arc<ResponsesRequest>,
    head: ResponseHead,
    sequence: u64,
    item: Option<Item>,
    /// What the open item holds so far.
    text: String,
    output: Vec<Value>,
    finish: Option<String>,
    spent: Spent,
    failed: bool,
}

impl FromChat for ResponseEvents {
    fn add(&mut self, event: &ChatEvent, out: &mut VecDeque<Bytes>) {
        match event {
            ChatEvent::Other => {}
            ChatEvent::Failed => self.failed = true,
            ChatEvent::Done if self.failed => {}
            ChatEvent::Done => {
                self.close(out);
                let status = Status::of_finish(self.finish.as_deref());
                let response = response(&self.request, &self.head, status, &self.output, Some(&self.spent));
                let event = json!({"response": response, "sequence_number": 0, "type": "response.completed"});
                self.put(event, out);
            }
            ChatEvent::Chunk(chunk) => self.chunk(chunk, out),
        }
    }
}

impl ResponseEvents {
    /// Makes the events of the response to this request.
    #[must_use]
    pub fn new(request: Arc<ResponsesRequest>, head: ResponseHead) -> Self {
        Self {
            request,
            head,
            sequence: 0,
            item: None,
            text: String::new(),
            output: Vec::new(),
            finish: None,
            spent: Spent::default(),
            failed: false,
        }
    }

    /// The events before the first token; they are due at once.
    pub fn open(&mut self) -> VecDeque<Bytes> {
        let mut out = VecDeque::new();
        let response = pending(&self.request, &self.head);
        for name in ["response.created", "response.in_progress"] {
            self.put(json!({"response": response, "sequence_number": 0, "type": name}), &mut out);
        }
        out
    }

    fn chunk(&mut self, chunk: &ChatChunk, out: &mut VecDeque<Bytes>) {
        if let Some(usage) = &chunk.usage {
            self.spent = Spent::of(usage, chunk.metrics.as_ref());
        }
        let Some(choice) = chunk.choices.first() else { return };
        if choice.finish_reason.is_some() {
            self.finish.clone_from(&choice.finish_reason);
        }
        let Said { content, reasoning, tool_calls } = &choice.delta;
        if let Some(thought) = reasoning.as_deref().filter(|thought| !thought.is_empty()) {
            self.enter(&Item::Reasoning, out);
            self.delta("response.reasoning_text.delta", thought, out);
        }
        if let Some(text) = content.as_deref().filter(|text| !text.is_empty()) {
            self.enter(&Item::Message, out);
            self.delta("response.output_text.delta", text, out);
        }
        tool_calls.iter().for_each(|call| self.call(call, out));
    }

    fn call(&mut self, call: &ToolCall, out: &mut VecDeque<Bytes>) {
        let Some(function) = &call.function else { return };
        let is_open = matches!(&self.item, Some(Item::Call { index, .. }) if *index == call.index);
        if !is_open {
            let (index, call_id) = (call.index, call.id.clone().unwrap_or_default());
            self.enter(&Item::Call { index, call_id, name: function.name.clone().unwrap_or_default() }, out);
        }
        if let Some(arguments) = function.arguments.as_deref().filter(|text| !text.is_empty()) {
            self.delta("response.function_call_arguments.delta", arguments, out);
        }
    }

    /// Sends an event with its number.
    fn put(&mut self, mut event: Value, out: &mut VecDeque<Bytes>) {
        put(&mut event, "sequence_number", self.sequence.into());
        self.sequence += 1;
        let name = event.get("type").and_then(Value::as_str).unwrap_or_default();
        out.push_back(encode_event(Some(name), &event.to_string()));
    }

    /// The open item's id.
    fn id(&self) -> String {
        let prefix = self.item.as_ref().map_or("msg", Item::prefix);
        item_id(prefix, &self.head.id, self.output.len())
    }

    fn enter(&mut self, item: &Item, out: &mut VecDeque<Bytes>) {
        if self.item.as_ref() == Some(item) {
            return;
        }
        self.close(out);
        self.item = Some(item.clone());
        self.text.clear();
        let (id, at) = (self.id(), self.output.len());
        let (opened, part) = match item {
            Item::Message => (message(&id, "", Status::InProgress), Some(text_part("", &json!([])))),
            Item::Reasoning => {
                let mut opened = reasoning(&id, "", Some(Status::InProgress));
                put(&mut opened, "content", Value::Null);
                (opened, Some(json!({"text": "", "type": "reasoning_text"})))
            }
            Item::Call { call_id, name, .. } => (function_call(&id, (call_id, name), "", Status::InProgress), None),
        };
        let added = "response.output_item.added";
        self.put(json!({"item": opened, "output_index": at, "sequence_number": 0, "type": added}), out);
        if let Some(part) = part {
            let added = "response.content_part.added";
            let event = json!({
                "content_index": 0, "item_id": id, "output_index": at, "part": part, "sequence_number": 0, "type": added,
            });
            self.put(event, out);
        }
    }

    fn delta(&mut self, name: &str, text: &str, out: &mut VecDeque<Bytes>) {
        self.text.push_str(text);
        let (id, at) = (self.id(), self.output.len());
        let event = match self.item {
            Some(Item::Message) => json!({
                "content_index": 0, "delta": text, "item_id": id, "logprobs": [], "output_index": at,
                "sequence_number": 0, "type": name,
            }),
            Some(Item::Reasoning) => json!({
                "content_index": 0, "delta": text, "item_id": id, "output_index": at, "sequence_number": 0, "type": name,
            }),
            _ => json!({"delta": text, "item_id": id, "output_index": at, "sequence_number": 0, "type": name}),
        };
        self.put(event, out);
    }

    fn close(&mut self, out: &mut VecDeque<Bytes>) {
        let (id, at) = (self.id(), self.output.len());
        let Some(item) = self.item.take() else { return };
        let text = std::mem::take(&mut self.text);
        let (done, part, whole) = match item {
            Item::Message => (
                json!({
                    "content_index": 0, "item_id": id, "logprobs": [], "output_index": at, "sequence_number": 0,
                    "text": text, "type": "response.output_text.done",
                }),
                Some(text_part(&text, &Value::Null)),
                message(&id, &text, Status::Completed),
            ),
            Item::Reasoning => (
                json!({
                    "content_index": 0, "item_id": id, "output_index": at, "sequence_number": 0, "text": text,
                    "type": "response.reasoning_text.done",
                }),
                Some(json!({"text": text, "type": "reasoning_text"})),
                reasoning(&id, &text, Some(Status::Completed)),
            ),
            Item::Call { call_id, name, .. } => (
                json!({
                    "arguments": text, "item_id": id, "output_index": at, "sequence_number": 0,
                    "type": "response.function_call_arguments.done", "name": name,
                }),
                None,
                function_call(&id, (&call_id, &name), &text, Status::Completed),
            ),
        };
        self.put(done, out);
        if let Some(part) = part {
            let event = json!({
                "content_index": 0, "item_id": id, "output_index": at, "part": part, "sequence_number": 0,
                "type": "response.content_part.done",
            });
            self.put(event, out);
        }
        let done = "response.output_item.done";
        self.put(json!({"item": whole, "output_index": at, "sequence_number": 0, "type": done}), out);
        self.output.push(whole);
    }
}
