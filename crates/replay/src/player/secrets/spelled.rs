//! Lists of tokens beside a text, such as log probabilities: their tokens spell the text once more, as texts and as bytes.
//!
//! The tokens of a list are searched one after the other, and those of each rank of its candidates. A list that spells a secret is left
//! out as a whole, as are lists and ids beside a text that had one. Limits: a list is known by the name of its field.
//!
//! See docs/decisions/0072-secrets-in-pieces.md.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value};

use crate::player::secrets::events::{EventPlaces, EventStep};
use recording::{
    children::{children, children_mut},
    redaction::Redactor,
};

/// Fields whose values name tokens one by one.
const OF_TOKENS: [&str; 13] = [
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "completion_probabilities",
    "top_probs",
    "probs",
    "tokens",
    "top_tokens",
    "prefill",
    "input_token_logprobs",
    "output_token_logprobs",
    "input_top_logprobs",
    "output_top_logprobs",
];

const OF_IDS: [&str; 3] = ["token_ids", "prompt_token_ids", "output_ids"];

/// A field whose list is the bytes of a token.
const BYTES: &str = "bytes";

/// Texts of the tokens of lists, each of one kind and rank in the order of the tokens, by their places: the list of each column, and its text in bytes.
#[derive(Debug, Default)]
struct Columns(BTreeMap<usize, (usize, Vec<u8>)>);

/// Whether a value has a list of tokens, or ids.
pub(super) fn has_tokens(value: &Value) -> bool {
    children(value).any(|(name, value)| is_of_tokens(name, value) || has_tokens(value))
}

fn is_of_tokens(name: Option<&str>, value: &Value) -> bool {
    name.is_some_and(|name| OF_TOKENS.contains(&name) || OF_IDS.contains(&name))
        && (value.is_array() || value.is_object())
}

/// Leaves out the lists of these values that spell a secret: of the events of a stream each list as a whole. True where one did.
pub(super) fn leave_out_spelled(redactor: &mut Redactor<'_>, values: &mut [&mut Value]) -> bool {
    let (mut places, mut columns) = (EventPlaces::default(), Columns::default());
    for value in values.iter_mut() {
        places.visit(value, &mut |places, (place, name), value| {
            let is_list = is_of_tokens(name, value);
            if is_list {
                columns.add(places, value, (place, place), 0);
            }
            !is_list
        });
    }
    let found = columns.found(redactor);
    if !found.is_empty() {
        for value in values.iter_mut() {
            places.visit(value, &mut |_, (place, name), value| {
                let is_list = is_of_tokens(name, value);
                if is_list && found.contains(&place) {
                    *value = Value::Null;
                }
                !is_list
            });
        }
    }
    !found.is_empty()
}

/// Leaves out all lists of tokens and all ids.
pub(super) fn leave_out_tokens(value: &mut Value) {
    for (name, value) in children_mut(value) {
        if is_of_tokens(name, value) {
            *value = Value::Null;
        } else {
            leave_out_tokens(value);
        }
    }
}

/// Takes the secrets out of a body. A choice that had one loses its tokens too. True where anything was found.
pub(super) fn redact_body(redactor: &mut Redactor<'_>, body: &mut Value) -> bool {
    if !has_tokens(body) {
        return redactor.json(body);
    }
    let spelled = leave_out_spelled(redactor, &mut [&mut *body]);
    let before = body.clone();
    let found = redactor.json(body);
    if found {
        leave_out_changed(&before, body);
    }
    spelled || found
}

/// Leaves out the tokens of each choice that is not as it was before; of a body without choices those of all of it.
fn leave_out_changed(before: &Value, after: &mut Value) {
    if before == after {
        return;
    }
    let old = before.get("choices").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    match after.get_mut("choices").and_then(Value::as_array_mut).filter(|choices| choices.len() == old.len()) {
        Some(choices) => {
            let changed = choices.iter_mut().zip(old).filter(|(choice, old)| *choice != *old);
            changed.for_each(|(choice, _)| leave_out_tokens(choice));
        }
        None => leave_out_tokens(after),
    }
}

