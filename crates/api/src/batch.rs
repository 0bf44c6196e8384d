//! `/v1/chat/completions/batch`: several conversations in one request, one choice for each, never a stream.
//!
//! The engine checks the fields that the whole has by the framework. Of each conversation it makes a chat then, whose other fields and rules it
//! checks itself. With parsers it makes that chat once more for the answer, of messages in which it has read the arguments of calls by then: that fails.

use serde_json::{Map, Value, json};

use super::{
    ApiError, GenerationInput, GenerationRequest, UsageEvents,
    answers::put,
    conversation::ChatPrompt,
    fields,
    issues::Issues,
    messages, python,
    schema::{
        Field, INT64, Kind,
        Need::{Nullable, Optional, Required},
        Object, check_body, object,
    },
    tool_choice::ToolUse,
};

/// The fields that a batch has itself; a chat's other ones are read with each conversation.
static REQUEST: Object = object(&[
    Field("messages", Kind::SomeList(&Kind::SomeList(&messages::MESSAGE)), Required),
    Field("model", Kind::Text, Nullable),
    Field("frequency_penalty", Kind::Float, Nullable),
    Field("logit_bias", Kind::DictionaryOf(&Kind::Float), Nullable),
    Field("logprobs", Kind::Flag, Nullable),
    Field("top_logprobs", Kind::Int, Nullable),
    Field("logprob_token_ids", Kind::List(&Kind::Int), Nullable),
    Field("max_tokens", Kind::Int, Nullable),
    Field("max_completion_tokens", Kind::Int, Nullable),
    Field("n", Kind::Int, Nullable),
    Field("presence_penalty", Kind::Float, Nullable),
    Field("seed", INT64, Nullable),
    Field("stop", fields::STOPS, Nullable),
    Field("temperature", Kind::Float, Nullable),
    Field("top_p", Kind::Float, Nullable),
    Field("user", Kind::Text, Nullable),
    Field("tool_choice", Kind::OneOf(&["none"]), Nullable),
    Field("include_reasoning", Kind::Flag, Optional),
    Field("best_of", Kind::Int, Nullable),
    Field("use_beam_search", Kind::Flag, Optional),
    Field("top_k", Kind::Int, Nullable),
    Field("min_p", Kind::Float, Nullable),
    Field("repetition_penalty", Kind::Float, Nullable),
    Field("watermarking", Kind::Flag, Nullable),
    Field("length_penalty", Kind::Float, Nullable),
    Field("early_stopping", Kind::Flag, Optional),
    Field("structured_outputs", fields::STRUCTURED_OUTPUTS, Nullable),
    Field("request_id", Kind::Text, Nullable),
    Field("add_generation_prompt", Kind::Flag, Optional),
    Field("continue_final_message", Kind::Flag, Optional),
    Field("chat_template", Kind::Text, Nullable),
    Field("chat_template_kwargs", Kind::Dictionary, Nullable),
    Field("media_io_kwargs", fields::MEDIA, Nullable),
    Field("mm_processor_kwargs", Kind::Dictionary, Nullable),
    Field("priority", INT64, Optional),
    Field("cache_salt", Kind::Text, Nullable),
    Field("include_stop_str_in_output", Kind::Flag, Optional),
    Field("guided_decoding_backend", Kind::Text, Nullable),
    Field("echo", Kind::Flag, Optional),
    Field("return_tokens_as_token_ids", Kind::Flag, Nullable),
    Field("return_token_ids", Kind::Flag, Optional),
]);

