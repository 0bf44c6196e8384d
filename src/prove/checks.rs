//! The five checks: the stream, its usage, its cost, whose it is, and that an error stays an error.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    cases::{answer_of, finish_of},
    client::{ReceivedEnd, ReceivedStream},
    events::{ReadEvents, is_error, type_of},
    marker::markers_in,
    prices::{PriceTable, named_cost, usage_of},
};
use crate::{
    api::{
        DONE, Endpoint,
        answers::{Answer, ChoicePart, TokenCounts, words::TextKind},
    },
    base::one_line::clipped,
    net::wire::value_text,
    recording::cassette::SseEvent,
};

/// Characters of an event that a difference shows.
const SHOWN: usize = 160;

base::named! {
    /// One of the checks.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum ProveCheck {
        /// The same events: none lost, doubled or changed, in their order.
        Stream = "stream",
        /// The same token counts.
        Usage = "usage",
        /// The same cost by a table of prices.
        Cost = "cost",
        /// No stream has anything of another one.
        Isolation = "isolation",
        /// An error is no proper end.
        Error = "error",
    }
}

/// Parts of two streams that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompareBy {
    /// Each event, as JSON.
    Events,
    /// What they add up to: texts, calls, reasons, log probabilities. For gateways that write events of their own.
    Content,
}

/// Rules for comparing streams.
#[derive(Debug, Clone)]
pub struct CompareRules {
    /// What is compared.
    pub by: CompareBy,
    /// Fields, at any depth, that may differ.
    pub ignored: BTreeSet<String>,
    /// Prices of tokens.
    pub prices: PriceTable,
    /// Name of the model in the table.
    pub model: String,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FailedCheck {
    /// The check.
    pub check: ProveCheck,
    /// The first difference.
    pub what: String,
}

fn failed(check: ProveCheck, what: impl Into<String>) -> FailedCheck {
    FailedCheck { check, what: what.into() }
}

/// A stream as the server sent it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrueStream<'a> {
    /// Endpoint that the gateway asked.
    pub endpoint: Endpoint,
    /// Its events, before anything was done to them.
    pub events: &'a [SseEvent],
}

impl CompareRules {
    /// Compares a stream that was only cut in another way with what it was.
    pub(crate) fn same(
        &self,
        endpoint: Endpoint,
        truth: TrueStream<'_>,
        received: &ReceivedStream,
    ) -> Vec<FailedCheck> {
        let body = received.body();
        let read = ReadEvents::of(&body);
        let mut found = Vec::new();
        found.extend(transport(received, &read).map(|what| failed(ProveCheck::Stream, what)));
        if found.is_empty() {
            found.extend(self.difference(endpoint, truth, &read).map(|what| failed(ProveCheck::Stream, what)));
        }
        let (wanted, got) = (usage_of(truth.events), usage_of(&read.events));
        let counts = |counts: &TokenCounts| {
            let cached = counts.cached.unwrap_or_default();
            format!("{} in ({cached} cached), {} out", shown(counts.prompt), shown(counts.completion))
        };
        let compared = |counts: &TokenCounts| (counts.prompt, counts.cached.unwrap_or_default(), counts.completion);
        if received.status == 200 && compared(&wanted) != compared(&got) {
            found.push(failed(ProveCheck::Usage, format!("usage is {}, not {}", counts(&got), counts(&wanted))));
        }
        let cost = |counts| self.prices.cost(&self.model, counts);
        if let (200, Some(wanted)) = (received.status, cost(&wanted)) {
            let of_gateway = named_cost(&read.events).or_else(|| cost(&got)).unwrap_or_default();
            if (of_gateway - wanted).abs() > wanted.abs() * 1e-9 {
                found.push(failed(ProveCheck::Cost, format!("the answer costs {of_gateway}, not {wanted}")));
            }
        }
        found
    }

