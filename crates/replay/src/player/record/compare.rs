//! The upstream's answers, compared with the recorded ones (`--mode compare`).
//!
//! An exchange is copied as for a recording, and compared on a thread of its own. What no two runs share does not count: ids, times, token
//! counts, log probabilities, headers. A difference is one of text where a text or a number is another one, else one of structure.
//!
//! Limits: an answer whose client left before its end is not compared. Requests that only hand-written records would answer are new ones.
//!
//! See docs/decisions/0085-comparing-is-recording-into-a-report.md.

use std::{collections::BTreeMap, sync::Arc};

use base::lock::Lock;
use serde_json::Value;

use crate::{
    account::AnswerComparison,
    player::{record::cassette_sink::record_of, secrets},
};
use base::one_line::clipped;
use recording::{
    canonical::{BodyDifference, Operation, differences},
    cassette::RecordedAnswer,
    children::children_mut,
    exchange::Exchange,
    redaction::RedactionRules,
    trace::Outcome,
};

/// Maximum number of differences of one answer.
const MOST_DIFFERENCES: usize = 5;

/// Characters that are shown of a value.
const SHORT: usize = 60;

/// Fields that no two runs share.
const OF_ONE_RUN: [&str; 13] = [
    "id",
    "call_id",
    "item_id",
    "tool_call_id",
    "created",
    "created_at",
    "completed_at",
    "system_fingerprint",
    "usage",
    "logprobs",
    "headers",
    "service_tier",
    "progressToken",
];

/// Fields whose texts are names of the API or of tools.
const OF_STRUCTURE: [&str; 8] = ["finish_reason", "stop_reason", "status", "role", "type", "name", "object", "model"];

/// Fields that hold a tool's arguments, whose names are the tool's own.
const ARGUMENTS: [&str; 2] = ["arguments", "input"];

/// The recorded answer with which another one is compared.
#[derive(Debug)]
pub(crate) struct ComparedWith {
    pub(crate) session: String,
    /// The record's name, file and line.
    pub(crate) record: String,
    pub(crate) answer: RecordedAnswer,
    /// Where the outcome goes.
    pub(crate) comparisons: Arc<Comparisons>,
}

impl ComparedWith {
    /// Compares an exchange with the record; without one, the upstream did not answer.
    pub(crate) fn compare(&self, exchange: Option<Box<Exchange>>, secrets: &RedactionRules) {
        let add = |found: &AnswerDifferences| {
            self.comparisons.lock().entry(self.session.clone()).or_default().add(found.comparison(&self.record));
        };
        let Some(exchange) = exchange else {
            return add(&AnswerDifferences::structure("the upstream did not answer"));
        };
        if matches!(exchange.outcome, Outcome::ClientGone | Outcome::Cut) {
            return;
        }
        let mut recorded = record_of(*exchange);
        // Reports show what differs, and records hold no secrets.
        secrets::redact(secrets, &mut recorded.record, &mut recorded.side);
        add(&AnswerDifferences::between(&self.answer, &recorded.record.answer));
    }
}

/// What was compared, by the session.
pub(crate) type Comparisons = Lock<BTreeMap<String, AnswerComparison>>;

#[derive(Debug, Default, PartialEq)]
pub(crate) struct AnswerDifferences {
    pub(crate) structure: bool,
    pub(crate) text: bool,
    /// The first of them, those of structure before all others.
    pub(crate) lines: Vec<String>,
}

impl AnswerDifferences {
    fn structure(line: &str) -> Self {
        Self { structure: true, text: false, lines: vec![format!("structure: {line}")] }
    }

    /// The comparison of one answer with this record.
    pub(crate) fn comparison(&self, record: &str) -> AnswerComparison {
        let line = (!self.lines.is_empty()).then(|| format!("{record}: {}", self.lines.join("; ")));
        AnswerComparison {
            answers: 1,
            structure: self.structure.into(),
            text: self.text.into(),
            changes: line.into_iter().collect(),
        }
    }

    pub(crate) fn between(recorded: &RecordedAnswer, now: &RecordedAnswer) -> Self {
        let shown = |answer: &RecordedAnswer| {
            let mut shown = answer.shown();
            drop_fields_of_one_run(&mut shown);
            shown
        };
        let found = differences(&shown(recorded), &shown(now));
        // An answer that was written by hand may leave out why it ended.
        let counts = |it: &&BodyDifference| !(it.operation == Operation::Add && it.path == "$.finish_reason");
        let (texts, structures): (Vec<&BodyDifference>, Vec<&BodyDifference>) =
            found.iter().filter(counts).partition(|it| is_text(it));
        let all = || structures.iter().map(|it| line("structure", it)).chain(texts.iter().map(|it| line("text", it)));
        let left = (texts.len() + structures.len()).saturating_sub(MOST_DIFFERENCES);
        let more = (left > 0).then(|| format!("and {left} more"));
        let lines = all().take(MOST_DIFFERENCES).chain(more).collect();
        Self { structure: !structures.is_empty(), text: !texts.is_empty(), lines }
    }
}

