//! Applies rules to the parts of one record.
//!
//! See docs/decisions/0050-how-secrets-are-found.md.

mod json;
mod pieces;
mod seen;

pub(super) use self::json::DEEPEST_NESTING;
pub use self::{json::looks_like_json, seen::SeenSecrets};

use std::{collections::HashSet, sync::Arc};

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use self::json::Action;
use super::{
    Placeholder, RedactionRules,
    edits::{TextReplacement, apply, elided},
    names,
    placeholder::{PLACEHOLDER, has_placeholder, placeholders},
    rules::KindSpan,
    trail::Trail,
};

/// Shorter texts, in bytes, are searched again.
const SHORTEST_REMEMBERED: usize = 64;

/// What no shape without a sign has in it: pieces between which it stands are searched as one text.
const APART: &str = "\0";

/// Bytes of a text that repeats itself in which whatever has no sign is found, if it is found at all.
const PERIODIC: usize = 1024;

/// Bytes of work that one record may take: each byte counts once for each expression that is tried on it.
const BUDGET: u64 = 2 << 30;

/// Bytes of work for what has to be done for each value, however short.
const EACH: u64 = 64;

/// Finds that are described; others are counted.
const MOST_DESCRIBED: usize = 10_000;

/// The kind of what was not searched because the budget was used up.
const UNSEARCHED: &str = "unsearched";

/// Redacts one record: equal secrets in any of its parts get the same number.
#[derive(Debug)]
pub struct Redactor<'a> {
    rules: &'a RedactionRules,
    /// What is known at the beginning of each record.
    start: SeenSecrets,
    seen: SeenSecrets,
    finds: Vec<Find>,
    found: u64,
    /// What is searched is an answer, whose texts may be cut within a secret.
    is_answer: bool,
    /// Hashes of long texts in which the rules find nothing.
    clean: HashSet<u64>,
    /// Bytes of work so far, and how many there may be.
    work: u64,
    budget: u64,
}

/// State of a redactor.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    seen: SeenSecrets,
    finds: usize,
    found: u64,
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

impl<'a> Redactor<'a> {
    /// A redactor for one record.
    #[must_use]
    pub fn new(rules: &'a RedactionRules) -> Self {
        let (seen, finds, clean) = (SeenSecrets::default(), Vec::new(), HashSet::new());
        Self { rules, start: seen.clone(), seen, finds, found: 0, is_answer: false, clean, work: 0, budget: BUDGET }
    }

    /// The same, which knows these values at the beginning of each record.
    #[must_use]
    pub fn knowing(self, named: &SeenSecrets) -> Self {
        Self { start: named.clone(), seen: named.clone(), ..self }
    }

    /// The same with another budget, in bytes of work.
    #[must_use]
    pub fn within(self, budget: u64) -> Self {
        Self { budget, ..self }
    }

    /// Begins another record; it still knows in which texts there is nothing, as conversations repeat theirs.
    pub fn begin_another(&mut self) {
        self.seen = self.start.clone();
        self.finds.clear();
        (self.found, self.work, self.is_answer) = (0, 0, false);
    }

    /// Sets whether an answer is searched from here on: a text that ends with the beginning of a secret that was found before was cut
    /// within it.
    pub fn of_answer(&mut self, is_answer: bool) {
        self.is_answer = is_answer;
    }

    /// What is known of the secrets so far, for another redactor to go on with.
    #[must_use]
    pub fn seen(&self) -> SeenSecrets {
        self.seen.clone()
    }

    /// Goes on with what was seen before, in place of what is known now.
    pub fn go_on(&mut self, seen: SeenSecrets) {
        self.seen = seen;
    }

