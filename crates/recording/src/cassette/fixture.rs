//! Records that were written by hand: conditions on requests (`match`) instead of a request.
//!
//! All conditions of a record have to hold. `any` has none: it is the answer to what no other record answers.
//!
//! See docs/decisions/0083-hand-written-records.md.

use serde_json::{Map, Value, json};

use super::{
    condition::{self, Condition, MessageScope},
    error::Wrong,
    record::{AnswerContent, CassetteRecord, RecordedAnswer},
    template,
};
use crate::{
    canonical::{FieldPath, TextPattern},
    yaml::{YamlKind, YamlNode},
};
use api::Endpoint;

/// The key of conditions, in a file and in the body of a record that has them.
pub(super) const MATCH: &str = "match";

/// Number of times that stands for any number.
const ALWAYS: &str = "always";

/// Keys of a record that conditions stand instead of.
const OF_REQUESTS: [&str; 10] =
    ["body", "body_text", "body_base64", "body_blob", "headers", "like", "echo", "cached", "retry_of", "aborted"];

/// Something that is wrong with conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixtureError {
    /// The key; empty for all of them.
    pub key: String,
    /// What is wrong, and what to write.
    pub message: String,
}

/// Conditions of a record that was written by hand; none of them for `any`.
#[derive(Debug, Clone, Default)]
pub struct Fixture {
    /// All have to hold.
    pub conditions: Vec<Condition>,
    /// The messages whose texts they look at.
    pub scope: MessageScope,
}

impl Fixture {
    /// Reads the conditions of a record; `None` for a record of a request.
    #[must_use]
    pub fn of(record: &CassetteRecord) -> Option<Self> {
        if !record.is_fixture {
            return None;
        }
        Self::read(record.body.get(MATCH)?).ok()
    }

    /// Reads conditions as a file shows them; else finds the first thing that is wrong.
    pub(crate) fn read(shown: &Value) -> Result<Self, FixtureError> {
        let wrong = |key: &str, message: String| FixtureError { key: key.to_owned(), message };
        let fields = match shown {
            Value::String(any) if any == "any" => return Ok(Self::default()),
            Value::Object(fields) if !fields.is_empty() => fields,
            _ => {
                return Err(wrong("", "`match` has to be `any`, or a map such as {contains: weather}".to_owned()));
            }
        };
        if let Some(any) = fields.get("any") {
            let is_alone = fields.len() == 1 && *any == Value::Bool(true);
            let message = "`match.any` stands alone and is true; leave it out beside other conditions".to_owned();
            return if is_alone { Ok(Self::default()) } else { Err(wrong("any", message)) };
        }
        let mut conditions = Vec::new();
        for (key, value) in fields {
            conditions.extend(condition::of_key(key, value).map_err(|message| wrong(key, message))?);
        }
        let scope = MessageScope::read(fields).map_err(|(key, message)| wrong(key, message))?;
        Ok(Self { conditions, scope })
    }

    /// Returns whether it is for any request: it is tried after all others.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.conditions.is_empty() && self.scope.is_default()
    }

    /// Returns whether every request that fulfils the conditions of another one fulfils these too, as far as their texts show it.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let is_text =
            |condition: &&Condition| matches!(condition, Condition::Contains(None, _) | Condition::Regex(None, _));
        let looks_alike = self.scope == other.scope
            || self.scope.is_default() && !self.conditions.iter().any(|condition| is_text(&condition));
        looks_alike && self.conditions.iter().all(|own| other.conditions.iter().any(|theirs| own.holds_where(theirs)))
    }

    /// The first regular expression, whose groups templates may name as `match`.
    #[must_use]
    pub fn pattern(&self) -> Option<(Option<&FieldPath>, &TextPattern)> {
        self.conditions.iter().find_map(|condition| match condition {
            Condition::Regex(place, pattern) => Some((place.as_ref(), pattern)),
            _ => None,
        })
    }
}

