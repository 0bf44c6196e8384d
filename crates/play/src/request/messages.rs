//! `/v1/messages` and `/v1/messages/count_tokens`.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::{HeaderMap, StatusCode};
use serde_json::{Map, json};

use crate::{
    HandlerState, ServerState,
    http::{ErrorResponse, json as json_answer, recorded_headers},
    load::model::Model,
    request::{
        blocking::off_the_loop,
        extract::JsonBody,
        pipeline::{Arrival, respond, start},
        tokens::chat_ids,
    },
};
use api::{
    ApiError, GenerationInput, GenerationRequest,
    anthropic::{MessageEncoder, MessagesRequest, SystemMessages, count_body, error_body},
};
use text::{
    parsers::ToolChoice,
    prompt::{Conversation, SpecialTokens},
};

/// Answers a request for a message.
/// Errors: errors of the framework; those of the handler have a body of this family.
pub(crate) async fn answer(State(state): HandlerState, arrival: Arrival) -> Result<Response, ErrorResponse> {
    Ok(message(&state, arrival).await.or_else(refusal)?)
}

async fn message(state: &Arc<ServerState>, arrival: Arrival) -> Result<Response, ApiError> {
    let (started, ()) = start(state, arrival, read).await?;
    respond(started.in_family(MessageEncoder::default())).await
}

pub(crate) fn read(state: &ServerState, body: &[u8]) -> Result<(GenerationRequest, ()), ApiError> {
    let request = MessagesRequest::parse(body)?;
    Ok((chat_of(state, &request)?, ()))
}

/// Gives the handler's error a body of this family; the framework's errors and misses have their usual form.
pub(crate) fn refusal(refused: ApiError) -> Result<Response, ApiError> {
    if refused.is_of_framework() || refused.kind == "vcr_miss" || refused.is_verbatim() || refused.ends_connection() {
        return Err(refused);
    }
    let status = StatusCode::from_u16(refused.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut extra = HeaderMap::new();
    recorded_headers(&refused, &mut extra);
    Ok(json_answer(status, error_body(&refused), extra))
}

pub(crate) async fn count(
    State(state): HandlerState,
    JsonBody { bytes, .. }: JsonBody,
) -> Result<Response, ErrorResponse> {
    let counted = off_the_loop(bytes.len(), move || counted(&state, &MessagesRequest::parse_count(&bytes)?)).await;
    Ok(counted.map(|body| json_answer(StatusCode::OK, body, HeaderMap::new())).or_else(refusal)?)
}

fn counted(state: &ServerState, request: &MessagesRequest) -> Result<String, ApiError> {
    let chat = chat_of(state, request)?;
    chat.check_served(state.served())?;
    let GenerationInput::Chat(prompt) = &chat.prompts else { return Err(ApiError::internal("Internal server error")) };
    let (ids, _) = chat_ids(state, prompt, SpecialTokens::Skip, None)?;
    let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    if count > state.model.max_model_len {
        chat.check_prompt(count, state.model.max_model_len)?;
    }
    Ok(count_body(ids.len()))
}

/// The chat request of a message, with its tools where the server parses calls.
/// Errors: a request that the engine refuses before it looks at the messages.
pub(crate) fn chat_of(state: &ServerState, request: &MessagesRequest) -> Result<GenerationRequest, ApiError> {
    let mut chat = request.chat(system_messages(&state.model, request))?;
    state.check_model(chat.model.as_deref())?;
    let finds_calls = state.served().finds_calls;
    request.check_choice(finds_calls)?;
    if finds_calls && request.may_call_unoffered() {
        chat.tools.choice = ToolChoice::Auto;
    }
    Ok(chat)
}

/// Checks whether the model's template takes a system message that is not the first; tried out where the request has one.
pub(crate) fn system_messages(model: &Model, request: &MessagesRequest) -> SystemMessages {
    if !request.has_inline_system() {
        return SystemMessages::Inline;
    }
    let turn = |role: &str| json!({"role": role, "content": "t"});
    let rendered = model.tokenizer.chat_template().map(|template| {
        template.render(&Conversation {
            messages: &[turn("system"), turn("user"), turn("system"), turn("user")],
            tools: None,
            documents: None,
            add_generation_prompt: false,
            continue_final_message: false,
            takes_media: false,
            kwargs: &Map::new(),
        })
    });
    if rendered.is_some_and(|rendered| rendered.is_ok()) { SystemMessages::Inline } else { SystemMessages::First }
}
