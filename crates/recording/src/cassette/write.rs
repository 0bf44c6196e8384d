//! From records to text, the same text for the same records.

use std::collections::HashMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use super::{
    FORMAT, blob,
    echo::{conversation_of, echo, stand_alone},
    fixture,
    header::Header,
    json_added, large,
    made::MadeAnswer,
    message::{means_same, short_message},
    moments::{Moment, Sidecar, Times},
    read::OF_CHOICE,
    record::{AnswerContent, CassetteRecord, Echo, RecordedAnswer, SseEvent},
    threads::marked,
};
use crate::{
    canonical,
    yaml::{self, Layout},
};

const GREETING: &str = "# vllm-vcr cassette. Edit answers freely; editing a request changes what it matches.\n";

/// A whole cassette: records that continue others (`like`) show what is new in them, and tools are shown once.
#[must_use]
pub fn emit(header: &Header, records: &[CassetteRecord], tools: &Map<String, Value>) -> String {
    text(header, records, Some(tools.clone()))
}

/// A whole cassette with every request in full.
#[must_use]
pub fn emit_expanded(header: &Header, records: &[CassetteRecord]) -> String {
    text(header, records, None)
}

/// A whole cassette; without `tools` every request is in full.
fn text(header: &Header, records: &[CassetteRecord], mut tools: Option<Map<String, Value>>) -> String {
    let mut out = top(header);
    out.push_str(if records.is_empty() { "records: []\n" } else { "records:\n" });
    let mut earlier: HashMap<u64, &CassetteRecord> = HashMap::new();
    for record in records {
        let base = record.like.filter(|_| tools.is_some());
        let base = base.and_then(|like| earlier.get(&like).copied());
        earlier.entry(record.id).or_insert(record);
        let define = tools.as_mut().map_or(ToolsForm::Inline, ToolsForm::Open);
        record_text(&mut out, record, base, define, 0);
    }
    tools.iter().for_each(|tools| tools_text(&mut out, tools));
    out
}