/// Takes out what no two runs share; arguments of tools stay as they are.
fn drop_fields_of_one_run(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|name, _| !OF_ONE_RUN.contains(&name.as_str()));
    }
    let is_arguments = |name: Option<&str>| name.is_some_and(|name| ARGUMENTS.contains(&name));
    children_mut(value).filter(|(name, _)| !is_arguments(*name)).for_each(|(_, value)| drop_fields_of_one_run(value));
}

/// A difference as a report shows it.
fn line(kind: &str, difference: &BodyDifference) -> String {
    let BodyDifference { path, operation, recorded, received, .. } = difference;
    let is_name = OF_STRUCTURE.contains(&path.rsplit('.').next().unwrap_or_default());
    let shown = |value: &Value| if kind == "text" || is_name { short(value) } else { outline(value) };
    let value = |value: &Option<Value>| value.as_ref().map(shown).unwrap_or_default();
    let what = match operation {
        Operation::Add => format!("{path} was not recorded: {}", value(received)),
        Operation::Remove => format!("{path} is missing, recorded {}", value(recorded)),
        Operation::Replace => format!("{path} is {}, recorded {}", value(received), value(recorded)),
    };
    format!("{kind}: {what}")
}

fn is_text(difference: &BodyDifference) -> bool {
    let same_kind = match (&difference.recorded, &difference.received) {
        (Some(Value::String(_)), Some(Value::String(_))) | (Some(Value::Bool(_)), Some(Value::Bool(_))) => true,
        (Some(Value::Number(_)), Some(Value::Number(_))) => true,
        _ => return false,
    };
    let is_argument = ARGUMENTS.iter().any(|name| difference.path.contains(&format!(".{name}.")));
    let name = difference.path.rsplit('.').next().unwrap_or_default();
    same_kind && (is_argument || !OF_STRUCTURE.contains(&name))
}

/// A value without the texts in it, which may be private.
fn outline(value: &Value) -> String {
    match value {
        Value::String(_) => "a text".to_owned(),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(fields) => {
            let names: Vec<&str> = fields.keys().map(String::as_str).collect();
            clipped(&format!("an object of {}", names.join(", ")), SHORT)
        }
        other => short(other),
    }
}

/// A value in a few characters.
fn short(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), |text| format!("'{}'", text.replace('\n', "\\n")));
    clipped(&text, SHORT)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(recorded: Value, now: Value) -> Vec<String> {
        let answer = |shown: Value| RecordedAnswer::from_shown(&shown).unwrap();
        AnswerDifferences::between(&answer(recorded), &answer(now)).lines
    }

    #[test]
    fn what_no_two_runs_share_is_no_difference() {
        let message = |id: &str, tokens: u64| {
            json!({"message": {"role": "assistant", "content": null, "tool_calls": [{"id": id, "name": "f", "arguments": {"id": 1}}]},
                "finish_reason": "tool_calls", "usage": {"completion_tokens": tokens}})
        };
        assert!(found(message("a", 1), message("b", 2)).is_empty());
    }

    #[test]
    fn lines_of_structure_have_no_texts() {
        let message = json!({"message": {"role": "assistant", "content": "a private text"}});
        let none = json!({"message": {"role": "assistant", "content": null}});
        assert_eq!(found(message.clone(), none.clone()), ["structure: $.message.content is null, recorded a text"]);
        assert_eq!(found(none, message.clone()), ["structure: $.message.content is a text, recorded null"]);
        assert_eq!(found(message, json!({})), ["structure: $.message is missing, recorded an object of role, content"]);
    }

    #[test]
    fn texts_and_structures_are_told_apart() {
        let call = |name: &str, arguments: Value| json!({"message": {"role": "assistant", "content": null, "tool_calls": [{"id": "x", "name": name, "arguments": arguments}]}});
        let text = |text: &str, finish: &str| json!({"message": {"role": "assistant", "content": text}, "finish_reason": finish});
        assert_eq!(
            found(text("a", "stop"), text("b", "length")),
            ["structure: $.finish_reason is 'length', recorded 'stop'", "text: $.message.content is 'b', recorded 'a'"]
        );
        assert_eq!(
            found(call("f", json!({"name": "a", "id": 1})), call("f", json!({"name": "b", "id": 2}))),
            [
                "text: $.message.tool_calls[0].arguments.name is 'b', recorded 'a'",
                "text: $.message.tool_calls[0].arguments.id is 2, recorded 1"
            ]
        );
        let other = found(call("f", json!({})), call("g", json!({"a": 1})));
        assert!(other.len() == 2 && other.iter().all(|line| line.starts_with("structure: ")), "{other:?}");
        let none = found(text("a", "stop"), json!({"status": 500, "error": {"message": "x"}}));
        assert!(none.iter().all(|line| line.starts_with("structure: ")) && none.len() >= 3, "{none:?}");
    }
}
