//! What faults know of a request, read as far as a condition asks for it.

use http::{HeaderMap, header};
use serde_json::Value;
use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::{
    selection::{FaultSelection, SequenceKey},
    stage::is_path,
};

/// A request as faults see it.
#[derive(Debug, Clone, Copy)]
pub struct FaultRequest<'a> {
    /// Path without the query.
    pub path: &'a str,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// Its whole body.
    pub body: &'a [u8],
    /// Its session, if it names one.
    pub session: Option<&'a str>,
    /// Number of the replica that it is sent to.
    pub replica: u32,
}

impl FaultRequest<'_> {
    /// Hash of path and body.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let mut hash = Xxh3::new();
        hash.update(self.path.as_bytes());
        hash.update(&[0]);
        hash.update(self.body);
        hash.digest()
    }

    fn key(&self) -> Option<&str> {
        let bearer = self.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.split_once(' '));
        let key = self.headers.get("x-api-key").and_then(|value| value.to_str().ok());
        bearer.map(|(_, key)| key.trim()).or(key)
    }
}

/// Facts about a request, as far as conditions need them.
pub(crate) struct SelectionFacts<'a> {
    pub(crate) request: &'a FaultRequest<'a>,
    pub(crate) hash: u64,
    pub(crate) nth: u64,
    body: Option<Value>,
}

impl<'a> SelectionFacts<'a> {
    pub(crate) fn new(request: &'a FaultRequest<'a>, hash: u64, nth: u64) -> Self {
        Self { request, hash, nth, body: None }
    }

    fn body(&mut self) -> &Value {
        self.body.get_or_insert_with(|| serde_json::from_slice(self.request.body).unwrap_or_default())
    }

    fn model(&mut self) -> Option<&str> {
        self.body().get("model").and_then(Value::as_str)
    }

    /// Checks all conditions that need no counting.
    pub(crate) fn fulfil(&mut self, selection: &FaultSelection) -> bool {
        let FaultRequest { path, headers, session, .. } = *self.request;
        let is_of_head = selection.is_of(self.request.replica)
            && selection.path.as_deref().is_none_or(|named| is_path(named, path))
            && selection.session.as_deref().is_none_or(|named| session == Some(named))
            && selection.key.as_deref().is_none_or(|named| self.request.key() == Some(named))
            && selection.request.is_none_or(|named| self.hash == named)
            && selection.headers.iter().all(|(name, value)| {
                let mut sent = headers.get_all(name).iter();
                sent.any(|sent| value.as_ref().is_none_or(|value| sent.as_bytes() == value.as_bytes()))
            });
        is_of_head
            && selection.model.as_deref().is_none_or(|named| self.model() == Some(named))
            && selection.turn.is_none_or(|turn| answers_in(self.body()) == turn)
            && selection.prompt.as_ref().is_none_or(|prompt| {
                let body = self.body();
                ["messages", "prompt", "input", "system"]
                    .iter()
                    .filter_map(|name| body.get(name))
                    .any(|value| any_text(value, &mut |text| prompt.is_match(text)))
            })
    }

    /// What the requests of its sequence have in common; also whose quota it takes from.
    pub(crate) fn sequence(&mut self, per: &SequenceKey) -> u64 {
        let value = match per {
            SequenceKey::Request => return self.hash,
            SequenceKey::All => None,
            SequenceKey::Session => self.request.session,
            SequenceKey::Key => self.request.key(),
            SequenceKey::Header(name) => self.request.headers.get(name).and_then(|value| value.to_str().ok()),
            SequenceKey::Model => self.model(),
        };
        xxh3_64_with_seed(value.unwrap_or_default().as_bytes(), u64::from(value.is_some()))
    }
}

fn answers_in(body: &Value) -> u64 {
    let lists = ["messages", "input"].iter().filter_map(|name| body.get(name)?.as_array()).flatten();
    lists.filter(|message| message.get("role").and_then(Value::as_str) == Some("assistant")).map(|_| 1).sum()
}

/// Looks at the texts in a value until one is found.
fn any_text(value: &Value, is_found: &mut impl FnMut(&str) -> bool) -> bool {
    match value {
        Value::String(text) => is_found(text),
        Value::Array(items) => items.iter().any(|item| any_text(item, is_found)),
        Value::Object(fields) => fields.values().any(|field| any_text(field, is_found)),
        _ => false,
    }
}