#[derive(Debug)]
pub(super) enum ToolsForm<'a> {
    /// By name; definitions are added.
    Open(&'a mut Map<String, Value>),
    /// By name where the definition is among these.
    Closed(&'a Map<String, Value>),
    /// In full.
    Inline,
}

/// Everything before the records.
pub(super) fn top(header: &Header) -> String {
    let mut out = GREETING.to_owned();
    let mut fields = Map::new();
    fields.insert("vcr".to_owned(), FORMAT.into());
    fields.insert("key".to_owned(), canonical::VERSION.into());
    fields.extend(header.fields());
    yaml::write(&mut out, &fields, 0, Layout::Compact);
    out
}

pub(super) fn tools_text(out: &mut String, tools: &Map<String, Value>) {
    if !tools.is_empty() {
        out.push_str("tools:\n");
        yaml::write(out, tools, 2, Layout::Compact);
    }
}

/// Appends a record as an item of a list at this column. Tools are shown by name where `tools` takes or has their definition.
pub(super) fn record_text(
    out: &mut String,
    record: &CassetteRecord,
    base: Option<&CassetteRecord>,
    tools: ToolsForm<'_>,
    indent: usize,
) {
    let is_full = matches!(tools, ToolsForm::Inline);
    let changes = base.and_then(|base| changes(record, base));
    let base = base.filter(|_| changes.is_some());
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| {
        fields.insert(name.to_owned(), value);
    };
    head(record, base).into_iter().for_each(|(name, value)| put(name, value));
    let body = changes.map_or_else(|| record.body.value(), Value::Object);
    match body {
        Value::Null => record.raw.iter().map(|it| shown_bytes(it)).for_each(|(name, value)| put(name, value)),
        Value::String(text) => put("body_text", text.into()),
        Value::Object(fields) if record.is_fixture => fields.into_iter().for_each(|(name, value)| put(&name, value)),
        body => put("body", name_tools(body, tools)),
    }
    notes(record).into_iter().for_each(|(name, value)| put(name, value));
    let mut answer = answer_fields(&record.answer);
    if let Some(base) = base {
        json_added::shorten(&mut answer, &record.answer, &base.answer);
    }
    put("answer", fixture::short(&answer).filter(|_| record.is_fixture).unwrap_or_else(|| answer.into()));
    if let Some(side) = record.side.as_ref().filter(|side| side.times == Times::Inline) {
        put("timing", timing(side));
    }
    large::put_beside(&mut fields, |text, part| !is_full && !record.holds_large && part.is_beside(text));
    let mut lines = String::new();
    yaml::write(&mut lines, &fields, indent + 2, Layout::Block);
    out.extend(std::iter::repeat_n(' ', indent));
    out.push('-');
    out.push_str(lines.get(indent + 1..).unwrap_or_default());
}

/// The fields of a record before the body of its request; `base` is the record that it continues.
fn head(record: &CassetteRecord, base: Option<&CassetteRecord>) -> Vec<(&'static str, Value)> {
    let mut head: Vec<(&'static str, Value)> = vec![("id", record.id.into())];
    if !record.is_fixture {
        let path = record.path.split('?').next().unwrap_or_default();
        let upstream = canonical::upstream_suffix(&record.headers);
        head.push(("at", (canonical::boundary(&record.method, path, record.body.fields()) + &upstream).into()));
    }
    if let Some(base) = base {
        head.push(("like", base.id.into()));
        head.extend((record.echo != Echo::Plain).then(|| ("echo", record.echo.name().into())));
        head.extend(record.cached.as_ref().map(|cached| ("cached", cached.clone().into())));
    }
    let is_as_base = base.is_some_and(|base| (&record.method, &record.path) == (&base.method, &base.path));
    if !(record.method.is_empty() || is_as_base) {
        head.push(("request", format!("{} {}", record.method, record.path).into()));
    }
    head.extend((!record.headers.is_empty()).then(|| ("headers", headers(&record.headers))));
    head
}

/// The fields of a record between its request and its answer.
fn notes(record: &CassetteRecord) -> Vec<(&'static str, Value)> {
    let mut notes: Vec<(&'static str, Value)> = Vec::new();
    notes.extend(record.retry_of.map(|id| ("retry_of", id.into())));
    notes.extend(record.aborted.map(|events| ("aborted", events.into())));
    notes.extend(record.times.map(|times| ("times", fixture::shown_times(times))));
    notes.extend(record.group.as_ref().map(|group| ("group", group.clone().into())));
    if !record.tags.is_empty() {
        notes.push(("tags", record.tags.clone().into()));
    }
    if !record.put_back.is_empty() {
        let entries = record.put_back.iter().map(|(it, source)| (it.short(), source.to_string().into()));
        notes.push(("put_back", Value::Object(entries.collect())));
    }
    notes
}

fn timing(side: &Sidecar) -> Value {
    let mut fields = Map::new();
    fields.extend(side.recorded_at.iter().map(|at| ("recorded_at".to_owned(), at.clone().into())));
    fields.insert("ms".to_owned(), side.ms.into());
    if !side.events.is_empty() {
        let times: Vec<f64> = side.events.iter().map(|Moment(ms, ..)| *ms).collect();
        fields.insert("events".to_owned(), times.into());
    }
    fields.into()
}

/// Returns true if the additions of a record to another one can be written: null in them means that a field is removed.
pub(super) fn can_continue(record: &CassetteRecord, base: &CassetteRecord) -> bool {
    let (Some(body), Some(before)) = (record.body.fields().as_object(), base.body.fields().as_object()) else {
        return false;
    };
    let is_shared = |name: &str| record.body.list() == Some(name);
    body.iter().all(|(name, value)| !value.is_null() || is_shared(name) || before.get(name) == Some(value))
}

/// Returns the additions of a body to the record that it continues; `None` if it does not continue it.
fn changes(record: &CassetteRecord, base: &CassetteRecord) -> Option<Map<String, Value>> {
    if !can_continue(record, base) {
        return None;
    }
    let (body, before) = (record.body.fields().as_object()?, base.body.fields().as_object()?);
    let mut changes = Map::new();
    let list = record.body.list();
    if let (Some(list), Some(added)) = (list, added_messages(record, base)) {
        changes.insert(format!("{list}+"), added.into());
    } else if record.body.messages() != base.body.messages()
        || ["messages", "input"].iter().any(|name| body.get(*name) != before.get(*name))
    {
        return None;
    }
    for (name, value) in body.iter().filter(|(name, _)| Some(name.as_str()) != list) {
        if before.get(name) != Some(value) {
            changes.insert(name.clone(), value.clone());
        }
    }
    for name in before.keys().filter(|name| !body.contains_key(*name)) {
        changes.insert(name.clone(), Value::Null);
    }
    Some(changes)
}

/// The messages after those of the earlier request and its answer.
fn added_messages(record: &CassetteRecord, base: &CassetteRecord) -> Option<Vec<Value>> {
    let (messages, (list, earlier)) = (record.body.messages()?, conversation_of(&base.body)?);
    if record.body.list() != Some(list) {
        return None;
    }
    let echoed = echo(&base.answer, record.echo)?;
    if let Some((first, added)) = messages.since(&earlier).as_deref().and_then(|new| new.split_at_checked(echoed.len()))
        && first.iter().copied().eq(&echoed)
    {
        let added: Vec<Value> = added.iter().copied().cloned().collect();
        return (!stand_alone(&base.answer, &added)).then_some(added);
    }
    if messages.len() <= earlier.len() {
        return None;
    }
    let all: Vec<Value> = messages.iter().cloned().collect();
    let known = marked(earlier.iter().cloned().chain(echoed).collect(), record.cached.as_deref());
    let (start, added) = all.split_at_checked(known.len())?;
    let is_after = !stand_alone(&base.answer, added) && means_same(&Value::from(start), &Value::from(known));
    is_after.then(|| added.to_vec())
}

fn headers(headers: &[(String, String)]) -> Value {
    let mut map: Map<String, Value> = Map::new();
    for (name, value) in headers {
        match map.get_mut(name) {
            None => drop(map.insert(name.clone(), value.clone().into())),
            Some(Value::Array(list)) => list.push(value.clone().into()),
            Some(one) => *one = json!([one.clone(), value]),
        }
    }
    map.into()
}

fn name_tools(mut body: Value, mut tools: ToolsForm<'_>) -> Value {
    let listed = body.get_mut("tools").and_then(Value::as_array_mut);
    for tool in listed.map(Vec::as_mut_slice).unwrap_or_default() {
        if let Some(name) = name_of(tool, &mut tools) {
            *tool = json!({"$ref": format!("#/tools/{name}")});
        }
    }
    body
}

/// The name under which a tool is defined, or can be.
fn name_of(tool: &Value, tools: &mut ToolsForm<'_>) -> Option<String> {
    let fields =
        tool.as_object().filter(|fields| fields.len() == 2 && fields.get("type") == Some(&json!("function")))?;
    let mut function = fields.get("function")?.as_object()?.clone();
    let name = function.shift_remove("name")?.as_str()?.to_owned();
    let is_word = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    if !is_word {
        return None;
    }
    for number in 1_u32.. {
        let (mut definition, mut candidate) = (function.clone(), name.clone());
        if number > 1 {
            candidate = format!("{name}.{number}");
            definition.shift_insert(0, "name".to_owned(), name.clone().into());
        }
        let definition = Value::Object(definition);
        let known = match tools {
            ToolsForm::Open(defined) => defined.entry(candidate.clone()).or_insert_with(|| definition.clone()),
            ToolsForm::Closed(defined) => defined.get(&candidate)?,
            ToolsForm::Inline => return None,
        };
        if *known == definition {
            return Some(candidate);
        }
    }
    None
}

impl RecordedAnswer {
    /// A fingerprint of the answer; another text has another one.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        format!("{:016x}", xxhash_rust::xxh3::xxh3_64(self.shown().to_string().as_bytes()))
    }

    /// The answer as a file shows it.
    #[must_use]
    pub fn shown(&self) -> Value {
        answer_fields(self).into()
    }
}

fn answer_fields(answer: &RecordedAnswer) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("status".to_owned(), answer.status.into());
    if !answer.headers.is_empty() {
        fields.insert("headers".to_owned(), headers(&answer.headers));
    }
    if let Some(planned) = &answer.planned {
        fields.insert("fault".to_owned(), planned.text.clone().into());
    }
    if let Some(fault) = answer.fault {
        fields.insert("fault".to_owned(), fault.form.name().into());
        fields.insert("after_events".to_owned(), fault.after_events.into());
    }
    let mut put = |name: &str, value: Value| {
        fields.insert(name.to_owned(), value);
    };
    match &answer.content {
        AnswerContent::Empty => {}
        AnswerContent::Choices { choices, usage } => {
            let shown: Vec<Map<String, Value>> = choices.iter().map(shown_choice).collect();
            match shown.as_slice() {
                [one] if one.keys().all(|name| OF_CHOICE.contains(&name.as_str())) => {
                    one.iter().for_each(|(name, value)| put(name, value.clone()))
                }
                many => put("choices", many.iter().cloned().map(Value::Object).collect()),
            }
            usage.iter().for_each(|usage| put("usage", usage.clone()));
        }
        AnswerContent::Json(value) => match value.as_object() {
            Some(map) if map.len() == 1 && map.contains_key("error") => put("error", map.get("error").cloned().into()),
            _ => put("json", value.clone()),
        },
        AnswerContent::Events(events) => put("events", events.iter().map(shown_event).collect()),
        AnswerContent::Text(text) => put("body_text", text.clone().into()),
        AnswerContent::Bytes(bytes) => {
            let (name, value) = shown_bytes(bytes);
            put(name, value);
        }
    }
    fields.extend(answer.made.iter().flat_map(MadeAnswer::shown));
    fields
}

/// Bytes as a file shows them: the key and its value.
fn shown_bytes(bytes: &[u8]) -> (&'static str, Value) {
    match blob::name_of(bytes) {
        Some(name) => ("body_blob", name.into()),
        None => ("body_base64", STANDARD.encode(bytes).into()),
    }
}

fn shown_choice(choice: &Map<String, Value>) -> Map<String, Value> {
    let mut shown = choice.clone();
    if let Some(message) = shown.get_mut("message") {
        *message = short_message(message);
    }
    shown
}

fn shown_event(event: &SseEvent) -> Value {
    match &event.name {
        Some(name) => json!({"event": name, "data": event.data}),
        None => json!({"data": event.data}),
    }
}
