//! `/tokenize` and `/detokenize`, and the prompt of a generation request as ids.

use std::sync::Arc;

use bytes::Bytes;

use super::{State, routes::off_the_loop};
use crate::{
    openai::{ApiError, ChatPrompt, DetokenizeRequest, PromptInput, TokenizeInput, TokenizeRequest, TokenizeResponse},
    prompt::{Conversation, PromptError, SkipSpecial, SpecialTokens, Tokenizer},
};

pub(super) async fn tokenize(state: &Arc<State>, body: Bytes) -> Result<String, ApiError> {
    let state = Arc::clone(state);
    off_the_loop(body.len(), move || {
        let request = TokenizeRequest::parse(&body)?;
        state.check_model(request.model.as_deref())?;
        let tokenizer = &state.tokenizer;
        let special = special(request.add_special_tokens);
        let tokens = match &request.input {
            TokenizeInput::Prompt(text) => tokenizer.encode(text, special).map_err(refused)?,
            TokenizeInput::Chat(chat) => chat_ids(tokenizer, chat, special)?.0,
        };
        let spelled = |id: &u32| tokenizer.token_str(*id).unwrap_or_default();
        let answer = TokenizeResponse {
            count: tokens.len(),
            max_model_len: state.config.max_model_len,
            token_strs: request.return_token_strs.then(|| tokens.iter().map(spelled).collect()),
            tokens,
        };
        serde_json::to_string(&answer).map_err(|error| ApiError::internal(error.to_string()))
    })
    .await
}

pub(super) async fn detokenize(state: &Arc<State>, body: Bytes) -> Result<String, ApiError> {
    let state = Arc::clone(state);
    off_the_loop(body.len(), move || {
        let request = DetokenizeRequest::parse(&body)?;
        state.check_model(request.model.as_deref())?;
        check_vocabulary(&state.tokenizer, &request.tokens)?;
        let prompt = state.tokenizer.decode(&request.tokens, SkipSpecial::Keep).map_err(refused)?;
        Ok(serde_json::json!({"prompt": prompt}).to_string())
    })
    .await
}

/// Refuses ids that the tokenizer does not have, as the engine does.
///
/// # Errors
/// 400 naming the first such id.
pub(super) fn check_vocabulary(tokenizer: &Tokenizer, ids: &[u32]) -> Result<(), ApiError> {
    match ids.iter().find(|id| **id >= tokenizer.vocab_size()) {
        Some(id) => Err(ApiError::bad_request(format!("Token id {id} is out of vocabulary"))),
        None => Ok(()),
    }
}

/// A conversation as ids and as the text that was tokenized; ids that a router sent along have no text.
///
/// # Errors
/// 400 where the messages cannot be rendered.
pub(super) fn chat_ids(
    tokenizer: &Tokenizer,
    chat: &ChatPrompt,
    special: SpecialTokens,
) -> Result<(Vec<u32>, Option<String>), ApiError> {
    if let Some(ids) = &chat.token_ids {
        return Ok((ids.clone(), None));
    }
    let Some(template) = tokenizer.chat_template() else {
        return Err(ApiError::bad_request(
            "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template \
             if the tokenizer does not define one.",
        ));
    };
    let text = template
        .render(&Conversation {
            messages: &chat.messages,
            tools: chat.tools.as_deref(),
            documents: chat.documents.as_deref(),
            add_generation_prompt: chat.add_generation_prompt,
            continue_final_message: chat.continue_final_message,
            kwargs: &chat.template_kwargs,
        })
        .map_err(refused)?;
    let ids = tokenizer.encode(&text, special).map_err(refused)?;
    Ok((ids, Some(text)))
}

/// One prompt of a completion as ids.
///
/// # Errors
/// 400 where the tokenizer fails on it.
pub(super) fn prompt_ids(
    tokenizer: &Tokenizer,
    input: &PromptInput,
    special: SpecialTokens,
) -> Result<Vec<u32>, ApiError> {
    match input {
        PromptInput::Text(text) => tokenizer.encode(text, special).map_err(refused),
        PromptInput::Ids(ids) => Ok(ids.clone()),
    }
}

/// Whether the tokenizer's own special tokens are added.
pub(super) fn special(add: bool) -> SpecialTokens {
    if add { SpecialTokens::Add } else { SpecialTokens::Skip }
}

/// A prompt that cannot be built, as the engine answers it.
#[allow(clippy::needless_pass_by_value)] // an error is consumed by what replaces it
pub(super) fn refused(error: PromptError) -> ApiError {
    match &error {
        PromptError::BadMessage { reason, parameter } if !parameter.is_empty() => {
            ApiError::parameter(parameter, reason)
        }
        _ => ApiError::bad_request(error.to_string()),
    }
}
