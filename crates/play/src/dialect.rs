//! The wire of an older vLLM, as edits of the newest one's answers: data, not branches.
//!
//! Limits: chat and completion answers, error messages and paths. The other families, what is refused, and the shape of
//! `/inference/v1/generate` stay as they are in 0.32.

use std::{ops::ControlFlow, sync::Arc};

use axum::{extract::Request, response::Response};
use bytes::Bytes;
use serde_json::{Map, Value};

use super::{http::error, middleware::Middleware};
use api::ApiError;

pub(super) const ENGINE_VERSION: &str = "0.32.0";

/// Whose wire is spoken (`--vllm-version`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VllmVersion {
    /// 0.32.0
    #[default]
    V0_32,
    /// 0.19.1
    V0_19,
}

/// One thing that is other in an object.
#[derive(Debug, Clone, Copy)]
enum DialectEdit {
    /// The field is not there.
    Drop(&'static str),
    /// The field is not there where it is null.
    DropIfNull(&'static str),
    /// The field is there and null.
    Null(&'static str),
    /// The field is null where it counts nothing.
    NullIfZero(&'static str),
    /// The field is there, with an empty list, before another.
    EmptyListBefore(&'static str, &'static str),
    /// The field is there at the end, null where it is not there.
    NullAtEnd(&'static str),
}

use DialectEdit::{Drop, DropIfNull, EmptyListBefore, Null, NullAtEnd, NullIfZero};

/// An edit and the object that it is made in: keys from the outside, `*` for each item of a list.
type DialectRow = (&'static [&'static str], DialectEdit);

/// Differences of a version from the newest.
#[derive(Debug)]
pub(super) struct Dialect {
    pub(super) version: &'static str,
    chat_body: &'static [DialectRow],
    chat_event: &'static [DialectRow],
    completion_body: &'static [DialectRow],
    completion_event: &'static [DialectRow],
    /// The event of usage alone, which has no choices.
    usage_event: &'static [DialectRow],
    /// From where on an error's message is left out.
    pub(super) cut_messages: &'static [&'static str],
    /// Paths that are not there.
    missing: &'static [&'static str],
}

const USAGE: &[&str] = &["usage"];
const CHOICES: &[&str] = &["choices", "*"];

static V0_32: Dialect = Dialect {
    version: ENGINE_VERSION,
    chat_body: &[],
    chat_event: &[],
    completion_body: &[],
    completion_event: &[],
    usage_event: &[],
    cut_messages: &[],
    missing: &[],
};

static V0_19: Dialect = Dialect {
    version: "0.19.1",
    chat_body: &[
        (CHOICES, Drop("routed_experts")),
        (&["choices", "*", "message"], EmptyListBefore("tool_calls", "reasoning")),
        (&[], Null("system_fingerprint")),
        (&[], Drop("prompt_text")),
        (&[], Drop("ec_transfer_params")),
        (&[], Drop("metrics")),
        (USAGE, Drop("completion_tokens_details")),
        (USAGE, NullIfZero("prompt_tokens_details")),
    ],
    chat_event: &[
        (&[], Drop("system_fingerprint")),
        (&[], Drop("prompt_text")),
        (&[], Drop("metrics")),
        (USAGE, Drop("completion_tokens_details")),
    ],
    completion_body: &[
        (CHOICES, Drop("routed_experts")),
        (&[], Null("system_fingerprint")),
        (&[], Drop("ec_transfer_params")),
        (&[], Drop("metrics")),
        (USAGE, Drop("completion_tokens_details")),
        (USAGE, NullIfZero("prompt_tokens_details")),
    ],
    completion_event: &[
        (&[], Drop("system_fingerprint")),
        (&[], Drop("metrics")),
        (&[], NullAtEnd("usage")),
        (USAGE, Drop("completion_tokens_details")),
    ],
    usage_event: &[
        (&[], Drop("system_fingerprint")),
        (&[], Drop("metrics")),
        (USAGE, Drop("completion_tokens_details")),
        (USAGE, NullIfZero("prompt_tokens_details")),
        (USAGE, DropIfNull("prompt_tokens_details")),
    ],
    cut_messages: &[" Valid aliases:"],
    missing: &["/kv_event_sources", "/generative_scoring", "/v1/systemone"],
};

impl VllmVersion {
    /// Every version whose wire is known.
    pub const ALL: [Self; 2] = [Self::V0_32, Self::V0_19];

    /// The known version whose second number is nearest.
    #[must_use]
    pub fn nearest(minor: u32) -> Self {
        Self::ALL.into_iter().min_by_key(|version| version.minor().abs_diff(minor)).unwrap_or_default()
    }

    /// The second number of the version.
    #[must_use]
    pub fn minor(self) -> u32 {
        match self {
            Self::V0_32 => 32,
            Self::V0_19 => 19,
        }
    }

    /// The version as `/version` has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.dialect().version
    }

    pub(super) fn dialect(self) -> &'static Dialect {
        match self {
            Self::V0_32 => &V0_32,
            Self::V0_19 => &V0_19,
        }
    }
}

impl Dialect {
    /// A whole answer in this version's words.
    pub(super) fn body(&self, body: String) -> String {
        if self.chat_body.is_empty() {
            return body;
        }
        let Ok(mut answer) = serde_json::from_str::<Value>(&body) else { return body };
        let is_chat = answer.get("object").is_some_and(|object| object == "chat.completion");
        edit_all(&mut answer, if is_chat { self.chat_body } else { self.completion_body });
        answer.to_string()
    }

