//! The schema of a Responses request and the checks that come before it.

use serde_json::{Map, Value};

use super::tools::{FORMAT, TOOL_CHOICE, TOOLS};
use crate::{
    ApiError,
    fields::{MEDIA, MM_PAYLOAD, STOPS, STRUCTURED_OUTPUTS},
    python, rules,
    schema::{
        Field, INT64, Kind,
        Need::{Nullable, Optional, Required},
        Object, object,
    },
};

const INCLUDES: &[&str] = &[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
];
const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];
const SUMMARIES: &[&str] = &["auto", "concise", "detailed"];

static REASONING: Object = object(&[
    Field("context", Kind::OneOf(&["auto", "current_turn", "all_turns"]), Nullable),
    Field("effort", Kind::OneOf(EFFORTS), Nullable),
    Field("generate_summary", Kind::OneOf(SUMMARIES), Nullable),
    Field("mode", Kind::Text, Nullable),
    Field("summary", Kind::OneOf(SUMMARIES), Nullable),
]);

static TEXT: Object =
    object(&[Field("format", FORMAT, Nullable), Field("verbosity", Kind::OneOf(&["low", "medium", "high"]), Nullable)]);

/// An input item is a message with a role, or has a type.
static ITEM: Object = Object { fields: &[Field("type", Kind::Text, Nullable)], condition: Some(message_or_typed) };

fn message_or_typed(item: &Map<String, Value>) -> Option<String> {
    let is_message =
        ROLES.iter().any(|role| item.get("role").is_some_and(|is| is == role)) && item.contains_key("content");
    let is_other = item.get("type").is_some_and(|kind| kind != "message") && !item.contains_key("role");
    (!is_message && !is_other).then(|| "Unknown kind of input item".to_owned())
}

const ROLES: &[&str] = &["user", "assistant", "system", "developer"];

/// A request to `/v1/responses`.
pub(super) static REQUEST: Object = object(&[
    Field("background", Kind::Flag, Nullable),
    Field("include", Kind::List(&Kind::OneOf(INCLUDES)), Nullable),
    Field("input", Kind::AnyOf(&[Kind::Text, Kind::List(&Kind::Object(&ITEM))]), Required),
    Field("instructions", Kind::Text, Nullable),
    Field("max_output_tokens", Kind::Int, Nullable),
    Field("max_tool_calls", Kind::Int, Nullable),
    Field("metadata", Kind::DictionaryOf(&Kind::Text), Nullable),
    Field("model", Kind::Text, Nullable),
    Field("logit_bias", Kind::DictionaryOf(&Kind::Float), Nullable),
    Field("parallel_tool_calls", Kind::Flag, Nullable),
    Field("previous_response_id", Kind::Text, Nullable),
    Field("reasoning", Kind::Object(&REASONING), Nullable),
    Field("include_reasoning", Kind::Flag, Optional),
    Field("service_tier", Kind::OneOf(&["auto", "default", "flex", "scale", "priority"]), Optional),
    Field("store", Kind::Flag, Nullable),
    Field("stream", Kind::Flag, Nullable),
    Field("temperature", Kind::Float, Nullable),
    Field("text", Kind::Object(&TEXT), Nullable),
    Field("tool_choice", TOOL_CHOICE, Optional),
    Field("tools", TOOLS, Optional),
    Field("top_logprobs", Kind::Int, Nullable),
    Field("top_p", Kind::Float, Nullable),
    Field("top_k", Kind::Int, Nullable),
    Field("min_p", Kind::Float, Nullable),
    Field("truncation", Kind::OneOf(&["auto", "disabled"]), Nullable),
    Field("user", Kind::Text, Nullable),
    Field("skip_special_tokens", Kind::Flag, Optional),
    Field("include_stop_str_in_output", Kind::Flag, Optional),
    Field("presence_penalty", Kind::FloatIn(-2, 2), Nullable),
    Field("frequency_penalty", Kind::FloatIn(-2, 2), Nullable),
    Field("prompt_cache_key", Kind::Text, Nullable),
    Field("watermarking", Kind::Flag, Nullable),
    Field("request_id", Kind::Text, Optional),
    Field("session_id", Kind::Text, Nullable),
    Field("media_io_kwargs", MEDIA, Nullable),
    Field("mm_processor_kwargs", Kind::Dictionary, Nullable),
    Field("priority", INT64, Optional),
    Field("mm_payload", MM_PAYLOAD, Optional),
    Field("return_mm_kwargs", Kind::Flag, Nullable),
    Field("enable_response_messages", Kind::Flag, Optional),
    Field("previous_input_messages", Kind::List(&Kind::Dictionary), Nullable),
    Field("structured_outputs", STRUCTURED_OUTPUTS, Nullable),
    Field("repetition_penalty", Kind::Float, Nullable),
    Field("seed", INT64, Nullable),
    Field("stop", STOPS, Nullable),
    Field("stop_token_ids", Kind::List(&Kind::Int), Nullable),
    Field("ignore_eos", Kind::Flag, Optional),
    Field("vllm_xargs", Kind::Dictionary, Nullable),
    Field("kv_transfer_params", Kind::Dictionary, Nullable),
    Field("ec_transfer_params", Kind::Dictionary, Nullable),
    Field("chat_template_kwargs", Kind::Dictionary, Nullable),
]);

/// Checks on the raw body, in the engine's order; a choice among no tools becomes `none`.
pub(super) fn before(body: &mut Map<String, Value>) -> Result<(), ApiError> {
    tool_choice(body)?;
    let is_grammar =
        |tool: &Value| tool["type"] == "custom" && tool.pointer("/format/type").is_some_and(|kind| kind == "grammar");
    if body.get("tools").and_then(Value::as_array).is_some_and(|tools| tools.iter().any(is_grammar)) {
        let message =
            "Custom tools with a grammar format are not supported; only free-form text custom tools are accepted.";
        return Err(ApiError::parameter("tools", message));
    }
    if body.get("prompt").is_some_and(|prompt| !prompt.is_null()) {
        return Err(ApiError::parameter("prompt", "prompt template is not supported"));
    }
    let stored = body.get("store").is_none_or(|store| python::truthy(Some(store)));
    if python::truthy(body.get("background")) && !stored {
        return Err(ApiError::parameter("background", "background can only be used when `store` is true"));
    }
    rules::cache_salt(body)
}

fn tool_choice(body: &mut Map<String, Value>) -> Result<(), ApiError> {
    if let Some(tools @ (Value::Bool(_) | Value::Number(_))) = body.get("tools") {
        return Err(ApiError::bad_request(format!("object of type '{}' has no len()", python::class(tools))));
    }
    let unknown = || ApiError::parameter("tool_choice", "Tool choice 'function' not found in 'tools' parameter.");
    let choice = body.get("tool_choice").cloned().unwrap_or_else(|| "auto".into());
    let is_named = choice.get("type").is_some_and(|kind| kind == "function" || kind == "custom");
    if !python::truthy(body.get("tools")) {
        if choice == "auto" || choice == "none" {
            body.insert("tool_choice".to_owned(), "none".into());
        } else if choice == "required" {
            let message = "Tool choice 'required' must be specified with 'tools' parameter.";
            return Err(ApiError::parameter("tool_choice", message));
        } else if is_named {
            return Err(unknown());
        }
        return Ok(());
    }
    if is_named {
        let tools = body.get("tools").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let is_known = tools.iter().any(|tool| tool.get("name") == choice.get("name"));
        if !python::truthy(choice.get("name")) || !is_known {
            return Err(unknown());
        }
    }
    Ok(())
}
