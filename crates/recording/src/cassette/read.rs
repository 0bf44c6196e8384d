//! From a node to a record, its body not yet expanded.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

use super::{
    error::Wrong,
    fixture,
    header::{date, map, number, text, texts},
    json_added,
    made::{self, MadeAnswer},
    moments::{Moment, Sidecar, Times},
    record::{
        AnswerContent, BreakForm, CassetteRecord, Echo, PlannedFault, RecordedAnswer, SseEvent, TransportFault,
        ValueSource,
    },
};
use crate::{
    redaction::{NoPlaceholder, Placeholder},
    yaml::{YamlEntry, YamlKind, YamlNode},
};

/// No answer takes longer, in milliseconds: a year.
const LONGEST: f64 = 366.0 * 86_400_000.0;

/// A record as it is written: its body may be what differs from another one.
pub(super) struct WrittenRecord {
    pub(super) record: CassetteRecord,
    pub(super) id: Option<u64>,
    pub(super) unknown: Vec<(usize, String)>,
    /// The names of the request's and the answer's body in the sidecar, with their lines.
    pub(super) blobs: [Option<(usize, String)>; 2],
    /// The line of the answer's JSON, where it is what differs from another one.
    pub(super) json_added: Option<usize>,
}

/// Reads a record, or finds every entry that is wrong, or else what is wrong with it as a whole.
pub(super) fn record(node: &YamlNode) -> Result<WrittenRecord, Vec<Wrong>> {
    let entries = node.entries().ok_or_else(|| Wrong::at(node.line, "a record has to be a map"))?;
    let mut record = CassetteRecord {
        line: node.line,
        answer: RecordedAnswer { status: 200, ..RecordedAnswer::default() },
        ..CassetteRecord::default()
    };
    let (mut id, mut unknown) = (None, Vec::new());
    let blobs = [blob_of(Some(node))?, blob_of(node.get("answer"))?];
    let mut take = |entry: &YamlEntry| {
        let value = &entry.value;
        match entry.key.as_str() {
            "id" => id = Some(number(value, "id")?),
            "at" => drop(text(value, "at")?),
            "request" => (record.method, record.path) = request_line(value)?,
            "headers" => record.headers = headers(value)?,
            "body" => record.body = value.value().into(),
            "body_text" => record.body = Value::String(text(value, "body_text")?).into(),
            "body_base64" => record.raw = Some(bytes(value)?),
            // Its bytes are read later, where the place of the sidecar is known.
            "body_blob" => record.raw = Some(Vec::new()),
            "like" => record.like = Some(number(value, "like")?),
            "echo" => record.echo = repeated(value)?,
            "cached" => record.cached = Some(numbers(value, "cached")?),
            "retry_of" => record.retry_of = Some(number(value, "retry_of")?),
            "aborted" => record.aborted = Some(number(value, "aborted")?),
            "group" => record.group = Some(text(value, "group")?),
            "tags" => record.tags = texts(value, "tags")?,
            "put_back" => record.put_back = put_back(value)?,
            "timing" => record.side = Some(timing(value)?),
            "answer" => record.answer = answer(value, &mut unknown)?,
            "match" => fixture::read(&mut record, node, value)?,
            "times" => record.times = Some(fixture::times(value)?),
            key => unknown.push((entry.line, key.to_owned())),
        }
        Ok(())
    };
    let wrong: Vec<Wrong> = entries.iter().filter_map(|entry| take(entry).err()).collect();
    if !wrong.is_empty() {
        return Err(wrong);
    }
    fixture::as_completion(&mut record);
    let json_added = node.get("answer").and_then(|answer| answer.get(json_added::KEY)).map(|node| node.line);
    check(&record, node, json_added)?;
    Ok(WrittenRecord { record, id, unknown, blobs, json_added })
}

/// Checks that a record is complete, and that its fields go together.
fn check(record: &CassetteRecord, node: &YamlNode, json_added: Option<usize>) -> Result<(), Wrong> {
    let wrong = |message| Err(Wrong::at(node.line, message));
    if node.get("answer").is_none() {
        return wrong("the record has no `answer`");
    }
    if record.method.is_empty() && record.like.is_none() && !record.is_fixture {
        return wrong("the record has no `request`, such as `POST /v1/chat/completions`");
    }
    if record.raw.is_some() && !record.body.is_null() {
        return wrong("the request has more than one body");
    }
    if record.answer.made.is_some() && !record.is_fixture {
        return wrong("an answer that is made for each request needs `match` instead of a request");
    }
    if let Some(PlannedFault { line, text }) = record.answer.planned.as_ref().filter(|_| !record.is_fixture) {
        return Err(Wrong::at(*line, format!("`{text}` is no fault of a recorded answer: reset, truncate or stall")));
    }
    json_added
        .filter(|_| record.like.is_none())
        .map_or(Ok(()), |line| Err(Wrong::at(line, "`json+` needs `like`, the record whose answer it changes")))
}

