//! Responses of other families, made from a chat's as the engine makes them: step by step for a stream, or whole.

use std::{borrow::Cow, fmt::Debug};

use serde_json::Value;

use super::{Answer, ChoiceView, TokenCounts};
use crate::DONE;
use net::wire::EventBuffer;
use text::parsers::CallDelta;

/// Text as the engine has it, and its tokens.
#[derive(Debug, Clone, Copy, Default)]
pub struct RawText<'a> {
    /// The text, before anything is taken out of it.
    pub text: &'a str,
    /// Its ids, where the request asks for them.
    pub ids: Option<&'a [u32]>,
}

/// One step of a chat's only choice.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChatStep<'a> {
    /// The step's text, with reasoning and calls in it.
    pub raw: RawText<'a>,
    /// Log probabilities of its tokens as JSON in a chat's form, where the request asks for them.
    pub logprobs: Option<&'a str>,
    /// New text of the answer.
    pub content: Option<&'a str>,
    /// New text of the reasoning.
    pub reasoning: Option<&'a str>,
    /// New text of a refusal.
    pub refusal: Option<&'a str>,
    /// New calls, and more of known ones.
    pub calls: &'a [CallDelta],
    /// Finish reason, on the last step.
    pub finish: Option<&'a str>,
    /// The stop string that ended it.
    pub stop: Option<&'a str>,
}

/// A whole chat with one choice.
#[derive(Debug, Clone)]
pub struct WholeChat<'a> {
    /// Its id.
    pub id: &'a str,
    /// The model, as it is served.
    pub model: &'a str,
    /// Its choice.
    pub choice: ChoiceView<'a>,
    /// Its token counts.
    pub counts: TokenCounts,
    /// Its times, where they are sent.
    pub metrics: Option<Value>,
    /// Its prompt as the model has it.
    pub prompt: RawText<'a>,
    /// Its answer as the model wrote it.
    pub raw: RawText<'a>,
    /// Log probabilities of that in a chat's form, where the request asks for them.
    pub logprobs: Option<Cow<'a, str>>,
}

impl<'a> WholeChat<'a> {
    /// Reads the chat's answer.
    #[must_use]
    pub fn of(chat: &'a Answer) -> Self {
        let choice = chat.choices().into_iter().next().unwrap_or_default();
        Self {
            id: chat.text("id"),
            model: chat.text("model"),
            prompt: RawText::default(),
            raw: RawText::default(),
            logprobs: choice.logprobs.map(|logprobs| logprobs.to_string().into()),
            choice,
            counts: chat.counts(),
            metrics: chat.fields().get("metrics").filter(|metrics| !metrics.is_null()).cloned(),
        }
    }
}

/// Encoder of a chat's response in another family's form.
pub trait FromChat: Debug + Send {
    /// Starts a stream, with the counts before its first token.
    fn start(&mut self, id: &str, model: &str, counts: TokenCounts, out: &mut EventBuffer);

    /// Takes the prompt as the model has it, before the first step.
    fn take_prompt(&mut self, prompt: RawText<'_>);

    /// Appends the events that follow from a step.
    fn add(&mut self, step: &ChatStep<'_>, out: &mut EventBuffer);

    /// Takes the token counts up to here, and the times where they are sent.
    fn count(&mut self, counts: TokenCounts, metrics: Option<Value>);

    /// Ends a stream in which the engine failed, with the payload of the chat's event that reports it. Nothing follows; false where the
    /// connection breaks instead.
    fn fail(&mut self, payload: &str, out: &mut EventBuffer) -> bool;

    /// Ends a stream.
    fn end(&mut self, out: &mut EventBuffer);

    /// Encodes a whole response.
    fn body(&self, chat: &WholeChat<'_>) -> String;
}

/// Reader of a chat's recorded stream, which is encoded in another family's form.
#[derive(Debug)]
pub struct ChatStream {
    to: Box<dyn FromChat>,
    /// Tokens of the prompt, where they are known before the first event.
    prompt: Option<u32>,
    has_started: bool,
    has_failed: bool,
}

impl ChatStream {
    /// Encodes by `to`. A message has the tokens of the prompt in its first event, a chat in its last ones.
    #[must_use]
    pub fn new(to: Box<dyn FromChat>, prompt: Option<u32>) -> Self {
        Self { to, prompt, has_started: false, has_failed: false }
    }

    /// Reads the data of one event and appends the events that follow from it.
    pub fn read(&mut self, data: &str, out: &mut EventBuffer) {
        if self.has_failed {
            return;
        }
        if data == DONE {
            return self.to.end(out);
        }
        let event: &Value = &serde_json::from_str(data).unwrap_or_default();
        let (Some(id), Some(model)) = (event["id"].as_str(), event["model"].as_str()) else {
            self.has_failed = true;
            self.to.fail(data, out);
            return;
        };
        let usage = event.get("usage").filter(|usage| !usage.is_null()).map(TokenCounts::read);
        if !self.has_started {
            self.has_started = true;
            let known = self.prompt.map(|prompt| TokenCounts { prompt: Some(prompt), ..TokenCounts::default() });
            self.to.start(id, model, known.or(usage).unwrap_or_default(), out);
        }
        if let Some(counts) = usage {
            self.to.count(counts, event.get("metrics").filter(|metrics| !metrics.is_null()).cloned());
        }
        if let Some(choice) = event["choices"].get(0) {
            self.add(choice, out);
        }
    }

    fn add(&mut self, choice: &Value, out: &mut EventBuffer) {
        let delta = &choice["delta"];
        let calls: Vec<CallDelta> = delta["tool_calls"].as_array().into_iter().flatten().map(call).collect();
        let logprobs = choice.get("logprobs").filter(|logprobs| !logprobs.is_null()).map(Value::to_string);
        let step = ChatStep {
            raw: RawText::default(),
            logprobs: logprobs.as_deref(),
            content: delta["content"].as_str(),
            // Engines call it by either name.
            reasoning: delta["reasoning"].as_str().or_else(|| delta["reasoning_content"].as_str()),
            refusal: delta["refusal"].as_str(),
            calls: &calls,
            finish: choice["finish_reason"].as_str(),
            stop: choice["stop_reason"].as_str(),
        };
        self.to.add(&step, out);
    }
}

fn call(part: &Value) -> CallDelta {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let function = &part["function"];
    CallDelta {
        index: part["index"].as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or(0),
        id: text(&part["id"]),
        name: text(&function["name"]),
        arguments: text(&function["arguments"]),
        is_nameless: false,
    }
}
