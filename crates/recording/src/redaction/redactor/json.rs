//! JSON, as values and as text: one visit of its scalars, which learns or replaces, looks at each once with the kind of secret by its path.

use std::{iter::Peekable, sync::Arc, vec::IntoIter};

use serde_json::{Map, Value};

use super::{EACH, Redactor, is_placeholder};
use crate::{
    children::{as_value, children, children_mut, rename},
    redaction::{
        edits::{TextReplacement, apply},
        scan::{Scalar, ValueStep, leaves},
        trail::Trail,
    },
};

/// Maximum depth of JSON in strings of JSON that is searched.
pub(in crate::redaction) const DEEPEST_NESTING: u8 = 4;

/// Names before a credential of an `Authorization`.
const SCHEMES: [&str; 3] = ["Bearer", "Basic", "Token"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Notes those that names show to be secrets.
    Learn,
    Replace,
}

/// Scalars of a value by their number in it, each with what it becomes.
#[derive(Debug, Default)]
struct Replacements {
    scalars: usize,
    found: Vec<(usize, String)>,
}

impl Replacements {
    /// Notes what the next scalar becomes; `None` where it stays.
    fn push(&mut self, with: Option<String>) {
        self.found.extend(with.map(|with| (self.scalars, with)));
        self.scalars += 1;
    }

    /// Puts them into their value. True where there are any.
    fn put(self, value: &mut Value) -> bool {
        let any = !self.found.is_empty();
        if any {
            put(value, &mut 0, &mut self.found.into_iter().peekable());
        }
        any
    }
}

fn put(value: &mut Value, at: &mut usize, found: &mut Peekable<IntoIter<(usize, String)>>) {
    if value.is_array() || value.is_object() {
        return children_mut(value).for_each(|(_, value)| put(value, at, found));
    }
    if let Some((_, with)) = found.next_if(|(place, _)| place == at) {
        *value = Value::String(with);
    }
    *at += 1;
}

/// The steps to an item of a list that is a field of a body.
fn item_steps(list: &str, index: usize) -> [ValueStep<'static>; 2] {
    [ValueStep::Key(Some(list.to_owned().into())), ValueStep::Index(index)]
}

