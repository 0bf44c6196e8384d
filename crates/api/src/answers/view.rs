//! Choices and parts of an answer, read the same way from every endpoint's shape.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{
    list,
    words::{DELTA, OF_MESSAGE, TextKind, words},
};
use crate::Endpoint;

/// One choice of an answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChoiceView<'a> {
    /// Role of the speaker.
    pub role: Option<&'a str>,
    /// Texts and tool calls, in order.
    pub parts: Vec<ChoicePart<'a>>,
    /// Log probabilities of its tokens, in the endpoint's shape.
    pub logprobs: Option<&'a Value>,
    /// Why it ended, in the endpoint's word.
    pub finish_reason: Option<&'a str>,
    /// The stop string that ended it.
    pub stop: Option<&'a str>,
    /// A parser has taken its text apart: it may be that nothing is left.
    pub is_parsed: bool,
}

/// A part of a choice.
#[derive(Debug, Clone, PartialEq)]
pub enum ChoicePart<'a> {
    /// Text of this kind; never empty.
    Words(TextKind, &'a str),
    /// A tool call.
    Call(CallView<'a>),
}

/// A tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct CallView<'a> {
    /// Its id.
    pub id: &'a str,
    /// The tool's name.
    pub name: &'a str,
    /// Its arguments, JSON as text.
    pub arguments: Cow<'a, str>,
}

impl<'a> ChoiceView<'a> {
    /// Reads all choices of a body.
    #[must_use]
    pub fn all(endpoint: Endpoint, body: &'a Map<String, Value>) -> Vec<Self> {
        let text = |name: &str| body.get(name).and_then(Value::as_str);
        match endpoint {
            Endpoint::Chat | Endpoint::Completions => {
                list(body, "choices").iter().filter_map(Value::as_object).map(Self::read).collect()
            }
            Endpoint::Messages => vec![Self {
                role: text("role"),
                parts: list(body, "content").iter().filter_map(block).collect(),
                logprobs: None,
                finish_reason: text("stop_reason"),
                stop: text("stop_sequence"),
                is_parsed: false,
            }],
            Endpoint::Responses => vec![Self {
                role: None,
                parts: list(body, "output").iter().flat_map(item).collect(),
                logprobs: None,
                finish_reason: text("status"),
                stop: None,
                is_parsed: false,
            }],
            Endpoint::Embeddings | Endpoint::Other => Vec::new(),
        }
    }

    /// Reads a choice of a chat or a completion.
    #[must_use]
    pub fn read(choice: &'a Map<String, Value>) -> Self {
        let message = choice.get("message").and_then(Value::as_object);
        let mut parts: Vec<ChoicePart<'a>> = Vec::new();
        if let Some(message) = message {
            let text = |(name, words): &(&str, TextKind)| part(*words, message.get(*name)?);
            parts.extend(OF_MESSAGE.iter().filter_map(text));
            parts.extend(list(message, "tool_calls").iter().map(|call| ChoicePart::Call(CallView::read(call))));
        } else {
            parts.extend(choice.get("text").and_then(|text| part(TextKind::Text, text)));
        }
        Self {
            role: message.and_then(|message| message.get("role")?.as_str()),
            parts,
            logprobs: choice.get("logprobs").filter(|logprobs| !logprobs.is_null()),
            finish_reason: choice.get("finish_reason").and_then(Value::as_str),
            stop: choice.get("stop_reason").and_then(Value::as_str),
            is_parsed: message.is_some_and(|message| message.get("content").is_some_and(Value::is_null)),
        }
    }

    /// All texts one after the other, with names and arguments of calls.
    #[must_use]
    pub fn text(&self) -> String {
        let texts = self.parts.iter().map(|part| match part {
            ChoicePart::Words(_, text) => Cow::Borrowed(*text),
            ChoicePart::Call(call) => Cow::Owned([call.name, &call.arguments].concat()),
        });
        texts.collect()
    }

