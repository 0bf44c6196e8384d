//! Choice of an exchange's times and token ids to keep.
//!
//! Limits: token ids that a client sends (a prompt of ids), and those that are all of an answer (`/tokenize`), stay.

use serde_json::Value;

use super::{
    moments::{Moment, Sidecar, Times},
    record::{AnswerContent, RecordedAnswer},
};
use crate::children::{as_value, children, children_mut};

/// Content to keep besides requests and responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keep {
    /// When answers came.
    pub times: Times,
    /// The token ids of answers.
    pub tokens: TokenIds,
}

/// Token ids of responses: kept or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TokenIds {
    /// As the engine sent them.
    #[default]
    Sidecar,
    /// They are taken out.
    None,
}

/// Fields of answers that hold token ids; those of the last one are its keys.
const OF_IDS: [&str; 3] = ["token_ids", "prompt_token_ids", "prompt_logprobs"];

impl Keep {
    /// Selects the values to keep that differ from run to run.
    pub(super) fn side(self, side: Sidecar) -> Option<Sidecar> {
        match self.times {
            Times::Sidecar => Some(Sidecar { times: Times::Sidecar, ..side }),
            // A copy of a record without times has none either.
            Times::Inline if side.recorded_at.is_none() && side.events.is_empty() && side.ms == 0.0 => None,
            Times::Inline => Some(Sidecar {
                id: side.id,
                answer: side.answer,
                recorded_at: side.recorded_at,
                ms: side.ms,
                events: side.events.iter().map(|Moment(ms, ..)| Moment(*ms, None, None)).collect(),
                times: Times::Inline,
                ..Sidecar::default()
            }),
            Times::None => None,
        }
    }

    /// Takes token ids out of an answer, where none are kept.
    pub(super) fn strip(self, answer: &mut RecordedAnswer, side: &mut Sidecar) {
        if self.tokens == TokenIds::Sidecar {
            return;
        }
        match &mut answer.content {
            AnswerContent::Choices { choices, .. } => {
                choices.iter_mut().for_each(|choice| _ = as_value(choice, strip));
            }
            AnswerContent::Json(value) => _ = strip(value),
            AnswerContent::Events(events) => events.iter_mut().for_each(|event| strip_data(&mut event.data)),
            AnswerContent::Text(text) => strip_text(text),
            AnswerContent::Empty | AnswerContent::Bytes(_) => {}
        }
        as_value(&mut side.head, strip);
        let events = side.events.iter_mut().filter_map(|Moment(_, data, _)| data.as_mut());
        side.body.iter_mut().chain(events).for_each(strip_text);
    }
}

fn strip_data(data: &mut Value) {
    match data {
        Value::String(text) => strip_text(text),
        data => _ = strip(data),
    }
}

fn strip_text(text: &mut String) {
    if let Ok(mut value) = serde_json::from_str::<Value>(text)
        && strip(&mut value)
    {
        *text = value.to_string();
    }
}

/// Takes token ids out; returns whether there were any.
fn strip(value: &mut Value) -> bool {
    let mut found = false;
    if let Value::Object(fields) = value {
        let before = fields.len();
        fields.retain(|name, value| !OF_IDS.contains(&name.as_str()) || value.is_null());
        found = fields.len() < before;
    }
    for (name, value) in children_mut(value) {
        // What `return_tokens_as_token_ids` makes of the words.
        if name == Some("logprobs") && names_ids(value) {
            *value = Value::Null;
            found = true;
        }
        found |= strip(value);
    }
    found
}

/// Returns true if tokens are written as `token_id:17`.
fn names_ids(value: &Value) -> bool {
    let is_id = |text: &str| {
        text.strip_prefix("token_id:").is_some_and(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let is_one = |name: Option<&str>| name.is_some_and(is_id);
    is_one(value.as_str()) || children(value).any(|(name, value)| is_one(name) || names_ids(value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_are_taken_out_wherever_an_engine_sends_them() {
        let mut answer = json!({"id": "x", "prompt_token_ids": [1, 2], "prompt_logprobs": [null, {"7": {"logprob": -1.5}}],
            "choices": [{"token_ids": [3], "logprobs": {"content": [{"token": "token_id:3", "logprob": -0.5}]}, "stop_reason": null},
                {"token_ids": null, "logprobs": {"top_logprobs": [{"token_id:4": -1.0}]}},
                {"logprobs": {"content": [{"token": "token_id:", "logprob": -0.5}]}}]});
        assert!(strip(&mut answer));
        let left = json!({"id": "x", "choices": [{"logprobs": null, "stop_reason": null}, {"token_ids": null, "logprobs": null},
            {"logprobs": {"content": [{"token": "token_id:", "logprob": -0.5}]}}]});
        assert_eq!(answer, left);
        assert!(!strip(&mut answer));
        let mut spaced = r#"{"a": 1,  "token_ids": null}"#.to_owned();
        strip_text(&mut spaced);
        assert_eq!(spaced, r#"{"a": 1,  "token_ids": null}"#, "what holds none stays byte for byte");
    }
}
