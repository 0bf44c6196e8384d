//! Fresh response and tool-call ids, so that a record served twice does not repeat them.
//!
//! They come from a counter, so that equal runs have equal ones.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use serde_json::Value;

use crate::delivery::RecordedContent;
use api::Endpoint;
use recording::{
    canonical::visit_ids,
    cassette::{AnswerContent, CassetteRecord, call_of},
};

/// Ids of responses and tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ids {
    /// Those that were recorded.
    #[default]
    Recorded,
    /// New ones, counted: `chatcmpl-vcr-1`, `call_1_1`.
    Fresh,
}

/// Ids of an answer and what stands for them, both as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Renaming(Vec<(String, String)>);

impl Renaming {
    /// None, or the next one of a counter.
    pub(crate) fn next(ids: Ids, counter: &AtomicU64, record: &CassetteRecord, path: &str) -> Self {
        match ids {
            Ids::Recorded => Self::default(),
            Ids::Fresh => Self::of(record, path, counter.fetch_add(1, Relaxed) + 1),
        }
    }

    fn of(record: &CassetteRecord, path: &str, number: u64) -> Self {
        let side = record.side.as_ref();
        let own = side.and_then(|side| side.head.get("id")).and_then(Value::as_str).map(str::to_owned);
        let own = own.unwrap_or_else(|| made_up(record, path));
        let kind = own.split(['-', '_']).next().unwrap_or_default();
        let mut renaming = Self::default();
        renaming.add(&own, &format!("{kind}-vcr-{number}"));
        let original = |short: &String| side.and_then(|side| side.ids.get(short)).cloned();
        for (at, short) in calls(record).iter().enumerate() {
            let fresh = format!("call_{number}_{}", at + 1);
            renaming.add(short, &fresh);
            original(short).into_iter().for_each(|original| renaming.add(&original, &fresh));
        }
        renaming
    }

    fn add(&mut self, old: &str, new: &str) {
        if !old.is_empty() {
            self.0.push((Value::from(old).to_string(), Value::from(new).to_string()));
        }
    }

    /// Puts the new ids into an answer.
    pub(crate) fn rename(&self, content: &mut RecordedContent) {
        if self.0.is_empty() {
            return;
        }
        content.change(|part| {
            let text = std::str::from_utf8(part).ok()?;
            Some(self.0.iter().fold(text.to_owned(), |text, (old, new)| text.replace(old, new)))
        });
    }
}

/// The id that an answer is given that was recorded with none.
pub(crate) fn made_up(record: &CassetteRecord, path: &str) -> String {
    let number = record.id;
    match Endpoint::of_path(path) {
        Endpoint::Messages => format!("msg_vcr_{number}"),
        Endpoint::Responses => format!("resp_vcr_{number}"),
        _ if path.contains("chat") => format!("chatcmpl-vcr-{number}"),
        _ => format!("cmpl-vcr-{number}"),
    }
}

/// The ids of an answer's calls, of its blocks or of its items, each once and in order.
fn calls(record: &CassetteRecord) -> Vec<String> {
    let mut ids = Vec::new();
    match &record.answer.content {
        AnswerContent::Choices { choices, .. } => {
            let listed = choices.iter().filter_map(|choice| choice.get("message")?.get("tool_calls")?.as_array());
            ids.extend(listed.flatten().map(|call| call_of(call).0));
        }
        AnswerContent::Json(value) if record.answer.status < 400 => {
            let mut seen = HashSet::new();
            let mut own = value.clone();
            own.as_object_mut().and_then(|fields| fields.shift_remove("previous_response_id"));
            visit_ids(&mut own, &mut |id| ids.extend(seen.insert(id.clone()).then(|| id.clone())));
        }
        _ => {}
    }
    ids
}
