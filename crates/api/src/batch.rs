//! `/v1/chat/completions/batch`: several conversations in one request, one choice for each, never a stream.
//!
//! Limit: a fault inside a message is reported without its conversation's number.

use serde_json::{Map, Value};

use super::{
    Api, ApiError, GenerationInput, GenerationRequest,
    answers::put,
    json, python,
    schema::{
        Field, Kind,
        Need::{Nullable, Required},
        Object, check_body, object,
    },
};

static REQUEST: Object = object(&[
    Field("messages", Kind::SomeList(&Kind::SomeList(&Kind::Any)), Required),
    Field("tool_choice", Kind::OneOf(&["none"]), Nullable),
]);

/// Reads a body.
///
/// # Errors
/// The engine's or the framework's error for a body that does not fit.
pub fn batch_request(body: &[u8]) -> Result<GenerationRequest, ApiError> {
    let mut body = json::object(body)?;
    before(&body)?;
    check_body(&REQUEST, &body)?;
    for never in ["stream", "stream_options"] {
        body.remove(never);
    }
    body.insert("tool_choice".to_owned(), "none".into());
    let Some(Value::Array(conversations)) = body.remove("messages") else {
        return Err(ApiError::internal("Internal server error"));
    };
    let mut whole: Option<GenerationRequest> = None;
    let mut chats = Vec::with_capacity(conversations.len());
    for conversation in conversations {
        body.insert("messages".to_owned(), conversation);
        let mut one = GenerationRequest::of(Api::Chat, body.clone())?;
        if let GenerationInput::Chat(chat) = std::mem::replace(&mut one.prompts, GenerationInput::Batch(Vec::new())) {
            chats.push(chat);
        }
        whole = whole.or(Some(one));
    }
    let mut whole = whole.ok_or_else(|| ApiError::internal("Internal server error"))?;
    whole.prompts = GenerationInput::Batch(chats);
    Ok(whole)
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
    match body.get("n").filter(|n| !n.is_null() && n.as_f64() != Some(1.0)) {
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
    for field in ["prompt_token_ids", "prompt_text", "metrics"] {
        put(&mut body, field, Value::Null);
    }
    if let Some(usage) = body.get_mut("usage") {
        for details in ["prompt_tokens_details", "completion_tokens_details"] {
            put(usage, details, Value::Null);
        }
    }
    Ok(body.to_string())
}