fn blob_of(node: Option<&YamlNode>) -> Result<Option<(usize, String)>, Wrong> {
    let named = node.and_then(|node| node.get("body_blob"));
    named.map(|named| text(named, "body_blob").map(|name| (named.line, name))).transpose()
}

fn numbers(node: &YamlNode, key: &str) -> Result<Vec<u64>, Wrong> {
    let items = node.items().ok_or_else(|| Wrong::at(node.line, format!("`{key}` has to be a list of numbers")))?;
    items.iter().map(|item| number(item, key)).collect()
}

fn put_back(node: &YamlNode) -> Result<Vec<(Placeholder, ValueSource)>, Wrong> {
    let entries = node.entries().ok_or_else(|| Wrong::at(node.line, "`put_back` has to be a map of placeholders"))?;
    let wrong = |line: usize, error: &dyn fmt::Display| Wrong::at(line, format!("`put_back`: {error}"));
    let one = |entry: &YamlEntry| {
        let placeholder = entry.key.parse().map_err(|error: NoPlaceholder| wrong(entry.line, &error))?;
        let source = text(&entry.value, "put_back")?.parse().map_err(|error: String| wrong(entry.line, &error))?;
        Ok((placeholder, source))
    };
    entries.iter().map(one).collect()
}

fn repeated(node: &YamlNode) -> Result<Echo, Wrong> {
    node.text().and_then(Echo::named).ok_or_else(|| Wrong::at(node.line, "`echo` has to be plain, whole, text or bare"))
}

fn request_line(node: &YamlNode) -> Result<(String, String), Wrong> {
    let wrong = || Wrong::at(node.line, "`request` has to be a method and a path, such as `POST /v1/chat/completions`");
    let line = node.text().ok_or_else(wrong)?;
    let (method, path) = line.split_once(' ').ok_or_else(wrong)?;
    let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    if is_method && path.starts_with('/') { Ok((method.to_owned(), path.to_owned())) } else { Err(wrong()) }
}

fn headers(node: &YamlNode) -> Result<Vec<(String, String)>, Wrong> {
    let wrong = |line| Wrong::at(line, "`headers` has to be a map of names to texts, or to lists of them");
    let mut found = Vec::new();
    for entry in node.entries().ok_or_else(|| wrong(node.line))? {
        let name = entry.key.to_ascii_lowercase();
        let one = |value: &YamlNode| match &value.kind {
            YamlKind::Scalar(Value::String(text)) => Ok(text.clone()),
            YamlKind::Scalar(scalar) => Ok(scalar.to_string()),
            YamlKind::List(_) | YamlKind::Map(_) => Err(wrong(value.line)),
        };
        match entry.value.items() {
            Some(items) => {
                for item in items {
                    found.push((name.clone(), one(item)?));
                }
            }
            None => found.push((name, one(&entry.value)?)),
        }
    }
    Ok(found)
}

/// Fields of the only choice, which stand in the answer itself.
pub(super) const OF_CHOICE: [&str; 7] =
    ["message", "text", "finish_reason", "native_finish_reason", "stop_reason", "logprobs", "index"];

fn timing(node: &YamlNode) -> Result<Sidecar, Wrong> {
    let wrong = |line, key| Wrong::at(line, format!("`timing.{key}`: times are milliseconds, from 0 on"));
    let time = |node: &YamlNode, key| {
        node.value().as_f64().filter(|ms| (0.0..=LONGEST).contains(ms)).ok_or_else(|| wrong(node.line, key))
    };
    let mut side = Sidecar { times: Times::Inline, ..Sidecar::default() };
    for entry in node.entries().ok_or_else(|| Wrong::at(node.line, "`timing` has to be a map"))? {
        let value = &entry.value;
        match entry.key.as_str() {
            "recorded_at" => side.recorded_at = Some(date(value, "recorded_at")?),
            "ms" => side.ms = time(value, "ms")?,
            "events" => {
                let items = value.items().ok_or_else(|| wrong(value.line, "events"))?;
                let moment = |item| time(item, "events").map(|ms| Moment(ms, None, None));
                side.events = items.iter().map(moment).collect::<Result<Vec<_>, _>>()?.into();
            }
            key => return Err(Wrong::at(entry.line, format!("`{key}` is none of recorded_at, ms, events"))),
        }
    }
    Ok(side)
}

impl RecordedAnswer {
    /// Reads an answer as a file shows it.
    ///
    /// # Errors
    /// When it is none; the text gives the reason.
    pub fn from_shown(shown: &Value) -> Result<Self, String> {
        let node = crate::yaml::parse(&shown.to_string()).map_err(|error| error.message)?;
        answer(&node, &mut Vec::new()).map_err(|wrong| wrong.message)
    }
}

