//! Checks on the raw body that come before its schema; the first that fails is the answer.

use serde_json::{Map, Value};

use super::{Api, error::ApiError, python, structured::invalid_tag, values};

const MOST_PROMPTS: usize = 1024;

type Rule = fn(&Map<String, Value>) -> Result<(), ApiError>;

const CHAT: &[Rule] = &[
    messages,
    generation_prompt,
    tools,
    structured_outputs,
    chat_logprobs,
    stream_options,
    response_format,
    cache_salt,
];
const COMPLETION: &[Rule] = &[
    prompt_count,
    prompt,
    stream_options,
    completion_logprobs,
    completion_structured_outputs,
    response_format,
    cache_salt,
];

/// Applies the rules in the engine's order.
pub(super) fn check(api: Api, body: &Map<String, Value>) -> Result<(), ApiError> {
    let rules = match api {
        Api::Chat => CHAT,
        Api::Completions => COMPLETION,
    };
    rules.iter().try_for_each(|rule| rule(body))?;
    // Read with the schema, before anything else of it is looked at.
    thinking_budget(body)?;
    repetition(body)
}

/// The engine goes through the messages before it looks at their type.
fn messages(body: &Map<String, Value>) -> Result<(), ApiError> {
    match body.get("messages").map(python::class) {
        None | Some("str" | "list" | "dict") => Ok(()),
        Some(class) => Err(ApiError::bad_request(format!("'{class}' object is not iterable"))),
    }
}

fn generation_prompt(body: &Map<String, Value>) -> Result<(), ApiError> {
    let set = |name| python::truthy(body.get(name));
    if set("continue_final_message") && set("add_generation_prompt") {
        let message = "Cannot set both `continue_final_message` and `add_generation_prompt` to True.";
        return Err(ApiError::bad_request(message));
    }
    Ok(())
}

fn tools(body: &Map<String, Value>) -> Result<(), ApiError> {
    let tools = body.get("tools").filter(|tools| !tools.is_null());
    if tools.and_then(Value::as_array).is_some_and(Vec::is_empty) {
        let message =
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.";
        return Err(ApiError::parameter("tools", message));
    }
    let choice = match body.get("tool_choice") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::String(word)) if word == "none" => return Ok(()),
        Some(choice) => choice,
    };
    let Some(tools) = tools else {
        return Err(ApiError::parameter("tool_choice", "When using `tool_choice`, `tools` must be set."));
    };
    match choice {
        Value::String(word) if word == "auto" || word == "required" => Ok(()),
        Value::Object(choice) => named_tool(choice, tools),
        other => Err(ApiError::parameter(
            "tool_choice",
            &format!(
                "Invalid value for `tool_choice`: {}! Only named tools, \"none\", \"auto\" or \"required\" are supported.",
                python::display(other)
            ),
        )),
    }
}

fn named_tool(choice: &Map<String, Value>, tools: &Value) -> Result<(), ApiError> {
    const USAGE: &str = "Correct usage: `{\"type\": \"function\", \"function\": {\"name\": \"my_function\"}}`";
    let function = match choice.get("function") {
        Some(Value::Object(function)) => function,
        other => {
            let shown = other.map_or_else(|| "None".to_owned(), python::display);
            let message = format!("Invalid value for `function`: `{shown}` in `tool_choice`! {USAGE}");
            return Err(ApiError::parameter("tool_choice.function", &message));
        }
    };
    let name = match function.get("name") {
        None => {
            let message = format!("Expected field `name` in `function` in `tool_choice`! {USAGE}");
            return Err(ApiError::parameter("tool_choice.function.name", &message));
        }
        Some(Value::String(name)) if !name.is_empty() => name,
        Some(other) => {
            let shown = python::display(other);
            let message = format!("Invalid `name` in `function`: `{shown}` in `tool_choice`! {USAGE}");
            return Err(ApiError::parameter("tool_choice.function.name", &message));
        }
    };
    let is_named = |tool: &Value| tool.pointer("/function/name").and_then(Value::as_str) == Some(name);
    if tools.as_array().is_some_and(|tools| tools.iter().any(is_named)) {
        return Ok(());
    }
    let message = "The tool specified in `tool_choice` does not match any of the specified `tools`";
    Err(ApiError::parameter("tool_choice", message))
}

