//! A request that was read and accepted, and its prompts as ids.

use std::sync::Arc;

use crate::{
    api::{ApiError, GenerationRequest, MaxTokens},
    play::metrics::AdmissionPermit,
    text::prompt::PromptHashes,
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

/// Place where a request may have the beginning of an answer to continue.
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
    pub(in crate::play) content: String,
}

impl AnswerBeginning {
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
    fn size(&self) -> usize {
        self.text.as_ref().map_or(0, |text| text.len()) + self.message.as_ref().map_or(0, |message| message.len())
    }
}

#[derive(Debug)]
pub(in crate::play) struct ValidatedRequest {
    pub(in crate::play) request: Arc<GenerationRequest>,
    pub(in crate::play) prompts: Vec<AdmittedPrompt>,
    /// What the engine refuses once it has begun to answer, of a request for a stream: the stream has it as an event.
    pub(in crate::play) refused: Option<ApiError>,
}

impl ValidatedRequest {
    /// The request where nothing of it is refused.
    /// Errors: what a stream would have as an event.
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
    pub(super) request: Arc<GenerationRequest>,
    pub(super) prompts: Vec<PromptRead>,
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
}

/// The most output tokens that a prompt leaves room for.
pub(in crate::play) fn most_tokens(max_tokens: MaxTokens) -> u32 {
    let (MaxTokens::Requested(most) | MaxTokens::Left(most)) = max_tokens;
    most
}
