//! Records that were written by hand: conditions on requests (`match`) instead of a request.
//!
//! All conditions of a record have to hold. `any` has none: it is the answer to what no other record answers.
//!
//! See docs/decisions/0083-hand-written-records.md.

use serde_json::{Map, Value, json};

use super::{
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

/// A condition on a request.
#[derive(Debug, Clone)]
pub enum Condition {
    /// A text contains this one: the last message of the user, or a text at a place.
    Contains(Option<FieldPath>, String),
    /// A text has a match of this pattern.
    Regex(Option<FieldPath>, TextPattern),
    /// The value at a place is this one.
    Equals(FieldPath, Value),
    /// So many answers are in the conversation already.
    Turn(u64),
    /// The last message of the conversation is a tool's result, or is not.
    ToolResult(bool),
    /// An expression is true.
    When(String),
}

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

    /// Reads conditions as a file shows them.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn read(shown: &Value) -> Result<Self, FixtureError> {
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
            conditions.extend(of_key(key, value).map_err(|message| wrong(key, message))?);
        }
        Ok(Self { conditions })
    }
}

fn of_key(key: &str, value: &Value) -> Result<Vec<Condition>, String> {
    let needs = |what: &str| format!("`match.{key}` has to be {what}");
    Ok(match key {
        "contains" => {
            let of_text = |place, text: &str| Ok(Condition::Contains(place, text.to_owned()));
            texts(key, value, &of_text)?
        }
        "regex" => texts(key, value, &|place, text: &str| {
            let pattern = text.parse().map_err(|error| format!("`match.{key}`: {error}"))?;
            Ok(Condition::Regex(place, pattern))
        })?,
        "equals" => {
            let fields = value.as_object().filter(|fields| !fields.is_empty());
            let fields = fields.ok_or_else(|| needs("a map of fields to values, such as {temperature: 0}"))?;
            let one = |(name, value): (&String, &Value)| Ok(Condition::Equals(place(key, name)?, value.clone()));
            fields.iter().map(one).collect::<Result<_, String>>()?
        }
        "model" => {
            let model = value.as_str().ok_or_else(|| needs("the name of a model"))?;
            vec![Condition::Equals(place(key, "model")?, model.into())]
        }
        "turn" => {
            let turn = value.as_u64().ok_or_else(|| needs("a number from 0 on: of the answers so far"))?;
            vec![Condition::Turn(turn)]
        }
        "tool_result" => {
            let wanted = value.as_bool().ok_or_else(|| needs("true or false"))?;
            vec![Condition::ToolResult(wanted)]
        }
        "when" => {
            let text = value.as_str().ok_or_else(|| needs("an expression, such as messages|length > 2"))?;
            template::check_expression(text).map_err(|error| format!("`match.when`: {error}"))?;
            vec![Condition::When(text.to_owned())]
        }
        _ => {
            let known = "any, contains, regex, equals, model, turn, tool_result, when";
            return Err(format!("`match.{key}` is no condition: {known}"));
        }
    })
}

/// Makes the condition on a text at a place.
type OfText<'f> = &'f dyn Fn(Option<FieldPath>, &str) -> Result<Condition, String>;

/// Conditions on texts: of the last message of the user, or of fields by their names.
fn texts(key: &str, value: &Value, condition: OfText<'_>) -> Result<Vec<Condition>, String> {
    let wrong = || format!("`match.{key}` has to be a text, a list of texts, or a map of fields to them");
    let all = |at: Option<FieldPath>, value: &Value| -> Result<Vec<Condition>, String> {
        let one =
            |text: &Value| condition(at.clone(), text.as_str().filter(|text| !text.is_empty()).ok_or_else(wrong)?);
        match value {
            Value::Array(list) if !list.is_empty() => list.iter().map(one).collect(),
            text => one(text).map(|condition| vec![condition]),
        }
    };
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let mut conditions = Vec::new();
            for (name, texts) in fields {
                conditions.extend(all(Some(place(key, name)?), texts)?);
            }
            Ok(conditions)
        }
        value => all(None, value),
    }
}

/// A place in a request's body; the sign of the body may be left out.
fn place(key: &str, name: &str) -> Result<FieldPath, String> {
    let is_whole = name.starts_with(['$', '*']);
    let whole = if is_whole { name.to_owned() } else { format!("$.{name}") };
    whole.parse().map_err(|_| {
        format!("`match.{key}`: `{name}` names no field of a request: write model, messages[0].content or **.name")
    })
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
