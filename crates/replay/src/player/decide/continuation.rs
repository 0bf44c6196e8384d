//! Chats that continue a recorded answer: the recorded request with the beginning of its answer as the last message
//! (`continue_final_message`), of which the rest is served.
//!
//! The record is found as if that message were not there, whether it was served before or not, under the limit of tokens that was sent or a
//! higher one that any record has: a router lowers it by what was delivered. An answer continues if it is one choice whose content begins
//! with the message's and has more. Its first event comes when the first of the recorded content did, and the gaps after it stay.
//!
//! Limits: answers under a constraint and of several choices are not continued, nor are reasoning and calls of tools, of which a message
//! that is continued has nothing. Tokens are counted by recorded log probabilities or ids, else by events, else as a tokenizer counts them.
//!
//! See docs/decisions/0124-a-continuation-is-the-same-record.md.

use serde_json::{Map, Value};

use crate::{
    matching::requests::{FoundRecord, Lookup},
    player::{
        CassettePlayer,
        decide::{cross::identified, lookup_request},
        incoming::IncomingRequest,
    },
};
use api::endpoints::CHAT;
use recording::{
    canonical::SharedBody,
    cassette::{AnswerContent, CassetteRecord, Moment, RecordedAnswer},
};

/// Fields by which a request limits its tokens.
const LIMITS: [&str; 2] = ["max_tokens", "max_completion_tokens"];

/// The most limits of records that are tried.
const MOST_LIMITS: usize = 64;

impl CassettePlayer {
    /// The record whose answer a chat continues, and the chat with what it has of that; `None` for any other request.
    pub(crate) fn continued(&self, incoming: &IncomingRequest) -> Option<(IncomingRequest, FoundRecord)> {
        let (before, delivered) = before(incoming)?;
        if !self.index.of_key(incoming.identity.key).is_empty() {
            return None;
        }
        let limits = LIMITS.into_iter().filter_map(|name| Some((name, before.get(name)?.as_u64()?)));
        let higher = limits.flat_map(|(name, limit)| self.higher_limits(name, limit));
        let bodies = std::iter::once(before.clone()).chain(higher.map(|(name, limit)| {
            let mut body = before.clone();
            body.set(name, limit.into());
            body
        }));
        let found = bodies.filter_map(|body| self.begun(incoming, &body, &delivered)).next()?;
        let request = lookup_request(incoming);
        let found = self.in_session(&incoming.session, |state| state.session.go_on(&self.index, &request, found));
        let Lookup::Found(found) = found else { return None };
        Some((incoming.continuing(delivered), found))
    }

    /// The record of a request whose answer begins with a text: one that was served first.
    fn begun(&self, incoming: &IncomingRequest, body: &SharedBody, delivered: &str) -> Option<usize> {
        let (identity, ..) = identified(body, incoming, &self.config, &self.config.rules);
        let records = self.index.of_key(identity.key);
        let begins = |at: &&usize| {
            let Some((_, record)) = self.records.get(**at) else { return false };
            let with_values = self.with_values(**at, record, incoming);
            rest_of(with_values.as_ref().unwrap_or(record), delivered).is_some()
        };
        let served = |at: &&usize| self.in_session(&incoming.session, |state| state.session.times(**at) > 0);
        let begun: Vec<&usize> = records.iter().filter(begins).collect();
        begun.iter().find(|at| served(at)).or(begun.first()).map(|at| **at)
    }

    /// Limits of recorded chats that are higher than this one.
    fn higher_limits(&self, name: &'static str, requested: u64) -> impl Iterator<Item = (&'static str, u64)> {
        let limit = |(_, record): &(usize, CassetteRecord)| record.body.get(name).and_then(Value::as_u64);
        let higher = self.records.iter().filter_map(limit).filter(|limit| *limit > requested);
        let distinct: std::collections::BTreeSet<u64> = higher.collect();
        distinct.into_iter().take(MOST_LIMITS).map(move |limit| (name, limit))
    }
}

/// The chat before the answer that it continues, and what was delivered of that.
fn before(incoming: &IncomingRequest) -> Option<(SharedBody, String)> {
    let body = &incoming.body;
    let is_set = |name: &str| body.get(name).is_some_and(|value| *value == Value::Bool(true));
    let is_one = body.get("n").is_none_or(|n| n.is_null() || n.as_u64() == Some(1));
    let constrains = |name: &&str| {
        body.get(name).is_some_and(|value| !value.is_null() && value.get("type") != Some(&Value::from("text")))
    };
    let is_constrained = ["response_format", "structured_outputs"].iter().any(constrains);
    if incoming.path() != CHAT || !is_set("continue_final_message") || !is_one || is_constrained {
        return None;
    }
    let mut messages: Vec<Value> = body.messages()?.iter().cloned().collect();
    let last = messages.pop()?;
    let content = last.get("content").and_then(Value::as_str).filter(|content| !content.is_empty())?;
    let is_answer = last.get("role").and_then(Value::as_str) == Some("assistant") && last.get("tool_calls").is_none();
    let mut before = body.clone().with_messages(messages.into_iter().collect());
    before.remove("continue_final_message");
    before.remove("add_generation_prompt");
    is_answer.then(|| (before, content.to_owned()))
}

