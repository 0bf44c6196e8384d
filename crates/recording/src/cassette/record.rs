//! One recorded exchange.

use std::{borrow::Cow, collections::HashSet, fmt, path::Path, str::FromStr};

use serde_json::{Map, Value};

use super::{
    blob::named_bytes,
    made::MadeAnswer,
    moments::{Moment, Sidecar},
};
use crate::{
    canonical::{CanonicalKey, CanonicalRules, McpCall, RequestParts, SharedBody, SharedList, mcp_summary},
    redaction::{NoPlaceholder, Placeholder},
};
use api::is_set;
use base::one_line::clipped;

/// Numbers from here on are not counted up: the smallest ones that are free follow.
pub(super) const HIGH_ID: u64 = 1 << 63;

/// A request and its answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CassetteRecord {
    /// Its number in the file.
    pub id: u64,
    /// The line on which it starts, from 1; 0 where it comes from no file.
    pub line: usize,
    /// The request's method.
    pub method: String,
    /// The request's path with its query.
    pub path: String,
    /// Headers of the request that count; names in lower case.
    pub headers: Vec<(String, String)>,
    /// The request's body in full: JSON, text, or null for none. Its messages are shared with the records that it continues.
    pub body: SharedBody,
    /// The request's body where it is neither JSON nor text; `body` is null then.
    pub raw: Option<Vec<u8>>,
    /// The earlier record that the request continues.
    pub like: Option<u64>,
    /// Form in which that record's response is repeated in it.
    pub echo: Echo,
    /// The messages before its own, by their place, that still have marks of caches (`cache_control`); `None` where all that had any have.
    pub cached: Option<Vec<u64>>,
    /// Placeholders of the answer whose values stand in a request under another placeholder.
    pub put_back: Vec<(Placeholder, ValueSource)>,
    /// The answer.
    pub answer: RecordedAnswer,
    /// The record that this one is another try of.
    pub retry_of: Option<u64>,
    /// Events that came before the client left.
    pub aborted: Option<u64>,
    /// The test or the part of one that it belongs to, by the user's own name.
    pub group: Option<String>,
    /// Words of the user's own.
    pub tags: Vec<String>,
    /// Whether it was written by hand for all requests that fulfil its conditions, which stand in the body under `match`; method and path
    /// may be empty then. [`Fixture`](super::Fixture) reads them.
    pub is_fixture: bool,
    /// How often it may be served; `u64::MAX` for any number of times. Without it once, and a fixture always.
    pub times: Option<u64>,
    /// Its data in the sidecar.
    pub side: Option<Sidecar>,
    /// The answer is another one than when the data in the sidecar were recorded.
    pub is_edited: bool,
    /// The file has a large text of it in the record itself.
    pub holds_large: bool,
}

/// Place of the value of a placeholder: a placeholder in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueSource {
    /// The placeholder that stands for the same value.
    pub placeholder: Placeholder,
    /// The earlier record whose request has it; `None` for the record's own.
    pub record: Option<u64>,
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.placeholder.short())?;
        self.record.map_or(Ok(()), |record| write!(f, " of {record}"))
    }
}

impl FromStr for ValueSource {
    type Err = String;

    /// Reads `email:1` or `email:1 of 7`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (placeholder, record) = match text.split_once(" of ") {
            Some((placeholder, record)) => {
                (placeholder, Some(record.parse().map_err(|_| format!("`{record}` is no id of a record"))?))
            }
            None => (text, None),
        };
        let placeholder = placeholder.parse().map_err(|error: NoPlaceholder| error.to_string())?;
        Ok(Self { placeholder, record })
    }
}

impl RecordedAnswer {
    /// Returns true if a client may try again because of it: an error status, or a fault.
    pub(crate) fn has_failed(&self) -> bool {
        self.status >= 400 || self.fault.is_some()
    }
}

base::named! {
    /// Form in which a client repeats a response in its next request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum Echo {
        /// Role, content and calls.
        #[default]
        Plain = "plain",
        /// The whole message, reasoning too.
        Whole = "whole",
        /// Its text only.
        Text = "text",
        /// Items without the ids and states that the response gave them.
        Bare = "bare",
    }
}