/// A field that is compared as a number before its type is checked.
fn number(body: &Map<String, Value>, name: &str) -> Result<Option<f64>, ApiError> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(f64::from(u8::from(*flag)))),
        Some(Value::Number(number)) => Ok(number.as_f64()),
        Some(other) if python::number_text(other).is_some() => Ok(values::float(other).ok()),
        Some(other) => {
            Err(ApiError::parameter_value(name, &format!("`{name}` must be an integer."), &python::display(other)))
        }
    }
}

fn positive_or_all(body: &Map<String, Value>, name: &str, value: Option<f64>) -> Result<(), ApiError> {
    let shown = || body.get(name).map(python::display).unwrap_or_default();
    match value {
        #[allow(clippy::float_cmp)] // -1 is a word here, not a quantity
        Some(value) if value < 0.0 && value != -1.0 => {
            Err(ApiError::parameter_value(name, &format!("`{name}` must be a positive value or -1."), &shown()))
        }
        _ => Ok(()),
    }
}

fn prompt_logprobs(body: &Map<String, Value>) -> Result<(), ApiError> {
    let requested = number(body, "prompt_logprobs")?;
    let wants = requested.is_some_and(|count| count > 0.0 || (count - -1.0).abs() < f64::EPSILON);
    if wants && python::truthy(body.get("stream")) {
        let message = "`prompt_logprobs` are not available when `stream=True`.";
        return Err(ApiError::parameter("prompt_logprobs", message));
    }
    positive_or_all(body, "prompt_logprobs", requested)
}

/// Before anything else about log probabilities.
fn beam_search(body: &Map<String, Value>) -> Result<(), ApiError> {
    if python::truthy(body.get("logprob_token_ids")) && python::truthy(body.get("use_beam_search")) {
        let message = "`logprob_token_ids` is not supported with beam search.";
        return Err(ApiError::parameter("logprob_token_ids", message));
    }
    Ok(())
}

fn chat_logprobs(body: &Map<String, Value>) -> Result<(), ApiError> {
    beam_search(body)?;
    if python::truthy(body.get("logprob_token_ids")) && !python::truthy(body.get("logprobs")) {
        let message = "when using `logprob_token_ids`, `logprobs` must be set to true.";
        return Err(ApiError::parameter("logprob_token_ids", message));
    }
    number(body, "prompt_logprobs")?;
    let top = number(body, "top_logprobs")?;
    prompt_logprobs(body)?;
    positive_or_all(body, "top_logprobs", top)?;
    if top.is_some_and(|top| top.abs() > 0.0) && !python::truthy(body.get("logprobs")) {
        let message = "when using `top_logprobs`, `logprobs` must be set to true.";
        return Err(ApiError::parameter("top_logprobs", message));
    }
    Ok(())
}

/// Fields that a completion with its prompt repeated cannot have.
fn echoed_logprobs(body: &Map<String, Value>) -> Result<(), ApiError> {
    let is_set = |name: &str| python::truthy(body.get(name));
    if is_set("use_beam_search") && is_set("echo") && body.get("logprobs").is_some_and(|count| !count.is_null()) {
        let message = "`echo` with `logprobs` is not supported with beam search because beam search does not compute \
                       prompt logprobs.";
        return Err(ApiError::parameter("echo", message));
    }
    // Python's zero: `false` is one too.
    let is_zero = |most: &Value| most.as_f64() == Some(0.0) || most == false;
    if is_set("logprob_token_ids") && is_set("echo") && body.get("max_tokens").is_some_and(is_zero) {
        let message = "`logprob_token_ids` is not supported when `echo=True` and `max_tokens=0` because no output tokens are \
                       generated.";
        return Err(ApiError::parameter("logprob_token_ids", message));
    }
    Ok(())
}

fn completion_logprobs(body: &Map<String, Value>) -> Result<(), ApiError> {
    beam_search(body)?;
    echoed_logprobs(body)?;
    if python::truthy(body.get("logprob_token_ids")) && body.get("logprobs").is_none_or(Value::is_null) {
        let message = "when using `logprob_token_ids`, `logprobs` must be set.";
        return Err(ApiError::parameter("logprob_token_ids", message));
    }
    number(body, "prompt_logprobs")?;
    let logprobs = number(body, "logprobs")?;
    prompt_logprobs(body)?;
    positive_or_all(body, "logprobs", logprobs)
}