    /// The same without the names of calls, as records of observed streams have it.
    #[must_use]
    pub fn text_without_names(&self) -> String {
        let texts = self.parts.iter().map(|part| match part {
            ChoicePart::Words(_, text) => Cow::Borrowed(*text),
            ChoicePart::Call(call) => Cow::Borrowed(&*call.arguments),
        });
        texts.collect()
    }

    /// The text, where there is nothing but plain text.
    #[must_use]
    pub fn plain_text(&self) -> Option<String> {
        let plain = self.parts.iter().map(|part| match part {
            ChoicePart::Words(TextKind::Text, text) => Some(*text),
            ChoicePart::Words(..) | ChoicePart::Call(_) => None,
        });
        plain.collect()
    }
}

impl<'a> CallView<'a> {
    /// Reads a call: of a chat, of a message, of a response, or as a cassette shows it.
    pub(crate) fn read(call: &'a Value) -> Self {
        let function = call.get("function").unwrap_or(call);
        let text = |value: Option<&'a Value>| value.and_then(Value::as_str).unwrap_or_default();
        let arguments = match function.get("arguments").or_else(|| function.get("input")) {
            Some(Value::String(text)) => Cow::Borrowed(text.as_str()),
            Some(value) => Cow::Owned(value.to_string()),
            None => Cow::Borrowed(""),
        };
        Self { id: text(call.get("call_id").or_else(|| call.get("id"))), name: text(function.get("name")), arguments }
    }
}

fn part(words: TextKind, text: &Value) -> Option<ChoicePart<'_>> {
    text.as_str().filter(|text| !text.is_empty()).map(|text| ChoicePart::Words(words, text))
}

fn block(block: &Value) -> Option<ChoicePart<'_>> {
    match block.get("type")?.as_str()? {
        "tool_use" => Some(ChoicePart::Call(CallView::read(block))),
        kind => part(words(kind)?, block.get(kind)?),
    }
}

fn item(item: &Value) -> Vec<ChoicePart<'_>> {
    let fields = item.as_object();
    let content = fields.map(|fields| list(fields, "content")).unwrap_or_default();
    match item.get("type").and_then(Value::as_str) {
        Some("function_call" | "custom_tool_call") => vec![ChoicePart::Call(CallView::read(item))],
        Some("reasoning") => content.iter().filter_map(|text| part(TextKind::Reasoning, text.get("text")?)).collect(),
        _ => content.iter().filter_map(output).collect(),
    }
}

fn output(content: &Value) -> Option<ChoicePart<'_>> {
    match content.get("refusal") {
        Some(refusal) => part(TextKind::Refusal, refusal),
        None => part(TextKind::Text, content.get("text")?),
    }
}

/// The text that an event of a stream adds to a choice, with names and arguments of calls; `None` where that is nothing.
#[must_use]
pub fn added_text(event: &Value, choice: usize) -> Option<String> {
    added(event, choice, |choice| choice.text())
}

/// The same without the names of calls.
#[must_use]
pub fn added_text_without_names(event: &Value, choice: usize) -> Option<String> {
    added(event, choice, |choice| choice.text_without_names())
}

fn added(event: &Value, choice: usize, text: fn(&ChoiceView<'_>) -> String) -> Option<String> {
    let added = match event.get("choices").and_then(Value::as_array) {
        Some(choices) => {
            let is_of = |part: &&Value| part.get("index").and_then(Value::as_u64).is_none_or(|at| at == choice as u64);
            let part = choices.iter().find(is_of)?;
            match part.get("delta") {
                Some(delta) => text(&ChoiceView::read(&Map::from_iter([("message".to_owned(), delta.clone())]))),
                None => part.get("text")?.as_str()?.to_owned(),
            }
        }
        None => match event.get(DELTA)? {
            Value::String(text) => text.clone(),
            Value::Object(delta) => delta
                .iter()
                .find_map(|(name, text)| words(name).and_then(|_| text.as_str()))
                .unwrap_or_default()
                .to_owned(),
            _ => return None,
        },
    };
    Some(added).filter(|text| !text.is_empty())
}
