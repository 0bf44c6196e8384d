//! Fields of chat and completion requests that hold more than one value: tools, documents, arguments for extensions.

use serde_json::{Map, Value};

use super::{
    error::ApiError,
    python,
    schema::{Field, Kind, Need, Object},
    values,
};

use Need::{Nullable, Optional, Required};

/// `tools`
pub(super) const TOOLS: Kind = Kind::List(&Kind::Object(&TOOL));
const TOOL: Object = object(&[
    Field("type", Kind::OneOf(&["function"]), Optional),
    Field("function", Kind::Object(&FUNCTION), Required),
    Field("defer_loading", Kind::Flag, Nullable),
]);
const FUNCTION: Object = object(&[
    Field("name", Kind::Text, Required),
    Field("description", Kind::Text, Nullable),
    Field("parameters", Kind::Dictionary, Nullable),
    Field("strict", Kind::Flag, Nullable),
    Field("defer_loading", Kind::Flag, Nullable),
]);

/// `tool_choice`
pub(super) const TOOL_CHOICE: Kind = Kind::AnyOf(&[
    Kind::OneOf(&["none"]),
    Kind::OneOf(&["auto"]),
    Kind::OneOf(&["required"]),
    Kind::Object(&object(&[
        Field("function", Kind::Object(&object(&[Field("name", Kind::Text, Required)])), Required),
        Field("type", Kind::OneOf(&["function"]), Optional),
    ])),
]);

/// `documents`
pub(super) const DOCUMENTS: Kind = Kind::List(&Kind::DictionaryOf(&Kind::Text));

/// `media_io_kwargs`
pub(super) const MEDIA: Kind = Kind::DictionaryOf(&Kind::Dictionary);

/// `vllm_xargs`
pub(super) const XARGS: Kind = Kind::DictionaryOf(&Kind::AnyOf(&[
    Kind::Text,
    Kind::Int,
    Kind::Float,
    Kind::List(&Kind::AnyOf(&[Kind::Text, Kind::Int, Kind::Float])),
]));

/// `prompt_embeds`
pub(super) const EMBEDS: Kind = Kind::AnyOf(&[Kind::Bytes, Kind::List(&Kind::Bytes)]);

/// `repetition_detection`
pub(super) const REPETITION: Kind = Kind::Dataclass("RepetitionDetectionParams", &REPEATED);
const REPEATED: Object = object(&[
    Field("max_pattern_size", Kind::Int, Optional),
    Field("min_pattern_size", Kind::Int, Optional),
    Field("min_count", Kind::Int, Optional),
]);

const fn object(fields: &'static [Field]) -> Object {
    Object { fields, condition: None }
}

/// The engine's error for a value while it reads it, before it looks at the rest.
///
/// # Errors
/// The first value that it refuses.
pub(super) fn check(body: &Map<String, Value>) -> Result<(), ApiError> {
    check_budget(body.get("thinking_token_budget"))?;
    check_repetition(body.get("repetition_detection"))
}

fn check_budget(value: Option<&Value>) -> Result<(), ApiError> {
    match value {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Number(number)) if number.as_i128().is_some_and(|budget| budget >= -1) => Ok(()),
        Some(Value::Number(number)) if number.as_f64().is_some_and(|budget| budget >= 1.8e19) => Ok(()),
        Some(other) => Err(ApiError::parameter_value(
            "thinking_token_budget",
            "`thinking_token_budget` must be a non-negative integer or -1 for unlimited.",
            &python::display(other),
        )),
    }
}

fn check_repetition(value: Option<&Value>) -> Result<(), ApiError> {
    let Some(Value::Object(map)) = value else { return Ok(()) };
    let size = |name: &str| map.get(name).map_or(Ok(0), |value| values::int(value, ""));
    let (Ok(most), Ok(least), Ok(count)) = (size("max_pattern_size"), size("min_pattern_size"), size("min_count"))
    else {
        return Ok(());
    };
    if most < 0 || least < 0 || least > most {
        return Err(ApiError::bad_request(
            "max_pattern_size, min_pattern_size must be >=0, with min_pattern_size <= max_pattern_size. Set both to 0 \
             to disable repetitive pattern detection.",
        ));
    }
    if most > 0 && count < 2 {
        return Err(ApiError::bad_request(
            "min_count must be >= 2 to detect repetitive patterns in engine output. If you do not wish to detect \
             repetitive patterns, set max_pattern_size to 0.",
        ));
    }
    Ok(())
}
