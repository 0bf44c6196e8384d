//! Edits between a recorded and a received request, each with its cause: what a person changed, or what changes by itself.

use std::ops::Range;

use serde_json::Value;

use base::one_line::clipped;
use recording::canonical::{BodyDifference, Operation, VolatileShape, text_edits, volatile_edit};

/// Characters before an edit that are shown with it.
const BEFORE: usize = 20;

/// Characters of what differs that are shown at least.
const FEWEST: usize = 2;

pub(crate) struct Edit<'a> {
    pub(crate) difference: &'a BodyDifference,
    /// The characters of two texts that differ, where the edit is in a text.
    ranges: Option<(Range<usize>, Range<usize>)>,
    pub(crate) cause: Cause,
}

/// Cause of an edit, which decides what helps.
#[derive(Debug, Clone)]
pub(crate) enum Cause {
    /// Texts that no two runs share.
    Volatile(Vec<&'static VolatileShape>),
    /// Words of the conversation, or anything else within a message.
    Conversation,
    /// A message more or less.
    Turn,
    Tool,
    /// A field that is on one side only.
    OneSided,
    Field,
    Header,
    Query,
    /// Something that has no place in a body.
    Form,
}

/// Lists the edits of differences; a text that was edited in several places has several.
pub(crate) fn edits(differences: &[BodyDifference]) -> Vec<Edit<'_>> {
    differences.iter().flat_map(of_difference).collect()
}

fn of_difference(difference: &BodyDifference) -> Vec<Edit<'_>> {
    let texts = |difference: &BodyDifference| {
        let text = |value: &Option<Value>| value.as_ref().and_then(Value::as_str).map(str::to_owned);
        Some((text(&difference.recorded)?, text(&difference.received)?))
    };
    let cause = cause(difference);
    let (Operation::Replace, Some((recorded, received))) = (difference.operation, texts(difference)) else {
        return vec![Edit { difference, ranges: None, cause }];
    };
    let usual = &cause;
    let of_text = |edit: recording::canonical::TextEdit| {
        let volatile = volatile_edit(cut(&recorded, &edit.recorded), cut(&received, &edit.received));
        let cause = if volatile.is_empty() { usual.clone() } else { Cause::Volatile(volatile) };
        Edit { difference, ranges: Some((edit.recorded, edit.received)), cause }
    };
    let found: Vec<Edit<'_>> = text_edits(&recorded, &received).into_iter().map(of_text).collect();
    if found.is_empty() { vec![Edit { difference, ranges: None, cause }] } else { found }
}

fn cause(difference: &BodyDifference) -> Cause {
    let path = difference.path.as_str();
    let is_in = |names: &[&str]| {
        let after = |name: &&str| path.strip_prefix("$.").and_then(|path| path.strip_prefix(name));
        names.iter().any(|name| after(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['[', '.'])))
    };
    let is_one_sided = difference.operation != Operation::Replace;
    if path.starts_with("header ") {
        Cause::Header
    } else if path.starts_with("query ") {
        Cause::Query
    } else if path == "$" || !path.starts_with('$') {
        Cause::Form
    } else if is_one_sided && (is_item(path, "$.messages[") || is_item(path, "$.input[")) {
        Cause::Turn
    } else if is_in(&["messages", "input", "system", "instructions", "prompt"]) {
        Cause::Conversation
    } else if is_in(&["tools", "functions"]) {
        Cause::Tool
    } else if is_one_sided {
        Cause::OneSided
    } else {
        Cause::Field
    }
}

pub(crate) fn is_item(path: &str, list: &str) -> bool {
    path.strip_prefix(list).is_some_and(|rest| rest.ends_with(']') && !rest.contains('.'))
}

fn cut<'a>(text: &'a str, range: &Range<usize>) -> &'a str {
    let place = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(place, _)| place);
    text.get(place(range.start)..place(range.end)).unwrap_or_default()
}

impl Edit<'_> {
    pub(crate) fn place(&self) -> &str {
        named(self.difference)
    }

    /// The first character that differs, where the edit is in a text.
    pub(crate) fn at(&self) -> Option<usize> {
        Some(self.ranges.as_ref()?.0.start + self.same_at_the_start()?)
    }

    /// Characters that are the same at the start of the edit, where that is in a text.
    fn same_at_the_start(&self) -> Option<usize> {
        let (recorded, received) = self.ranges.as_ref()?;
        let text = |value: &Option<Value>, range: &Range<usize>| {
            value.as_ref().and_then(Value::as_str).map(|text| cut(text, range).to_owned())
        };
        let (a, b) = (text(&self.difference.recorded, recorded)?, text(&self.difference.received, received)?);
        Some(a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count())
    }

    /// The recorded and the received value in so many characters each.
    pub(crate) fn values(&self, most: usize) -> (String, String) {
        let (mut a, mut b) = self.ranges.clone().unzip();
        // A long word may be the same up to where its excerpt ends.
        if let Some(same) = self.same_at_the_start().filter(|same| same + BEFORE.min(most / 3) + FEWEST > most) {
            a.iter_mut().chain(&mut b).for_each(|range| range.start += same);
        }
        (excerpt(&self.difference.recorded, a, most), excerpt(&self.difference.received, b, most))
    }
}

/// A place without the sign of the body.
pub(crate) fn named(difference: &BodyDifference) -> &str {
    difference.path.strip_prefix("$.").unwrap_or(&difference.path)
}

/// Shortens a value; a long text to the surroundings of its edit.
pub(crate) fn excerpt(value: &Option<Value>, range: Option<Range<usize>>, most: usize) -> String {
    match value {
        Some(Value::String(text)) => {
            let length = text.chars().count();
            let edited = range.unwrap_or(0..0);
            let start = if length <= most { 0 } else { edited.start.saturating_sub(BEFORE.min(most / 3)) };
            let shown: String = text.chars().skip(start).take(most).collect();
            let before = if start > 0 { "…" } else { "" };
            let after = if start + most < length { "…" } else { "" };
            format!("'{before}{}{after}'", shown.replace('\n', "\\n"))
        }
        Some(value) => clipped(&value.to_string(), most),
        None => "nothing".to_owned(),
    }
}

/// A place in so many characters: its first field and its last ones, which name what differs.
pub(crate) fn clipped_place(place: &str, most: usize) -> String {
    let length = place.chars().count();
    let first = place.split('.').next().unwrap_or_default();
    let room = most.saturating_sub(first.chars().count() + 1);
    if length <= most || first.len() == place.len() || room == 0 {
        return clipped(place, most);
    }
    let last: String = place.chars().skip(length - room).collect();
    // Whole fields, unless one of them takes all the room.
    let last = last.find('.').and_then(|dot| last.get(dot..)).unwrap_or(&last);
    format!("{first}…{last}")
}
