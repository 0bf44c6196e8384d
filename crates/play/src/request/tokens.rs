//! `/tokenize` and `/detokenize`, and the prompt of a generation request as ids.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Map, Value};

use crate::{
    HandlerState, ServerState,
    http::{ErrorResponse, JsonText},
    load::model::Model,
    request::{
        blocking::{check_cancelled, off_the_loop},
        extract::JsonBody,
    },
};
use api::{
    ApiError, ChatPrompt, DetokenizeRequest, PromptInput, TokenizeInput, TokenizeRequest, TokenizeResponse, Truncation,
};
use text::prompt::{ChatTemplate, Conversation, PromptError, SkipSpecial, SpecialTokens, Tokenizer};

/// `/tokenize`
pub(crate) async fn tokenize(
    State(state): HandlerState,
    JsonBody { bytes: body, .. }: JsonBody,
) -> Result<JsonText, ErrorResponse> {
    Ok(off_the_loop(state.weight_of(body.len()), move || {
        let request = TokenizeRequest::parse(&body)?;
        state.check_model(request.model.as_deref())?;
        request.check_served(state.config.request_templates)?;
        let tokenizer = &state.model.tokenizer;
        let special = special(request.add_special_tokens);
        let tokens = match &request.input {
            TokenizeInput::Prompt(text) => tokenizer.encode(text, special).map_err(refused)?,
            TokenizeInput::Chat(chat) => chat_ids(&state, chat, special, None)?.0,
        };
        let spelled = |id: &u32| check_cancelled().map(|()| tokenizer.token_str(*id).unwrap_or_default());
        let token_strs = request.return_token_strs.then(|| tokens.iter().map(spelled).collect());
        let answer = TokenizeResponse {
            count: tokens.len(),
            max_model_len: state.model.max_model_len,
            token_strs: token_strs.transpose()?,
            tokens,
        };
        serde_json::to_string(&answer).map(JsonText).map_err(|error| ApiError::internal(error.to_string()))
    })
    .await?)
}

/// `/detokenize`
pub(crate) async fn detokenize(
    State(state): HandlerState,
    JsonBody { bytes: body, .. }: JsonBody,
) -> Result<JsonText, ErrorResponse> {
    Ok(off_the_loop(body.len(), move || {
        let request = DetokenizeRequest::parse(&body)?;
        state.check_model(request.model.as_deref())?;
        let model = &state.model;
        let mut known = request.tokens;
        known.retain(|id| model.tokenizer.is_ids_only() || *id < model.tokenizer.vocab_size());
        let prompt = model.tokenizer.decode(&known, SkipSpecial::Keep).map_err(refused)?;
        Ok(JsonText(serde_json::json!({"prompt": prompt}).to_string()))
    })
    .await?)
}

/// Refuses ids that the tokenizer does not have, as the engine does, which names the highest.
pub(crate) fn check_vocabulary(tokenizer: &Tokenizer, ids: &[u32]) -> Result<(), ApiError> {
    match ids.iter().max().filter(|id| **id >= tokenizer.model_vocabulary()) {
        Some(id) => Err(ApiError::bad_request(format!("Token id {id} is out of vocabulary"))),
        None => Ok(()),
    }
}

/// A conversation as ids and as the text that was tokenized; ids that a router sent along have no text.
/// Errors: 400 where the messages cannot be rendered.
pub(crate) fn chat_ids(
    state: &ServerState,
    chat: &ChatPrompt,
    special: SpecialTokens,
    truncation: Option<Truncation>,
) -> Result<(Vec<u32>, Option<String>), ApiError> {
    if let Some(ids) = &chat.token_ids {
        return Ok((ids.clone(), None));
    }
    let mut kwargs = state.config.template_kwargs.clone();
    kwargs.extend(chat.template_kwargs.clone());
    let model = &state.model;
    let text = with_template(model, chat, |template| template.render(&conversation(chat, &kwargs, model.takes_media)))?
        .map_err(|error| match error {
            PromptError::NotMultimodal(_) => {
                ApiError::bad_request(format!("{} is not a multimodal model", model.first_name()))
            }
            other => refused(other),
        })?;
    let ids = text_ids(model, &text, special, truncation)?;
    Ok((ids, Some(text)))
}

