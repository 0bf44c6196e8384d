//! Schema of a chat's messages: eight kinds, of which one has to fit.
//!
//! The engine reads the parts of a content and the tool calls only when it comes to them: such a fault is reported in other
//! words, and only where no kind takes the message as it is.
//!
//! Limits: the kinds of parts that only a vision or speech model has are known by their `type` alone.

use serde_json::{Map, Value};

use super::{
    error::ApiError,
    fields::{attributes, dictionary},
    lazy,
    schema::{self, Field, Kind, Need, Object},
    values::{Issues, list},
};

use Need::{Nullable, Optional, Required};

/// Kinds of messages in the order in which the engine tries them.
const KINDS: &[(&str, &Object)] = &[
    ("ChatCompletionDeveloperMessageParam", &DEVELOPER),
    ("ChatCompletionSystemMessageParam", &SYSTEM),
    ("ChatCompletionUserMessageParam", &USER),
    ("ChatCompletionAssistantMessageParam", &ASSISTANT),
    ("ChatCompletionToolMessageParam", &TOOL),
    ("ChatCompletionFunctionMessageParam", &FUNCTION),
    ("CustomChatCompletionMessageParam", &CUSTOM),
    ("Message", &HARMONY),
];

const DEVELOPER: Object = spoken(&[
    Field("content", Kind::TextOrIterable, Required),
    Field("role", Kind::OneOf(&["developer"]), Required),
    Field("name", Kind::Text, Optional),
]);
const SYSTEM: Object = spoken(&[
    Field("content", Kind::TextOrIterable, Required),
    Field("role", Kind::OneOf(&["system"]), Required),
    Field("name", Kind::Text, Optional),
]);
const USER: Object = spoken(&[
    Field("content", Kind::TextOrIterable, Required),
    Field("role", Kind::OneOf(&["user"]), Required),
    Field("name", Kind::Text, Optional),
]);
const ASSISTANT: Object = spoken(&[
    Field("role", Kind::OneOf(&["assistant"]), Required),
    Field("audio", Kind::TypedDict(&spoken(&[Field("id", Kind::Text, Required)])), Nullable),
    Field("content", Kind::TextOrIterable, Nullable),
    Field("function_call", Kind::TypedDict(&CALLED), Nullable),
    Field("name", Kind::Text, Optional),
    Field("refusal", Kind::Text, Nullable),
    Field("tool_calls", Kind::Iterable, Optional),
]);
const TOOL: Object = spoken(&[
    Field("content", Kind::TextOrIterable, Required),
    Field("role", Kind::OneOf(&["tool"]), Required),
    Field("tool_call_id", Kind::Text, Required),
]);
const FUNCTION: Object = spoken(&[
    Field("content", Kind::Text, Need::Present),
    Field("name", Kind::Text, Required),
    Field("role", Kind::OneOf(&["function"]), Required),
]);
const CUSTOM: Object = spoken(&[
    Field("role", Kind::Text, Required),
    Field("content", Kind::TextOr(&Kind::List(&Kind::Any)), Optional),
    Field("name", Kind::Text, Optional),
    Field("tool_call_id", Kind::Text, Nullable),
    Field("tool_calls", Kind::List(&Kind::TypedDict(&CALL)), Nullable),
    Field("reasoning", Kind::Text, Nullable),
    Field("tools", Kind::List(&Kind::Any), Nullable),
    Field("task", Kind::Text, Nullable),
]);
const HARMONY: Object = spoken(&[
    Field("author", Kind::Object(&spoken(&[Field("role", Kind::Any, Required)])), Required),
    Field("content", Kind::List(&Kind::Any), Optional),
]);

/// A tool call as a strict reader wants it.
const CALL: Object = spoken(&[
    Field("id", Kind::Text, Required),
    Field("function", Kind::TypedDict(&CALLED), Required),
    Field("type", Kind::OneOf(&["function"]), Required),
]);
const CALLED: Object = spoken(&[Field("arguments", Kind::Text, Required), Field("name", Kind::Text, Required)]);

const fn spoken(fields: &'static [Field]) -> Object {
    Object { fields, condition: None }
}

/// Everything that does not fit; the faults of a message are those of all kinds, where none takes it.
pub(super) fn check(value: &Value, loc: &str, issues: &mut Issues) {
    let items = match list(value, loc) {
        Ok(items) => items,
        Err(issue) => return issues.push(issue),
    };
    for (at, item) in items.iter().enumerate() {
        check_one(item, &format!("{loc}.{at}"), issues);
    }
}

fn check_one(item: &Value, loc: &str, issues: &mut Issues) {
    let Value::Object(map) = item else {
        for (kind, _) in KINDS {
            let loc = format!("{loc}.{kind}");
            issues.push(if *kind == "Message" { attributes(item, &loc) } else { dictionary(item, &loc) });
        }
        return;
    };
    let mut faults = Issues::default();
    for (kind, object) in KINDS {
        let found = schema::check(object, map, &format!("{loc}.{kind}"));
        if found.is_empty() {
            return;
        }
        faults.append(found);
    }
    issues.append(faults);
}

/// Reports faults of parts and tool calls that are read late, in a body whose messages fit.
///
/// # Errors
/// The first message at fault.
pub(super) fn check_late(messages: &[Value]) -> Result<(), ApiError> {
    messages.iter().filter_map(Value::as_object).try_for_each(|message| {
        // Such a message fits the last kind only, which the engine cannot render.
        if !message.contains_key("role") {
            return Err(ApiError::bad_request("'Message' object is not subscriptable"));
        }
        lazy::check_calls(message, is_strict(message))?;
        lazy::check_parts(message, is_strict(message))
    })
}

/// Returns whether the kind that reads everything at once takes the message, and would be chosen.
fn is_strict(message: &Map<String, Value>) -> bool {
    schema::check(&CUSTOM, message, "").is_empty()
}
