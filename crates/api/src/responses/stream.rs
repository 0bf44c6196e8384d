//! Encoder of a chat's response as one of the Responses API: items are opened and closed as the deltas change their kind.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    ResponseHead, ResponsesRequest,
    answer::{
        ChatLogprobs, RawMessage, Spent, Status, function_call, message, pending, reasoning, refusal_part, response,
        response_body, text_part,
    },
    item_id,
};
use crate::answers::{
    ChatStep, FromChat, RawText, TokenCounts, WholeChat, put,
    responses::{ResponseWriter, TextPlace},
    words::TextKind,
};
use net::wire::EventBuffer;
use text::parsers::CallDelta;

#[derive(Debug, Clone, PartialEq, Eq)]
enum OutputItem {
    Message,
    Refusal,
    Reasoning,
    Call { index: usize, call_id: String, name: String },
}

impl OutputItem {
    fn prefix(&self) -> &'static str {
        match self {
            Self::Message | Self::Refusal => "msg",
            Self::Reasoning => "rs",
            Self::Call { .. } => "fc",
        }
    }

    fn words(&self) -> TextKind {
        match self {
            Self::Message => TextKind::Text,
            Self::Refusal => TextKind::Refusal,
            Self::Reasoning => TextKind::Reasoning,
            Self::Call { .. } => TextKind::Arguments,
        }
    }
}

/// An item that is being made.
#[derive(Debug)]
struct OpenItem {
    item: OutputItem,
    id: String,
    text: String,
    logprobs: Vec<Value>,
}

impl OpenItem {
    fn place(&self) -> TextPlace<'_> {
        TextPlace { words: self.item.words(), item_id: &self.id, part: 0 }
    }

    /// The content part with this text; calls have none.
    fn part(&self, text: &str, logprobs: &Value) -> Option<Value> {
        match self.item {
            OutputItem::Message => Some(text_part(text, logprobs)),
            OutputItem::Refusal => Some(refusal_part(text)),
            OutputItem::Reasoning => Some(json!({"text": text, "type": "reasoning_text"})),
            OutputItem::Call { .. } => None,
        }
    }

    /// The log probabilities of its text; null where there are none.
    fn scored(&self) -> Value {
        if self.logprobs.is_empty() { Value::Null } else { self.logprobs.clone().into() }
    }

    /// The item with the text so far.
    fn value(&self, status: Status) -> Value {
        match &self.item {
            OutputItem::Message | OutputItem::Refusal => {
                let part = Some(&self.text).filter(|text| !text.is_empty());
                message(&self.id, part.and_then(|text| self.part(text, &self.scored())), status)
            }
            OutputItem::Reasoning => reasoning(&self.id, &self.text, Some(status)),
            OutputItem::Call { call_id, name, .. } => function_call(&self.id, (call_id, name), &self.text, status),
        }
    }
}

/// Encoder of a response.
#[derive(Debug)]
pub struct ResponseEncoder {
    request: Arc<ResponsesRequest>,
    head: ResponseHead,
    writer: ResponseWriter,
    open: Option<OpenItem>,
    output: Vec<Value>,
    finish: Option<String>,
    spent: Spent,
    /// Prompt and answer as the model has them.
    raw: [RawMessage; 2],
}

impl FromChat for ResponseEncoder {
    fn start(&mut self, _: &str, _: &str, _: TokenCounts, _: &mut EventBuffer) {}

    fn take_prompt(&mut self, prompt: RawText<'_>) {
        if self.request.sends_raw() {
            let [input, _] = &mut self.raw;
            input.add(prompt);
        }
    }

    fn add(&mut self, step: &ChatStep<'_>, out: &mut EventBuffer) {
        if self.request.sends_raw() {
            let [_, output] = &mut self.raw;
            output.add(step.raw);
        }
        let logprobs = ChatLogprobs::read(&self.request, step.logprobs).unwrap_or_default();
        if step.finish.is_some() {
            self.finish = step.finish.map(str::to_owned);
        }
        let texts = [
            (OutputItem::Reasoning, step.reasoning),
            (OutputItem::Message, step.content),
            (OutputItem::Refusal, step.refusal),
        ];
        for (item, text) in texts {
            if let Some(text) = text.filter(|text| !text.is_empty()) {
                self.put_text(item, (text, &logprobs), out);
            }
        }
        for call in step.calls {
            self.call(call, out);
        }
    }

