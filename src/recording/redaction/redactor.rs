//! Applies rules to the parts of one record.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Rules,
    scan::{Leaf, Scalar, Step, leaves},
};

/// How deep JSON in strings of JSON is followed.
const DEEPEST_NESTING: u8 = 4;

/// Shorter texts, in bytes, are searched again.
const SHORTEST_REMEMBERED: usize = 64;

/// A secret under a telling name is looked for elsewhere in the record when it is at least as long, in bytes.
const SHORTEST_KNOWN: usize = 8;

/// Redacts one record: equal secrets in any of its parts get the same number.
#[derive(Debug)]
pub struct Redactor<'a> {
    rules: &'a Rules,
    numbers: HashMap<(String, String), usize>,
    /// Secrets found by their names: kind and value.
    known: Vec<(String, String)>,
    finds: Vec<Find>,
    /// Hashes of long texts in which the rules find nothing.
    clean: HashSet<u64>,
}

/// The secrets of a part of a record: the same ones have the same numbers in the next part.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    numbers: HashMap<(String, String), usize>,
    known: Vec<(String, String)>,
}

/// One secret that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Find {
    /// Where in its JSON it stands, as `$.messages[0].content`; empty in plain text.
    pub place: String,
    /// What it is: the pattern's, the literal's or the key's name.
    pub kind: String,
    /// Its beginning and its length: enough to find it again, too little to use it.
    pub example: String,
}

/// A replacement in a text.
type Edit = (Range<usize>, String);

impl<'a> Redactor<'a> {
    /// A redactor for one record.
    #[must_use]
    pub fn new(rules: &'a Rules) -> Self {
        Self { rules, numbers: HashMap::new(), known: Vec::new(), finds: Vec::new(), clean: HashSet::new() }
    }

    /// Begins another record; it still knows in which texts there is nothing, as conversations repeat theirs.
    pub fn begin_another(&mut self) {
        self.numbers.clear();
        self.known.clear();
        self.finds.clear();
    }

    /// What is known of the secrets so far, for another redactor to go on with.
    #[must_use]
    pub fn seen(&self) -> Seen {
        Seen { numbers: self.numbers.clone(), known: self.known.clone() }
    }

    /// Goes on with what was seen before, in place of what is known now.
    pub fn go_on(&mut self, Seen { numbers, known }: Seen) {
        (self.numbers, self.known) = (numbers, known);
    }

    /// Whether anything was redacted so far.
    #[must_use]
    pub fn found_any(&self) -> bool {
        !self.finds.is_empty()
    }

    /// What was redacted since this was last asked.
    pub fn take_finds(&mut self) -> Vec<Find> {
        std::mem::take(&mut self.finds)
    }

    /// Plain text without its secrets; `None` where it has none.
    #[must_use]
    pub fn text(&mut self, text: &str) -> Option<String> {
        let edits = self.text_edits(text, String::new);
        (!edits.is_empty()).then(|| apply(text, &edits))
    }

    /// Text that was cut into pieces, as the deltas of a stream: it is searched as a whole. A placeholder stands in the
    /// piece where its secret begins. True where anything was found.
    pub fn pieces(&mut self, pieces: &mut [String]) -> bool {
        let edits = self.text_edits(&pieces.concat(), String::new);
        apply_to_pieces(pieces, &edits);
        !edits.is_empty()
    }

    /// JSON text without its secrets, every other byte as it was; `None` where it has none. Text that is cut or damaged
    /// is searched too.
    #[must_use]
    pub fn json_text(&mut self, text: &str) -> Option<String> {
        let edits = self.json_edits(text, 0);
        let clean = (!edits.is_empty()).then(|| apply(text, &edits));
        let left = clean.as_deref().unwrap_or(text);
        if self.spans(left).is_empty() {
            return clean;
        }
        // What is left stands in the names of fields, or only looks like a secret across several values.
        let Ok(mut whole) = serde_json::from_str::<Value>(left) else { return clean };
        if self.names(&mut whole) { Some(whole.to_string()) } else { clean }
    }

    /// As [`pieces`](Self::pieces), for JSON text that was cut into pieces, as a tool call's arguments are.
    pub fn json_pieces(&mut self, pieces: &mut [String]) -> bool {
        let whole = pieces.concat();
        let edits: Vec<Edit> = self.json_edits(&whole, 0).into_iter().map(|edit| narrowed(&whole, edit)).collect();
        apply_to_pieces(pieces, &edits);
        // What is no JSON after all, or stands between its strings.
        self.pieces(pieces) || !edits.is_empty()
    }