/// Response to a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RecordedAnswer {
    /// The status; 200 where the file has none.
    pub status: u16,
    /// Headers that are kept; names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub content: AnswerContent,
    /// Transport failure, if there was one.
    pub fault: Option<TransportFault>,
    /// A fault in the player's words; only of records that were written by hand.
    pub planned: Option<PlannedFault>,
    /// What is made for each request in place of the body, or of its text; only of records that were written by hand.
    pub made: Option<MadeAnswer>,
}

/// A fault that the player reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedFault {
    /// Its line in the file, from 1.
    pub line: usize,
    /// Its words.
    pub text: String,
}

/// Body of a response.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum AnswerContent {
    /// Nothing.
    #[default]
    Empty,
    /// Output of a model: choices with `message` (chat) or `text` (completions), `finish_reason` and their other fields, and the
    /// token counts.
    Choices {
        /// The choices in order.
        choices: Vec<Map<String, Value>>,
        /// Token counts, if they are known.
        usage: Option<Value>,
    },
    /// Any other JSON.
    Json(Value),
    /// A stream of events that no other form fits.
    Events(Vec<SseEvent>),
    /// Text of another kind.
    Text(String),
    /// Bytes that are no text.
    Bytes(Vec<u8>),
}

/// An event as a file shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct SseEvent {
    /// Its `event` field.
    pub name: Option<String>,
    /// Its data: JSON where it is, else text.
    pub data: Value,
}

/// Transport failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransportFault {
    /// What happens.
    pub form: BreakForm,
    /// Events before it; 0 for before the head.
    pub after_events: usize,
}

base::named! {
    /// What happens to a connection in place of the rest of an answer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum BreakForm {
        /// It is reset.
        Reset = "reset",
        /// The stream ends properly, without an event that marks its end.
        Truncate = "truncate",
        /// Nothing more comes, and it stays open.
        Stall = "stall",
    }
}

impl TransportFault {
    /// A reset after so many events.
    #[must_use]
    pub const fn reset(after_events: usize) -> Self {
        Self { form: BreakForm::Reset, after_events }
    }
}

impl CassetteRecord {
    /// Returns true if the request asks for a stream.
    #[must_use]
    pub fn streams(&self) -> bool {
        self.body.get("stream").is_some_and(is_set)
    }