impl Redactor<'_> {
    /// Redacts a JSON value in place, names of fields too. True where anything was found. What it names as a secret is found
    /// anywhere in it.
    pub fn json(&mut self, value: &mut Value) -> bool {
        self.learn(value);
        self.replace(value, Trail::new(self.rules, []))
    }

    /// Redacts one item of a list that is a field of a body, as [`json`](Self::json) does within the whole body.
    pub fn item(&mut self, list: &str, index: usize, item: &mut Value) -> bool {
        self.replace(item, Trail::new(self.rules, item_steps(list, index)))
    }

    /// Redacts the fields of an object in place. True where anything was found.
    pub fn fields(&mut self, fields: &mut Map<String, Value>) -> bool {
        as_value(fields, |value| self.json(value))
    }

    /// Notes the secrets that a value names, to be found in whatever is redacted after, without their names too.
    pub fn learn(&mut self, value: &Value) {
        self.visit(Action::Learn, value, &mut Trail::new(self.rules, []), &mut Replacements::default());
    }

    /// As [`learn`](Self::learn), of the fields of an object.
    pub fn learn_fields(&mut self, fields: &Map<String, Value>) {
        self.visit_fields(Action::Learn, fields, &mut Trail::new(self.rules, []), &mut Replacements::default());
    }

    /// As [`learn`](Self::learn), of one item of a list that is a field of a body.
    pub fn learn_item(&mut self, list: &str, index: usize, item: &Value) {
        let mut trail = Trail::new(self.rules, item_steps(list, index));
        self.visit(Action::Learn, item, &mut trail, &mut Replacements::default());
    }

    fn replace(&mut self, value: &mut Value, trail: Trail<'_, 'static>) -> bool {
        let (mut trail, mut with) = (trail, Replacements::default());
        self.visit(Action::Replace, value, &mut trail, &mut with);
        let found = with.put(value);
        self.names(value) || found
    }

    /// Does something with each scalar of a value.
    fn visit<'v>(&mut self, action: Action, value: &'v Value, trail: &mut Trail<'_, 'v>, with: &mut Replacements) {
        match value {
            Value::Null | Value::Bool(_) => with.push(None),
            Value::Number(number) => {
                let is_looked_at = trail.kind().is_some() || (action == Action::Replace && !number.is_f64());
                let text = is_looked_at.then(|| number.to_string());
                with.push(text.and_then(|text| self.scalar(action, &Scalar::Number(&text), trail, 0)));
            }
            Value::String(text) => {
                let scalar = Scalar::Text { decoded: text.into(), is_cut: false };
                with.push(self.scalar(action, &scalar, trail, 0));
            }
            Value::Array(items) => {
                trail.enter(ValueStep::Index(0));
                for item in items {
                    self.visit(action, item, trail, with);
                    trail.next();
                }
                trail.leave();
            }
            Value::Object(fields) => self.visit_fields(action, fields, trail, with),
        }
    }

    fn visit_fields<'v>(
        &mut self,
        action: Action,
        fields: &'v Map<String, Value>,
        trail: &mut Trail<'_, 'v>,
        with: &mut Replacements,
    ) {
        let pair = trail.kind_of_pair(fields);
        for (name, value) in fields {
            trail.enter_field(ValueStep::Key(Some(name.into())), pair.as_ref());
            self.visit(action, value, trail, with);
            trail.leave();
        }
    }

    /// Does something with each scalar of JSON text; the edits that it needs.
    pub(super) fn visit_text(&mut self, action: Action, text: &str, nesting: u8) -> Vec<TextReplacement> {
        let mut edits = Vec::new();
        if action == Action::Learn {
            if self.is_exhausted() {
                return edits;
            }
            self.work += text.len() as u64;
        }
        leaves(text, Trail::new(self.rules, []), |trail, leaf| {
            let Some(with) = self.scalar(action, &leaf.value, trail, nesting) else { return };
            let mut quoted = Value::String(with).to_string();
            if matches!(leaf.value, Scalar::Text { is_cut: true, .. }) {
                quoted.pop();
            }
            edits.push((leaf.span, quoted));
        });
        edits
    }

    /// What a scalar becomes; `None` where it stays, or is learned.
    fn scalar(&mut self, action: Action, scalar: &Scalar<'_>, trail: &Trail<'_, '_>, nesting: u8) -> Option<String> {
        let kind = trail.kind();
        match (action, scalar) {
            (Action::Replace, Scalar::Number(number)) => return self.number(number, trail),
            (Action::Replace, Scalar::Text { decoded, .. }) => return self.string(decoded, trail, nesting),
            (Action::Learn, Scalar::Number(number)) if kind.is_some() => self.learn_scalar(number, kind, nesting),
            (Action::Learn, Scalar::Number(_)) => {}
            // A value that is cut is found by what is there of it.
            (Action::Learn, Scalar::Text { decoded, .. }) => self.learn_scalar(decoded, kind, nesting),
        }
        None
    }

    fn learn_scalar(&mut self, text: &str, kind: Option<&Arc<str>>, nesting: u8) {
        self.work += EACH;
        match kind {
            Some(_) if is_placeholder(text) => {}
            Some(kind) => self.learn_value(text, kind),
            None if nesting < DEEPEST_NESTING && looks_like_json(text) => {
                self.visit_text(Action::Learn, text, nesting + 1);
            }
            None => {}
        }
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
            let place = &mut || trail.spelled();
            return (!stays)
                .then(|| self.credential(text, place).unwrap_or_else(|| self.placeholder(kind, text, place)));
        }
        let inner = (nesting < DEEPEST_NESTING && looks_like_json(text))
            .then(|| self.visit_text(Action::Replace, text, nesting + 1))
            .filter(|edits| !edits.is_empty())
            .map(|edits| apply(text, &edits));
        let left = inner.as_deref().unwrap_or(text);
        let edits = self.text_edits(left, Some(trail));
        if edits.is_empty() { inner } else { Some(apply(left, &edits)) }
    }

    /// A text of an answer without the credential behind the name of its scheme: the request may have that alone.
    fn credential(&mut self, text: &str, place: &mut dyn FnMut() -> String) -> Option<String> {
        let (scheme, credential) = text.split_once(' ').filter(|_| self.is_answer)?;
        SCHEMES.iter().find(|known| scheme.eq_ignore_ascii_case(known))?;
        let (span, kind) = self.spans(text).pop()?;
        let is_all = span == (scheme.len() + 1..text.len());
        is_all.then(|| format!("{scheme} {}", self.placeholder(&kind, credential, place)))
    }

    /// Redacts the names of fields. Nearly always there is nothing in them: they are searched as one first, and what was
    /// searched before is remembered.
    pub(super) fn names(&mut self, value: &mut Value) -> bool {
        let mut all = String::new();
        put_names(value, &mut all);
        if self.rules.takes_texts_as_one() && self.spans(&all).is_empty() {
            return false;
        }
        rename(value, &mut |name| self.text(name))
    }
}

/// Appends the names of all fields, a line each.
fn put_names(value: &Value, all: &mut String) {
    for (name, value) in children(value) {
        name.into_iter().for_each(|name| all.extend([name, "\n"]));
        put_names(value, all);
    }
}

/// Whether a text is searched as JSON where it is a string in JSON.
#[must_use]
pub fn looks_like_json(text: &str) -> bool {
    matches!(text.trim_start().as_bytes().first(), Some(b'{' | b'['))
}
