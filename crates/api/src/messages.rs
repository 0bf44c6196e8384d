//! Schema of a chat's messages: eight kinds, of which one has to fit.
//!
//! The engine reads the parts of a content and the tool calls only when it comes to them: such a fault is reported in other
//! words, and only where no kind takes the message as it is.
//!
//! Limits: the kinds of parts that only a vision or speech model has are known by their `type` alone.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{
    error::ApiError,
    issues::{Issues, Loc},
    python,
    schema::{
        self, Field, Kind,
        Need::{Nullable, Optional, Present, Required},
        Object, object,
    },
};

/// `messages`: kinds in the order in which the engine tries them.
pub(super) const MESSAGES: Kind = Kind::List(&Kind::AnyNamed(&[
    ("ChatCompletionDeveloperMessageParam", Kind::TypedDict(&DEVELOPER)),
    ("ChatCompletionSystemMessageParam", Kind::TypedDict(&SYSTEM)),
    ("ChatCompletionUserMessageParam", Kind::TypedDict(&USER)),
    ("ChatCompletionAssistantMessageParam", Kind::TypedDict(&ASSISTANT)),
    ("ChatCompletionToolMessageParam", Kind::TypedDict(&TOOL)),
    ("ChatCompletionFunctionMessageParam", Kind::TypedDict(&FUNCTION)),
    ("CustomChatCompletionMessageParam", Kind::TypedDict(&CUSTOM)),
    ("Message", Kind::Object(&HARMONY)),
]));

const CONTENT: Kind = Kind::AnyOf(&[Kind::Text, Kind::Iterable]);

const DEVELOPER: Object = object(&[
    Field("content", CONTENT, Required),
    Field("role", Kind::OneOf(&["developer"]), Required),
    Field("name", Kind::Text, Optional),
]);
const SYSTEM: Object = object(&[
    Field("content", CONTENT, Required),
    Field("role", Kind::OneOf(&["system"]), Required),
    Field("name", Kind::Text, Optional),
]);
const USER: Object = object(&[
    Field("content", CONTENT, Required),
    Field("role", Kind::OneOf(&["user"]), Required),
    Field("name", Kind::Text, Optional),
]);
const ASSISTANT: Object = object(&[
    Field("role", Kind::OneOf(&["assistant"]), Required),
    Field("audio", Kind::TypedDict(&object(&[Field("id", Kind::Text, Required)])), Nullable),
    Field("content", CONTENT, Nullable),
    Field("function_call", Kind::TypedDict(&CALLED), Nullable),
    Field("name", Kind::Text, Optional),
    Field("refusal", Kind::Text, Nullable),
    Field("tool_calls", Kind::Iterable, Optional),
]);
const TOOL: Object = object(&[
    Field("content", CONTENT, Required),
    Field("role", Kind::OneOf(&["tool"]), Required),
    Field("tool_call_id", Kind::Text, Required),
]);
const FUNCTION: Object = object(&[
    Field("content", Kind::Text, Present),
    Field("name", Kind::Text, Required),
    Field("role", Kind::OneOf(&["function"]), Required),
]);
const CUSTOM: Object = object(&[
    Field("role", Kind::Text, Required),
    Field("content", Kind::AnyOf(&[Kind::Text, Kind::List(&Kind::Any)]), Optional),
    Field("name", Kind::Text, Optional),
    Field("tool_call_id", Kind::Text, Nullable),
    Field("tool_calls", Kind::List(&Kind::TypedDict(&CALL)), Nullable),
    Field("reasoning", Kind::Text, Nullable),
    Field("tools", Kind::List(&Kind::Any), Nullable),
    Field("task", Kind::Text, Nullable),
]);
const HARMONY: Object = object(&[
    Field("author", Kind::Object(&object(&[Field("role", Kind::Any, Required)])), Required),
    Field("content", Kind::List(&Kind::Any), Optional),
]);

/// A tool call as a strict reader wants it.
const CALL: Object = object(&[
    Field("id", Kind::Text, Required),
    Field("function", Kind::TypedDict(&CALLED), Required),
    Field("type", Kind::OneOf(&["function"]), Required),
]);
const CALLED: Object = object(&[Field("arguments", Kind::Text, Required), Field("name", Kind::Text, Required)]);