    /// The first difference between what was sent and what came.
    fn difference(&self, endpoint: Endpoint, truth: TrueStream<'_>, read: &ReadEvents) -> Option<String> {
        if self.by == CompareBy::Content {
            let (wanted, got) = (content(truth.endpoint, truth.events), content(endpoint, &read.events));
            let is_other = truth.endpoint != endpoint;
            return first_difference(&self.kept(&wanted, is_other), &self.kept(&got, is_other));
        }
        for (number, pair) in zipped(truth.events, &read.events).enumerate() {
            let place = format!("event {} of {}", number + 1, truth.events.len());
            match pair {
                (Some(wanted), None) => return Some(format!("{place} is missing: {}", text_of(wanted))),
                (None, Some(got)) => return Some(format!("an event too many: {}", text_of(got))),
                (Some(wanted), Some(got)) if !self.is_same(wanted, got) => {
                    return Some(format!("{place} is {}, not {}", text_of(got), text_of(wanted)));
                }
                _ => {}
            }
        }
        None
    }

    fn is_same(&self, one: &SseEvent, other: &SseEvent) -> bool {
        one.name == other.name && self.kept(&one.data, false) == self.kept(&other.data, false)
    }

    /// A value without the fields that may differ, and without usage, which has its own check; between endpoints log probabilities differ.
    fn kept(&self, value: &Value, is_other: bool) -> Value {
        let differs = |name: &str| self.ignored.contains(name) || name == "usage" || (is_other && name == "logprobs");
        without_fields(value, &differs)
    }

    /// Checks a stream that failed on its way: it must not look as if it had ended, and what came before the failure is not changed.
    pub(crate) fn stays_error(
        &self,
        endpoint: Endpoint,
        truth: TrueStream<'_>,
        received: &ReceivedStream,
    ) -> Vec<FailedCheck> {
        let read = ReadEvents::of(&received.body());
        let finish = read.events.iter().find_map(|event| finish_of(endpoint, &event.data));
        let is_done = read
            .events
            .iter()
            .any(|event| event.data == DONE || ["message_stop", "response.completed"].contains(&type_of(&event.data)));
        let has_failed =
            received.status != 200 || received.end != ReceivedEnd::Proper || read.events.iter().any(is_error);
        let mut found = Vec::new();
        if !has_failed && (finish.is_some() || is_done) {
            let finish = finish.map_or_else(|| "no reason".to_owned(), |finish| format!("`{finish}`"));
            let done = if is_done { " and its last event" } else { "" };
            found.push(failed(
                ProveCheck::Error,
                format!("the answer failed, and the stream ends properly with {finish}{done}"),
            ));
        }
        if self.by == CompareBy::Events && received.status == 200 {
            let came = read.events.iter().filter(|event| !is_error(event) && event.data != DONE);
            let changed = came.zip(truth.events).find(|(got, wanted)| !self.is_same(got, wanted));
            let what = changed
                .map(|(got, wanted)| format!("before the failure came {}, not {}", text_of(got), text_of(wanted)));
            found.extend(what.filter(|_| found.is_empty()).map(|what| failed(ProveCheck::Stream, what)));
        }
        found
    }

    /// Checks one of many streams: nothing of the others is in it.
    pub(crate) fn isolated(
        &self,
        endpoint: Endpoint,
        own: &str,
        truth: TrueStream<'_>,
        received: &ReceivedStream,
    ) -> Vec<FailedCheck> {
        let foreign = markers_in(&received.body()).into_iter().find(|marker| marker != own);
        if let Some(foreign) = foreign {
            return vec![failed(ProveCheck::Isolation, format!("the stream of {own} has something of {foreign}"))];
        }
        self.same(endpoint, truth, received)
    }
}

/// Returns true for a stream that was cut off without an error: what a client takes for a short answer.
pub(super) fn is_silent_cut(received: &ReceivedStream) -> bool {
    let read = ReadEvents::of(&received.body());
    received.status == 200 && received.end == ReceivedEnd::Proper && !read.events.iter().any(is_error)
}

fn shown(count: Option<u32>) -> String {
    count.map_or_else(|| "none".to_owned(), |count| count.to_string())
}

/// What is wrong with a response before its events are looked at.
fn transport(received: &ReceivedStream, read: &ReadEvents) -> Option<String> {
    match &received.end {
        ReceivedEnd::Unanswered(why) => return Some(format!("no response: {why}")),
        ReceivedEnd::Silent if received.status == 0 => return Some("no response in time".to_owned()),
        _ if received.status != 200 => {
            let body = String::from_utf8_lossy(&received.body()).into_owned();
            return Some(format!("status {}: {}", received.status, clipped(&body, SHOWN)));
        }
        ReceivedEnd::Broken(why) => return Some(format!("the stream broke after {} events: {why}", read.events.len())),
        ReceivedEnd::Silent => return Some(format!("the stream stopped after {} events", read.events.len())),
        ReceivedEnd::TooLarge => return Some("the stream is endless".to_owned()),
        ReceivedEnd::Proper => {}
    }
    read.framing_defect()
}

