//! A request that was read and accepted, and its prompts as ids.

use std::sync::Arc;

use crate::metrics::AdmissionPermit;
use api::{ApiError, GenerationRequest, MaxTokens};
use text::prompt::PromptHashes;

/// One prompt as ids, with what the answer may repeat of it.
#[derive(Debug)]
pub(crate) struct AdmittedPrompt {
    pub(crate) read: PromptRead,
    /// Room of its choices in the server's queue.
    pub(crate) permit: AdmissionPermit,
}

/// A prompt as it was read, the same for every client.
#[derive(Debug, Clone)]
pub(crate) struct PromptRead {
    pub(crate) ids: Arc<[u32]>,
    pub(crate) shown: ShownPrompt,
    pub(crate) echo: Arc<[u32]>,
    pub(crate) max_tokens: MaxTokens,
    /// As the trace hashes prompts; empty without one.
    pub(crate) hashes: Arc<PromptHashes>,
    /// Hashes by which a record of the same media is found; `None` without media.
    pub(crate) media: Option<Arc<PromptHashes>>,
    pub(crate) beginning: AnswerBeginning,
}

/// Place where a request may have the beginning of an answer to continue.
#[derive(Debug, Clone, Default)]
pub(crate) enum AnswerBeginning {
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
pub(crate) struct OpenMessage {
    /// The chat's prompt where that message is still to come.
    pub(crate) prompt: Arc<[u32]>,
    /// As the trace hashes prompts; empty without one.
    pub(crate) hashes: PromptHashes,
    pub(crate) content: String,
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
pub(crate) struct ShownPrompt {
    /// The text of the prompt: where a completion repeats it, and where a chat returns it.
    pub(crate) text: Option<Arc<str>>,
    /// Role of a chat's answer; `None` for the assistant.
    pub(crate) role: Option<Arc<str>>,
    /// Content that a chat repeats, empty where its last message is of another role; `None` unless the request asks for it.
    pub(crate) message: Option<Arc<str>>,
}

impl ShownPrompt {
    fn size(&self) -> usize {
        self.text.as_ref().map_or(0, |text| text.len()) + self.message.as_ref().map_or(0, |message| message.len())
    }
}

#[derive(Debug)]
pub(crate) struct ValidatedRequest {
    pub(crate) request: Arc<GenerationRequest>,
    pub(crate) prompts: Vec<AdmittedPrompt>,
    /// What the engine refuses of it, which a stream that has begun has as an event.
    pub(crate) refused: Option<ApiError>,
}

impl ValidatedRequest {
    /// The request where its answer begins: nothing of it is refused, or it is for a stream.
    /// Errors: what the engine refuses otherwise.
    pub(crate) fn begun(self) -> Result<Self, ApiError> {
        if self.request.stream { Ok(self) } else { self.accepted() }
    }

    /// The request where nothing of it is refused.
    /// Errors: what a stream would have as an event.
    pub(crate) fn accepted(self) -> Result<Self, ApiError> {
        match self.refused {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }
}

/// A request that was read once and accepted.
#[derive(Debug)]
pub(crate) struct CachedRequest {
    pub(super) request: Arc<GenerationRequest>,
    pub(super) prompts: Vec<PromptRead>,
}

impl CachedRequest {
    pub(crate) fn new(request: impl Into<Arc<GenerationRequest>>, prompts: Vec<PromptRead>) -> Self {
        Self { request: request.into(), prompts }
    }

    /// Bytes of the prompts.
    pub(crate) fn size(&self) -> usize {
        let media = |prompt: &PromptRead| prompt.media.as_ref().map_or(0, |media| size_of_val(&*media.blocks));
        let size = |prompt: &PromptRead| {
            let tokens = size_of_val(&*prompt.ids) + size_of_val(&*prompt.echo);
            tokens + size_of_val(&*prompt.hashes.blocks) + media(prompt) + prompt.shown.size() + prompt.beginning.size()
        };
        self.prompts.iter().map(size).sum()
    }
}

/// The most output tokens that a prompt leaves room for.
pub(crate) fn most_tokens(max_tokens: MaxTokens) -> u32 {
    let (MaxTokens::Requested(most) | MaxTokens::Left(most)) = max_tokens;
    most
}
