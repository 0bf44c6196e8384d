//! Reads a request: validates it in the engine's order and makes ids of its prompts.

use std::{
    cell::{Cell, OnceCell},
    iter,
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    ServerState,
    metrics::AdmissionPermit,
    request::{
        admitted::{
            AdmittedPrompt, AnswerBeginning, CachedRequest, OpenMessage, PromptRead, ShownPrompt, ValidatedRequest,
            most_tokens,
        },
        blocking::{INLINE_BYTES, check_cancelled, off_the_loop},
        request_cache::BodyKey,
        tokens::{chat_ids, check_vocabulary, is_timeless, last_content, prompt_ids, refused, special, text_of},
    },
};
use api::{
    Api, ApiError, ChatPrompt, GenerationInput, GenerationRequest, PromptInput, Spelling, Truncation, UsageEvents,
};
use text::prompt::{MediaHashes, PromptHashes, SkipSpecial, SpecialTokens};

/// The request and its prompts, from memory where the same body was read before.
pub(crate) async fn cached_or_validated(
    state: &Arc<ServerState>,
    api: Api,
    body: Bytes,
) -> Result<ValidatedRequest, ApiError> {
    let key = state.work.memo.key(api, &body);
    if let Some(known) = state.work.memo.recall(key, &body) {
        return again(&known, state);
    }
    let validated = validated(state, body.clone(), reader(api)).await?.0.begun()?;
    if validated.refused.is_none() {
        remember(state, key, &body, &validated);
    }
    Ok(validated)
}

/// What reads the requests of an API. It depends on nothing but the body and the server's configuration.
pub(crate) fn reader(
    api: Api,
) -> impl FnOnce(&ServerState, &[u8]) -> Result<(GenerationRequest, ()), ApiError> + Send + 'static {
    move |state, body| {
        let mut request = GenerationRequest::parse(api, body)?;
        if state.config.server.force_usage && request.stream {
            request.usage_events = UsageEvents::EveryEvent;
        }
        Ok((request, ()))
    }
}

fn remember(state: &ServerState, key: BodyKey, body: &[u8], validated: &ValidatedRequest) {
    let ValidatedRequest { request, prompts, .. } = validated;
    let depends_on_time = match &request.prompts {
        GenerationInput::Chat(chat) => !is_timeless(&state.model, chat),
        GenerationInput::Batch(_) => true,
        GenerationInput::Completion(_) => false,
    };
    if !depends_on_time {
        let known =
            || CachedRequest::new(Arc::clone(request), prompts.iter().map(|prompt| prompt.read.clone()).collect());
        state.work.memo.keep(key, body, known);
    }
}

/// The request and its prompts, and whatever else `read` gives.
/// Errors: everything that is refused before the engine is asked. What the engine refuses is in the request.
pub(crate) async fn validated<T: Send + 'static>(
    state: &Arc<ServerState>,
    body: Bytes,
    read: impl FnOnce(&ServerState, &[u8]) -> Result<(GenerationRequest, T), ApiError> + Send + 'static,
) -> Result<(ValidatedRequest, T), ApiError> {
    let reader = Arc::clone(state);
    let size = state.weight_of(body.len());
    let work = move || {
        let (mut request, rest) = read(&reader, &body)?;
        take_defaults(&reader, &mut request);
        let (prompts, refused) = read_prompts(&reader, &request)?;
        Ok((ValidatedRequest { request: Arc::new(request), prompts, refused }, rest))
    };
    let _turn = if size <= INLINE_BYTES { Some(state.work.turns.next().await) } else { None };
    off_the_loop(size, work).await
}

/// A request whose prompts are wanted and no answer, for which no engine is asked: each prompt's ids with the most output tokens that it
/// may have.
pub(crate) async fn prompts_of<T: Send + 'static>(
    state: &Arc<ServerState>,
    body: Bytes,
    read: impl FnOnce(&ServerState, &[u8]) -> Result<(GenerationRequest, T), ApiError> + Send + 'static,
) -> Result<(Option<String>, Vec<(Arc<[u32]>, u32)>, T), ApiError> {
    let (ValidatedRequest { request, prompts, .. }, rest) = validated(state, body, read).await?;
    let prompts = prompts.into_iter().map(|AdmittedPrompt { read, .. }| (read.ids, most_tokens(read.max_tokens)));
    Ok((request.request_id.clone(), prompts.collect(), rest))
}