fn zipped<'a, T>(one: &'a [T], other: &'a [T]) -> impl Iterator<Item = (Option<&'a T>, Option<&'a T>)> {
    (0..one.len().max(other.len())).map(|at| (one.get(at), other.get(at)))
}

fn text_of(event: &SseEvent) -> String {
    let data = value_text(&event.data);
    let name = event.name.as_ref().map(|name| format!("{name} ")).unwrap_or_default();
    format!("{name}{}", clipped(&data, SHOWN))
}

/// What the events of a stream add up to, in a form that all endpoints share.
pub(super) fn content(endpoint: Endpoint, events: &[SseEvent]) -> Value {
    answer_of(endpoint, events).map_or_else(|| json!({"answer": null}), |answer| answer_content(&answer))
}

/// The content of an answer, in the same form.
#[must_use]
pub fn answer_content(answer: &Answer) -> Value {
    let choices = answer.choices().into_iter().map(|choice| {
        let (mut texts, mut calls) = (serde_json::Map::new(), Vec::new());
        for part in &choice.parts {
            match part {
                ChoicePart::Words(kind, text) => {
                    let kind = match kind {
                        TextKind::Text => "text",
                        TextKind::Reasoning => "reasoning",
                        TextKind::Refusal => "refusal",
                        TextKind::Arguments => "arguments",
                    };
                    let before = texts.get(kind).and_then(Value::as_str).unwrap_or_default();
                    let all = format!("{before}{text}");
                    texts.insert(kind.to_owned(), all.into());
                }
                ChoicePart::Call(call) => {
                    let arguments = serde_json::from_str(&call.arguments);
                    let arguments = arguments.unwrap_or_else(|_| Value::String(call.arguments.clone().into_owned()));
                    calls.push(json!({"name": call.name, "arguments": arguments}));
                }
            }
        }
        let finish = choice.finish_reason.map(|reason| match reason {
            "end_turn" | "completed" | "stop_sequence" => "stop",
            "max_tokens" | "incomplete" => "length",
            // The answer of a response is complete after calls too.
            "tool_use" | "tool_calls" => "tool_calls",
            other => other,
        });
        let finish = finish.filter(|_| calls.is_empty());
        json!({"texts": texts, "calls": calls, "finish": finish, "logprobs": choice.logprobs})
    });
    json!({"choices": choices.collect::<Vec<Value>>()})
}

/// A value without some fields, at any depth.
#[must_use]
pub fn without_fields(value: &Value, is_left_out: &impl Fn(&str) -> bool) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| !is_left_out(name));
            Value::Object(kept.map(|(name, value)| (name.clone(), without_fields(value, is_left_out))).collect())
        }
        Value::Array(items) => items.iter().map(|item| without_fields(item, is_left_out)).collect(),
        other => other.clone(),
    }
}

/// The first place at which two values differ.
#[must_use]
pub fn first_difference(wanted: &Value, got: &Value) -> Option<String> {
    fn at(path: &str, wanted: &Value, got: &Value) -> Option<String> {
        match (wanted, got) {
            _ if wanted == got => None,
            (Value::Object(one), Value::Object(other)) => {
                let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
                let value = |fields: &serde_json::Map<String, Value>, name: &String| {
                    fields.get(name).cloned().unwrap_or_default()
                };
                names.into_iter().find_map(|name| at(&format!("{path}.{name}"), &value(one, name), &value(other, name)))
            }
            (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
                let mut pairs = one.iter().zip(other).enumerate();
                pairs.find_map(|(place, (one, other))| at(&format!("{path}[{place}]"), one, other))
            }
            _ => {
                let (got, wanted) = (clipped(&got.to_string(), SHOWN), clipped(&wanted.to_string(), SHOWN));
                Some(format!("{} is {got}, not {wanted}", path.trim_start_matches('.')))
            }
        }
    }
    at("", wanted, got)
}