    /// Redacts a JSON value in place, names of fields too. True where anything was found.
    pub fn json(&mut self, value: &mut Value) -> bool {
        let (text, mut found) = (value.to_string(), false);
        leaves(&text, |steps, leaf| {
            if let Some(with) = self.replaced(steps, &leaf, 0)
                && let Some(place) = place_in(value, steps)
            {
                found = true;
                *place = Value::String(with);
            }
        });
        self.names(value) || found
    }

    /// Redacts one item of a list that is a field of a body, as [`json`](Self::json) does within the whole body.
    pub fn item(&mut self, list: &str, index: usize, item: &mut Value) -> bool {
        let (text, mut found) = (item.to_string(), false);
        let mut place = vec![Step::Key(Some(list.into())), Step::Index(index)];
        leaves(&text, |steps, leaf| {
            place.truncate(2);
            place.extend_from_slice(steps);
            if let Some(with) = self.replaced(&place, &leaf, 0)
                && let Some(value) = place_in(item, steps)
            {
                found = true;
                *value = Value::String(with);
            }
        });
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

    /// Redacts the names of fields. Nearly always there is nothing in them: they are searched as one first, and what was
    /// searched before is remembered.
    fn names(&mut self, value: &mut Value) -> bool {
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

    /// A header's value without its secrets; `None` where it has none.
    #[must_use]
    pub fn header(&mut self, name: &str, value: &str) -> Option<String> {
        if self.rules.is_secret_key(name) && !value.is_empty() && !is_placeholder(value) {
            return Some(self.placeholder(&name.to_ascii_lowercase(), value, name));
        }
        self.text(value)
    }

    /// A body without its secrets, JSON or not; `None` where it has none. Bytes that are no UTF-8 are replaced where
    /// anything is.
    #[must_use]
    pub fn body(&mut self, body: &[u8]) -> Option<Vec<u8>> {
        let text = String::from_utf8_lossy(body);
        let json = looks_like_json(&text).then(|| self.json_text(&text)).flatten();
        let more = self.text(json.as_deref().unwrap_or(&text));
        more.or(json).map(String::into_bytes)
    }

    /// Bytes that are no text without their secrets, every other byte as it was; `None` where they have none.
    #[must_use]
    pub fn bytes(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let chars: String = bytes.iter().map(|byte| char::from(*byte)).collect();
        let clean = self.text(&chars)?;
        Some(clean.chars().map(|c| u8::try_from(u32::from(c)).unwrap_or(b'?')).collect())
    }

    /// Where the secrets of a text are; long texts without any are not searched again.
    fn spans(&mut self, text: &str) -> Vec<(Range<usize>, String)> {
        let may_be_clean = text.len() >= SHORTEST_REMEMBERED && self.known.is_empty();
        let hash = if may_be_clean { xxh3_64(text.as_bytes()) } else { 0 };
        if may_be_clean && self.clean.contains(&hash) {
            return Vec::new();
        }
        let spans = self.rules.spans(text, &self.known);
        if may_be_clean && spans.is_empty() {
            self.clean.insert(hash);
        }
        spans
    }

    fn text_edits(&mut self, text: &str, place: impl FnOnce() -> String) -> Vec<Edit> {
        let spans = self.spans(text);
        if spans.is_empty() {
            return Vec::new();
        }
        let place = place();
        let placed = spans.into_iter().map(|(span, kind)| {
            let secret = text.get(span.clone()).unwrap_or_default();
            (span, self.placeholder(&kind, secret, &place))
        });
        placed.collect()
    }

    fn json_edits(&mut self, text: &str, nesting: u8) -> Vec<Edit> {
        let mut edits = Vec::new();
        leaves(text, |steps, leaf| {
            if let Some(with) = self.replaced(steps, &leaf, nesting) {
                let mut quoted = Value::String(with).to_string();
                if matches!(leaf.value, Scalar::Text { is_cut: true, .. }) {
                    quoted.pop();
                }
                edits.push((leaf.span, quoted));
            }
        });
        edits
    }

    /// What a scalar becomes; `None` where it stays.
    fn replaced(&mut self, steps: &[Step<'_>], leaf: &Leaf<'_>, nesting: u8) -> Option<String> {
        let kind = self.rules.kind_by_place(steps);
        match (&leaf.value, kind) {
            (Scalar::Number(number), Some(kind)) => Some(self.placeholder(&kind, number, &spelled(steps))),
            (Scalar::Number(number), None) => {
                let is_known = self.known.iter().any(|(_, value)| value == number);
                let edits =
                    (is_known || self.rules.may_be_secret(number)).then(|| self.text_edits(number, || spelled(steps)));
                edits?.into_iter().next().map(|(_, with)| with)
            }
            (Scalar::Text { decoded, .. }, Some(kind)) => {
                if decoded.is_empty() || is_placeholder(decoded) {
                    return None;
                }
                if decoded.len() >= SHORTEST_KNOWN && !decoded.contains(char::is_whitespace) {
                    self.known.push((kind.clone(), decoded.to_string()));
                }
                Some(self.placeholder(&kind, decoded, &spelled(steps)))
            }
            (Scalar::Text { decoded, .. }, None) => {
                let inner = (nesting < DEEPEST_NESTING && looks_like_json(decoded))
                    .then(|| self.json_edits(decoded, nesting + 1))
                    .filter(|edits| !edits.is_empty())
                    .map(|edits| apply(decoded, &edits));
                let text = inner.as_deref().unwrap_or(decoded);
                let edits = self.text_edits(text, || spelled(steps));
                if edits.is_empty() { inner } else { Some(apply(text, &edits)) }
            }
        }
    }

    fn placeholder(&mut self, kind: &str, secret: &str, place: &str) -> String {
        let next = self.numbers.keys().filter(|(other, _)| other == kind).count() + 1;
        let number = *self.numbers.entry((kind.to_owned(), secret.to_owned())).or_insert(next);
        let spans = self.rules.spans(place, &self.known).into_iter();
        let hidden: Vec<Edit> = spans.map(|(span, kind)| (span, format!("[REDACTED:{kind}]"))).collect();
        self.finds.push(Find { place: apply(place, &hidden), kind: kind.to_owned(), example: example(secret) });
        format!("[REDACTED:{kind}:{number}]")
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

fn looks_like_json(text: &str) -> bool {
    matches!(text.trim_start().as_bytes().first(), Some(b'{' | b'['))
}

fn is_placeholder(text: &str) -> bool {
    text.strip_prefix("[REDACTED:").and_then(|rest| rest.strip_suffix(']')).is_some_and(|inside| !inside.contains(']'))
}

/// A quarter of a secret's characters, four at most, and how many there are.
fn example(secret: &str) -> String {
    let length = secret.chars().count();
    let shown: String = secret.chars().take((length / 4).min(4)).collect();
    format!("{}… ({length} characters)", shown.escape_debug())
}

fn spelled(steps: &[Step<'_>]) -> String {
    steps.iter().fold("$".to_owned(), |place, step| match step {
        Step::Key(key) => format!("{place}.{}", key.as_deref().unwrap_or_default()),
        Step::Index(index) => format!("{place}[{index}]"),
    })
}

fn place_in<'v>(value: &'v mut Value, steps: &[Step<'_>]) -> Option<&'v mut Value> {
    steps.iter().try_fold(value, |value, step| match step {
        Step::Key(key) => value.get_mut(key.as_deref()?),
        Step::Index(index) => value.get_mut(*index),
    })
}

fn apply(text: &str, edits: &[Edit]) -> String {
    let mut pieces = [text.to_owned()];
    apply_to_pieces(&mut pieces, edits);
    pieces.concat()
}

/// Applies edits of the pieces' whole, which are in order and do not overlap.
fn apply_to_pieces(pieces: &mut [String], edits: &[Edit]) {
    if edits.is_empty() {
        return;
    }
    let mut start = 0;
    for piece in pieces {
        let end = start + piece.len();
        let mut at = start;
        let mut kept = String::with_capacity(piece.len());
        for (span, with) in edits.iter().filter(|(span, _)| span.start < end && span.end > start) {
            kept.push_str(piece.get(at - start..span.start.max(at) - start).unwrap_or_default());
            if span.start >= start {
                kept.push_str(with);
            }
            at = span.end.min(end);
        }
        kept.push_str(piece.get(at - start..).unwrap_or_default());
        *piece = kept;
        start = end;
    }
}

/// The same edit without what stays the same at both of its ends.
fn narrowed(text: &str, (span, with): Edit) -> Edit {
    let old = text.get(span.clone()).unwrap_or_default();
    let same = |pairs: &mut dyn Iterator<Item = (char, char)>| -> usize {
        pairs.take_while(|(one, other)| one == other).map(|(c, _)| c.len_utf8()).sum()
    };
    let front = same(&mut old.chars().zip(with.chars()));
    let (old_rest, with_rest) = (old.get(front..).unwrap_or_default(), with.get(front..).unwrap_or_default());
    let back = same(&mut old_rest.chars().rev().zip(with_rest.chars().rev()));
    let kept = with_rest.get(..with_rest.len() - back).unwrap_or_default();
    let narrow = span.start + front..span.end - back;
    if narrow.is_empty() { (span, with) } else { (narrow, kept.to_owned()) }
}

#[cfg(test)]
mod tests;
