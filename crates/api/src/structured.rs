//! Constraints of an answer: `structured_outputs` and `response_format`, judged as the engine judges them, and made
//! into one [`Constraint`].
//!
//! Limits: whether a schema, an expression or a grammar is one is judged where text is made
//! ([`engine::guided`](engine::guided)). The engine's older `guided_*` fields are unknown to it by now, and are
//! accepted without effect, as it does.

use serde_json::{Map, Value, json};

use super::{error::ApiError, python, values::is_set};

/// Greatest depth of objects and arrays in a schema.
const DEEPEST_SCHEMA: usize = 64;

/// Levels by which a structural tag may nest deeper than the schemas in it.
const TAG_DEPTH: usize = 16;

/// The kinds of constraint.
const KINDS: [&str; 6] = ["json", "regex", "choice", "grammar", "json_object", "structural_tag"];

/// Constraint that every text of an answer conforms to.
#[derive(Debug, Clone, PartialEq)]
pub enum Constraint {
    /// A JSON value that fits this schema.
    Json(Value),
    /// Any JSON object.
    JsonObject,
    /// A text that this regular expression matches from end to end.
    Regex(String),
    /// One of these texts; at least one.
    Choice(Vec<String>),
    /// A text of this grammar, in Lark's or in EBNF's notation.
    Grammar(String),
    /// A text with this structural tag.
    StructuralTag(Value),
}

/// Reads the constraint that the body of a chat or a completion has; `None` where its answer is free.
///
/// # Errors
/// 400 for what the engine refuses.
pub fn constraint_of(body: &Map<String, Value>) -> Result<Option<Constraint>, ApiError> {
    let Some(requested) = RequestedStructure::read(body) else { return Ok(None) };
    requested.check_count()?;
    requested.constraint()
}

/// The kinds that a request asks for; to be one, exactly one of them has to be there.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RequestedStructure {
    kinds: Map<String, Value>,
    tag_of: &'static str,
}

impl RequestedStructure {
    /// Reads a body that fits the schema; `None` where its answer is free.
    pub(super) fn read(body: &Map<String, Value>) -> Option<Self> {
        let present = |name: &str| body.get(name).filter(|value| !value.is_null());
        let own = present("structured_outputs").and_then(Value::as_object);
        let format = present("response_format").and_then(Value::as_object);
        let kind = format.and_then(|format| format.get("type")).and_then(Value::as_str).unwrap_or("text");
        let mut requested = own.cloned().unwrap_or_default();
        let mut tag_of = "structured_outputs";
        match (kind, format) {
            ("json_object", _) => drop(requested.insert("json_object".to_owned(), Value::Bool(true))),
            ("json_schema", Some(format)) => {
                let schema = format.get("json_schema").and_then(|schema| schema.get("schema")).cloned();
                requested.insert("json".to_owned(), schema.unwrap_or_default());
            }
            ("structural_tag", Some(format)) => {
                let tag = Value::Object(format.clone()).to_string();
                requested.insert("structural_tag".to_owned(), Value::String(tag));
                tag_of = "response_format";
            }
            _ if own.is_none() => return None,
            _ => {}
        }
        Some(Self { kinds: requested, tag_of })
    }

    /// The field `structured_outputs` alone, which has to be right by itself.
    pub(super) fn own(body: &Map<String, Value>) -> Option<Self> {
        let kinds = body.get("structured_outputs")?.as_object()?.clone();
        Some(Self { kinds, tag_of: "structured_outputs" })
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.kinds.get(name).filter(|value| !value.is_null())
    }

    /// Checks that one kind is there, and no other.
    /// Errors: 400 for none and for several, with everything that was requested as the engine prints it.
    pub(super) fn check_count(&self) -> Result<(), ApiError> {
        let count = KINDS.iter().filter(|kind| self.get(kind).is_some()).count();
        let what = match count {
            1 => return Ok(()),
            0 => "You must use one kind of structured outputs constraint but none are specified: ",
            _ => "You can only use one kind of structured outputs constraint but multiple are specified: ",
        };
        Err(ApiError::bad_request(format!("{what}{}", python::literal(&self.params()))))
    }

    /// Everything that was requested, with the engine's names and in its order.
    pub(super) fn params(&self) -> Value {
        let value = |name: &str| self.kinds.get(name).cloned().unwrap_or_default();
        let flag = |name: &str| self.kinds.get(name).is_some_and(is_set);
        json!({
            "json": value("json"), "regex": value("regex"), "choice": value("choice"), "grammar": value("grammar"),
            "json_object": self.get("json_object").map(is_set),
            "disable_any_whitespace": flag("disable_any_whitespace"),
            "disable_additional_properties": flag("disable_additional_properties"),
            "whitespace_pattern": value("whitespace_pattern"), "structural_tag": value("structural_tag"),
            "_backend": null, "_backend_was_auto": false,
        })
    }

