//! Full answers, with every key and null in the engine's order.

use std::{borrow::Cow, sync::Arc};

use super::{
    answers::{CallView, ChoicePart, ChoiceView, words::TextKind},
    escape::{EscapeOutput, put_escaped, put_escaped_or_null, put_ids, put_number},
    stream::{AnswerHead, StopReason, put_reason},
    usage::Usage,
};

/// One choice of a full answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerChoice {
    /// The whole text.
    pub text: String,
    /// Role of the speaker in a chat; `None` for the assistant.
    pub role: Option<Arc<str>>,
    /// A chat's text taken apart, where the server parses it.
    pub message: Option<AnswerMessage>,
    /// Why it ended.
    pub finish: String,
    /// The stop string or token that ended it.
    pub stop_reason: StopReason,
    /// The ids, if the client requested them.
    pub ids: Option<Vec<u32>>,
    /// The prompt's ids, if the client requested them.
    pub prompt_ids: Option<Vec<u32>>,
    /// Log probabilities as JSON, if the client requested them.
    pub logprobs: Option<String>,
    /// Those of the prompt as JSON, if the client requested them.
    pub prompt_logprobs: Option<String>,
    /// Where its blocks are, as JSON, for an engine that goes on with them.
    pub kv_transfer_params: Option<String>,
}

impl AnswerChoice {
    /// The choice of a chat, as a reader of its body would have it.
    pub(super) fn view(&self) -> ChoiceView<'_> {
        let (reasoning, content) = self.texts();
        let texts =
            [(TextKind::Reasoning, reasoning.unwrap_or_default()), (TextKind::Text, content.unwrap_or_default())];
        let words = texts.into_iter().filter(|(_, text)| !text.is_empty());
        let words = words.map(|(words, text)| ChoicePart::Words(words, text));
        let calls = self.calls().iter().map(|call| {
            ChoicePart::Call(CallView { id: &call.id, name: &call.name, arguments: Cow::Borrowed(&call.arguments) })
        });
        let stop = match &self.stop_reason {
            StopReason::Text(stop) => Some(stop.as_str()),
            StopReason::Unnamed | StopReason::Token(_) => None,
        };
        let (role, finish_reason) = (self.role.as_deref(), Some(self.finish.as_str()));
        let is_parsed = self.message.is_some();
        ChoiceView { role, parts: words.chain(calls).collect(), logprobs: None, finish_reason, stop, is_parsed }
    }

    fn texts(&self) -> (Option<&str>, Option<&str>) {
        match &self.message {
            Some(message) => (message.reasoning.as_deref(), message.content.as_deref()),
            None => (None, Some(&self.text)),
        }
    }

    fn calls(&self) -> &[MessageCall] {
        self.message.as_ref().map(|message| message.calls.as_slice()).unwrap_or_default()
    }
}

/// The parts of a chat answer's text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerMessage {
    /// The content.
    pub content: Option<String>,
    /// The reasoning.
    pub reasoning: Option<String>,
    /// The functions that are called.
    pub calls: Vec<MessageCall>,
}

/// A function that is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageCall {
    /// The call's id.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// Its arguments, JSON as text.
    pub arguments: String,
}

/// Bytes of a body beside its head and its texts.
const REST: usize = 640;

/// A chat answer. `prompt_text` if the client requested it.
pub(super) fn chat_body(
    head: &AnswerHead,
    choices: &[AnswerChoice],
    usage: &Usage,
    prompt_text: Option<&str>,
) -> String {
    let mut out = opened(head, choices);
    for (index, choice) in (0..).zip(choices) {
        open_choice(&mut out, index);
        out.put(",\"message\":");
        put_message(&mut out, choice);
        put_choice(&mut out, choice);
        out.put(",\"routed_experts\":null}");
    }
    put_tail(&mut out, head, usage);
    let first = choices.first();
    out.put(",\"prompt_logprobs\":");
    out.put(json_or_null(first.and_then(|choice| choice.prompt_logprobs.as_deref())));
    out.put(",\"prompt_token_ids\":");
    put_ids(&mut out, first.and_then(|choice| choice.prompt_ids.as_deref()));
    out.put(",\"prompt_text\":");
    put_escaped_or_null(&mut out, prompt_text);
    put_end(&mut out, choices.last(), usage);
    out
}

