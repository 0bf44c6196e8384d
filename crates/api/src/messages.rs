//! Schema of a chat's messages: eight kinds, of which one has to fit.
//!
//! The engine reads the parts of a content and the tool calls only when it comes to them: such a fault is reported in other
//! words, and only where no kind takes the message as it is.
//!
//! Limits: of the parts of a message, those after the first image, audio or video are not read again.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{
    error::ApiError,
    issues::{FieldFault, Issues, Loc, fault, invalid},
    schema::{
        self, Field, Kind,
        Need::{Nullable, Optional, Present, Required},
        Object, object,
    },
};

/// `messages`: kinds in the order in which the engine tries them.
pub(super) const MESSAGES: Kind = Kind::List(&MESSAGE);
pub(super) const MESSAGE: Kind = Kind::AnyNamed(&[
    ("ChatCompletionDeveloperMessageParam", Kind::TypedDict(&DEVELOPER)),
    ("ChatCompletionSystemMessageParam", Kind::TypedDict(&SYSTEM)),
    ("ChatCompletionUserMessageParam", Kind::TypedDict(&USER)),
    ("ChatCompletionAssistantMessageParam", Kind::TypedDict(&ASSISTANT)),
    ("ChatCompletionToolMessageParam", Kind::TypedDict(&TOOL)),
    ("ChatCompletionFunctionMessageParam", Kind::TypedDict(&FUNCTION)),
    ("CustomChatCompletionMessageParam", Kind::TypedDict(&CUSTOM)),
    ("Message", Kind::Object(&HARMONY)),
]);

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

/// A kind of content part: the name of its class and its fields, in their order.
#[derive(Debug)]
struct PartKind(&'static str, &'static Object);

const URL: Field = Field("url", Kind::Text, Required);
const DETAIL: Field = Field("detail", Kind::OneOf(&["auto", "low", "high", "original"]), Optional);

const TEXT: PartKind = PartKind(
    "ChatCompletionContentPartTextParam",
    &object(&[Field("text", Kind::Text, Required), Field("type", Kind::OneOf(&["text"]), Required)]),
);
const REFUSAL: PartKind = PartKind(
    "ChatCompletionContentPartRefusalParam",
    &object(&[Field("refusal", Kind::Text, Required), Field("type", Kind::OneOf(&["refusal"]), Required)]),
);
const IMAGE: PartKind = PartKind(
    "ChatCompletionContentPartImageParam",
    &object(&[
        Field("image_url", Kind::TypedDict(&object(&[URL, DETAIL])), Required),
        Field("type", Kind::OneOf(&["image_url"]), Required),
    ]),
);
const INPUT_AUDIO: PartKind = PartKind(
    "ChatCompletionContentPartInputAudioParam",
    &object(&[
        Field("input_audio", Kind::TypedDict(&AUDIO_DATA), Required),
        Field("type", Kind::OneOf(&["input_audio"]), Required),
    ]),
);
const AUDIO_DATA: Object =
    object(&[Field("data", Kind::Text, Required), Field("format", Kind::OneOf(&["wav", "mp3"]), Required)]);
const FILE: PartKind = PartKind(
    "File",
    &object(&[
        Field(
            "file",
            Kind::TypedDict(&object(&[
                Field("file_data", Kind::Text, Optional),
                Field("file_id", Kind::Text, Optional),
                Field("filename", Kind::Text, Optional),
            ])),
            Required,
        ),
        Field("type", Kind::OneOf(&["file"]), Required),
    ]),
);
const AUDIO: PartKind = PartKind(
    "ChatCompletionContentPartAudioParam",
    &object(&[
        Field("audio_url", Kind::TypedDict(&object(&[URL])), Required),
        Field("type", Kind::OneOf(&["audio_url"]), Required),
    ]),
);
const VIDEO: PartKind = PartKind(
    "ChatCompletionContentPartVideoParam",
    &object(&[
        Field("video_url", Kind::TypedDict(&object(&[URL])), Required),
        Field("type", Kind::OneOf(&["video_url"]), Required),
    ]),
);
const OF_USERS: &[PartKind] = &[TEXT, IMAGE, INPUT_AUDIO, FILE];

/// Kinds by which a part is read once more when the engine comes to it, by its `type`.
const READ_AGAIN: &[(&str, PartKind)] =
    &[("image_url", IMAGE), ("input_audio", INPUT_AUDIO), ("audio_url", AUDIO), ("video_url", VIDEO)];

const UUID: Field = Field("uuid", Kind::Text, Nullable);
const EMBEDS: Kind = Kind::AnyOf(&[Kind::Text, Kind::Dictionary]);

/// Parts that the kind of message takes which reads everything at once.
const STRICT: &[&Object] = &[
    TEXT.1,
    IMAGE.1,
    INPUT_AUDIO.1,
    FILE.1,
    AUDIO.1,
    VIDEO.1,
    REFUSAL.1,
    &object(&[Field("image_pil", Kind::OneOf(&[]), Nullable), UUID]),
    &object(&[Field("image_url", Kind::Text, Nullable), UUID]),
    &object(&[Field("audio_url", Kind::Text, Nullable)]),
    &object(&[Field("video_url", Kind::Text, Nullable), UUID]),
    &object(&[Field("image_embeds", EMBEDS, Nullable), Field("type", Kind::OneOf(&["image_embeds"]), Required)]),
    &object(&[Field("audio_embeds", EMBEDS, Nullable), Field("type", Kind::OneOf(&["audio_embeds"]), Required)]),
    &object(&[Field("video_embeds", EMBEDS, Nullable), Field("type", Kind::OneOf(&["video_embeds"]), Required)]),
    &object(&[Field("data", Kind::Text, Required), Field("type", Kind::OneOf(&["prompt_embeds"]), Required)]),
    &object(&[Field("name", Kind::Text, Optional), Field("type", Kind::OneOf(&["tool_reference"]), Optional)]),
    &object(&[Field("thinking", Kind::Text, Required), Field("type", Kind::OneOf(&["thinking"]), Optional)]),
];