    /// The body as it is compared: bytes are compared by their [name](super::named_bytes).
    #[must_use]
    pub fn compared(&self) -> Cow<'_, SharedBody> {
        self.raw.as_deref().map_or(Cow::Borrowed(&self.body), |bytes| Cow::Owned(named_bytes(bytes).into()))
    }

    /// The key of its request by the default rules.
    #[must_use]
    pub fn key(&self) -> CanonicalKey {
        let Self { method, path, headers, .. } = self;
        CanonicalRules::default().identify(&RequestParts { method, path, headers, body: &self.compared() }).key
    }

    /// Returns true if the response is as it was recorded, so that the sidecar's events belong to it.
    #[must_use]
    pub fn is_as_recorded(&self) -> bool {
        self.side.is_some() && !self.is_edited
    }

    /// Takes its data in the sidecar, where it has none itself, and finds out whether it was edited, which takes as long as writing it.
    pub fn join(&mut self, beside: Option<Sidecar>) {
        self.side = self.side.take().or(beside);
        self.is_edited = self.side.as_ref().is_some_and(|side| side.answer != self.answer.fingerprint());
    }

    /// Returns true if a client may try again because of the answer: an error status, a fault, or a part of a stream.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.answer.has_failed() || self.aborted.is_some()
    }

    /// The record as people find it: its file's name and its number there.
    #[must_use]
    pub fn name_in(&self, path: &Path) -> String {
        let file = path.file_name().map(|name| name.to_string_lossy().into_owned());
        format!("{}#{}", file.unwrap_or_default(), self.id)
    }

    /// Returns true if its client left, and the events until then are known: they are played, and then the connection breaks.
    #[must_use]
    pub fn plays_partly(&self) -> bool {
        let events = self.side.as_ref().map(|side| &*side.events).unwrap_or_default();
        let is_known = !events.is_empty() && events.iter().all(|Moment(_, data, _)| data.is_some());
        self.aborted.is_some() && is_known && self.is_as_recorded()
    }

    /// The record, whose answer breaks off after what was recorded of it.
    #[must_use]
    pub fn broken_off(&self) -> Self {
        let fault = Some(TransportFault::reset(usize::MAX));
        Self { answer: RecordedAnswer { fault, ..self.answer.clone() }, ..self.clone() }
    }

    /// Paths of the requests that a hand-written record is for where it names none; empty where that is every request for text.
    #[must_use]
    pub fn made_routes(&self) -> &'static [&'static str] {
        self.answer.made.as_ref().map_or(&[], MadeAnswer::routes)
    }

    /// Bytes that it holds without the sidecar's part, about. Messages that were seen, by their places in memory, do not count.
    pub(super) fn memory(&self, seen: &mut HashSet<usize>) -> usize {
        let messages = self.body.messages().into_iter().flat_map(SharedList::backward);
        let new = messages.take_while(|message| seen.insert(std::ptr::from_ref(*message).addr()));
        let body = memory(self.body.fields()) + new.map(memory).sum::<usize>();
        let answer = match &self.answer.content {
            AnswerContent::Bytes(bytes) => bytes.len(),
            _ => memory(&self.answer.shown()),
        };
        size_of::<Self>() + body + self.raw.as_ref().map_or(0, Vec::len) + answer
    }

    /// The message to an MCP server that it is of, where it is of one.
    #[must_use]
    pub fn mcp_call(&self) -> Option<McpCall<'_>> {
        McpCall::of(&self.method, &self.path, self.body.fields())
    }

    /// A few words by which people recognise it.
    #[must_use]
    pub fn summary(&self) -> String {
        if let Some(call) = self.mcp_call() {
            let params = self.body.get("params").unwrap_or(&Value::Null);
            return format!("{} {}", call.server, mcp_summary(call.method, params));
        }
        if self.is_fixture {
            let shown: String = self.body.to_string().chars().take(80).collect();
            return format!("{} {} {shown}", self.method, self.path).trim().to_owned();
        }
        format!("{} {} {}", self.method, self.path, self.question()).trim_end().to_owned()
    }

    /// Excerpt of the last question in a request, and of its last message where that is another one, such as the result of a tool.
    fn question(&self) -> String {
        let content = |message: &Value| message.get("content").or_else(|| message.get("output")).map(words);
        let single = || ["prompt", "input"].iter().find_map(|name| self.body.get(name)).map(words);
        let Some(last) = self.body.last_message() else { return excerpt(&single().unwrap_or_default(), 60) };
        let latest = content(last).or_else(single).unwrap_or_default();
        let mut messages = self.body.messages().into_iter().flat_map(SharedList::backward);
        match messages.find(|message| is_question(message)).filter(|question| *question != last) {
            Some(question) => {
                format!("{}, then {}", excerpt(&content(question).unwrap_or_default(), 40), excerpt(&latest, 30))
            }
            None => excerpt(&latest, 60),
        }
    }
}

/// Returns true for a message that a person wrote; results of tools come in the same role.
fn is_question(message: &Value) -> bool {
    let has_text = |content: &Value| match content {
        Value::Array(parts) => parts.iter().any(|part| part.get("text").is_some()),
        content => content.is_string(),
    };
    message.get("role").is_some_and(|role| role == "user") && message.get("content").is_some_and(has_text)
}

fn excerpt(text: &str, most: usize) -> String {
    clipped(&text.replace('\n', " "), most)
}

fn memory(value: &Value) -> usize {
    /// A field's value, key, hash and place; a map has room for four, or twice as many.
    const FIELD: usize = size_of::<Value>() + size_of::<String>() + 3 * size_of::<usize>();
    let held = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(memory).sum(),
        Value::Object(fields) => {
            let texts: usize = fields.iter().map(|(name, value)| name.len() + memory(value)).sum();
            texts + fields.len().next_power_of_two().max(4) * FIELD
        }
    };
    size_of::<Value>() + held
}

/// The words of a message's content, whole or in parts.
fn words(content: &Value) -> String {
    let of_part = |part: &Value| part.get("text").or_else(|| part.get("content")).map(words);
    let parts = content.as_array().into_iter().flatten();
    let text = parts.filter_map(of_part).collect::<Vec<String>>().join(" ");
    match content {
        Value::String(text) => text.clone(),
        _ if !text.is_empty() => text,
        other => other.to_string(),
    }
}