/// The request once more, where the server has room for it.
fn again(known: &CachedRequest, state: &ServerState) -> Result<ValidatedRequest, ApiError> {
    // Adapters come and go.
    state.check_model(known.request.model.as_deref())?;
    let permits = admitted(state, &known.request)?;
    let prompts = known.prompts.iter().cloned().zip(permits).map(|(read, permit)| AdmittedPrompt { read, permit });
    Ok(ValidatedRequest { request: Arc::clone(&known.request), prompts: prompts.collect(), refused: None })
}

/// Room for each of the request's prompts.
fn admitted(state: &ServerState, request: &GenerationRequest) -> Result<Vec<AdmissionPermit>, ApiError> {
    let admit = |_| state.metrics.admit(request.choices, state.config.server.max_queued);
    (0..request.prompts.count()).map(admit).collect()
}

/// The engine's checks of a request whose prompts it has already: a stream has begun by then. What no prompt changes is looked at with the
/// first one.
fn check_in_engine(
    state: &ServerState,
    request: &GenerationRequest,
    ids: &[u32],
    is_first: bool,
) -> Result<(), ApiError> {
    let tokenizer = &state.model.tokenizer;
    if is_first {
        request.check_vocabulary(state.vocabulary())?;
    }
    check_vocabulary(tokenizer, ids)?;
    if ids.is_empty() {
        return Err(ApiError::bad_request("The decoder prompt cannot be empty"));
    }
    let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    if request.only_echoes() {
        GenerationRequest::check_room(count, state.model.max_model_len)?;
    }
    request.check_routed_experts(count)?;
    if is_first {
        request.check_bad_words(|word| tokenizer.encode(word, SpecialTokens::Skip).map_err(refused))?;
    }
    Ok(())
}

/// Makes ids of the request's prompts and validates them in the engine's order; gives what it refuses once it has all of them, too.
fn read_prompts(
    state: &ServerState,
    request: &GenerationRequest,
) -> Result<(Vec<AdmittedPrompt>, Option<ApiError>), ApiError> {
    state.check_model(request.model.as_deref())?;
    request.check_served(state.served())?;
    let permits = admitted(state, request)?;
    let special = special(request.add_special_tokens);
    let (is_first, in_engine) = (Cell::new(true), OnceCell::new());
    let validated = |mut ids: Arc<[u32]>, shown, echo, (media, beginning): (Option<MediaHashes>, _), permit| {
        check_cancelled()?;
        if let Some(truncation) = request.truncation {
            ids = truncated(truncation, &ids, state.model.max_model_len);
        }
        let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        let max_tokens = request.check_prompt(count, state.model.max_model_len)?;
        if let Err(error) = check_in_engine(state, request, &ids, is_first.take()) {
            let _first = in_engine.set(error);
        }
        let hashes = state.replay.as_ref().map(|replay| replay.hasher.hash(&ids)).unwrap_or_default();
        let hashes = Arc::new(hashes);
        let media = media.map(|media| Arc::new(with_media(&media, &hashes)));
        Ok(AdmittedPrompt { read: PromptRead { ids, shown, echo, max_tokens, hashes, media, beginning }, permit })
    };
    let chat_prompt = |(chat, permit): (&ChatPrompt, AdmissionPermit)| {
        let (ids, text) = chat_ids(state, chat, special, request.truncation)?;
        let echo = last_words(state, &chat.messages)?;
        let replay = state.replay.as_ref().filter(|_| state.model.takes_media);
        let media = replay.and_then(|replay| replay.hasher.hash_media(&chat.messages));
        let beginning =
            open_message(state, chat, special).map(Arc::new).map_or(AnswerBeginning::None, AnswerBeginning::Message);
        validated(ids.into(), shown_of(state, request, chat, text)?, echo, (media, beginning), permit)
    };
    let prompts: Result<_, ApiError> = match &request.prompts {
        GenerationInput::Chat(chat) => iter::once(chat).zip(permits).map(chat_prompt).collect(),
        GenerationInput::Batch(chats) => chats.iter().zip(permits).map(chat_prompt).collect(),
        GenerationInput::Completion(inputs) => {
            let read = |(input, permit)| {
                let ids = prompt_ids(&state.model, input, special, request.truncation)?;
                let text = if request.echo { Some(echoed_text(state, request, input)?.into()) } else { None };
                let echo = Arc::clone(&ids);
                validated(
                    ids,
                    ShownPrompt { text, ..ShownPrompt::default() },
                    echo,
                    (None, AnswerBeginning::Behind),
                    permit,
                )
            };
            inputs.iter().zip(permits).map(read).collect()
        }
    };
    Ok((prompts?, in_engine.into_inner()))
}