/// The last message as an answer of the same role repeats it; empty where it is of another role.
pub(crate) fn last_content(model: &Model, chat: &ChatPrompt) -> Result<String, ApiError> {
    if !chat.ends_with_answer() || chat.token_ids.is_some() {
        return Ok(String::new());
    }
    let content = |template: &ChatTemplate| template.last_content(&conversation(chat, &Map::new(), model.takes_media));
    Ok(with_template(model, chat, content)?.map_err(refused)?.as_ref().map(text_of).unwrap_or_default())
}

/// The text of a message's content, with that of its parts line by line.
pub(crate) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part.get("text")?.as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

fn conversation<'a>(chat: &'a ChatPrompt, kwargs: &'a Map<String, Value>, takes_media: bool) -> Conversation<'a> {
    Conversation {
        messages: &chat.messages,
        tools: chat.tools.as_deref(),
        documents: chat.documents.as_deref(),
        add_generation_prompt: chat.add_generation_prompt,
        continue_final_message: chat.continue_final_message,
        takes_media,
        kwargs,
    }
}

/// Does `work` with the template that renders a conversation.
fn with_template<T>(model: &Model, chat: &ChatPrompt, work: impl FnOnce(&ChatTemplate) -> T) -> Result<T, ApiError> {
    let own = chat
        .own_template()
        .map(|source| model.tokenizer.other_chat_template(source).map(ChatTemplate::limited))
        .transpose();
    let own = own.map_err(|error| match error {
        PromptError::BadTemplate { line, reason, .. } => {
            ApiError::bad_request(format!("the request's chat_template does not compile (line {line}): {reason}"))
        }
        error => refused(error),
    })?;
    match own.as_ref().or(model.chat_template()) {
        Some(template) => Ok(work(template)),
        None => Err(ApiError::bad_request(
            "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template \
             if the tokenizer does not define one.",
        )),
    }
}

/// Checks whether a conversation gives the same ids at any time.
pub(crate) fn is_timeless(model: &Model, chat: &ChatPrompt) -> bool {
    chat.own_template().is_none() && model.chat_template().is_none_or(ChatTemplate::is_timeless)
}

/// One prompt of a completion as ids.
pub(crate) fn prompt_ids(
    model: &Model,
    input: &PromptInput,
    special: SpecialTokens,
    truncation: Option<Truncation>,
) -> Result<Arc<[u32]>, ApiError> {
    match input {
        PromptInput::Text(text) => text_ids(model, text, special, truncation).map(Into::into),
        PromptInput::Ids(ids) => Ok(Arc::clone(ids)),
    }
}

/// Text as ids, at most one more than the model's length: the engine looks no further. Text that is too long whatever its
/// tokens are is refused without a look.
fn text_ids(
    model: &Model,
    text: &str,
    special: SpecialTokens,
    truncation: Option<Truncation>,
) -> Result<Vec<u32>, ApiError> {
    let most = usize::try_from(model.max_model_len).unwrap_or(usize::MAX);
    if let Some(truncation) = truncation {
        let text = truncation.looked_at(text, most.saturating_mul(model.tokenizer.longest_token()));
        return model.tokenizer.encode(text, special).map_err(refused);
    }
    if text.len() > most {
        let most_chars = most.saturating_mul(model.tokenizer.longest_token());
        let chars = text.chars().count();
        if chars > most_chars {
            let message = format!(
                "This model's maximum context length is {most} tokens. However, your prompt contains {chars} characters \
                 (more than {most_chars} characters, which is the upper bound for {most} input tokens). Please reduce \
                 the length of the input prompt."
            );
            return Err(ApiError::parameter_value("input_text", &message, &chars.to_string()));
        }
    }
    let mut ids = model.tokenizer.encode(text, special).map_err(refused)?;
    ids.truncate(most.saturating_add(1));
    Ok(ids)
}

/// Checks whether the tokenizer's own special tokens are added.
pub(crate) fn special(add: bool) -> SpecialTokens {
    if add { SpecialTokens::Add } else { SpecialTokens::Skip }
}

/// A prompt that cannot be built, as the engine answers it.
#[allow(clippy::needless_pass_by_value)] // an error is consumed by what replaces it
pub(crate) fn refused(error: PromptError) -> ApiError {
    match &error {
        PromptError::BadMessage { reason, parameter, value } if !parameter.is_empty() => match value {
            Some(value) => ApiError::parameter_value(parameter, reason, value),
            None => ApiError::parameter(parameter, reason),
        },
        _ => ApiError::bad_request(error.to_string()),
    }
}
