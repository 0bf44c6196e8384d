//! `json+`: the JSON of a response as its differences from that of the record that its record continues. Engines repeat settings, instructions
//! and tools in every response of a conversation.
//!
//! What people edit stands in every response in full: an edit of one is no edit of the next.

use serde_json::{Map, Value};

use super::record::{AnswerContent, RecordedAnswer};

pub(super) const KEY: &str = "json+";

/// Fields that are never taken from another answer.
const ALWAYS: [&str; 8] =
    ["content", "output", "stop_reason", "stop_sequence", "status", "usage", "error", "incomplete_details"];

/// Replaces the JSON of an answer as a file shows it by what differs from another one, where nothing is lost by that.
pub(super) fn shorten(shown: &mut Map<String, Value>, answer: &RecordedAnswer, base: &RecordedAnswer) {
    let (AnswerContent::Json(Value::Object(own)), AnswerContent::Json(Value::Object(base))) =
        (&answer.content, &base.content)
    else {
        return;
    };
    if !shown.contains_key("json") {
        return;
    }
    let is_new = |name: &str, value: &Value| ALWAYS.contains(&name) || base.get(name) != Some(value);
    let mut added: Map<String, Value> = own.iter().filter(|(name, value)| is_new(name, value)).map(cloned).collect();
    let is_lost = |(name, value): (&String, &Value)| value.is_null() && !ALWAYS.contains(&name.as_str());
    if added.len() == own.len() || added.iter().any(is_lost) {
        return;
    }
    let gone = base.keys().filter(|name| !own.contains_key(*name) && !ALWAYS.contains(&name.as_str()));
    added.extend(gone.map(|name| (name.clone(), Value::Null)));
    let whole = overlaid(base, &added);
    // The order of fields counts too: it is part of the answer's fingerprint.
    if whole == *own && whole.keys().eq(own.keys()) {
        let entries = std::mem::take(shown).into_iter();
        let renamed =
            |(name, value)| if name == "json" { (KEY.to_owned(), Value::Object(added.clone())) } else { (name, value) };
        *shown = entries.map(renamed).collect();
    }
}

pub(super) fn expand(answer: &mut RecordedAnswer, base: &RecordedAnswer) -> Result<(), String> {
    let AnswerContent::Json(Value::Object(added)) = &answer.content else {
        return Err(format!("`{KEY}` has to be a map"));
    };
    let AnswerContent::Json(Value::Object(base)) = &base.content else {
        return Err(format!("`{KEY}`: the answer of the record that `like` names is no `json`"));
    };
    answer.content = AnswerContent::Json(overlaid(base, added).into());
    Ok(())
}

/// The fields of a map with those of another one; null takes one out that is not always shown.
fn overlaid(base: &Map<String, Value>, added: &Map<String, Value>) -> Map<String, Value> {
    let is_inherited = |name: &&String| added.contains_key(*name) || !ALWAYS.contains(&name.as_str());
    let names = base.keys().filter(is_inherited).chain(added.keys().filter(|name| !base.contains_key(*name)));
    let field = |name: &String| {
        let value = added.get(name).or_else(|| base.get(name))?;
        let is_gone = value.is_null() && added.contains_key(name) && !ALWAYS.contains(&name.as_str());
        (!is_gone).then(|| (name.clone(), value.clone()))
    };
    names.filter_map(field).collect()
}

fn cloned((name, value): (&String, &Value)) -> (String, Value) {
    (name.clone(), value.clone())
}