/// The answer that a chat has the beginning of; `None` where its last message is none, or no text.
fn open_message(state: &ServerState, chat: &ChatPrompt, special: SpecialTokens) -> Option<OpenMessage> {
    let (last, before) = chat.messages.split_last()?;
    let is_answer = chat.continue_final_message && chat.ends_with_answer() && chat.token_ids.is_none();
    let content = last.get("content").and_then(serde_json::Value::as_str).filter(|content| !content.is_empty())?;
    if !is_answer || before.is_empty() || last.get("tool_calls").is_some_and(|calls| !calls.is_null()) {
        return None;
    }
    let mut before = ChatPrompt { messages: before.to_vec(), ..chat.clone() };
    (before.add_generation_prompt, before.continue_final_message) = (true, false);
    let (prompt, _) = chat_ids(state, &before, special, None).ok()?;
    let hashes = state.replay.as_ref().map(|replay| replay.hasher.hash(&prompt)).unwrap_or_default();
    Some(OpenMessage { prompt: prompt.into(), hashes, content: content.to_owned() })
}

fn shown_of(
    state: &ServerState,
    request: &GenerationRequest,
    chat: &ChatPrompt,
    text: Option<String>,
) -> Result<ShownPrompt, ApiError> {
    let repeated = if request.echo { Some(last_content(&state.model, chat)?.into()) } else { None };
    Ok(ShownPrompt {
        text: text.filter(|_| request.return_prompt_text).map(Into::into),
        role: (!chat.add_generation_prompt).then(|| chat.answer_role().into()),
        message: repeated,
    })
}

fn truncated(truncation: Truncation, ids: &[u32], max_model_len: u32) -> Arc<[u32]> {
    let mut kept = ids.to_vec();
    truncation.apply(&mut kept, max_model_len);
    kept.into()
}

/// The hashes of a prompt behind those of its media.
fn with_media(media: &MediaHashes, hashes: &PromptHashes) -> PromptHashes {
    let blocks = iter::once(media.first_block()).chain(hashes.blocks.iter().copied()).collect();
    PromptHashes { blocks, whole: Some(media.whole) }
}

/// The text by which a completion repeats its prompt; none beside ids.
fn echoed_text(state: &ServerState, request: &GenerationRequest, input: &PromptInput) -> Result<String, ApiError> {
    match input {
        _ if request.return_token_ids => Ok(String::new()),
        PromptInput::Text(text) => Ok(text.clone()),
        PromptInput::Ids(ids) => state.model.tokenizer.decode(ids, SkipSpecial::Keep).map_err(refused),
    }
}

/// The tokens of a chat's last message, for a server that echoes.
fn last_words(state: &ServerState, messages: &[serde_json::Value]) -> Result<Arc<[u32]>, ApiError> {
    if !state.echoes() {
        return Ok(Arc::default());
    }
    let text = messages.last().and_then(|message| message.get("content")).map(text_of).unwrap_or_default();
    state.model.tokenizer.encode(&text, SpecialTokens::Skip).map(Into::into).map_err(refused)
}

/// The server's defaults where a request sets nothing.
fn take_defaults(state: &ServerState, request: &mut GenerationRequest) {
    if let Some(most) = state.model.sampling.max_tokens {
        request.limit_tokens(most);
    }
    let requested = &mut request.logprobs;
    if !requested.is_spelling_given && requested.spelling == Spelling::Text {
        requested.spelling = state.config.token_spelling;
    }
}
