//! The closest record and the places in which it differs from a request.

use serde_json::{Value, json};

use super::edit::{excerpt, is_item};
use base::one_line::clipped;
use recording::canonical::{BodyDifference, Operation};

/// Maximum number of differences that are kept.
const MAX_DIFFERENCES: usize = 20;

/// Maximum number of characters of each value in the JSON of a difference.
const LONGEST: usize = 200;

/// Characters that are shown of a message that was added or left out.
const TEXT: usize = 40;

/// A record, as people find it.
pub(crate) struct RecordLocation<'a> {
    /// Its file's name and its number, as `agent.yaml#3`.
    pub(crate) name: String,
    pub(crate) file: &'a str,
    /// Its number there.
    pub(crate) id: u64,
    /// Its line there, from 1.
    pub(crate) line: usize,
    /// Whether it was served.
    pub(crate) is_consumed: bool,
}

/// The closest record and its differences from a request.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// Its file's name and its number, as `agent.yaml#3`.
    pub(crate) name: String,
    /// Its number, file and line, as `#3 (agent.yaml:57)`.
    pub(crate) place: String,
    /// The record as the error's JSON shows it, with its request.
    pub(crate) record: Value,
    pub(crate) differences: Vec<BodyDifference>,
    /// Number of differences, those that are not kept too.
    pub(crate) total: usize,
    /// Description of the numbers of messages, where they differ.
    pub(crate) counts: Option<String>,
    /// Whether the record's request is about the same.
    pub(crate) is_alike: bool,
    /// Whether only the exact form differs, so that a canonical comparison would match.
    pub(crate) is_canonical: bool,
}

impl Comparison {
    /// Compares a record's request, which is shown as `request`, with the one that has none.
    pub(crate) fn new(
        place: RecordLocation<'_>,
        request: &Value,
        (recorded, received): (&Value, &Value),
        mut found: Vec<BodyDifference>,
    ) -> Self {
        let RecordLocation { name, file, id, line, is_consumed } = place;
        let total = found.len();
        found.truncate(MAX_DIFFERENCES);
        Self {
            name,
            place: format!("#{id} ({file}:{line})"),
            counts: counts(recorded, received, &found),
            record: json!({"record": id, "file": file, "line": line, "consumed": is_consumed, "request": request}),
            differences: found,
            total,
            is_alike: false,
            is_canonical: false,
        }
    }

    /// The differences for programs.
    pub(crate) fn json(&self) -> Value {
        self.differences.iter().map(shown).collect()
    }
}

/// Encodes a difference as JSON.
fn shown(difference: &BodyDifference) -> Value {
    let mut shown = json!({"path": clipped(&difference.path, LONGEST), "op": difference.operation.name()});
    if let Some(fields) = shown.as_object_mut() {
        for (name, value) in [("recorded", &difference.recorded), ("received", &difference.received)] {
            let value = value.as_ref().map(|value| match value {
                Value::String(text) => Value::String(clipped(text, LONGEST)),
                Value::Array(_) | Value::Object(_) => Value::String(clipped(&value.to_string(), LONGEST)),
                scalar => scalar.clone(),
            });
            fields.extend(value.map(|value| (name.to_owned(), value)));
        }
        fields.extend(difference.at.map(|at| ("at".to_owned(), at.into())));
    }
    shown
}

/// Describes a message that was added or left out.
fn counts(recorded: &Value, received: &Value, found: &[BodyDifference]) -> Option<String> {
    ["messages", "input"].iter().find_map(|name| {
        let (recorded, received) = (recorded.get(*name)?.as_array()?, received.get(*name)?.as_array()?);
        let list = format!("$.{name}[");
        let first = found.iter().find(|it| it.operation != Operation::Replace && is_item(&it.path, &list))?;
        let (word, message) = match first.operation {
            Operation::Add => ("extra", &first.received),
            Operation::Remove | Operation::Replace => ("missing", &first.recorded),
        };
        let field = |name: &str| message.as_ref().and_then(|message| message.get(name)).and_then(Value::as_str);
        let kind = field("role").map(|role| format!("role {role}")).or(field("type").map(str::to_owned));
        let kind = kind.unwrap_or_else(|| "item".to_owned());
        let text = message
            .as_ref()
            .and_then(|message| text_of(message, TEXT))
            .map(|text| format!(" {text}"))
            .unwrap_or_default();
        let place = first.path.strip_prefix("$.").and_then(|path| path.strip_prefix(name)).unwrap_or_default();
        (recorded.len() != received.len()).then(|| {
            let (had, has) = (recorded.len(), received.len());
            format!("{name}: recorded has {had}, received {has}; first {word} at {place} ({kind}){text}")
        })
    })
}

/// The text of a message in a few words, whole or the first of its parts.
pub(crate) fn text_of(message: &Value, most: usize) -> Option<String> {
    let content = message.get("content")?;
    let part = || content.as_array()?.iter().find_map(|part| part.get("text"));
    let text = if content.is_string() { content } else { part()? };
    Some(excerpt(&Some(text.clone()), None, most)).filter(|text| text != "''")
}