/// Reports faults of parts and tool calls that are read late, in a body whose messages fit; those of calls as these issues are.
pub(super) fn check_late(messages: &[Value], issues: fn() -> Issues) -> Result<(), ApiError> {
    messages.iter().filter_map(Value::as_object).try_for_each(|message| {
        // Such a message fits the last kind only, which the engine cannot render.
        if !message.contains_key("role") {
            return Err(ApiError::bad_request("'Message' object is not subscriptable"));
        }
        // The kind that reads everything at once takes the message, and would be chosen.
        let is_strict = schema::takes(&CUSTOM, message);
        let issues = issues();
        // A chat that is made of another request has read no parts.
        let is_own = !issues.are_of_class();
        check_calls(message, is_strict, issues)?;
        if is_own { check_parts(message, is_strict) } else { Ok(()) }
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

/// Errors: the first part that no kind takes. With `strict` the message may be read by the kind that reads everything at once, which takes any
/// object as a part; it is chosen where it knows more fields than the others, which do not look at the parts.
fn check_parts(message: &Map<String, Value>, strict: bool) -> Result<(), ApiError> {
    // A text is read as such.
    let parts = items(message.get("content").filter(|content| !content.is_string()));
    let is_taken = strict && parts.iter().all(|part| part.is_object() || part.is_string());
    let is_chosen = is_taken && parts.iter().filter_map(Value::as_object).any(is_known);
    let kinds = kinds(message).filter(|_| !is_chosen).unwrap_or_default();
    for (at, part) in parts.iter().enumerate() {
        let faults_by = |kind: &PartKind| {
            let path = if kinds.len() > 1 { format!("{at}.{}", kind.0) } else { at.to_string() };
            faults_of(&Kind::TypedDict(kind.1), part, &path)
        };
        let faults: Vec<Vec<String>> = kinds.iter().map(faults_by).collect();
        if !faults.is_empty() && faults.iter().all(|faults| !faults.is_empty()) {
            return Err(invalid("ValidatorIterator", &faults.concat()));
        }
    }
    parts.iter().filter_map(Value::as_object).find_map(read_again).unwrap_or(Ok(()))
}

/// Returns whether a kind of part takes this one for a field that it has.
fn is_known(part: &Map<String, Value>) -> bool {
    let has_some = |object: &Object| object.fields.iter().any(|Field(name, ..)| part.contains_key(*name));
    STRICT.iter().any(|object| has_some(object) && schema::takes(object, part))
}

/// What the engine finds when it comes to a part; `None` where it goes on to the next one. It stops at media and at what it does not know.
fn read_again(part: &Map<String, Value>) -> Option<Result<(), ApiError>> {
    let word = part.get("type")?.as_str()?;
    let Some((field, PartKind(class, object))) = READ_AGAIN.iter().find(|(field, _)| *field == word) else {
        return (!["text", "input_text", "output_text", "refusal", "thinking"].contains(&word)).then_some(Ok(()));
    };
    // What has an id may be known already.
    if part.contains_key("uuid") && part.get(*field).is_none_or(Value::is_null) {
        return Some(Ok(()));
    }
    let faults = faults_of(&Kind::TypedDict(object), &Value::Object(part.clone()), "");
    Some(if faults.is_empty() { Ok(()) } else { Err(invalid(class, &faults)) })
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

/// What does not fit, as pydantic's texts list it.
fn faults_of(kind: &Kind, value: &Value, path: &str) -> Vec<String> {
    let (Kind::TypedDict(object), Value::Object(map)) = (kind, value) else {
        let judged = match kind {
            Kind::TypedDict(_) => Err(FieldFault::NO_DICTIONARY),
            scalar => schema::judge_scalar(scalar, value),
        };
        let words = judged.err().map(FieldFault::words);
        return words.into_iter().map(|(kind, message, _)| fault(path, kind, &message, value)).collect();
    };
    let of_field = |Field(name, kind, need): &Field| {
        let path = if path.is_empty() { (*name).to_owned() } else { format!("{path}.{name}") };
        match map.get(*name) {
            Some(inside) => faults_of(kind, inside, &path),
            None if *need == Required => vec![fault(&path, "missing", "Field required", value)],
            None => Vec::new(),
        }
    };
    object.fields.iter().flat_map(of_field).collect()
}

/// Errors: the first tool call that is neither a function's nor a custom tool's.
pub(super) fn check_calls(message: &Map<String, Value>, strict: bool, mut issues: Issues) -> Result<(), ApiError> {
    if strict || message.get("role").is_none_or(|role| role != "assistant") {
        return Ok(());
    }
    items(message.get("tool_calls")).iter().enumerate().try_for_each(|(at, call)| {
        schema::judge(&LATE_CALL, call, &Loc::BODY.item(at), &mut issues);
        issues.unless_any(())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tool_call_is_a_functions_or_a_custom_one() {
        let message = |call: Value| json!({"role": "assistant", "tool_calls": [call]}).as_object().unwrap().clone();
        let fine = json!({"id": "a", "type": "custom", "custom": {"name": "f", "input": "x"}});
        assert!(check_calls(&message(fine), false, Issues::new()).is_ok());
        let refused = check_calls(&message(json!(5)), false, Issues::new()).unwrap_err();
        assert!(refused.message.starts_with("2 validation errors:"), "{}", refused.message);
    }
}