fn stream_options(body: &Map<String, Value>) -> Result<(), ApiError> {
    if python::truthy(body.get("stream_options")) && !python::truthy(body.get("stream")) {
        let message = "Stream options can only be defined when `stream=True`.";
        return Err(ApiError::parameter("stream_options", message));
    }
    Ok(())
}

fn response_format(body: &Map<String, Value>) -> Result<(), ApiError> {
    let Some(Value::Object(format)) = body.get("response_format") else { return Ok(()) };
    let is_schema = format.get("type").and_then(Value::as_str) == Some("json_schema");
    if is_schema && format.get("json_schema").is_none_or(Value::is_null) {
        let message = "When response_format type is 'json_schema', the 'json_schema' field must be provided.";
        return Err(ApiError::parameter("response_format", message));
    }
    if format.get("type").and_then(Value::as_str) == Some("structural_tag") && !is_tag(format) {
        return Err(invalid_tag("response_format"));
    }
    Ok(())
}

/// Returns whether it may be a structural tag: a format of some type, or structures that something triggers.
fn is_tag(tag: &Map<String, Value>) -> bool {
    let has_items = |name: &str| tag.get(name).and_then(Value::as_array).is_some_and(|items| !items.is_empty());
    let has_type = tag.get("format").and_then(|format| format.get("type")).is_some_and(Value::is_string);
    has_type || (tag.get("structures").is_some_and(Value::is_array) && has_items("triggers"))
}

/// A structural tag is an object, as the text that it came as.
fn structural_tag(body: &Map<String, Value>) -> Result<(), ApiError> {
    let requested = body.get("structured_outputs").and_then(|requested| requested.get("structural_tag"));
    let Some(tag) = requested.filter(|tag| !tag.is_null()) else { return Ok(()) };
    let read = tag.as_str().and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
    if read.is_some_and(|tag| is_tag(&tag)) { Ok(()) } else { Err(invalid_tag("structured_outputs")) }
}

/// Counts the kinds of constraint, of which only one may be there. The engine asks for them before it looks at the type.
fn constraints(body: &Map<String, Value>) -> Result<usize, ApiError> {
    let requested = match body.get("structured_outputs") {
        None | Some(Value::Null) => return Ok(0),
        Some(Value::Object(requested)) => requested,
        Some(value) => {
            return Err(ApiError::internal(format!("'{}' object has no attribute 'get'", python::class(value))));
        }
    };
    let is_there = |kind: &&str| requested.get(*kind).is_some_and(|value| !value.is_null());
    Ok(["json", "regex", "choice"].into_iter().filter(is_there).count())
}

const ONE_CONSTRAINT: &str =
    "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').";

fn structured_outputs(body: &Map<String, Value>) -> Result<(), ApiError> {
    let count = constraints(body)?;
    if count > 1 {
        return Err(ApiError::bad_request(ONE_CONSTRAINT));
    }
    let choice = body.get("tool_choice");
    let is_free = choice.is_none_or(|choice| ["none", "auto", "required"].iter().any(|word| choice == word));
    if count > 0 && !is_free {
        let message = "You can only either use constraints for structured outputs or tools, not both.";
        return Err(ApiError::bad_request(message));
    }
    structural_tag(body)
}

fn completion_structured_outputs(body: &Map<String, Value>) -> Result<(), ApiError> {
    if constraints(body)? > 1 {
        return Err(ApiError::parameter("structured_outputs", ONE_CONSTRAINT));
    }
    structural_tag(body)
}

pub(super) fn cache_salt(body: &Map<String, Value>) -> Result<(), ApiError> {
    let message = match body.get("cache_salt") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::String(salt)) if !salt.is_empty() => {
            let is_forbidden = |c: char| matches!(c, '@' | '/' | '\\' | '\0');
            if salt.chars().count() <= 128 && !salt.contains(is_forbidden) {
                return Ok(());
            }
            r"Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\', or NUL."
        }
        Some(_) => "Parameter 'cache_salt' must be a non-empty string if provided.",
    };
    Err(ApiError::parameter("cache_salt", message))
}

