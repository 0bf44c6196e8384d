//! The parts of a message's content and its tool calls, which the engine judges when it reads them, in pydantic's own
//! spelling of faults.

use serde_json::{Map, Value};

use super::{
    error::ApiError,
    python,
    values::{Issue, issues_error},
};

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

/// # Errors
/// The first part that no kind takes. With `strict` the message may be read by the kind that takes every part.
pub(super) fn check_parts(message: &Map<String, Value>, strict: bool) -> Result<(), ApiError> {
    let parts: Vec<Value> = match message.get("content") {
        Some(Value::Array(parts)) => parts.clone(),
        Some(Value::Object(map)) => map.keys().map(|key| Value::from(key.as_str())).collect(),
        _ => return Ok(()),
    };
    let is_taken = |part: &Value| match part {
        Value::Object(part) => is_strict_part(part),
        _ => false,
    };
    if strict && parts.iter().all(is_taken) {
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
    let fault = |path: &str, kind: &str, message: &str, value: &Value| {
        let (shown, class) = (shown(value), python::class(value));
        format!("{path}\n  {message} [type={kind}, input_value={shown}, input_type={class}]\n    {HELP}/{kind}")
    };
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
pub(super) fn check_calls(message: &Map<String, Value>, strict: bool) -> Result<(), ApiError> {
    if strict || message.get("role").is_none_or(|role| role != "assistant") {
        return Ok(());
    }
    let calls: Vec<Value> = match message.get("tool_calls") {
        Some(Value::Array(calls)) => calls.clone(),
        Some(Value::String(text)) => text.chars().map(|letter| Value::from(letter.to_string())).collect(),
        Some(Value::Object(map)) => map.keys().map(|key| Value::from(key.as_str())).collect(),
        _ => return Ok(()),
    };
    for (at, call) in calls.iter().enumerate() {
        let function = call_faults(call, at, "ChatCompletionMessageFunctionToolCallParam", "function");
        let custom = call_faults(call, at, "ChatCompletionMessageCustomToolCallParam", "custom");
        if !function.is_empty() && !custom.is_empty() {
            return Err(issues_error(function.into_iter().chain(custom)));
        }
    }
    Ok(())
}

fn call_faults(call: &Value, at: usize, kind: &str, word: &'static str) -> Vec<Issue> {
    let loc = format!("body.{at}.{kind}");
    let Value::Object(map) = call else { return vec![super::fields::dictionary(call, &loc)] };
    let mut faults = Vec::new();
    let missing = |name: &str| Issue::missing(format!("{loc}.{name}"), map.len());
    match map.get("id") {
        None => faults.push(missing("id")),
        Some(id) => faults.extend(super::values::text(id, &format!("{loc}.id")).err()),
    }
    match map.get(word) {
        None => faults.push(missing(word)),
        // The fields of what is called are reported under its own name.
        Some(Value::Object(called)) => {
            let argument = if word == "function" { "arguments" } else { "input" };
            for name in [argument, "name"] {
                let loc = format!("{loc}.{word}");
                match called.get(name) {
                    None => faults.push(Issue::missing(loc, called.len())),
                    Some(value) => faults.extend(super::values::text(value, &loc).err()),
                }
            }
        }
        Some(other) => faults.push(super::fields::dictionary(other, &format!("{loc}.{word}"))),
    }
    match map.get("type") {
        None => faults.push(missing("type")),
        Some(value) => faults.extend(super::fields::one_of(value, &format!("{loc}.type"), &[word])),
    }
    faults
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