pub(super) fn completion_body(head: &AnswerHead, choices: &[AnswerChoice], usage: &Usage) -> String {
    let mut out = opened(head, choices);
    for (index, choice) in (0..).zip(choices) {
        open_choice(&mut out, index);
        out.put(",\"text\":");
        put_escaped(&mut out, &choice.text);
        put_choice(&mut out, choice);
        out.put(",\"prompt_logprobs\":");
        out.put(json_or_null(choice.prompt_logprobs.as_deref()));
        out.put(",\"prompt_token_ids\":");
        put_ids(&mut out, choice.prompt_ids.as_deref());
        out.put(",\"routed_experts\":null}");
    }
    put_tail(&mut out, head, usage);
    put_end(&mut out, choices.first(), usage);
    out
}

fn opened(head: &AnswerHead, choices: &[AnswerChoice]) -> String {
    let texts: usize = choices.iter().map(|choice| choice.text.len()).sum();
    let mut out = String::with_capacity(head.event_size() + texts + REST);
    head.put_full(&mut out);
    out
}

fn open_choice(out: &mut String, index: u32) {
    out.put(if index == 0 { "{\"index\":" } else { ",{\"index\":" });
    put_number(out, index);
}

/// Fields of a choice besides its content, in both families.
fn put_choice(out: &mut String, choice: &AnswerChoice) {
    out.put(",\"logprobs\":");
    out.put(json_or_null(choice.logprobs.as_deref()));
    out.put(",\"finish_reason\":");
    put_escaped(out, &choice.finish);
    out.put(",\"stop_reason\":");
    put_reason(out, &choice.stop_reason);
    out.put(",\"token_ids\":");
    put_ids(out, choice.ids.as_deref());
}

/// Appends the message of a chat's choice.
pub(super) fn put_message(out: &mut impl EscapeOutput, choice: &AnswerChoice) {
    let (reasoning, content) = choice.texts();
    out.put("{\"role\":");
    put_escaped(out, choice.role.as_deref().unwrap_or("assistant"));
    out.put(",\"content\":");
    put_escaped_or_null(out, content);
    out.put(",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,");
    let calls = choice.calls();
    for (at, call) in calls.iter().enumerate() {
        out.put(if at == 0 { "\"tool_calls\":[" } else { "," });
        put_call(out, call);
    }
    out.put(if calls.is_empty() { "\"reasoning\":" } else { "],\"reasoning\":" });
    put_escaped_or_null(out, reasoning);
    out.put("}");
}

fn put_call(out: &mut impl EscapeOutput, call: &MessageCall) {
    out.put("{\"id\":");
    put_escaped(out, &call.id);
    out.put(",\"type\":\"function\",\"function\":{\"name\":");
    put_escaped(out, &call.name);
    out.put(",\"arguments\":");
    put_escaped(out, &call.arguments);
    out.put("}}");
}

fn put_tail(out: &mut String, head: &AnswerHead, usage: &Usage) {
    out.put("],\"service_tier\":null,\"system_fingerprint\":");
    out.put(head.fingerprint.as_deref().unwrap_or("null"));
    out.put(",\"usage\":");
    usage.put_full(out, head.api);
}

fn put_end(out: &mut String, transferred: Option<&AnswerChoice>, usage: &Usage) {
    out.put(",\"kv_transfer_params\":");
    out.put(json_or_null(transferred.and_then(|choice| choice.kv_transfer_params.as_deref())));
    out.put(",\"ec_transfer_params\":null,\"metrics\":");
    usage.put_full_times(out);
    out.put("}");
}

pub(crate) fn json_or_null(json: Option<&str>) -> &str {
    json.unwrap_or("null")
}
