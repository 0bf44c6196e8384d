//! Conversations that continue with the server's responses of this run.
//!
//! A later turn repeats the answers of earlier ones. Where the beginning of its messages is what an earlier turn of the session sent, the
//! model's messages that follow are the recorded answer to that turn: with [`History::Live`] what the server has answered now stands in their place, in
//! the form in which the client repeated the recorded one, and results of tools name the calls of this run. An answer with another number of calls
//! than recorded cannot be followed by the recorded results, nor one that failed by anything: the recorded messages stay then, and are counted.
//!
//! Ids of stored responses (`previous_response_id`) are known to the server that gave them only, so they are always those of this run.
//!
//! Limits: chats, responses and messages; prompts of text or ids are sent as recorded. Answers above 16 MiB are not repeated.

use std::collections::HashMap;

use api::answers;
use base::lock::Lock;
use bytes::Bytes;
use net::wire::SseSplitter;
use recording::{
    canonical::renamed,
    cassette::{self, AnswerContent, call_of, repeated_like},
    trace::{Endpoint, Record},
};
use serde::Serialize;
use serde_json::Value;

/// Longest answer that is repeated, in bytes.
const MOST_BYTES: usize = 16 << 20;

/// Content that later turns repeat of earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum History {
    /// What was answered when it was recorded.
    #[default]
    Recorded,
    /// What the server answers in this run.
    Live,
}

/// Counts of answers that later turns repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct HistoryCounts {
    /// Those of this run.
    pub live: u64,
    /// Recorded ones, because what came now cannot stand in their place.
    pub recorded: u64,
}

impl HistoryCounts {
    /// Adds those of another session.
    pub(crate) fn add(&mut self, other: Self) {
        self.live += other.live;
        self.recorded += other.recorded;
    }
}

#[derive(Debug)]
struct EndedTurn<'a> {
    record: &'a Record,
    answer: Option<answers::Answer>,
}

/// Responses of a session so far.
#[derive(Debug)]
pub(crate) struct DrivenConversation<'a> {
    history: History,
    state: Lock<State<'a>>,
}

#[derive(Debug, Default)]
struct State<'a> {
    ended: Vec<EndedTurn<'a>>,
    counts: HistoryCounts,
}

impl<'a> DrivenConversation<'a> {
    /// Begins a session with these records; `None` where no turn needs what another one was answered.
    pub(crate) fn begin(history: History, records: impl Iterator<Item = &'a Record>) -> Option<Self> {
        let requests: Vec<&Value> = records.filter_map(|record| record.request.as_ref()).collect();
        let names_responses = || requests.iter().any(|request| request.get(PREVIOUS).is_some_and(Value::is_string));
        let is_needed = requests.len() > 1 && (history == History::Live || names_responses());
        is_needed.then(|| Self { history, state: Lock::default() })
    }

    /// Notes the answer to a turn.
    pub(crate) fn end(&self, record: &'a Record, body: &[Bytes], is_stream: bool) {
        let endpoint = record.endpoint.unwrap_or(Endpoint::Chat);
        let answer = read(endpoint, body, is_stream);
        self.state.lock().ended.push(EndedTurn { record, answer });
    }

    /// Puts what was answered so far into a request.
    pub(crate) fn continued(&self, body: &mut Value) {
        let mut state = self.state.lock();
        let mut ids = HashMap::new();
        state.name_responses(body, &mut ids);
        let replaced = match self.history {
            History::Live => state.replaced(body, &mut ids),
            History::Recorded => Vec::new(),
        };
        if !ids.is_empty() {
            *body = renamed(body.take(), &ids);
        }
        let Some(items) = list_of(body).and_then(|list| body.get_mut(list)?.as_array_mut()) else { return };
        for Replaced { from, to, with } in replaced.into_iter().rev() {
            items.splice(from..to, with);
        }
    }

    pub(crate) fn counts(self) -> HistoryCounts {
        self.state.into_inner().counts
    }
}

/// The field by which a request goes on with a stored response.
const PREVIOUS: &str = "previous_response_id";

/// Items of a request and what stands in their place.
struct Replaced {
    from: usize,
    to: usize,
    with: Vec<Value>,
}