/// A list that begins with an integer is one prompt.
fn prompt_count(body: &Map<String, Value>) -> Result<(), ApiError> {
    let items = |name: &str| body.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let is_one = |items: &[Value]| matches!(items.first(), Some(Value::Bool(_))) || items.first().is_some_and(is_int);
    let refused = |name: &str, count: usize| {
        let message = format!(
            "{name} list length {count} exceeds the maximum allowed count of {MOST_PROMPTS}. To increase this limit, set \
             the VLLM_MAX_COMPLETION_PROMPTS environment variable."
        );
        Err(ApiError::parameter(name, &message))
    };
    match (items("prompt"), items("prompt_embeds")) {
        (prompts, _) if prompts.len() > MOST_PROMPTS && !is_one(prompts) => refused("prompt", prompts.len()),
        (_, embeds) if embeds.len() > MOST_PROMPTS => refused("prompt_embeds", embeds.len()),
        _ => Ok(()),
    }
}

fn is_int(value: &Value) -> bool {
    value.as_number().is_some_and(|number| !number.is_f64())
}

fn prompt(body: &Map<String, Value>) -> Result<(), ApiError> {
    let is_empty = match body.get("prompt") {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    let has_embeds = match body.get("prompt_embeds") {
        None | Some(Value::Null) => false,
        Some(Value::Array(items)) => !items.is_empty(),
        Some(_) => true,
    };
    if is_empty && !has_embeds {
        let message = "Either prompt or prompt_embeds must be provided and non-empty.";
        return Err(ApiError::parameter("prompt", message));
    }
    Ok(())
}

fn thinking_budget(body: &Map<String, Value>) -> Result<(), ApiError> {
    match body.get("thinking_token_budget") {
        None | Some(Value::Null) => Ok(()),
        Some(whole) if python::class(whole) == "int" && values::int(whole).is_ok_and(|budget| budget >= -1) => Ok(()),
        Some(other) => Err(ApiError::parameter_value(
            "thinking_token_budget",
            "`thinking_token_budget` must be a non-negative integer or -1 for unlimited.",
            &python::display(other),
        )),
    }
}

fn repetition(body: &Map<String, Value>) -> Result<(), ApiError> {
    let Some(Value::Object(map)) = body.get("repetition_detection") else { return Ok(()) };
    let size = |name: &str| map.get(name).map_or(Ok(0), values::int);
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(api: Api, body: &Value) -> Option<String> {
        check(api, body.as_object().unwrap()).err().map(|error| error.message)
    }

    #[test]
    fn a_completion_has_as_many_prompts_as_the_engine_takes() {
        let of = |field: &str, items: Vec<Value>| message(Api::Completions, &json!({"prompt": "x", field: items}));
        assert_eq!(of("prompt", vec![json!("a"); 1024]), None);
        assert_eq!(of("prompt", vec![json!(1); 1025]), None, "one prompt of ids");
        let refused = "prompt list length 1025 exceeds the maximum allowed count of 1024. To increase this limit, set the \
                       VLLM_MAX_COMPLETION_PROMPTS environment variable. (parameter=prompt)";
        for item in [json!("a"), json!([1]), json!(1.5), json!(null)] {
            assert_eq!(of("prompt", vec![item; 1025]).as_deref(), Some(refused));
        }
        let lists = json!({"prompt": vec![[7]; 1025]}).to_string();
        let read = crate::GenerationRequest::parse(Api::Completions, lists.as_bytes());
        assert_eq!(read.unwrap_err().message, refused, "also where ids are read without values");
        let embeds = of("prompt_embeds", vec![json!("a"); 1025]).unwrap();
        assert!(embeds.starts_with("prompt_embeds list length 1025"), "{embeds}");
    }

    #[test]
    fn a_cache_salt_is_judged_last_and_one_constraint_is_enough() {
        let salt = |salt: Value| message(Api::Completions, &json!({"prompt": "x", "cache_salt": salt}));
        assert_eq!(salt(json!("abc")), None);
        let empty = "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)";
        assert_eq!((salt(json!("")).as_deref(), salt(json!(1)).as_deref()), (Some(empty), Some(empty)));
        let long = r"Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\', or NUL. (parameter=cache_salt)";
        assert_eq!(salt(json!("a/b")).as_deref(), Some(long));
        assert_eq!(salt(json!("é".repeat(129))).as_deref(), Some(long));
        let two = json!({"json": {}, "regex": "a"});
        let chat = json!({"structured_outputs": two, "cache_salt": ""});
        assert_eq!(message(Api::Chat, &chat).as_deref(), Some(ONE_CONSTRAINT));
        let completion = json!({"prompt": "x", "structured_outputs": two});
        let expected = format!("{ONE_CONSTRAINT} (parameter=structured_outputs)");
        assert_eq!(message(Api::Completions, &completion), Some(expected));
    }
}
