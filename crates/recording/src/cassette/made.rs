//! Answers of hand-written records that are made for each request: in timed parts, for a schema, from another record, the verdict of a
//! guard model, a semantic fault. They stand in an `answer` beside `status` and `headers`.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{error::Wrong, verdict::GuardVerdict};
use crate::yaml::{YamlEntry, YamlKind, YamlNode};
use api::SemanticFault;
use base::units::{Millis, parse_duration};

/// The keys of which each is an answer of its own.
const KEYS: [&str; 5] = ["parts", "schema", "record", "verdict", "semantic"];

const MOST_PARTS: usize = 100_000;

/// An answer that is made for a request.
#[derive(Debug, Clone, PartialEq)]
pub enum MadeAnswer {
    /// Texts, each so long after the one before.
    Parts(Vec<AnswerPart>),
    /// JSON that fits a schema: this one, or the one that the request has.
    Schema(Option<Value>),
    /// The answer of another record, by its `file#id`.
    Record(String),
    /// The verdict of a guard model.
    Verdict(GuardVerdict),
    /// A valid response with wrong content.
    Semantic(SemanticFault),
}

/// A part of an answer that is streamed as one event.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerPart {
    /// Time since the part before, or since the request.
    pub after: Duration,
    /// The field of the message that it adds to: `content` or `reasoning`.
    pub field: &'static str,
    /// What it adds.
    pub text: String,
}

/// Returns whether a key of an answer is read here.
pub(super) fn takes(entries: &[YamlEntry], key: &str) -> bool {
    KEYS.contains(&key) || GuardVerdict::takes(key) && entries.iter().any(|entry| entry.key == "verdict")
}

/// Reads the answer that is made for each request, where there is one.
pub(super) fn read(entries: &[YamlEntry]) -> Result<Option<MadeAnswer>, Wrong> {
    let mut found = entries.iter().filter(|entry| KEYS.contains(&entry.key.as_str()));
    let Some(YamlEntry { key, value, line }) = found.next() else { return Ok(None) };
    if let Some(other) = found.next() {
        return Err(Wrong::at(
            other.line,
            format!("the answer has `{key}` and `{}`: leave one of them out", other.key),
        ));
    }
    let text = |what: &str| {
        let text = value.text().filter(|text| !text.is_empty());
        text.ok_or_else(|| Wrong::at(*line, format!("`answer.{key}` has to be {what}")))
    };
    Ok(Some(match key.as_str() {
        "parts" => MadeAnswer::Parts(parts(value)?),
        "schema" => match &value.kind {
            YamlKind::Map(_) => MadeAnswer::Schema(Some(value.value())),
            YamlKind::Scalar(Value::String(text)) if text == "request" => MadeAnswer::Schema(None),
            _ => return Err(Wrong::at(*line, "`answer.schema` has to be request, or a JSON schema")),
        },
        "record" => MadeAnswer::Record(text("the name of a record, such as agent.yaml#3")?.to_owned()),
        "verdict" => MadeAnswer::Verdict(GuardVerdict::read(entries, *line)?),
        _ => {
            let names = SemanticFault::ALL.map(SemanticFault::name).join(", ");
            let fault = SemanticFault::named(text(&names)?);
            MadeAnswer::Semantic(fault.ok_or_else(|| Wrong::at(*line, format!("`answer.semantic` has to be {names}")))?)
        }
    }))
}

fn parts(node: &YamlNode) -> Result<Vec<AnswerPart>, Wrong> {
    let items = node.items().filter(|items| !items.is_empty() && items.len() <= MOST_PARTS);
    let items = items.ok_or_else(|| {
        Wrong::at(
            node.line,
            format!("`answer.parts` has to be a list such as [{{after: 50ms, text: One}}], of at most {MOST_PARTS}"),
        )
    })?;
    items.iter().map(part).collect()
}

fn part(node: &YamlNode) -> Result<AnswerPart, Wrong> {
    let entries =
        node.entries().ok_or_else(|| Wrong::at(node.line, "a part is a map such as {after: 50ms, text: One}"))?;
    let (mut after, mut added) = (Duration::ZERO, None);
    for YamlEntry { key, line, value } in entries {
        let wrong = |what: &str| Wrong::at(*line, format!("`{key}` of a part has to be {what}"));
        match key.as_str() {
            "after" => {
                let written = value.text().map_or_else(|| value.value().to_string(), str::to_owned);
                after = parse_duration(&written).map_err(|error| wrong(&format!("a duration: {error}")))?;
            }
            "text" | "reasoning" => {
                let field = if key == "text" { "content" } else { "reasoning" };
                let text = value.text().ok_or_else(|| wrong("a text"))?;
                if added.replace((field, text.to_owned())).is_some() {
                    return Err(Wrong::at(*line, "a part has `text` or `reasoning`, and not both"));
                }
            }
            _ => return Err(Wrong::at(*line, format!("`{key}` is none of after, text, reasoning"))),
        }
    }
    let (field, text) = added.ok_or_else(|| Wrong::at(node.line, "a part needs `text` or `reasoning`"))?;
    Ok(AnswerPart { after, field, text })
}

impl MadeAnswer {
    /// Returns whether fields of a choice may stand beside it, such as `tool_calls` and `finish_reason`.
    pub(super) fn has_choice(&self) -> bool {
        matches!(self, Self::Parts(_) | Self::Schema(_))
    }

    /// Paths of the requests that it is for where its record names none; empty where that is every request for text.
    pub(crate) fn routes(&self) -> &'static [&'static str] {
        match self {
            Self::Verdict(verdict) => verdict.kind.routes(),
            Self::Parts(_) | Self::Schema(_) | Self::Record(_) | Self::Semantic(_) => &[],
        }
    }

    /// The texts that people wrote into it.
    pub fn texts_mut(&mut self) -> Vec<&mut String> {
        match self {
            Self::Parts(parts) => parts.iter_mut().map(|part| &mut part.text).collect(),
            Self::Verdict(verdict) => verdict.when.phrases.iter_mut().chain(&mut verdict.categories).collect(),
            Self::Schema(_) | Self::Record(_) | Self::Semantic(_) => Vec::new(),
        }
    }

    /// The keys of the answer as a file shows them.
    pub(super) fn shown(&self) -> Map<String, Value> {
        let one = |key: &str, value: Value| Map::from_iter([(key.to_owned(), value)]);
        match self {
            Self::Parts(parts) => one("parts", parts.iter().map(shown_part).collect()),
            Self::Schema(schema) => one("schema", schema.clone().unwrap_or_else(|| "request".into())),
            Self::Record(name) => one("record", name.clone().into()),
            Self::Verdict(verdict) => verdict.shown(),
            Self::Semantic(fault) => one("semantic", fault.name().into()),
        }
    }
}

fn shown_part(part: &AnswerPart) -> Value {
    let field = if part.field == "content" { "text" } else { part.field };
    match part.after.is_zero() {
        true => json!({ field: part.text }),
        false => json!({"after": format!("{}ms", Millis::from(part.after).0), field: part.text}),
    }
}
