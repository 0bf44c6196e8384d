//! The table of request fields: name, type, whether null is allowed. One row per field, in the schema's order, which is
//! the order in which faults are reported.

use serde_json::{Map, Value};

use super::{
    Api, messages, nested, python, response_format, schema, structured,
    values::{Issue, Issues, flag, float, int, list, text},
};

/// The type of a field.
#[derive(Debug, Clone, Copy)]
enum Type {
    Int,
    /// A whole number in a range, both ends included.
    IntIn(i128, i128),
    Float,
    Flag,
    Text,
    Ints,
    Texts,
    /// A text, or up to so many.
    TextOrTexts(usize),
    /// An object whose values are numbers.
    Floats,
    Object,
    /// Text, ids, or lists of them.
    Prompt,
    Messages,
    Nested(&'static schema::Kind),
    StreamOptions,
    ResponseFormat,
    StructuredOutputs,
    OneOf(&'static [&'static str]),
}

/// Values of a field besides its type.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Presence {
    Required,
    /// May be left out, but not null.
    Optional,
    Nullable,
}

use Presence::{Nullable, Optional, Required};

struct Field(&'static str, Type, Presence);

const MOST: i128 = i64::MAX as i128;
const INT64: Type = Type::IntIn(i64::MIN as i128, MOST);
const STOPS: usize = 4;

const CHAT: &[Field] = &[
    Field("messages", Type::Messages, Required),
    Field("model", Type::Text, Nullable),
    Field("frequency_penalty", Type::Float, Nullable),
    Field("logit_bias", Type::Floats, Nullable),
    Field("logprobs", Type::Flag, Nullable),
    Field("top_logprobs", Type::Int, Nullable),
    Field("max_tokens", Type::Int, Nullable),
    Field("max_completion_tokens", Type::Int, Nullable),
    Field("n", Type::Int, Nullable),
    Field("presence_penalty", Type::Float, Nullable),
    Field("response_format", Type::ResponseFormat, Nullable),
    Field("seed", INT64, Nullable),
    Field("stop", Type::TextOrTexts(STOPS), Nullable),
    Field("stream", Type::Flag, Nullable),
    Field("stream_options", Type::StreamOptions, Nullable),
    Field("temperature", Type::Float, Nullable),
    Field("top_p", Type::Float, Nullable),
    Field("tools", Type::Nested(&nested::TOOLS), Nullable),
    Field("tool_choice", Type::Nested(&nested::TOOL_CHOICE), Nullable),
    Field("reasoning_effort", Type::OneOf(&["none", "minimal", "low", "medium", "high", "xhigh", "max"]), Nullable),
    Field("include_reasoning", Type::Flag, Optional),
    Field("parallel_tool_calls", Type::Flag, Nullable),
    Field("user", Type::Text, Nullable),
];

const CHAT_EXTRA: &[Field] = &[
    Field("echo", Type::Flag, Optional),
    Field("add_generation_prompt", Type::Flag, Optional),
    Field("continue_final_message", Type::Flag, Optional),
    Field("add_special_tokens", Type::Flag, Optional),
    Field("documents", Type::Nested(&nested::DOCUMENTS), Nullable),
    Field("chat_template", Type::Text, Nullable),
    Field("chat_template_kwargs", Type::Object, Nullable),
    Field("media_io_kwargs", Type::Nested(&nested::MEDIA), Nullable),
    Field("mm_processor_kwargs", Type::Object, Nullable),
    Field("structured_outputs", Type::StructuredOutputs, Nullable),
    Field("priority", INT64, Optional),
    Field("request_id", Type::Text, Optional),
    Field("session_id", Type::Text, Nullable),
    Field("return_tokens_as_token_ids", Type::Flag, Nullable),
    Field("return_token_ids", Type::Flag, Nullable),
    Field("routed_experts_prompt_start", Type::IntIn(0, i128::MAX), Optional),
    Field("return_token_offsets", Type::Flag, Nullable),
    Field("return_prompt_text", Type::Flag, Nullable),
    Field("mm_payload", Type::OneOf(&["tensors", "none"]), Optional),
    Field("return_mm_kwargs", Type::Flag, Nullable),
    Field("kv_transfer_params", Type::Object, Nullable),
    Field("ec_transfer_params", Type::Object, Nullable),
];

const COMPLETION: &[Field] = &[
    Field("model", Type::Text, Nullable),
    Field("prompt", Type::Prompt, Nullable),
    Field("echo", Type::Flag, Nullable),
    Field("frequency_penalty", Type::Float, Nullable),
    Field("logit_bias", Type::Floats, Nullable),
    Field("logprobs", Type::Int, Nullable),
    Field("max_tokens", Type::Int, Nullable),
    Field("n", Type::Int, Optional),
    Field("presence_penalty", Type::Float, Nullable),
    Field("seed", INT64, Nullable),
    Field("stop", Type::TextOrTexts(STOPS), Nullable),
    Field("stream", Type::Flag, Nullable),
    Field("stream_options", Type::StreamOptions, Nullable),
    Field("suffix", Type::Text, Nullable),
    Field("temperature", Type::Float, Nullable),
    Field("top_p", Type::Float, Nullable),
    Field("user", Type::Text, Nullable),
];

const SAMPLING: &[Field] = &[
    Field("use_beam_search", Type::Flag, Optional),
    Field("top_k", Type::Int, Nullable),
    Field("min_p", Type::Float, Nullable),
    Field("repetition_penalty", Type::Float, Nullable),
    Field("watermarking", Type::Flag, Nullable),
    Field("length_penalty", Type::Float, Optional),
    Field("stop_token_ids", Type::Ints, Nullable),
    Field("include_stop_str_in_output", Type::Flag, Optional),
    Field("ignore_eos", Type::Flag, Optional),
    Field("min_tokens", Type::Int, Optional),
    Field("skip_special_tokens", Type::Flag, Optional),
    Field("spaces_between_special_tokens", Type::Flag, Optional),
    Field("truncate_prompt_tokens", Type::IntIn(-1, MOST), Nullable),
    Field("truncation_side", Type::OneOf(&["left", "right"]), Nullable),
    Field("allowed_token_ids", Type::Ints, Nullable),
    Field("prompt_logprobs", Type::Int, Nullable),
    Field("logprob_token_ids", Type::Ints, Nullable),
    Field("bad_words", Type::Texts, Optional),
];

/// Fields that both endpoints have after their answers' shape.
const EXTENSIONS: &[Field] = &[
    Field("vllm_xargs", Type::Nested(&nested::XARGS), Nullable),
    Field("repetition_detection", Type::Nested(&nested::REPETITION), Nullable),
    Field("stream_interval", Type::IntIn(1, i128::MAX), Nullable),
];

const COMPLETION_EXTRA: &[Field] = &[
    Field("prompt_embeds", Type::Nested(&nested::EMBEDS), Nullable),
    Field("add_special_tokens", Type::Flag, Optional),
    Field("response_format", Type::ResponseFormat, Nullable),
    Field("structured_outputs", Type::StructuredOutputs, Nullable),
    Field("priority", INT64, Optional),
    Field("request_id", Type::Text, Optional),
    Field("session_id", Type::Text, Nullable),
    Field("return_tokens_as_token_ids", Type::Flag, Nullable),
    Field("return_token_ids", Type::Flag, Nullable),
    Field("routed_experts_prompt_start", Type::IntIn(0, i128::MAX), Optional),
    Field("return_token_offsets", Type::Flag, Nullable),
    Field("mm_payload", Type::OneOf(&["tensors", "none"]), Optional),
    Field("return_mm_kwargs", Type::Flag, Nullable),
    Field("kv_transfer_params", Type::Object, Nullable),
    Field("ec_transfer_params", Type::Object, Nullable),
];

/// Everything in the body that does not fit the schema, in the schema's order.
pub(super) fn check(api: Api, body: &Map<String, Value>) -> Issues {
    let tables = match api {
        Api::Chat => [CHAT, SAMPLING, CHAT_EXTRA, EXTENSIONS],
        Api::Completions => [COMPLETION, SAMPLING, COMPLETION_EXTRA, EXTENSIONS],
    };
    let mut issues = Issues::default();
    for Field(name, kind, presence) in tables.into_iter().flatten() {
        let loc = format!("body.{name}");
        match body.get(*name) {
            None if *presence == Required => issues.push(Issue::missing(loc, keys(api, body))),
            None => {}
            Some(Value::Null) if *presence == Nullable => {}
            Some(value) => judge(*kind, value, &loc, &mut issues),
        }
    }
    issues
}

/// Keys of a body as the engine counts them: of a chat with tools it has chosen `tool_choice` before.
fn keys(api: Api, body: &Map<String, Value>) -> usize {
    let is_chosen = api == Api::Chat && python::truthy(body.get("tools")) && !body.contains_key("tool_choice");
    body.len() + usize::from(is_chosen)
}

fn judge(kind: Type, value: &Value, loc: &str, issues: &mut Issues) {
    match kind {
        Type::Int => issues.extend(int(value, loc).err()),
        Type::IntIn(least, most) => issues.extend(int_in(value, loc, (least, most)).err()),
        Type::Float => issues.extend(float(value, loc).err()),
        Type::Flag => issues.extend(flag(value, loc).err()),
        Type::Text => issues.extend(text(value, loc).err()),
        Type::Ints => each(value, loc, issues, &|item| int(item, "").err()),
        Type::Texts => each(value, loc, issues, &|item| text(item, "").err()),
        Type::TextOrTexts(most) => text_or_texts(value, loc, most, issues),
        Type::Floats => match value {
            Value::Object(map) => {
                issues.extend(map.iter().filter_map(|(key, value)| float(value, &format!("{loc}.{key}")).err()));
            }
            _ => issues.push(dictionary(value, loc)),
        },
        Type::Object => {
            if !value.is_object() {
                issues.push(dictionary(value, loc));
            }
        }
        Type::Prompt => prompt(value, loc, issues),
        Type::Messages => messages::check(value, loc, issues),
        Type::Nested(kind) => schema::judge(kind, value, loc, issues),
        Type::StreamOptions => stream_options(value, loc, issues),
        Type::ResponseFormat => response_format::check(value, loc, issues),
        Type::StructuredOutputs => structured::check(value, loc, issues),
        Type::OneOf(words) => issues.extend(one_of(value, loc, words)),
    }
}

/// A value that had to be an object.
pub(super) fn dictionary(value: &Value, loc: &str) -> Issue {
    Issue::new("dict_type", loc, "Input should be a valid dictionary", value)
}

/// An object that is read into a schema of its own.
pub(super) fn attributes(value: &Value, loc: &str) -> Issue {
    let message = "Input should be a valid dictionary or object to extract fields from";
    Issue::new("model_attributes_type", loc, message, value)
}

pub(super) fn int_in(value: &Value, loc: &str, (least, most): (i128, i128)) -> Result<i128, Issue> {
    let whole = int(value, loc)?;
    if whole > most {
        let message = format!("Input should be less than or equal to {most}");
        let mut issue = Issue::new("less_than_equal", loc, message, value);
        issue.context = Some(format!("'le': {most}"));
        return Err(issue);
    }
    if whole < least {
        let message = format!("Input should be greater than or equal to {least}");
        let mut issue = Issue::new("greater_than_equal", loc, message, value);
        issue.context = Some(format!("'ge': {least}"));
        return Err(issue);
    }
    Ok(whole)
}

fn each(value: &Value, loc: &str, issues: &mut Issues, judge: &dyn Fn(&Value) -> Option<Issue>) {
    match list(value, loc) {
        Ok(items) => {
            for (at, item) in items.iter().enumerate() {
                if let Some(issue) = judge(item) {
                    issues.push_at(|| format!("{loc}.{at}"), issue);
                }
            }
        }
        Err(issue) => issues.push(issue),
    }
}

fn text_or_texts(value: &Value, loc: &str, most: usize, issues: &mut Issues) {
    if value.is_string() {
        return;
    }
    let mut faults = Issues::default();
    each(value, loc, &mut faults, &|item| text(item, "").err());
    if faults.is_empty() {
        faults.extend(Issue::too_long(loc, most, value));
    }
    if !faults.is_empty() {
        issues.extend(text(value, loc).err());
        issues.append(faults);
    }
}

pub(super) fn one_of(value: &Value, loc: &str, words: &[&str]) -> Option<Issue> {
    if value.as_str().is_some_and(|word| words.contains(&word)) {
        return None;
    }
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let expected = match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    };
    let mut issue = Issue::new("literal_error", loc, format!("Input should be {expected}"), value);
    issue.context = Some(format!("'expected': {}", python::repr(&expected)));
    Some(issue)
}

