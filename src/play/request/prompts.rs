//! Reads a request: validates it in the engine's order and makes ids of its prompts.

use std::{
    cell::{Cell, OnceCell},
    iter,
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    api::{Api, ApiError, ChatPrompt, GenerationInput, GenerationRequest, MaxTokens, PromptInput, Truncation},
    play::{
        ServerState,
        generate::generation,
        metrics::AdmissionPermit,
        request::{
            blocking::{INLINE_BYTES, check_cancelled, off_the_loop},
            request_cache::BodyKey,
            tokens::{chat_ids, check_vocabulary, is_timeless, last_content, prompt_ids, refused, special},
        },
    },
    text::prompt::{MediaHashes, PromptHashes, SkipSpecial, SpecialTokens},
};

/// One prompt as ids, with what the answer may repeat of it.
#[derive(Debug)]
pub(in crate::play) struct AdmittedPrompt {
    pub(in crate::play) read: PromptRead,
    /// Room of its choices in the server's queue.
    pub(in crate::play) permit: AdmissionPermit,
}

/// A prompt as it was read, the same for every client.
#[derive(Debug, Clone)]
pub(in crate::play) struct PromptRead {
    pub(in crate::play) ids: Arc<[u32]>,
    pub(in crate::play) shown: ShownPrompt,
    pub(in crate::play) echo: Arc<[u32]>,
    pub(in crate::play) max_tokens: MaxTokens,
    /// As the trace hashes prompts; empty without one.
    pub(in crate::play) hashes: Arc<PromptHashes>,
    /// Hashes by which a record of the same media is found; `None` without media.
    pub(in crate::play) media: Option<Arc<PromptHashes>>,
    pub(in crate::play) beginning: AnswerBeginning,
}

/// Where a request may have the beginning of an answer that it wants to be continued.
#[derive(Debug, Clone, Default)]
pub(in crate::play) enum AnswerBeginning {
    /// Nowhere.
    #[default]
    None,
    /// At the end of the prompt.
    Behind,
    /// In the last message of its chat.
    Message(Arc<OpenMessage>),
}

/// The last message of a chat that is to be continued, and the prompt before it.
#[derive(Debug)]
pub(in crate::play) struct OpenMessage {
    /// The chat's prompt where that message is still to come.
    pub(in crate::play) prompt: Arc<[u32]>,
    /// As the trace hashes prompts; empty without one.
    pub(in crate::play) hashes: PromptHashes,
    /// Its content.
    pub(in crate::play) content: String,
}

impl OpenMessage {
    /// The answer that a chat has the beginning of; `None` where its last message is none, or no text.
    fn of(state: &ServerState, chat: &ChatPrompt, special: SpecialTokens) -> Option<Self> {
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
        Some(Self { prompt: prompt.into(), hashes, content: content.to_owned() })
    }
}

impl AnswerBeginning {
    fn of_chat(state: &ServerState, chat: &ChatPrompt, special: SpecialTokens) -> Self {
        OpenMessage::of(state, chat, special).map_or(Self::None, |open| Self::Message(Arc::new(open)))
    }

    fn size(&self) -> usize {
        match self {
            Self::None | Self::Behind => 0,
            Self::Message(open) => size_of_val(&*open.prompt) + size_of_val(&*open.hashes.blocks) + open.content.len(),
        }
    }
}

/// Parts of a prompt that the answer shows.
#[derive(Debug, Clone, Default)]
pub(in crate::play) struct ShownPrompt {
    /// The text of the prompt: where a completion repeats it, and where a chat returns it.
    pub(in crate::play) text: Option<Arc<str>>,
    /// Role of a chat's answer; `None` for the assistant.
    pub(in crate::play) role: Option<Arc<str>>,
    /// Content that a chat repeats, empty where its last message is of another role; `None` unless the request asks for it.
    pub(in crate::play) message: Option<Arc<str>>,
}

