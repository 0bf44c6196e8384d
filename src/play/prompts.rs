//! A request read: judged in the engine's order, and its prompts as ids.

use std::{iter, sync::Arc};

use bytes::Bytes;

use super::{
    State, generation,
    metrics::Places,
    routes::{INLINE_BYTES, off_the_loop},
    tokens::{chat_ids, check_vocabulary, prompt_ids, refused, special},
};
use crate::{
    openai::{ApiError, ChatPrompt, GenerationRequest, MaxTokens, PromptInput, Prompts},
    prompt::{SkipSpecial, SpecialTokens},
};

/// One prompt as ids, with what the answer may repeat of it.
#[derive(Debug)]
pub(super) struct Prompt {
    pub(super) ids: Arc<[u32]>,
    pub(super) text: Option<String>,
    pub(super) echo: Vec<u32>,
    pub(super) max_tokens: MaxTokens,
    /// What its choices take of the server's room.
    pub(super) places: Places,
}

/// The request and its prompts.
pub(super) async fn judged<T: Send + 'static>(
    state: &Arc<State>,
    body: Bytes,
    read: impl FnOnce(&State, &[u8]) -> Result<(GenerationRequest, T), ApiError> + Send + 'static,
) -> Result<(GenerationRequest, Vec<Prompt>, T), ApiError> {
    let reader = Arc::clone(state);
    let size = body.len();
    let work = move || {
        let (mut request, rest) = read(&reader, &body)?;
        generation::take_defaults(&reader, &mut request);
        let prompts = read_prompts(&reader, &request)?;
        Ok((request, prompts, rest))
    };
    let _turn = if size <= INLINE_BYTES { Some(state.turns.next().await) } else { None };
    off_the_loop(size, work).await
}

/// A request whose prompts are wanted and no answer: each prompt's ids with the most output tokens that it may have.
///
/// # Errors
/// Everything that the engine refuses before the first byte.
pub(super) async fn prompts_of<T: Send + 'static>(
    state: &Arc<State>,
    body: Bytes,
    read: impl FnOnce(&State, &[u8]) -> Result<(GenerationRequest, T), ApiError> + Send + 'static,
) -> Result<(Option<String>, Vec<(Arc<[u32]>, u32)>, T), ApiError> {
    let (request, prompts, rest) = judged(state, body, read).await?;
    let prompts = prompts.into_iter().map(|prompt| (prompt.ids, most_tokens(prompt.max_tokens)));
    Ok((request.request_id, prompts.collect(), rest))
}

/// The request's prompts as ids, judged in the engine's order.
fn read_prompts(state: &State, request: &GenerationRequest) -> Result<Vec<Prompt>, ApiError> {
    request.check_model(&state.served())?;
    let admit = |_| state.metrics.admit(request.choices, state.config.server.max_queued);
    let places = (0..request.prompts.count()).map(admit).collect::<Result<Vec<Places>, ApiError>>()?;
    let special = special(request.add_special_tokens);
    let judged = |mut ids: Vec<u32>, text, echo, places| {
        if let Some(truncation) = request.truncation {
            truncation.apply(&mut ids, state.config.max_model_len);
        }
        let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        let max_tokens = request.check_prompt(count, state.config.max_model_len)?;
        request.check_vocabulary(state.vocabulary())?;
        check_vocabulary(&state.tokenizer, &ids)?;
        if ids.is_empty() {
            return Err(ApiError::bad_request("The decoder prompt cannot be empty"));
        }
        Ok(Prompt { ids: ids.into(), text, echo, max_tokens, places })
    };
    let chat_prompt = |(chat, places): (&ChatPrompt, Places)| {
        let (ids, text) = chat_ids(state, chat, special, request.truncation)?;
        let echo = last_words(state, &chat.messages)?;
        judged(ids, text.filter(|_| request.return_prompt_text), echo, places)
    };
    match &request.prompts {
        Prompts::Chat(chat) => iter::once(chat).zip(places).map(chat_prompt).collect(),
        Prompts::Batch(chats) => chats.iter().zip(places).map(chat_prompt).collect(),
        Prompts::Completion(inputs) => {
            let read = |(input, places)| {
                let ids = prompt_ids(state, input, special, request.truncation)?;
                let text = if request.echo { Some(echoed_text(state, request, input)?) } else { None };
                let echo = ids.clone();
                judged(ids, text, echo, places)
            };
            inputs.iter().zip(places).map(read).collect()
        }
    }
}

/// The text by which a completion repeats its prompt; none beside ids.
fn echoed_text(state: &State, request: &GenerationRequest, input: &PromptInput) -> Result<String, ApiError> {
    match input {
        _ if request.return_token_ids => Ok(String::new()),
        PromptInput::Text(text) => Ok(text.clone()),
        PromptInput::Ids(ids) => state.tokenizer.decode(ids, SkipSpecial::Keep).map_err(refused),
    }
}

/// The tokens of a chat's last message, for a server that echoes.
fn last_words(state: &State, messages: &[serde_json::Value]) -> Result<Vec<u32>, ApiError> {
    if !state.echoes() {
        return Ok(Vec::new());
    }
    let content = messages.last().and_then(|message| message.get("content"));
    let text = match content {
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(serde_json::Value::Array(parts)) => {
            parts.iter().filter_map(|part| part.get("text")?.as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    };
    state.tokenizer.encode(&text, SpecialTokens::Skip).map_err(refused)
}

/// The most output tokens that a prompt leaves room for.
pub(super) fn most_tokens(max_tokens: MaxTokens) -> u32 {
    let (MaxTokens::Asked(most) | MaxTokens::Left(most)) = max_tokens;
    most
}