    fn count(&mut self, counts: TokenCounts, metrics: Option<Value>) {
        self.spent = Spent::of(counts, metrics.as_ref());
    }

    /// Leaves the stream without an end, and the connection breaks, as with the engine.
    fn fail(&mut self, _: &str, _: &mut EventBuffer) -> bool {
        false
    }

    fn end(&mut self, out: &mut EventBuffer) {
        self.close(out);
        self.spent.raw = self.request.sends_raw().then(|| std::mem::take(&mut self.raw));
        let status = Status::of_finish(self.finish.as_deref());
        let response = response(&self.request, &self.head, status, &self.output, Some(&self.spent));
        self.writer.end(&response, out);
    }

    fn body(&self, chat: &WholeChat<'_>) -> String {
        response_body(&self.request, &self.head, chat)
    }
}

impl ResponseEncoder {
    /// Encodes the response to this request.
    #[must_use]
    pub fn new(request: Arc<ResponsesRequest>, head: ResponseHead) -> Self {
        Self {
            request,
            head,
            writer: ResponseWriter::default(),
            open: None,
            output: Vec::new(),
            finish: None,
            spent: Spent::default(),
            raw: Default::default(),
        }
    }

    /// Appends the events before the first token; they are due at once.
    pub fn open(&mut self, out: &mut EventBuffer) {
        self.writer.start(&pending(&self.request, &self.head), out);
    }

    fn call(&mut self, call: &CallDelta, out: &mut EventBuffer) {
        let is_open =
            matches!(&self.open, Some(OpenItem { item: OutputItem::Call { index, .. }, .. }) if *index == call.index);
        if !is_open {
            let (call_id, name) = (call.id.clone().unwrap_or_default(), call.name.clone().unwrap_or_default());
            self.enter(OutputItem::Call { index: call.index, call_id, name }, out);
        }
        if let Some(arguments) = call.arguments.as_deref().filter(|text| !text.is_empty()) {
            self.add_text((arguments, &ChatLogprobs::default()), out);
        }
    }

    fn put_text(&mut self, item: OutputItem, text: (&str, &ChatLogprobs<'_>), out: &mut EventBuffer) {
        if self.open.as_ref().is_none_or(|open| open.item != item) {
            self.enter(item, out);
        }
        self.add_text(text, out);
    }

    fn add_text(&mut self, (text, logprobs): (&str, &ChatLogprobs<'_>), out: &mut EventBuffer) {
        if let Some(open) = &mut self.open {
            open.text.push_str(text);
            let is_message = open.item == OutputItem::Message;
            open.logprobs.extend(logprobs.of_message(true).into_iter().filter(|_| is_message));
            self.writer.add_scored(open.place(), text, &logprobs.of_message(false), out);
        }
    }

    fn enter(&mut self, item: OutputItem, out: &mut EventBuffer) {
        self.close(out);
        let id = item_id(item.prefix(), &self.head.id, self.output.len());
        let open = OpenItem { item, id, text: String::new(), logprobs: Vec::new() };
        let mut opened = open.value(Status::InProgress);
        if open.item == OutputItem::Reasoning {
            put(&mut opened, "content", Value::Null);
        }
        self.writer.open(&opened, out);
        if let Some(part) = open.part("", &json!([])) {
            self.writer.open_part(open.place(), &part, out);
        }
        self.open = Some(open);
    }

    fn close(&mut self, out: &mut EventBuffer) {
        let Some(open) = self.open.take() else { return };
        let whole = open.value(Status::Completed);
        match open.part(&open.text, &open.scored()) {
            Some(part) => self.writer.close_part(open.place(), &open.text, &part, out),
            None => self.writer.close_call(open.place(), &whole, out),
        }
        self.writer.close(&whole, out);
        self.output.push(whole);
    }
}