/// Reads a body for a server that serves some models, and `parses` answers or not.
///
/// # Errors
/// The engine's or the framework's error for a body that does not fit.
pub fn batch_request(
    body: &[u8],
    parses: bool,
    check_model: impl Fn(Option<&str>) -> Result<(), ApiError>,
) -> Result<GenerationRequest, ApiError> {
    let mut body = super::json::object(body)?;
    before(&body)?;
    check_body(&REQUEST, &body)?;
    check_model(body.get("model").and_then(Value::as_str))?;
    body.retain(|_, value| !value.is_null());
    body.insert("tool_choice".to_owned(), "none".into());
    // The chats are made of all fields that the whole has, defaults too.
    body.entry("add_generation_prompt").or_insert_with(|| true.into());
    let Some(Value::Array(conversations)) = body.remove("messages") else {
        return Err(ApiError::internal("Internal server error"));
    };
    let read_again = conversations.iter().filter_map(Value::as_array).flatten().find_map(refused_again);
    let mut whole: Option<GenerationRequest> = None;
    let mut chats = Vec::with_capacity(conversations.len());
    for conversation in conversations {
        body.insert("messages".to_owned(), conversation);
        let mut one = GenerationRequest::of_batch(body.clone())?;
        if let GenerationInput::Chat(chat) = std::mem::replace(&mut one.prompts, GenerationInput::Batch(Vec::new())) {
            chats.push(ChatPrompt { tools: None, ..chat });
        }
        (one.stream, one.usage_events, one.tools) = (false, UsageEvents::default(), ToolUse::default());
        whole = whole.or(Some(one));
    }
    if let Some(refused) = read_again.filter(|_| parses) {
        return Err(refused);
    }
    let mut whole = whole.ok_or_else(|| ApiError::internal("Internal server error"))?;
    whole.prompts = GenerationInput::Batch(chats);
    Ok(whole)
}

/// The engine's error where it reads a message once more, the arguments of whose calls are objects by then.
fn refused_again(message: &Value) -> Option<ApiError> {
    let mut message = message.as_object()?.clone();
    for call in message.get_mut("tool_calls")?.as_array_mut()? {
        let function = call.get("function").and_then(Value::as_object).cloned().unwrap_or_default();
        let text = function.get("arguments").and_then(Value::as_str).unwrap_or_default();
        let arguments: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
        let function = json!({"arguments": arguments, "name": function.get("name")});
        *call = json!({"id": call.get("id"), "function": function, "type": call.get("type")});
    }
    messages::check_calls(&message, false, Issues::of_chat()).err()
}

/// Checks on the raw body, in the engine's order.
fn before(body: &Map<String, Value>) -> Result<(), ApiError> {
    let set = |name: &str| python::truthy(body.get(name));
    if set("use_beam_search") {
        let message = "Batch chat completions do not support beam search. Please set `use_beam_search` to False.";
        return Err(ApiError::parameter("use_beam_search", message));
    }
    if set("logprob_token_ids") && !set("logprobs") {
        let message = "when using `logprob_token_ids`, `logprobs` must be set to true.";
        return Err(ApiError::parameter("logprob_token_ids", message));
    }
    let prompt = body.get("kv_transfer_params").and_then(|params| params.get("prompt_token_ids"));
    if prompt.is_some_and(|prompt| !prompt.is_null()) {
        let message = "Batch chat completions do not support `kv_transfer_params['prompt_token_ids']`: one \
                       pre-tokenized prompt cannot serve several conversations.";
        return Err(ApiError::parameter("kv_transfer_params.prompt_token_ids", message));
    }
    match body.get("n").filter(|n| !n.is_null() && n.as_f64() != Some(1.0) && **n != true) {
        Some(n) => {
            let message = "Batch chat completions do not support `n > 1`. Please set `n` to 1.";
            Err(ApiError::parameter_value("n", message, &python::display(n)))
        }
        None => Ok(()),
    }
}

/// A batch's body from a chat's: without details of its tokens, the prompt and times.
///
/// # Errors
/// Where `chat` is no chat answer.
pub fn batch_body(chat: &str) -> Result<String, serde_json::Error> {
    let mut body: Value = serde_json::from_str(chat)?;
    for field in ["prompt_logprobs", "prompt_token_ids", "prompt_text", "metrics"] {
        put(&mut body, field, Value::Null);
    }
    if let Some(usage) = body.get_mut("usage") {
        for details in ["prompt_tokens_details", "completion_tokens_details"] {
            put(usage, details, Value::Null);
        }
    }
    Ok(body.to_string())
}