impl Columns {
    /// Adds the texts of a value, which is below so many lists, to the columns of its list.
    fn add(&mut self, places: &mut EventPlaces, value: &Value, (list, place): (usize, usize), depth: usize) {
        match value {
            Value::String(text) => self.push((list, place), text.as_bytes()),
            Value::Array(items) => {
                for (rank, item) in items.iter().enumerate() {
                    // The first list is that of the tokens, one in it that of a token's candidates.
                    let step = if depth == 0 { EventStep::Item } else { EventStep::Rank(rank) };
                    let place = places.step(place, step);
                    self.add(places, item, (list, place), depth + 1);
                }
            }
            Value::Object(fields) => self.add_fields(places, fields, (list, place), depth),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn add_fields(
        &mut self,
        places: &mut EventPlaces,
        fields: &Map<String, Value>,
        (list, place): (usize, usize),
        depth: usize,
    ) {
        // Candidates by their texts, each with a number, or by their ids, each with an object.
        let is_by_text = fields.values().all(|value| value.is_number() || value.is_null());
        let is_by_id = fields.values().all(Value::is_object);
        for (rank, (name, value)) in fields.iter().enumerate() {
            let is_named = depth == 0 || !(is_by_text || is_by_id);
            let step = if is_named { EventStep::Field(name.as_str().into()) } else { EventStep::Rank(rank) };
            let place = places.step(place, step);
            if is_by_text && !is_named {
                self.push((list, place), name.as_bytes());
            }
            match value {
                Value::Array(bytes) if name == BYTES => {
                    let byte = |byte: &Value| byte.as_u64().and_then(|byte| u8::try_from(byte).ok());
                    let bytes: Vec<u8> = bytes.iter().filter_map(byte).collect();
                    self.push((list, place), &bytes);
                }
                value => self.add(places, value, (list, place), depth),
            }
        }
    }

    fn push(&mut self, (list, place): (usize, usize), text: &[u8]) {
        self.0.entry(place).or_insert_with(|| (list, Vec::new())).1.extend_from_slice(text);
    }

    /// Returns the lists that spell a secret.
    fn found(self, redactor: &mut Redactor<'_>) -> HashSet<usize> {
        let mut found = HashSet::new();
        for (list, text) in self.0.into_values() {
            if redactor.json_pieces(&mut [String::from_utf8_lossy(&text).into_owned()]) {
                found.insert(list);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use recording::redaction::RedactionRules;

    const KEY: &str = "ghp_abcdefghijklmnopqrstuvwxyz0123456789";

    fn pieces() -> Vec<&'static str> {
        KEY.as_bytes().chunks(3).map(|piece| std::str::from_utf8(piece).unwrap()).collect()
    }

    /// Log probabilities whose tokens, bytes or candidates are the key, and those of a harmless text.
    fn lists() -> Vec<(&'static str, Value)> {
        let all = |token: &dyn Fn(&str) -> Value| Value::Array(pieces().into_iter().map(token).collect());
        vec![
            ("tokens", json!({"content": all(&|piece| json!({"token": piece, "logprob": -1.0}))})),
            ("bytes", json!({"content": all(&|piece| json!({"token": "\u{fffd}", "bytes": piece.as_bytes()}))})),
            (
                "a candidate",
                json!({"content": all(&|piece| {
                    json!({"token": "x", "top_logprobs": [{"token": "x"}, {"token": piece}]})
                })}),
            ),
            ("a completion", json!({"tokens": pieces(), "token_logprobs": [-1.0], "text_offset": [0]})),
            ("its candidates", json!({"tokens": ["x"], "top_logprobs": all(&|piece| json!({"x": -1.0, piece: -2.0}))})),
            ("a refusal", json!({"refusal": all(&|piece| json!({"token": piece}))})),
        ]
    }

    #[test]
    fn a_list_that_spells_a_secret_is_left_out() {
        let rules = RedactionRules::default();
        for (what, logprobs) in lists() {
            let mut body = json!({"choices": [
                {"index": 0, "text": "x", "logprobs": logprobs},
                {"index": 1, "text": "x", "logprobs": {"tokens": ["x"]}},
            ]});
            assert!(redact_body(&mut Redactor::new(&rules), &mut body), "{what}");
            assert_eq!(body["choices"][0]["logprobs"], Value::Null, "{what}");
            assert_eq!(body["choices"][1]["logprobs"], json!({"tokens": ["x"]}), "{what}");
        }
    }

    #[test]
    fn a_list_over_events_is_left_out_of_all_of_them() {
        let rules = RedactionRules::default();
        let event = |index: u64, piece: &str| json!({"choices": [{"index": index, "logprobs": {"content": [{"token": piece}]}}]});
        let mut events: Vec<Value> = pieces().into_iter().flat_map(|piece| [event(0, piece), event(1, "a")]).collect();
        assert!(leave_out_spelled(&mut Redactor::new(&rules), &mut events.iter_mut().collect::<Vec<_>>()));
        for pair in events.chunks(2) {
            assert_eq!(pair[0]["choices"][0]["logprobs"], Value::Null);
            assert_eq!(pair[1], event(1, "a"));
        }
    }

    #[test]
    fn a_choice_with_a_secret_loses_its_tokens_and_ids_and_others_keep_theirs() {
        let rules = RedactionRules::default();
        let choice = |text: &str| json!({"text": text, "token_ids": [1], "logprobs": {"tokens": ["x"]}});
        let mut body = json!({"choices": [choice(KEY), choice("hello")]});
        assert!(redact_body(&mut Redactor::new(&rules), &mut body));
        assert_eq!(
            body["choices"][0],
            json!({"text": "[REDACTED:github_token:1]", "token_ids": null, "logprobs": null})
        );
        assert_eq!(body["choices"][1], choice("hello"));
        let prompt = json!({"prompt_logprobs": [null, {"4111": {"decoded_token": "a"}}, {"1111": {"decoded_token": "b"}},
            {"1111": {"decoded_token": "c"}}, {"1111": {"decoded_token": "d"}}]});
        let mut same = prompt.clone();
        assert!(!redact_body(&mut Redactor::new(&rules), &mut same), "ids are no card number");
        assert_eq!(same, prompt);
    }
}