    /// The constraint, judged in the engine's order.
    /// Errors: 400 for an empty or too deep one.
    pub(super) fn constraint(&self) -> Result<Option<Constraint>, ApiError> {
        self.check_emptiness()?;
        let text = |name: &str| self.get(name).and_then(Value::as_str).map(str::to_owned);
        if let Some(schema) = self.get("json") {
            return Ok(Some(Constraint::Json(read_json(schema)?)));
        }
        if let Some(choices) = self.get("choice").and_then(Value::as_array) {
            let texts = choices.iter().filter_map(Value::as_str).map(str::to_owned);
            return Ok(Some(Constraint::Choice(texts.collect())));
        }
        if let Some(tag) = text("structural_tag") {
            let tag = serde_json::from_str(&tag).map_err(|_| self.invalid_tag())?;
            return Ok(Some(Constraint::StructuralTag(tag)));
        }
        let object = self.get("json_object").map(|_| Constraint::JsonObject);
        Ok(text("regex").map(Constraint::Regex).or_else(|| text("grammar").map(Constraint::Grammar)).or(object))
    }

    /// The engine's answer where the structural tag is none.
    pub(super) fn invalid_tag(&self) -> ApiError {
        invalid_tag(self.tag_of)
    }

    fn check_emptiness(&self) -> Result<(), ApiError> {
        let refuse = |message: &str| Err(ApiError::bad_request(message));
        let blank = |name: &str| self.get(name).and_then(Value::as_str).is_some_and(|text| text.trim().is_empty());
        if self.get("choice").and_then(Value::as_array).is_some_and(Vec::is_empty) {
            return refuse("Choice '[]' cannot be an empty list");
        }
        if blank("grammar") {
            return refuse("structured_outputs.grammar cannot be an empty string");
        }
        if blank("json") {
            return refuse("structured_outputs.json cannot be an empty string");
        }
        if self.get("json").is_some_and(|schema| is_deeper(schema, DEEPEST_SCHEMA))
            || self.get("structural_tag").is_some_and(|tag| is_deeper(tag, DEEPEST_SCHEMA + TAG_DEPTH))
        {
            return refuse(TOO_DEEP);
        }
        if self.get("json_object").is_some_and(|value| !is_set(value)) {
            return refuse(
                "structured_outputs.json_object must be True if set; omit structured_outputs to disable structured \
                 outputs",
            );
        }
        if self.get("regex").and_then(Value::as_str).is_some_and(|regex| regex.contains('\0')) {
            return refuse(r"structured_outputs.regex must not contain a NUL character ('\x00')");
        }
        Ok(())
    }
}

const TOO_DEEP: &str = "The JSON schema is nested too deeply: objects and arrays may nest at most 64 levels";

/// A schema as it came, or as the text that it came as.
fn read_json(schema: &Value) -> Result<Value, ApiError> {
    let Value::String(text) = schema else { return Ok(schema.clone()) };
    serde_json::from_str(text).map_err(|_| ApiError::bad_request("Invalid JSON grammar specification."))
}

/// Returns whether objects and arrays nest deeper; a text counts as the JSON that it is.
fn is_deeper(value: &Value, most: usize) -> bool {
    let read = value.as_str().map(|text| serde_json::from_str::<Value>(text).unwrap_or_default());
    let mut level = vec![read.as_ref().unwrap_or(value)];
    for _ in 0..most {
        let is_nested = |value: &&Value| value.is_object() || value.is_array();
        level = level.into_iter().flat_map(children).filter(is_nested).collect();
        if level.is_empty() {
            return false;
        }
    }
    true
}

/// The values in an object or an array.
fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Object(map) => map.values().collect(),
        Value::Array(items) => items.iter().collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

/// The engine's answer to a structural tag that is none, in this field.
pub(super) fn invalid_tag(field: &str) -> ApiError {
    ApiError::parameter(field, &format!("Invalid {field} structural_tag specification."))
}

/// What an answer has to look like where the request forces calls, in Hermes' notation: one call of a named function, or
/// calls of its tools under `required`. `None` where calls are free.
pub(super) fn forced_calls(body: &Map<String, Value>) -> Option<Constraint> {
    let tools = body.get("tools")?.as_array()?;
    let functions = tools.iter().map(|tool| tool.get("function").cloned().unwrap_or_default());
    let (functions, is_one): (Vec<Value>, bool) = match body.get("tool_choice")? {
        Value::Object(choice) => {
            let name = choice.get("function")?.get("name")?;
            (functions.filter(|function| function.get("name") == Some(name)).take(1).collect(), true)
        }
        Value::String(word) if word == "required" => {
            (functions.collect(), body.get("parallel_tool_calls") == Some(&Value::Bool(false)))
        }
        _ => return None,
    };
    let tags: Vec<Value> = functions.iter().map(call_tag).collect();
    let format = json!({
        "type": "tags_with_separator", "separator": "", "tags": tags, "at_least_one": true, "stop_after_first": is_one,
    });
    (!tags.is_empty()).then(|| Constraint::StructuralTag(json!({"type": "structural_tag", "format": format})))
}

fn call_tag(function: &Value) -> Value {
    let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
    let parameters = match function.get("parameters") {
        Some(Value::Object(given)) if !given.is_empty() => Value::Object(given.clone()),
        _ => json!({"type": "object", "properties": {}}),
    };
    json!({
        "type": "tag",
        "begin": format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": "),
        "content": {"type": "json_schema", "json_schema": parameters},
        "end": "}\n</tool_call>",
    })
}