impl State<'_> {
    /// Adds the id that a stored response has in this run.
    fn name_responses(&self, body: &Value, ids: &mut HashMap<String, String>) {
        let Some(recorded) = body.get(PREVIOUS).and_then(Value::as_str) else { return };
        let named = self.ended.iter().rev().find(|turn| turn.record.request_id.as_deref() == Some(recorded));
        // Where no id was recorded it is the turn before.
        let turn =
            named.or_else(|| self.ended.iter().rev().find(|turn| turn.record.endpoint == Some(Endpoint::Responses)));
        let live = turn.and_then(|turn| Some(turn.answer.as_ref()?.text("id"))).filter(|id| !id.is_empty());
        ids.extend(live.map(|live| (recorded.to_owned(), live.to_owned())));
    }

    /// Finds the recorded answers in a request, and the ids of their calls.
    fn replaced(&mut self, body: &Value, ids: &mut HashMap<String, String>) -> Vec<Replaced> {
        let mut found: Vec<Replaced> = Vec::new();
        let Some(items) = list_of(body).and_then(|list| body.get(list)?.as_array()) else { return found };
        let (mut at, mut counts) = (0, HistoryCounts::default());
        while let Some(from) = (at..items.len()).find(|from| items.get(*from).is_some_and(is_own)) {
            let length = items.iter().skip(from).take_while(|item| is_own(item)).count();
            at = from + length;
            let before = items.get(..from).unwrap_or_default();
            let Some(turn) = self.ended.iter().rev().find(|turn| has_asked(turn.record, before)) else { continue };
            let recorded = items.get(from..at).unwrap_or_default();
            let live = turn.answer.as_ref().and_then(|answer| repeated_like(&shown(answer), recorded));
            let (old, new) = (calls(recorded), live.as_deref().map(calls).unwrap_or_default());
            let is_same = old.iter().map(|call| &call.name).eq(new.iter().map(|call| &call.name));
            match live.filter(|_| is_same) {
                Some(with) => {
                    counts.live += 1;
                    ids.extend(old.into_iter().zip(new).map(|(old, new)| (old.id, new.id)));
                    found.push(Replaced { from, to: at, with });
                }
                None => counts.recorded += 1,
            }
        }
        self.counts.live += counts.live;
        self.counts.recorded += counts.recorded;
        found
    }
}

/// Returns true if these are the messages or items of a recorded request; an `input` that is a text is one of them.
fn has_asked(record: &Record, before: &[Value]) -> bool {
    let Some(body) = &record.request else { return false };
    match list_of(body).and_then(|list| body.get(list)) {
        Some(Value::Array(items)) => items.len() == before.len() && items == before,
        Some(text @ Value::String(_)) => match before {
            [one] => one.get("role").is_some_and(|role| role == "user") && one.get("content") == Some(text),
            _ => false,
        },
        _ => false,
    }
}

pub(crate) fn list_of(body: &Value) -> Option<&'static str> {
    ["messages", "input"].into_iter().find(|list| body.get(*list).is_some())
}

/// Returns true for a message or an item of the model.
pub(crate) fn is_own(item: &Value) -> bool {
    let is =
        |name: &str, values: &[&str]| item.get(name).and_then(Value::as_str).is_some_and(|it| values.contains(&it));
    is("role", &["assistant"]) || is("type", &["function_call", "reasoning"])
}

struct NamedCall {
    id: String,
    name: String,
}

/// The calls in messages or items, in order.
fn calls(items: &[Value]) -> Vec<NamedCall> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut calls = Vec::new();
    for item in items {
        let parts = |name: &str| item.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let is_of = |value: &Value, kind: &str| value.get("type").is_some_and(|it| it == kind);
        calls.extend(parts("tool_calls").iter().map(call_of).map(|(id, name, _)| NamedCall { id, name }));
        let blocks = parts("content").iter().filter(|block| is_of(block, "tool_use"));
        calls.extend(blocks.map(|block| NamedCall { id: text(block.get("id")), name: text(block.get("name")) }));
        if is_of(item, "function_call") {
            calls.push(NamedCall { id: text(item.get("call_id")), name: text(item.get("name")) });
        }
    }
    calls
}

fn shown(answer: &answers::Answer) -> cassette::RecordedAnswer {
    let fields = answer.fields();
    let message = fields.get("choices").and_then(|choices| choices.get(0)?.get("message"));
    let content = match message {
        Some(message) => AnswerContent::Choices {
            choices: vec![[("message".to_owned(), message.clone())].into_iter().collect()],
            usage: None,
        },
        None => AnswerContent::Json(fields.clone().into()),
    };
    cassette::RecordedAnswer { status: 200, content, ..cassette::RecordedAnswer::default() }
}

/// Reads the answer in a body; `None` where there is none, such as in an error.
fn read(endpoint: Endpoint, body: &[Bytes], is_stream: bool) -> Option<answers::Answer> {
    if !is_stream {
        return answers::Answer::read(endpoint, serde_json::from_slice(&body.concat()).ok()?);
    }
    let (mut splitter, mut events) = (SseSplitter::default(), Vec::new());
    for bytes in body {
        splitter.push(bytes.clone());
        while let Some(event) = splitter.next_event() {
            events.extend(event.data().and_then(|data| serde_json::from_slice(&data).ok()));
        }
    }
    answers::Answer::accumulate(endpoint, &events)
}

/// The bytes of a body, up to a limit.
#[derive(Debug, Default)]
pub(crate) struct CollectedBytes {
    bytes: Vec<Bytes>,
    length: usize,
}

impl CollectedBytes {
    pub(crate) fn add(&mut self, bytes: Bytes) {
        self.length += bytes.len();
        if self.length <= MOST_BYTES {
            self.bytes.push(bytes);
        }
    }

    /// All of it; nothing where it was too long.
    pub(crate) fn whole(&self) -> &[Bytes] {
        if self.length <= MOST_BYTES { &self.bytes } else { &[] }
    }
}