/// Tool calls as they are read late: a function's or a custom tool's. What is called is reported under its own name.
const LATE_CALL: Kind = Kind::AnyNamed(&[
    (
        "ChatCompletionMessageFunctionToolCallParam",
        Kind::TypedDict(&object(&[
            Field("id", Kind::Text, Required),
            Field("function", Kind::Opaque(&Kind::TypedDict(&CALLED)), Required),
            Field("type", Kind::OneOf(&["function"]), Required),
        ])),
    ),
    (
        "ChatCompletionMessageCustomToolCallParam",
        Kind::TypedDict(&object(&[
            Field("id", Kind::Text, Required),
            Field("custom", Kind::Opaque(&Kind::TypedDict(&CUSTOM_CALLED)), Required),
            Field("type", Kind::OneOf(&["custom"]), Required),
        ])),
    ),
]);
const CUSTOM_CALLED: Object = object(&[Field("input", Kind::Text, Required), Field("name", Kind::Text, Required)]);

/// Characters of a value that pydantic shows of it, from either end.
const SHOWN: usize = 50;
const HELP: &str = "For further information visit https://errors.pydantic.dev/2.14/v";

/// A kind of content part: its name, the field it has to have and the value of `type`, in the order of the fields.
struct PartKind(&'static str, &'static str, &'static str);

const TEXT: PartKind = PartKind("ChatCompletionContentPartTextParam", "text", "text");
const REFUSAL: PartKind = PartKind("ChatCompletionContentPartRefusalParam", "refusal", "refusal");
const OF_USERS: &[PartKind] = &[
    TEXT,
    PartKind("ChatCompletionContentPartImageParam", "image_url", "image_url"),
    PartKind("ChatCompletionContentPartInputAudioParam", "input_audio", "input_audio"),
    PartKind("File", "file", "file"),
];
/// What a reader that takes every part takes, by `type`, and the field of text that such a part has to have.
const STRICT: &[(&str, Option<&str>)] = &[
    ("text", Some("text")),
    ("refusal", Some("refusal")),
    ("thinking", Some("thinking")),
    ("image_url", None),
    ("input_audio", None),
    ("file", None),
    ("audio_url", None),
    ("video_url", None),
    ("image_embeds", None),
    ("audio_embeds", None),
    ("video_embeds", None),
    ("prompt_embeds", Some("data")),
    ("tool_reference", None),
];

/// Reports faults of parts and tool calls that are read late, in a body whose messages fit.
pub(super) fn check_late(messages: &[Value]) -> Result<(), ApiError> {
    messages.iter().filter_map(Value::as_object).try_for_each(|message| {
        // Such a message fits the last kind only, which the engine cannot render.
        if !message.contains_key("role") {
            return Err(ApiError::bad_request("'Message' object is not subscriptable"));
        }
        // The kind that reads everything at once takes the message, and would be chosen.
        let is_strict = schema::takes(&CUSTOM, message);
        check_calls(message, is_strict)?;
        check_parts(message, is_strict)
    })
}

/// Items of a value as Python iterates over it.
fn items(value: Option<&Value>) -> Cow<'_, [Value]> {
    match value {
        Some(Value::Array(items)) => items.into(),
        Some(Value::Object(map)) => map.keys().map(|key| Value::from(key.as_str())).collect(),
        Some(Value::String(text)) => text.chars().map(|letter| Value::from(letter.to_string())).collect(),
        _ => Cow::Borrowed(&[]),
    }
}

/// # Errors
/// The first part that no kind takes. With `strict` the message may be read by the kind that takes every part.
fn check_parts(message: &Map<String, Value>, strict: bool) -> Result<(), ApiError> {
    // A text is read as such.
    let parts = items(message.get("content").filter(|content| !content.is_string()));
    if strict && parts.iter().all(|part| part.as_object().is_some_and(is_strict_part)) {
        return Ok(());
    }
    let Some(kinds) = kinds(message) else { return Ok(()) };
    for (at, part) in parts.iter().enumerate() {
        let mut faults = Vec::with_capacity(kinds.len());
        for kind in kinds {
            let path = if kinds.len() > 1 { format!("{at}.{}", kind.0) } else { at.to_string() };
            let found = faults_of(kind, part, &path);
            if found.is_empty() {
                faults.clear();
                break;
            }
            faults.extend(found);
        }
        if !faults.is_empty() {
            let label = if faults.len() == 1 { "error" } else { "errors" };
            let list = faults.join("\n");
            let message = format!("{} validation {label} for ValidatorIterator\n{list}", faults.len());
            return Err(ApiError::bad_request(message));
        }
    }
    Ok(())
}

