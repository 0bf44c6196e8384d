//! JSON, as values and as text: each scalar is looked at once, with the kind of secret by its path.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{EACH, Redactor, is_placeholder};
use crate::redaction::{
    edits::{Edit, apply},
    scan::{Scalar, Step, leaves},
    trail::Trail,
};

/// How deep JSON in strings of JSON is followed.
const DEEPEST_NESTING: u8 = 4;

impl Redactor<'_> {
    /// Redacts a JSON value in place, names of fields too. True where anything was found. What it names as a secret is found
    /// anywhere in it.
    pub fn json(&mut self, value: &mut Value) -> bool {
        self.learn(value);
        let found = self.walk(value, &mut Trail::new(self.rules, []));
        self.names(value) || found
    }

    /// Redacts one item of a list that is a field of a body, as [`json`](Self::json) does within the whole body.
    pub fn item(&mut self, list: &str, index: usize, item: &mut Value) -> bool {
        let steps = [Step::Key(Some(list.to_owned().into())), Step::Index(index)];
        let found = self.walk(item, &mut Trail::new(self.rules, steps));
        self.names(item) || found
    }

    /// Redacts the fields of an object in place. True where anything was found.
    pub fn fields(&mut self, fields: &mut Map<String, Value>) -> bool {
        let mut whole = Value::Object(std::mem::take(fields));
        let found = self.json(&mut whole);
        if let Value::Object(whole) = whole {
            *fields = whole;
        }
        found
    }

    /// Notes the secrets that a value names, to be found in whatever is redacted after, without their names too.
    pub fn learn(&mut self, value: &Value) {
        self.learn_within(value, &mut Trail::new(self.rules, []));
    }

    /// As [`learn`](Self::learn), of the fields of an object.
    pub fn learn_fields(&mut self, fields: &Map<String, Value>) {
        let mut trail = Trail::new(self.rules, []);
        self.learn_each(fields, &mut trail);
    }

    fn learn_each<'v>(&mut self, fields: &'v Map<String, Value>, trail: &mut Trail<'_, 'v>) {
        let pair = trail.kind_of_pair(fields);
        for (name, value) in fields {
            trail.enter_field(Step::Key(Some(name.into())), pair.as_ref());
            self.learn_within(value, trail);
            trail.leave();
        }
    }

    /// As [`learn`](Self::learn), of one item of a list that is a field of a body.
    pub fn learn_item(&mut self, list: &str, index: usize, item: &Value) {
        let steps = [Step::Key(Some(list.to_owned().into())), Step::Index(index)];
        self.learn_within(item, &mut Trail::new(self.rules, steps));
    }

    fn learn_within<'v>(&mut self, value: &'v Value, trail: &mut Trail<'_, 'v>) {
        match value {
            Value::String(text) => self.learn_scalar(text, trail.kind().cloned(), 0),
            Value::Number(number) if trail.kind().is_some() => {
                self.learn_scalar(&number.to_string(), trail.kind().cloned(), 0);
            }
            Value::Array(items) => {
                trail.enter(Step::Index(0));
                for item in items {
                    self.learn_within(item, trail);
                    trail.next();
                }
                trail.leave();
            }
            Value::Object(fields) => self.learn_each(fields, trail),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    pub(super) fn learn_json(&mut self, text: &str, nesting: u8) {
        if self.is_exhausted() {
            return;
        }
        self.work += text.len() as u64;
        leaves(text, Trail::new(self.rules, []), |trail, leaf| {
            let kind = trail.kind().cloned();
            match &leaf.value {
                Scalar::Number(number) if kind.is_some() => self.learn_scalar(number, kind, nesting),
                Scalar::Number(_) => {}
                // A value that is cut is found by what is there of it.
                Scalar::Text { decoded, .. } => self.learn_scalar(decoded, kind, nesting),
            }
        });
    }

    fn learn_scalar(&mut self, text: &str, kind: Option<Arc<str>>, nesting: u8) {
        self.work += EACH;
        match kind {
            Some(kind) if !is_placeholder(text) => self.learn_value(text, &kind),
            Some(_) => {}
            None if nesting < DEEPEST_NESTING && looks_like_json(text) => self.learn_json(text, nesting + 1),
            None => {}
        }
    }

    fn walk<'v>(&mut self, value: &'v mut Value, trail: &mut Trail<'_, 'v>) -> bool {
        let mut found = false;
        match value {
            Value::Null | Value::Bool(_) => {}
            Value::Number(number) => {
                if trail.kind().is_some() || !number.is_f64() {
                    let with = self.number(&number.to_string(), trail);
                    found = with.is_some();
                    with.into_iter().for_each(|with| *value = Value::String(with));
                }
            }
            Value::String(text) => {
                let with = self.string(text, trail, 0);
                found = with.is_some();
                with.into_iter().for_each(|with| *text = with);
            }
            Value::Array(items) => {
                trail.enter(Step::Index(0));
                for item in items {
                    found |= self.walk(item, trail);
                    trail.next();
                }
                trail.leave();
            }
            Value::Object(fields) => {
                let pair = trail.kind_of_pair(fields);
                for (name, value) in fields {
                    trail.enter_field(Step::Key(Some(name.into())), pair.as_ref());
                    found |= self.walk(value, trail);
                    trail.leave();
                }
            }
        }
        found
    }

    pub(super) fn json_edits(&mut self, text: &str, nesting: u8) -> Vec<Edit> {
        let mut edits = Vec::new();
        leaves(text, Trail::new(self.rules, []), |trail, leaf| {
            let (with, is_cut) = match &leaf.value {
                Scalar::Number(number) => (self.number(number, trail), false),
                Scalar::Text { decoded, is_cut } => (self.string(decoded, trail, nesting), *is_cut),
            };
            if let Some(with) = with {
                let mut quoted = Value::String(with).to_string();
                if is_cut {
                    quoted.pop();
                }
                edits.push((leaf.span, quoted));
            }
        });
        edits
    }

    /// What a number becomes; `None` where it stays.
    fn number(&mut self, number: &str, trail: &Trail<'_, '_>) -> Option<String> {
        if let Some(kind) = trail.kind() {
            return Some(self.placeholder(kind, number, &mut || trail.spelled()));
        }
        if !(self.seen.0.known.kind_of(number).is_some() || self.rules.may_be_secret(number)) {
            return None;
        }
        self.text_edits(number, Some(trail)).into_iter().next().map(|(_, with)| with)
    }

    /// What a string becomes; `None` where it stays.
    fn string(&mut self, text: &str, trail: &Trail<'_, '_>, nesting: u8) -> Option<String> {
        if let Some(kind) = trail.kind() {
            let stays = text.is_empty() || is_placeholder(text);
            if stays {
                self.reserve(text);
            }
            return (!stays).then(|| self.placeholder(kind, text, &mut || trail.spelled()));
        }
        let inner = (nesting < DEEPEST_NESTING && looks_like_json(text))
            .then(|| self.json_edits(text, nesting + 1))
            .filter(|edits| !edits.is_empty())
            .map(|edits| apply(text, &edits));
        let left = inner.as_deref().unwrap_or(text);
        let edits = self.text_edits(left, Some(trail));
        if edits.is_empty() { inner } else { Some(apply(left, &edits)) }
    }

    /// Redacts the names of fields. Nearly always there is nothing in them: they are searched as one first, and what was
    /// searched before is remembered.
    pub(super) fn names(&mut self, value: &mut Value) -> bool {
        let mut all = String::new();
        put_names(value, &mut all);
        if self.rules.takes_texts_as_one() && self.spans(&all).is_empty() {
            return false;
        }
        self.rename(value)
    }

    fn rename(&mut self, value: &mut Value) -> bool {
        match value {
            Value::Array(items) => items.iter_mut().filter_map(|item| self.rename(item).then_some(())).count() > 0,
            Value::Object(fields) => {
                let found = fields.values_mut().filter_map(|value| self.rename(value).then_some(())).count() > 0;
                let clean: Vec<Option<String>> = fields.keys().map(|name| self.text(name)).collect();
                if clean.iter().all(Option::is_none) {
                    return found;
                }
                let old = std::mem::take(fields).into_iter().zip(clean);
                *fields = old.map(|((name, value), clean)| (clean.unwrap_or(name), value)).collect();
                true
            }
            _ => false,
        }
    }
}

/// Appends the names of all fields, a line each.
fn put_names(value: &Value, all: &mut String) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| put_names(item, all)),
        Value::Object(fields) => {
            for (name, value) in fields {
                all.push_str(name);
                all.push('\n');
                put_names(value, all);
            }
        }
        _ => {}
    }
}

/// Whether a text is searched as JSON where it is a string in JSON.
#[must_use]
pub fn looks_like_json(text: &str) -> bool {
    matches!(text.trim_start().as_bytes().first(), Some(b'{' | b'['))
}