fn answer(node: &YamlNode, unknown: &mut Vec<(usize, String)>) -> Result<RecordedAnswer, Wrong> {
    if let Some(text) = node.text() {
        return Ok(fixture::text_answer(text));
    }
    let entries = node.entries().ok_or_else(|| Wrong::at(node.line, "`answer` has to be a map, or a text"))?;
    let mut answer = RecordedAnswer { status: 200, ..RecordedAnswer::default() };
    let (mut fault, mut after_events) = (None, 0);
    let (mut choices, mut usage) = (Vec::new(), None);
    let mut bodies: Vec<AnswerContent> = Vec::new();
    for entry in entries {
        let value = &entry.value;
        match entry.key.as_str() {
            "status" => answer.status = status(value)?,
            "headers" => answer.headers = headers(value)?,
            "fault" => fault = Some((value.line, text(value, "fault")?)),
            "after_events" => after_events = number(value, "after_events")?,
            "choices" => {
                let items = value.items().ok_or_else(|| Wrong::at(value.line, "`choices` has to be a list"))?;
                choices = items.iter().map(|item| map(item, "choices")).collect::<Result<_, _>>()?;
            }
            "usage" => usage = Some(value.value()).filter(|usage| !usage.is_null()),
            "json" | json_added::KEY => bodies.push(AnswerContent::Json(value.value())),
            "error" => bodies.push(AnswerContent::Json(serde_json::json!({"error": value.value()}))),
            "events" => bodies.push(AnswerContent::Events(events(value)?)),
            "body_text" => bodies.push(AnswerContent::Text(text(value, "body_text")?)),
            "body_base64" => bodies.push(AnswerContent::Bytes(bytes(value)?)),
            // Its bytes are read later, where the place of the sidecar is known.
            "body_blob" => bodies.push(AnswerContent::Bytes(Vec::new())),
            key if fixture::OF_MESSAGE.contains(&key) || OF_CHOICE.contains(&key) || made::takes(entries, key) => {}
            key => unknown.push((entry.line, format!("answer.{key}"))),
        }
    }
    choices.extend(only_choice(node, entries)?);
    if !choices.is_empty() {
        bodies.push(AnswerContent::Choices { choices, usage });
    }
    if bodies.len() > 1 {
        return Err(Wrong::at(node.line, "the answer has more than one body"));
    }
    answer.content = bodies.pop().unwrap_or_default();
    answer.made = made_beside(&answer.content, node)?;
    if let Some((line, text)) = fault {
        let after_events = usize::try_from(after_events).unwrap_or(usize::MAX);
        answer.fault = BreakForm::named(&text).map(|form| TransportFault { form, after_events });
        answer.planned = answer.fault.is_none().then_some(PlannedFault { line, text });
    }
    Ok(answer)
}

/// Reads the fields of the only choice and of its message, which stand in the answer itself; `None` without any.
fn only_choice(node: &YamlNode, entries: &[YamlEntry]) -> Result<Option<Map<String, Value>>, Wrong> {
    let fields = |names: &[&str]| -> Map<String, Value> {
        let entries = entries.iter().filter(|entry| names.contains(&entry.key.as_str()));
        entries.map(|entry| (entry.key.clone(), entry.value.value())).collect()
    };
    let (mut choice, message) = (fields(&OF_CHOICE), fields(&fixture::OF_MESSAGE));
    if !message.is_empty() {
        if choice.contains_key("message") || choice.contains_key("text") {
            return Err(Wrong::at(node.line, "the answer has `message` or `text`, and fields of a message beside it"));
        }
        choice.insert("message".to_owned(), fixture::message(message));
    }
    Ok(Some(choice).filter(|choice| !choice.is_empty()))
}

/// Reads the answer that is made for each request, which may stand beside a choice without a text only.
fn made_beside(content: &AnswerContent, node: &YamlNode) -> Result<Option<MadeAnswer>, Wrong> {
    let made = made::read(node.entries().unwrap_or_default())?;
    if let Some(made) = &made {
        let has_text = node.get("content").is_some() || node.get("message").is_some() || node.get("text").is_some();
        let is_choice = matches!(content, AnswerContent::Choices { .. }) && made.has_choice() && !has_text;
        if *content != AnswerContent::Empty && !is_choice {
            return Err(Wrong::at(node.line, "the answer has more than one body"));
        }
    }
    Ok(made)
}

fn status(node: &YamlNode) -> Result<u16, Wrong> {
    let number = node.number().filter(|number| (200..600).contains(number));
    number
        .and_then(|number| u16::try_from(number).ok())
        .ok_or_else(|| Wrong::at(node.line, "`status` has to be the HTTP status of an answer, such as 200"))
}

fn events(node: &YamlNode) -> Result<Vec<SseEvent>, Wrong> {
    let items = node.items().ok_or_else(|| Wrong::at(node.line, "`events` has to be a list"))?;
    let one = |item: &YamlNode| {
        let data = item.get("data").ok_or_else(|| Wrong::at(item.line, "an event needs `data`"))?;
        Ok(SseEvent { name: item.get("event").and_then(YamlNode::text).map(str::to_owned), data: data.value() })
    };
    items.iter().map(one).collect()
}

fn bytes(node: &YamlNode) -> Result<Vec<u8>, Wrong> {
    let text = text(node, "body_base64")?;
    let digits: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    STANDARD.decode(digits).map_err(|_| Wrong::at(node.line, "`body_base64` is no base64"))
}