impl ShownPrompt {
    fn of_chat(
        state: &ServerState,
        request: &GenerationRequest,
        chat: &ChatPrompt,
        text: Option<String>,
    ) -> Result<Self, ApiError> {
        let repeated = if request.echo { Some(last_content(&state.model, chat)?.into()) } else { None };
        Ok(Self {
            text: text.filter(|_| request.return_prompt_text).map(Into::into),
            role: (!chat.add_generation_prompt).then(|| chat.answer_role().into()),
            message: repeated,
        })
    }

    fn size(&self) -> usize {
        self.text.as_ref().map_or(0, |text| text.len()) + self.message.as_ref().map_or(0, |message| message.len())
    }
}

/// The request and its prompts.
#[derive(Debug)]
pub(in crate::play) struct ValidatedRequest {
    pub(in crate::play) request: Arc<GenerationRequest>,
    pub(in crate::play) prompts: Vec<AdmittedPrompt>,
    /// What the engine refuses once it has begun to answer, of a request for a stream: the stream has it as an event.
    pub(in crate::play) refused: Option<ApiError>,
}

impl ValidatedRequest {
    /// The request where nothing of it is refused.
    ///
    /// # Errors
    /// What a stream would have as an event.
    pub(in crate::play) fn accepted(self) -> Result<Self, ApiError> {
        match self.refused {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }
}

/// A request that was read once and accepted.
#[derive(Debug)]
pub(in crate::play) struct CachedRequest {
    request: Arc<GenerationRequest>,
    prompts: Vec<PromptRead>,
}

impl CachedRequest {
    pub(in crate::play) fn new(request: impl Into<Arc<GenerationRequest>>, prompts: Vec<PromptRead>) -> Self {
        Self { request: request.into(), prompts }
    }

    /// Bytes of the prompts.
    pub(in crate::play) fn size(&self) -> usize {
        let media = |prompt: &PromptRead| prompt.media.as_ref().map_or(0, |media| size_of_val(&*media.blocks));
        let size = |prompt: &PromptRead| {
            let tokens = size_of_val(&*prompt.ids) + size_of_val(&*prompt.echo);
            tokens + size_of_val(&*prompt.hashes.blocks) + media(prompt) + prompt.shown.size() + prompt.beginning.size()
        };
        self.prompts.iter().map(size).sum()
    }