/// What is left of a record's answer behind a text that was delivered, and how many tokens that was.
pub(crate) fn rest_of(record: &CassetteRecord, delivered: &str) -> Option<(CassetteRecord, u64)> {
    let AnswerContent::Choices { choices, usage } = &record.answer.content else { return None };
    let [choice] = choices.as_slice() else { return None };
    let content = choice.get("message")?.get("content")?.as_str()?;
    let rest = content.strip_prefix(delivered).filter(|rest| !rest.is_empty())?;
    let (events, mut tokens, shift) = events_after(record, delivered.len());
    let mut choice = choice.clone();
    let message = choice.get_mut("message")?.as_object_mut()?;
    message.insert("content".to_owned(), rest.into());
    ["reasoning", "reasoning_content"].iter().for_each(|name| drop(message.shift_remove(*name)));
    if let Some(dropped) = drop_logprobs(&mut choice, delivered.len()) {
        tokens = dropped;
    }
    let usage = usage.clone().filter(|_| tokens > 0).map(|usage| counted_after(usage, tokens));
    let content = AnswerContent::Choices { choices: vec![choice], usage };
    let answer = RecordedAnswer { content, ..record.answer.clone() };
    let mut side = record.side.clone();
    if let Some(side) = &mut side {
        (side.body, side.ms) = (None, (side.ms - shift).max(0.0));
        side.events = events.into_iter().map(|event| counted(event, tokens)).collect();
    }
    Some((CassetteRecord { answer, side, ..record.clone() }, tokens))
}

/// Events behind so many bytes of content, the tokens before, and how much earlier they come.
fn events_after(record: &CassetteRecord, delivered: usize) -> (Vec<Moment>, u64, f64) {
    let events = record.side.as_ref().map(|side| &*side.events).unwrap_or_default();
    let (mut kept, mut left, mut tokens) = (Vec::new(), delivered, 0);
    let (mut first, mut shift) = (None, 0.0);
    for Moment(ms, data, name) in events {
        let mut event = data.as_deref().and_then(|data| serde_json::from_str::<Value>(data).ok()).unwrap_or_default();
        let Some(content) = delta(&mut event).and_then(|delta| Some(delta.get("content")?.as_str()?.to_owned())) else {
            let has_reasoning = delta(&mut event)
                .is_some_and(|delta| ["reasoning", "reasoning_content"].iter().any(|name| delta.contains_key(*name)));
            if !has_reasoning {
                kept.push(Moment(ms - shift, data.clone(), name.clone()));
            }
            continue;
        };
        let first = if content.is_empty() { *ms } else { *first.get_or_insert(*ms) };
        let cut = left.min(content.len());
        if cut == content.len() && cut > 0 {
            left -= cut;
            tokens += tokens_of(&event);
            continue;
        }
        if left > 0 || (shift == 0.0 && tokens > 0) {
            shift = ms - first;
        }
        let mut data = data.clone();
        if cut > 0 {
            left = 0;
            delta(&mut event).map(|delta| delta.insert("content".to_owned(), content.get(cut..).unwrap_or("").into()));
            data = Some(event.to_string());
        }
        kept.push(Moment(ms - shift, data, name.clone()));
    }
    (kept, tokens, shift)
}

/// The only choice's delta of an event.
fn delta(event: &mut Value) -> Option<&mut Map<String, Value>> {
    event.get_mut("choices")?.get_mut(0)?.get_mut("delta")?.as_object_mut()
}

fn tokens_of(event: &Value) -> u64 {
    let choice = event.get("choices").and_then(|choices| choices.get(0));
    let ids = choice.and_then(|choice| choice.get("token_ids")?.as_array());
    let logprobs = choice.and_then(|choice| choice.get("logprobs")?.get("content")?.as_array());
    ids.or(logprobs).map_or(1, |tokens| tokens.len() as u64)
}

/// Drops the log probabilities of so many bytes; returns how many they were.
fn drop_logprobs(choice: &mut Map<String, Value>, delivered: usize) -> Option<u64> {
    let tokens = choice.get_mut("logprobs")?.get_mut("content")?.as_array_mut()?;
    let mut left = delivered;
    let before = tokens.iter().take_while(|token| {
        let bytes = token.get("token").and_then(Value::as_str).map_or(0, str::len);
        let fits = bytes <= left && left > 0;
        left = left.saturating_sub(bytes);
        fits
    });
    let before = before.count();
    tokens.drain(..before);
    Some(before as u64)
}

/// An event whose token counts are those after so many tokens.
fn counted(Moment(ms, data, name): Moment, tokens: u64) -> Moment {
    let read = data.as_deref().filter(|data| data.contains("\"usage\"")).and_then(|data| {
        let mut event: Value = serde_json::from_str(data).ok()?;
        let usage = event.get_mut("usage").filter(|usage| usage.is_object())?;
        *usage = counted_after(usage.take(), tokens);
        Some(event.to_string())
    });
    Moment(ms, read.or(data), name)
}

/// Token counts of an answer whose first tokens are of the prompt.
fn counted_after(mut usage: Value, tokens: u64) -> Value {
    let mut add = |name: &str, change: &dyn Fn(u64) -> u64| {
        if let Some(count) = usage.get_mut(name) {
            *count = count.as_u64().map_or(Value::Null, |count| change(count).into());
        }
    };
    add("prompt_tokens", &|count| count.saturating_add(tokens));
    add("completion_tokens", &|count| count.saturating_sub(tokens));
    usage
}