    /// An event of a stream in this version's words.
    pub(super) fn event(&self, event: Bytes) -> Bytes {
        if self.chat_event.is_empty() {
            return event;
        }
        let data = event.strip_prefix(b"data: ").and_then(|data| serde_json::from_slice::<Value>(data).ok());
        let Some(mut chunk) = data.filter(|chunk| chunk.get("choices").is_some()) else { return event };
        let is_usage = chunk.get("choices").and_then(Value::as_array).is_some_and(Vec::is_empty);
        let is_chat = chunk.get("object").is_some_and(|object| object == "chat.completion.chunk");
        let rows = match (is_usage, is_chat) {
            (true, _) => self.usage_event,
            (_, true) => self.chat_event,
            _ => self.completion_event,
        };
        edit_all(&mut chunk, rows);
        format!("data: {chunk}\n\n").into()
    }

    /// The message of an error in this version's words.
    pub(super) fn message(&self, message: &mut String) {
        if let Some(at) = self.cut_messages.iter().filter_map(|start| message.find(start)).min() {
            message.truncate(at);
        }
    }

    /// Checks whether this version has a path that the newest has.
    pub(super) fn has(&self, path: &str) -> bool {
        !self.missing.contains(&path)
    }
}

/// The middleware that answers errors in the words of a version.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reword(pub(super) &'static Dialect);

impl Middleware for Reword {
    type Kept = &'static Dialect;

    fn before(&self, _: &mut Request) -> ControlFlow<Response, Self::Kept> {
        ControlFlow::Continue(self.0)
    }

    fn after(dialect: Self::Kept, response: Response) -> Response {
        let Some(refused) = response.extensions().get::<Arc<ApiError>>() else { return response };
        let mut refused = ApiError::clone(refused);
        dialect.message(&mut refused.message);
        error(&refused)
    }
}

fn edit_all(answer: &mut Value, rows: &[DialectRow]) {
    rows.iter().for_each(|(path, edit)| edit_at(answer, path, *edit));
}

fn edit_at(value: &mut Value, path: &[&str], edit: DialectEdit) {
    match (path.split_first(), value) {
        (None, Value::Object(map)) => apply(map, edit),
        (Some((&"*", rest)), Value::Array(items)) => items.iter_mut().for_each(|item| edit_at(item, rest, edit)),
        (Some((key, rest)), Value::Object(map)) => {
            if let Some(inner) = map.get_mut(*key) {
                edit_at(inner, rest, edit);
            }
        }
        _ => {}
    }
}

fn apply(map: &mut Map<String, Value>, edit: DialectEdit) {
    match edit {
        Drop(name) => drop(map.shift_remove(name)),
        DropIfNull(name) => {
            if map.get(name).is_some_and(Value::is_null) {
                map.shift_remove(name);
            }
        }
        Null(name) => set(map, name, Value::Null),
        NullIfZero(name) => {
            let counts = |details: &Value| details.as_object().is_some_and(|map| map.values().any(|count| count != 0));
            if map.get(name).is_some_and(|details| !counts(details)) {
                set(map, name, Value::Null);
            }
        }
        EmptyListBefore(name, next) => {
            if map.contains_key(name) {
                return;
            }
            let later: Vec<String> = map.keys().skip_while(|key| *key != next).cloned().collect();
            let moved: Vec<Option<(String, Value)>> = later.iter().map(|key| map.shift_remove_entry(key)).collect();
            map.insert(name.to_owned(), Value::Array(Vec::new()));
            map.extend(moved.into_iter().flatten());
        }
        NullAtEnd(name) => {
            if !map.contains_key(name) {
                map.insert(name.to_owned(), Value::Null);
            }
        }
    }
}

fn set(map: &mut Map<String, Value>, name: &str, to: Value) {
    if let Some(value) = map.get_mut(name) {
        *value = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_not_touched() {
        let event = Bytes::from_static(b"data: {\"choices\": [ ]}\n\n");
        assert_eq!(V0_32.event(event.clone()), event);
        assert_eq!(V0_32.body("{ }".to_owned()), "{ }");
    }

    #[test]
    fn bodies_have_the_older_fields() {
        let chat = r#"{"object":"chat.completion","choices":[{"message":{"role":"assistant","function_call":null,"reasoning":null},"routed_experts":null}],"system_fingerprint":"x","usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":null},"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#;
        let older = r#"{"object":"chat.completion","choices":[{"message":{"role":"assistant","function_call":null,"tool_calls":[],"reasoning":null}}],"system_fingerprint":null,"usage":{"prompt_tokens":1,"prompt_tokens_details":null},"kv_transfer_params":null}"#;
        assert_eq!(V0_19.body(chat.to_owned()), older);
    }

    #[test]
    fn events_have_the_older_fields() {
        for (event, older) in [
            (
                r#"{"object":"chat.completion.chunk","choices":[{"delta":{}}],"prompt_token_ids":null,"prompt_text":null}"#,
                r#"{"object":"chat.completion.chunk","choices":[{"delta":{}}],"prompt_token_ids":null}"#,
            ),
            (
                r#"{"object":"text_completion","choices":[{"text":"x"}]}"#,
                r#"{"object":"text_completion","choices":[{"text":"x"}],"usage":null}"#,
            ),
            (
                r#"{"object":"text_completion","choices":[],"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":0}},"system_fingerprint":"x"}"#,
                r#"{"object":"text_completion","choices":[],"usage":{"prompt_tokens":1}}"#,
            ),
        ] {
            assert_eq!(V0_19.event(format!("data: {event}\n\n").into()), format!("data: {older}\n\n"));
        }
        assert_eq!(V0_19.event(Bytes::from_static(b"data: [DONE]\n\n")), "data: [DONE]\n\n");
    }

    #[test]
    fn aliases_were_left_out() {
        let mut message = "The model `x` does not exist. Valid aliases: y.".to_owned();
        V0_19.message(&mut message);
        assert_eq!(message, "The model `x` does not exist.");
    }
}