    /// What is known and found so far, to come back to.
    #[must_use]
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint { seen: self.seen.clone(), finds: self.finds.len(), found: self.found }
    }

    /// Comes back to what was known and found.
    pub fn restore(&mut self, to: Checkpoint) {
        self.finds.truncate(to.finds);
        (self.seen, self.found) = (to.seen, to.found);
    }

    /// Whether anything was redacted so far.
    #[must_use]
    pub fn found_any(&self) -> bool {
        self.found > 0
    }

    /// What was redacted since this was last asked; of very many the first.
    pub fn take_finds(&mut self) -> Vec<Find> {
        self.found = 0;
        std::mem::take(&mut self.finds)
    }

    /// Whether the budget is used up. What is searched then becomes a placeholder as a whole, so that no secret is left in it.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.work > self.budget
    }

    /// Whether it is certain that these pieces of text hold nothing, each for itself.
    #[must_use]
    pub fn finds_nothing_in<'t>(&mut self, pieces: impl Iterator<Item = &'t str> + Clone) -> bool {
        let mut joined = String::new();
        pieces.clone().for_each(|piece| joined.extend([piece, APART]));
        self.work += joined.len() as u64;
        self.has_no_trace(&joined) || pieces.into_iter().all(|piece| self.spans(piece).is_empty())
    }

    /// Whether it is certain that a text that stands so many times, without anything between, holds nothing.
    #[must_use]
    pub fn finds_nothing_in_repeated(&mut self, text: &str, count: usize) -> bool {
        let enough = PERIODIC.div_ceil(text.len().max(1)) + 1;
        let some = text.repeat(count.min(enough));
        self.work += some.len() as u64;
        (count > enough && self.has_no_trace(&some)) || self.spans(&text.repeat(count)).is_empty()
    }

    fn has_no_trace(&self, text: &str) -> bool {
        self.seen.0.known.is_empty() && !has_placeholder(text) && self.rules.has_no_trace(text)
    }

    /// Notes the secrets that JSON text names, to be found in whatever is redacted after, without their names too.
    pub fn learn_text(&mut self, text: &str) {
        if json::looks_like_json(text) {
            self.visit_text(Action::Learn, text, 0);
        }
    }

    /// As [`learn_text`](Self::learn_text), of a value under a name.
    pub fn learn_named(&mut self, name: &str, value: &str) {
        if self.rules.is_secret_key(name) && !is_placeholder(value) {
            self.learn_value(value, &names::kind_of_header(name));
        }
    }

    /// Number of secrets that were found by their names in this record.
    #[must_use]
    pub fn known(&self) -> usize {
        self.seen.0.known.len() - self.start.0.known.len()
    }

    /// Notes a secret of a kind, to be found in whatever is redacted after.
    pub(crate) fn learn_value(&mut self, value: &str, kind: &Arc<str>) {
        if self.seen.0.known.wants(value) {
            self.work += (value.len() as u64) * 2 + EACH;
            Arc::make_mut(&mut Arc::make_mut(&mut self.seen.0).known).add(value, kind);
        }
    }

    /// Notes a secret and the placeholder that is to stand for it.
    pub fn learn_placed(&mut self, value: &str, placeholder: &Placeholder) {
        self.learn_value(value, &placeholder.kind);
        let numbers = Arc::make_mut(&mut self.seen.0).numbers.entry(Arc::clone(&placeholder.kind)).or_default();
        numbers.of.insert(value.into(), placeholder.number);
        numbers.last = numbers.last.max(placeholder.number);
    }

    /// Plain text without its secrets; `None` where it has none.
    #[must_use]
    pub fn text(&mut self, text: &str) -> Option<String> {
        let edits = self.text_edits(text, None);
        (!edits.is_empty()).then(|| apply(text, &edits))
    }

    /// JSON text without its secrets, every other byte as it was; `None` where it has none. Text that is cut or damaged
    /// is searched too.
    #[must_use]
    pub fn json_text(&mut self, text: &str) -> Option<String> {
        self.visit_text(Action::Learn, text, 0);
        let edits = self.visit_text(Action::Replace, text, 0);
        let clean = (!edits.is_empty()).then(|| apply(text, &edits));
        // Placeholders may be many times what they stand for: they are not searched again.
        if self.spans(&elided(text, &edits)).is_empty() {
            return clean;
        }
        // What is left stands in the names of fields, or only looks like a secret across several values.
        let Ok(mut whole) = serde_json::from_str::<Value>(clean.as_deref().unwrap_or(text)) else { return clean };
        if self.names(&mut whole) { Some(whole.to_string()) } else { clean }
    }

    /// A header's value without its secrets; `None` where it has none.
    #[must_use]
    pub fn header(&mut self, name: &str, value: &str) -> Option<String> {
        self.under_name(name, value, self.rules.is_secret_key(name))
    }

    /// As [`header`](Self::header), of a parameter in a query or a form.
    #[must_use]
    pub fn parameter(&mut self, name: &str, value: &str) -> Option<String> {
        self.under_name(name, value, self.rules.is_secret_parameter(name, value))
    }

    fn under_name(&mut self, name: &str, value: &str, is_secret: bool) -> Option<String> {
        if is_secret && !value.is_empty() && !is_placeholder(value) {
            return Some(self.placeholder(&names::kind_of_header(name), value, &mut || name.to_owned()));
        }
        // A placeholder is text like any other.
        self.text(value)
    }

    /// A body without its secrets, JSON or not; `None` where it has none. Bytes that are no UTF-8 are replaced where
    /// anything is.
    #[must_use]
    pub fn body(&mut self, body: &[u8]) -> Option<Vec<u8>> {
        let text = String::from_utf8_lossy(body);
        let json = json::looks_like_json(&text).then(|| self.json_text(&text)).flatten();
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
    fn spans(&mut self, text: &str) -> Vec<KindSpan> {
        if text.is_empty() {
            return Vec::new();
        }
        if self.is_exhausted() {
            let is_done = is_placeholder(text);
            return if is_done { Vec::new() } else { vec![(0..text.len(), Arc::from(UNSEARCHED))] };
        }
        self.work += EACH;
        let may_be_clean = text.len() >= SHORTEST_REMEMBERED && self.known() == 0;
        let hash = if may_be_clean { xxh3_64(text.as_bytes()) } else { 0 };
        if may_be_clean && self.clean.contains(&hash) {
            self.work += text.len() as u64;
            return Vec::new();
        }
        let has_placeholders = self.reserve(text);
        let spans = self.rules.spans(text, &self.seen.0.known);
        self.work += spans.work;
        if may_be_clean && spans.found.is_empty() && !has_placeholders {
            self.clean.insert(hash);
        }
        spans.found
    }

    /// Keeps the numbers of placeholders that a text has for what they stand for. True where it has any.
    fn reserve(&mut self, text: &str) -> bool {
        let mut any = false;
        for (_, Placeholder { kind, number }) in placeholders(text) {
            any = true;
            if self.seen.0.numbers.get(&kind).is_none_or(|numbers| numbers.last < number) {
                Arc::make_mut(&mut self.seen.0).numbers.entry(kind).or_default().last = number;
            }
        }
        any
    }

    fn text_edits(&mut self, text: &str, trail: Option<&Trail<'_, '_>>) -> Vec<TextReplacement> {
        let spans = self.spans(text);
        self.edits(text, spans, trail)
    }

    fn edits(&mut self, text: &str, spans: Vec<KindSpan>, trail: Option<&Trail<'_, '_>>) -> Vec<TextReplacement> {
        let mut place = || trail.map(Trail::spelled).unwrap_or_default();
        let end = self.cut_secret(text).filter(|(from, ..)| spans.last().is_none_or(|(span, _)| span.end <= *from));
        let mut edits = Vec::with_capacity(spans.len());
        for (span, kind) in spans {
            let secret = text.get(span.clone()).unwrap_or_default();
            edits.push((span, self.placeholder(&kind, secret, &mut place)));
        }
        if let Some((from, kind, secret)) = end {
            edits.push((from..text.len(), self.placeholder(&kind, &secret, &mut place)));
        }
        edits
    }

    fn placeholder(&mut self, kind: &Arc<str>, secret: &str, place: &mut dyn FnMut() -> String) -> String {
        self.found += 1;
        self.work += EACH + secret.len() as u64;
        if self.finds.len() < MOST_DESCRIBED {
            let place = place();
            let spans = self.rules.spans(&place, &self.seen.0.known).found.into_iter();
            let hidden: Vec<TextReplacement> =
                spans.map(|(span, kind)| (span, format!("{PLACEHOLDER}{kind}]"))).collect();
            let (place, kind, example) = (apply(&place, &hidden), kind.to_string(), example(secret));
            self.finds.push(Find { place, kind, example });
        }
        if &**kind == UNSEARCHED {
            return format!("{PLACEHOLDER}{UNSEARCHED}]");
        }
        let number = Arc::make_mut(&mut self.seen.0).number(kind, secret);
        let placeholder = format!("{PLACEHOLDER}{kind}:{number}]");
        self.work += placeholder.len() as u64;
        placeholder
    }
}

fn is_placeholder(text: &str) -> bool {
    text.strip_prefix(PLACEHOLDER).and_then(|rest| rest.strip_suffix(']')).is_some_and(|inside| !inside.contains(']'))
}

/// A quarter of a secret's characters, four at most, and how many there are.
fn example(secret: &str) -> String {
    let length = secret.chars().count();
    let shown: String = secret.chars().take((length / 4).min(4)).collect();
    format!("{}… ({length} characters)", shown.escape_debug())
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod work;