    /// The request once more, where the server has room for it.
    fn again(&self, state: &ServerState) -> Result<ValidatedRequest, ApiError> {
        // Adapters come and go.
        state.check_model(self.request.model.as_deref())?;
        let permits = admitted(state, &self.request)?;
        let prompts = self.prompts.iter().cloned().zip(permits).map(|(read, permit)| AdmittedPrompt { read, permit });
        Ok(ValidatedRequest { request: Arc::clone(&self.request), prompts: prompts.collect(), refused: None })
    }
}

/// The request and its prompts, from memory where the same body was read before. Everything that `read` does has to
/// depend on nothing but the body and the server's configuration.
///
/// # Errors
/// Everything that the engine refuses before the first byte.
pub(in crate::play) async fn cached_or_validated(
    state: &Arc<ServerState>,
    api: Api,
    body: Bytes,
    read: impl FnOnce(&ServerState, &[u8]) -> Result<(GenerationRequest, ()), ApiError> + Send + 'static,
) -> Result<ValidatedRequest, ApiError> {
    let key = state.work.memo.key(api, &body);
    if let Some(known) = state.work.memo.recall(key, &body) {
        return known.again(state);
    }
    let (validated, ()) = validated(state, body.clone(), read).await?;
    if validated.refused.is_none() {
        remember(state, key, &body, &validated);
    }
    Ok(validated)
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
///
/// # Errors
/// Everything that the engine refuses before the first byte. What it refuses after the first byte of a stream is in the request.
pub(in crate::play) async fn validated<T: Send + 'static>(
    state: &Arc<ServerState>,
    body: Bytes,
    read: impl FnOnce(&ServerState, &[u8]) -> Result<(GenerationRequest, T), ApiError> + Send + 'static,
) -> Result<(ValidatedRequest, T), ApiError> {
    let reader = Arc::clone(state);
    let size = state.weight_of(body.len());
    let work = move || {
        let (mut request, rest) = read(&reader, &body)?;
        generation::take_defaults(&reader, &mut request);
        let (prompts, refused) = read_prompts(&reader, &request)?;
        Ok((ValidatedRequest { request: Arc::new(request), prompts, refused }, rest))
    };
    let _turn = if size <= INLINE_BYTES { Some(state.work.turns.next().await) } else { None };
    off_the_loop(size, work).await
}

/// A request whose prompts are wanted and no answer: each prompt's ids with the most output tokens that it may have.
///
/// # Errors
/// Everything that the engine refuses before the first byte.
pub(in crate::play) async fn prompts_of<T: Send + 'static>(
    state: &Arc<ServerState>,
    body: Bytes,
    read: impl FnOnce(&ServerState, &[u8]) -> Result<(GenerationRequest, T), ApiError> + Send + 'static,
) -> Result<(Option<String>, Vec<(Arc<[u32]>, u32)>, T), ApiError> {
    let (validated, rest) = validated(state, body, read).await?;
    let ValidatedRequest { request, prompts, .. } = validated.accepted()?;
    let prompts = prompts.into_iter().map(|AdmittedPrompt { read, .. }| (read.ids, most_tokens(read.max_tokens)));
    Ok((request.request_id.clone(), prompts.collect(), rest))
}

/// Room for each of the request's prompts.
///
/// # Errors
/// 503 where there is too little.
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
    if is_first {
        request.check_bad_words(|word| tokenizer.encode(word, SpecialTokens::Skip).map_err(refused))?;
    }
    if request.only_echoes() {
        let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        GenerationRequest::check_room(count, state.model.max_model_len)?;
    }
    Ok(())
}

/// Makes ids of the request's prompts and validates them in the engine's order; gives what it refuses within a stream, too.
fn read_prompts(
    state: &ServerState,
    request: &GenerationRequest,
) -> Result<(Vec<AdmittedPrompt>, Option<ApiError>), ApiError> {
    state.check_model(request.model.as_deref())?;
    request.check_served(state.served())?;
    let permits = admitted(state, request)?;
    let special = special(request.add_special_tokens);
    let (is_first, in_stream) = (Cell::new(true), OnceCell::new());
    let validated = |mut ids: Arc<[u32]>, shown, echo, (media, beginning): (Option<MediaHashes>, _), permit| {
        check_cancelled()?;
        if let Some(truncation) = request.truncation {
            ids = truncated(truncation, &ids, state.model.max_model_len);
        }
        let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        let max_tokens = request.check_prompt(count, state.model.max_model_len)?;
        if let Err(error) = check_in_engine(state, request, &ids, is_first.take()) {
            if !request.stream {
                return Err(error);
            }
            let _first = in_stream.set(error);
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
        let beginning = AnswerBeginning::of_chat(state, chat, special);
        validated(ids.into(), ShownPrompt::of_chat(state, request, chat, text)?, echo, (media, beginning), permit)
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
    Ok((prompts?, in_stream.into_inner()))
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
    let content = messages.last().and_then(|message| message.get("content"));
    let text = match content {
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(serde_json::Value::Array(parts)) => {
            parts.iter().filter_map(|part| part.get("text")?.as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    };
    state.model.tokenizer.encode(&text, SpecialTokens::Skip).map(Into::into).map_err(refused)
}

/// The most output tokens that a prompt leaves room for.
pub(in crate::play) fn most_tokens(max_tokens: MaxTokens) -> u32 {
    let (MaxTokens::Asked(most) | MaxTokens::Left(most)) = max_tokens;
    most
}
