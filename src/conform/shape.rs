//! Shapes of JSON: names of fields and types of values.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::recording::canonical::{BodyDifference, differences};

/// A difference in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShapeDifference {
    /// The place, such as `$.choices[0].message`.
    pub place: String,
    /// What is wrong there.
    pub what: String,
}

/// Differences that count, and those that do not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ShapeDifferences {
    /// What counts.
    pub differences: Vec<ShapeDifference>,
    /// What harms no client that follows the recorded shapes; it counts where it is strict.
    pub notes: Vec<ShapeDifference>,
}

impl ShapeDifferences {
    pub(super) fn add(&mut self, place: impl Into<String>, what: impl Into<String>) {
        self.differences.push(ShapeDifference { place: place.into(), what: what.into() });
    }

    fn note(&mut self, place: &str, what: impl Into<String>) {
        self.notes.push(ShapeDifference { place: place.to_owned(), what: what.into() });
    }
}

/// A type in place of each value; of a list its first item, but of `choices` each, and of a map from tokens the first.
pub(super) fn shape(value: &Value) -> Value {
    match value {
        Value::Null => Value::from("null"),
        Value::Bool(_) => Value::from("boolean"),
        Value::Number(_) => Value::from("number"),
        Value::String(_) => Value::from("string"),
        Value::Array(items) => items.iter().take(1).map(shape).collect(),
        Value::Object(fields) => {
            let shaped = fields.iter().map(|(name, value)| match (name.as_str(), value) {
                ("top_logprobs" | "prompt_logprobs", Value::Array(items)) => {
                    (name.clone(), items.iter().find(|item| !item.is_null()).map(token_shape).into_iter().collect())
                }
                // A part of a character has none, and an answer that is complete has no details.
                ("bytes", Value::Array(items)) if items.iter().all(Value::is_number) => {
                    (name.clone(), Value::Array(Vec::new()))
                }
                ("incomplete_details", Value::Null | Value::Object(_)) => (name.clone(), Value::from("null")),
                // As many as were asked for.
                ("choices", Value::Array(items)) => (name.clone(), items.iter().map(shape).collect()),
                _ => (name.clone(), shape(value)),
            });
            Value::Object(shaped.collect::<Map<_, _>>())
        }
    }
}

/// The shape of log probabilities at one place: of completions a map from tokens, whose names are no fields.
fn token_shape(item: &Value) -> Value {
    match item.as_object() {
        Some(tokens) if !tokens.contains_key("token") => {
            tokens.values().take(1).map(|value| ("TOKEN".to_owned(), shape(value))).collect()
        }
        _ => shape(item),
    }
}

/// Compares two values by their shapes, at a place.
pub fn compare(place: &str, recorded: &Value, received: &Value, found: &mut ShapeDifferences) {
    for BodyDifference { path, recorded, received, .. } in differences(&shape(recorded), &shape(received)) {
        let path = format!("{place}{}", path.trim_start_matches('$'));
        match (recorded, received) {
            (Some(recorded), Some(_)) if is_null(&recorded) && recorded.is_string() => {}
            (Some(recorded), None) if is_null(&recorded) && recorded.is_string() => {
                found.note(&path, "is left out; null was recorded");
            }
            (Some(recorded), None) if is_null(&recorded) => found.note(&path, "is left out; only nulls were recorded"),
            (Some(recorded), None) => found.add(path, format!("is missing; {} was recorded", kind(&recorded))),
            (None, Some(received)) => found.note(&path, format!("is added: {}", kind(&received))),
            (Some(recorded), Some(received)) => {
                found.add(path, format!("is {}; {} was recorded", kind(&received), kind(&recorded)));
            }
            (None, None) => {}
        }
    }
}

/// Returns true for a shape without anything but nulls.
fn is_null(shape: &Value) -> bool {
    match shape {
        Value::Object(fields) => fields.values().all(is_null),
        Value::Array(items) => items.is_empty(),
        other => other == "null",
    }
}

fn kind(shape: &Value) -> String {
    match shape {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        other => match other.as_str() {
            Some("null") => "null".to_owned(),
            Some(name) => format!("a {name}"),
            None => "nothing".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(recorded: &Value, received: &Value) -> (Vec<String>, Vec<String>) {
        let mut found = ShapeDifferences::default();
        compare("$", recorded, received, &mut found);
        let text = |all: Vec<ShapeDifference>| all.iter().map(|one| format!("{} {}", one.place, one.what)).collect();
        (text(found.differences), text(found.notes))
    }

    #[test]
    fn shapes_are_compared_and_not_values() {
        let recorded = json!({"id": "a", "list": [{"n": 1, "t": null}], "usage": {"total": 3}, "none": null});
        let same =
            json!({"id": "b", "list": [{"n": 2.5, "t": "x"}, {"n": 1, "t": null}], "usage": {"total": 0}, "none": 7});
        assert_eq!(found(&recorded, &same), (vec![], vec![]));
        let other = json!({"id": null, "list": [{"n": "1", "t": 1}], "extra": true});
        let (differences, notes) = found(&recorded, &other);
        let expected = [
            "$.id is null; a string was recorded",
            "$.list[0].n is a string; a number was recorded",
            "$.usage is missing; an object was recorded",
        ];
        assert_eq!(differences, expected);
        assert_eq!(notes, ["$.none is left out; null was recorded", "$.extra is added: a boolean"]);
        let tokens = |value: Value| json!({"top_logprobs": [null, value]});
        assert_eq!(found(&tokens(json!({" a": -1.5})), &tokens(json!({"b": -2, "c": -3}))).0, Vec::<String>::new());
        assert_eq!(found(&tokens(json!({" a": -1.5})), &tokens(json!({"b": "x"}))).0.len(), 1);
        let ends = |details: Value| json!({"incomplete_details": details, "bytes": []});
        assert_eq!(found(&json!({"incomplete_details": {"reason": "r"}, "bytes": [1]}), &ends(Value::Null)).0, [""; 0]);
        let choices = |count: usize| json!({"choices": vec![json!({"text": "a"}); count]});
        assert_eq!(found(&choices(2), &choices(1)).0, ["$.choices[1] is missing; an object was recorded"]);
        assert_eq!(
            found(&json!({"list": [1]}), &json!({"list": []})).0,
            ["$.list[0] is missing; a number was recorded"]
        );
    }
}