/// Reads the conditions of a record into it, and checks that nothing stands beside them that would have no effect.
pub(super) fn read(record: &mut CassetteRecord, node: &YamlNode, shown: &YamlNode) -> Result<(), Wrong> {
    let entries = node.entries().unwrap_or_default();
    if let Some(entry) = entries.iter().find(|entry| OF_REQUESTS.contains(&entry.key.as_str())) {
        let key = &entry.key;
        return Err(Wrong::at(
            shown.line,
            format!(
                "a record has no `match` of its own beside `{key}`: leave `{key}` out, so that the record answers the requests that match; \
                 or leave `match` out, so that it answers the request that it shows"
            ),
        ));
    }
    let value = shown.value();
    if let Err(FixtureError { key, message }) = Fixture::read(&value) {
        let line = shown.entries().unwrap_or_default().iter().find(|entry| entry.key == key).map(|entry| entry.line);
        return Err(Wrong::at(line.unwrap_or(shown.line), message));
    }
    if let Some(answer) = node.get("answer") {
        check_templates(answer)?;
    }
    record.is_fixture = true;
    record.body = json!({ MATCH: value }).into();
    Ok(())
}

fn check_templates(node: &YamlNode) -> Result<(), Wrong> {
    match &node.kind {
        YamlKind::Scalar(Value::String(text)) if template::is_template(text) => {
            template::check(text).map_err(|error| {
                let hint = "a value of the request is written {{ model }}, braces that stay {% raw %}{{ }}{% endraw %}";
                Wrong::at(node.line, format!("the answer is no template: {error}; {hint}"))
            })
        }
        YamlKind::Scalar(_) => Ok(()),
        YamlKind::List(items) => items.iter().try_for_each(check_templates),
        YamlKind::Map(entries) => entries.iter().try_for_each(|entry| check_templates(&entry.value)),
    }
}

/// Reads how often a record may be served.
pub(super) fn times(node: &YamlNode) -> Result<u64, Wrong> {
    let any = (node.text() == Some(ALWAYS)).then_some(u64::MAX);
    any.or(node.number().filter(|times| *times > 0))
        .ok_or_else(|| Wrong::at(node.line, "`times` has to be a number from 1 on, or always"))
}

pub(super) fn shown_times(times: u64) -> Value {
    if times == u64::MAX { ALWAYS.into() } else { times.into() }
}

/// Reads an answer that is only a text.
pub(super) fn text_answer(text: &str) -> RecordedAnswer {
    let message = message(Map::from_iter([("content".to_owned(), text.into())]));
    let choices = vec![Map::from_iter([("message".to_owned(), message)])];
    RecordedAnswer {
        status: 200,
        content: AnswerContent::Choices { choices, usage: None },
        ..RecordedAnswer::default()
    }
}

/// The keys of an answer that are fields of its message.
pub(super) const OF_MESSAGE: [&str; 3] = ["content", "reasoning", "tool_calls"];

pub(super) fn message(mut fields: Map<String, Value>) -> Value {
    let mut message = Map::new();
    message.insert("role".to_owned(), "assistant".into());
    message.insert("content".to_owned(), fields.shift_remove("content").unwrap_or_default());
    message.extend(fields);
    message.into()
}

pub(super) fn as_completion(record: &mut CassetteRecord) {
    let AnswerContent::Choices { choices, .. } = &mut record.answer.content else { return };
    if record.path.split('?').next().map(Endpoint::of_path) != Some(Endpoint::Completions) {
        return;
    }
    for choice in choices {
        let content = choice.get("message").and_then(|message| message.get("content"));
        if let Some(text) = content.filter(|content| content.is_string()).cloned() {
            choice.shift_remove("message");
            choice.shift_insert(0, "text".to_owned(), text);
        }
    }
}

/// An answer as short as it can be written; `None` where it has more than a message.
pub(super) fn short(fields: &Map<String, Value>) -> Option<Value> {
    let plain = |name: &str, value: &Value| name == "message" || (name == "status" && *value == json!(200));
    if !fields.iter().all(|(name, value)| plain(name, value)) {
        return None;
    }
    let mut message = fields.get("message")?.as_object()?.clone();
    if message.shift_remove("role")? != "assistant" || !message.keys().all(|key| OF_MESSAGE.contains(&key.as_str())) {
        return None;
    }
    match (message.len(), message.get("content")) {
        (1, Some(Value::String(text))) => Some(text.clone().into()),
        (2.., Some(Value::Null)) => {
            message.shift_remove("content");
            Some(message.into())
        }
        _ => Some(message.into()),
    }
}