/// The four branches of a completion prompt, each with its faults, where none of them fits.
fn prompt(value: &Value, loc: &str, issues: &mut Issues) {
    let ids = |item: &Value| int_in(item, "", (0, i128::MAX)).err();
    let fits = match value {
        Value::String(_) => true,
        Value::Array(items) => items.iter().all(|id| id.is_u64()) || items.iter().all(Value::is_string),
        _ => false,
    };
    if fits {
        return;
    }
    let mut branches: [Issues; 4] = Default::default();
    let [as_ids, as_id_lists, as_text, as_texts] = &mut branches;
    each(value, loc, as_ids, &ids);
    match list(value, loc) {
        Ok(items) => {
            for (at, item) in items.iter().enumerate() {
                each(item, &format!("{loc}.{at}"), as_id_lists, &ids);
            }
        }
        Err(issue) => as_id_lists.push(issue),
    }
    as_text.extend(text(value, loc).err());
    each(value, loc, as_texts, &|item| text(item, "").err());
    if branches.iter().all(|faults| !faults.is_empty()) {
        branches.into_iter().for_each(|faults| issues.append(faults));
    }
}

fn stream_options(value: &Value, loc: &str, issues: &mut Issues) {
    let Value::Object(map) = value else {
        issues.push(attributes(value, loc));
        return;
    };
    for name in ["include_usage", "continuous_usage_stats"] {
        if let Some(value) = map.get(name).filter(|value| !value.is_null()) {
            issues.extend(flag(value, &format!("{loc}.{name}")).err());
        }
    }
}
