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

/// An item that is being made.
#[derive(Debug)]
struct OpenItem {
    words: TextKind,
    /// The call whose arguments are its text.
    call: Option<CallDelta>,
    id: String,
    text: String,
    logprobs: Vec<Value>,
}

impl OpenItem {
    fn place(&self) -> TextPlace<'_> {
        TextPlace { words: self.words, item_id: &self.id, part: 0 }
    }

    /// The content part with this text; calls have none.
    fn part(&self, text: &str, logprobs: &Value) -> Option<Value> {
        match self.words {
            TextKind::Text => Some(text_part(text, logprobs)),
            TextKind::Refusal => Some(refusal_part(text)),
            TextKind::Reasoning => Some(json!({"text": text, "type": "reasoning_text"})),
            TextKind::Arguments => None,
        }
    }

    /// The log probabilities of its text; null where there are none.
    fn scored(&self) -> Value {
        if self.logprobs.is_empty() { Value::Null } else { self.logprobs.clone().into() }
    }

    /// The item with the text so far.
    fn value(&self, status: Status) -> Value {
        match (&self.call, self.words) {
            (Some(CallDelta { id, name, .. }), _) => {
                let [call_id, name] = [id, name].map(|text| text.as_deref().unwrap_or_default());
                function_call(&self.id, (call_id, name), &self.text, status)
            }
            (None, TextKind::Reasoning) => reasoning(&self.id, &self.text, Some(status)),
            (None, TextKind::Text | TextKind::Refusal | TextKind::Arguments) => {
                let part = Some(&self.text).filter(|text| !text.is_empty());
                message(&self.id, part.and_then(|text| self.part(text, &self.scored())), status)
            }
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
        let texts =
            [(TextKind::Reasoning, step.reasoning), (TextKind::Text, step.content), (TextKind::Refusal, step.refusal)];
        for (words, text) in texts {
            let Some(text) = text.filter(|text| !text.is_empty()) else { continue };
            if self.open.as_ref().is_none_or(|open| open.words != words) {
                self.enter(words, None, out);
            }
            self.add_text((text, &logprobs), out);
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
        let open = self.open.as_ref().and_then(|open| open.call.as_ref());
        if open.is_none_or(|open| open.index != call.index) {
            self.enter(TextKind::Arguments, Some(call.clone()), out);
        }
        if let Some(arguments) = call.arguments.as_deref().filter(|text| !text.is_empty()) {
            self.add_text((arguments, &ChatLogprobs::default()), out);
        }
    }

    fn add_text(&mut self, (text, logprobs): (&str, &ChatLogprobs<'_>), out: &mut EventBuffer) {
        if let Some(open) = &mut self.open {
            open.text.push_str(text);
            let is_message = open.words == TextKind::Text;
            open.logprobs.extend(logprobs.of_message(true).into_iter().filter(|_| is_message));
            self.writer.add_scored(open.place(), text, &logprobs.of_message(false), out);
        }
    }

    fn enter(&mut self, words: TextKind, call: Option<CallDelta>, out: &mut EventBuffer) {
        self.close(out);
        let prefix = match words {
            TextKind::Text | TextKind::Refusal => "msg",
            TextKind::Reasoning => "rs",
            TextKind::Arguments => "fc",
        };
        let id = item_id(prefix, &self.head.id, self.output.len());
        let open = OpenItem { words, call, id, text: String::new(), logprobs: Vec::new() };
        let mut opened = open.value(Status::InProgress);
        if words == TextKind::Reasoning {
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