fn is_strict_part(part: &Map<String, Value>) -> bool {
    let kind = part.get("type").and_then(Value::as_str);
    STRICT.iter().any(|(name, field)| {
        Some(*name) == kind && field.is_none_or(|field| part.get(field).is_some_and(Value::is_string))
    })
}

fn kinds(message: &Map<String, Value>) -> Option<&'static [PartKind]> {
    match message.get("role")?.as_str()? {
        "user" => Some(OF_USERS),
        "assistant" => Some(&[TEXT, REFUSAL]),
        "system" | "developer" => Some(&[TEXT]),
        "tool" => message.get("tool_call_id")?.as_str().map(|_| [TEXT].as_slice()),
        _ => None,
    }
}

fn faults_of(PartKind(_, field, word): &PartKind, part: &Value, path: &str) -> Vec<String> {
    let Value::Object(map) = part else {
        return vec![fault(path, "dict_type", "Input should be a valid dictionary", part)];
    };
    let mut faults = Vec::new();
    let at = |name: &str| format!("{path}.{name}");
    match map.get(*field) {
        None => faults.push(fault(&at(field), "missing", "Field required", part)),
        Some(Value::String(_)) => {}
        Some(other) if field == word && ["text", "refusal"].contains(word) => {
            faults.push(fault(&at(field), "string_type", "Input should be a valid string", other));
        }
        Some(_) => {}
    }
    match map.get("type") {
        None => faults.push(fault(&at("type"), "missing", "Field required", part)),
        Some(kind) if kind == *word => {}
        Some(other) => faults.push(fault(&at("type"), "literal_error", &format!("Input should be '{word}'"), other)),
    }
    faults
}

/// One of pydantic's errors as its texts list them.
pub(super) fn fault(path: &str, kind: &str, message: &str, value: &Value) -> String {
    let (shown, class) = (shown(value), python::class(value));
    format!("{path}\n  {message} [type={kind}, input_value={shown}, input_type={class}]\n    {HELP}/{kind}")
}

/// A value as pydantic shows it: cut in the middle.
fn shown(value: &Value) -> String {
    let text = python::literal(value);
    let count = text.chars().count();
    if count <= SHOWN {
        return text;
    }
    let start: String = text.chars().take(SHOWN / 2).collect();
    let end: String = text.chars().skip(count - (SHOWN / 2 - 1)).collect();
    format!("{start}...{end}")
}

/// # Errors
/// The first tool call that is neither a function's nor a custom tool's.
fn check_calls(message: &Map<String, Value>, strict: bool) -> Result<(), ApiError> {
    if strict || message.get("role").is_none_or(|role| role != "assistant") {
        return Ok(());
    }
    items(message.get("tool_calls")).iter().enumerate().try_for_each(|(at, call)| {
        let mut issues = Issues::new();
        schema::judge(&LATE_CALL, call, &Loc::BODY.item(at), &mut issues);
        issues.unless_any(())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_value_is_cut_in_the_middle() {
        let value = json!({"type": "text", "something": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"});
        assert_eq!(shown(&value), "{'type': 'text', 'somethi...aaaaaaaaaaaaaaaaaaaaaa'}");
        assert_eq!(shown(&json!({"type": "zzz"})), "{'type': 'zzz'}");
    }

    #[test]
    fn a_tool_call_is_a_functions_or_a_custom_one() {
        let message = |call: Value| json!({"role": "assistant", "tool_calls": [call]}).as_object().unwrap().clone();
        let fine = json!({"id": "a", "type": "custom", "custom": {"name": "f", "input": "x"}});
        assert!(check_calls(&message(fine), false).is_ok());
        let refused = check_calls(&message(json!(5)), false).unwrap_err();
        assert!(refused.message.starts_with("2 validation errors:"), "{}", refused.message);
    }
}
