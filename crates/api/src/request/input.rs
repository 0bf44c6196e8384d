//! What a request gives a model to continue.

use std::sync::Arc;

use serde_json::Value;

use crate::{body::ids, conversation::ChatPrompt, python};

/// Input to continue.
#[derive(Debug, Clone, PartialEq)]
pub enum GenerationInput {
    /// A conversation.
    Chat(ChatPrompt),
    /// Several conversations, a choice for each.
    Batch(Vec<ChatPrompt>),
    /// One or several prompts.
    Completion(Vec<PromptInput>),
}

impl GenerationInput {
    pub(super) fn chats(&self) -> &[ChatPrompt] {
        match self {
            Self::Chat(chat) => std::slice::from_ref(chat),
            Self::Batch(chats) => chats,
            Self::Completion(_) => &[],
        }
    }

    /// Returns their number.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Chat(_) => 1,
            Self::Batch(chats) => chats.len(),
            Self::Completion(inputs) => inputs.len(),
        }
    }
}

/// One prompt of a completion.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptInput {
    /// Text, to be tokenized.
    Text(String),
    /// Token ids.
    Ids(Arc<[u32]>),
}

pub(super) fn completion_prompts(prompt: Option<Value>) -> Vec<PromptInput> {
    let text = |item: Value| if let Value::String(text) = item { Some(PromptInput::Text(text)) } else { None };
    match prompt {
        Some(Value::Array(items)) if items.iter().all(|item| python::class(item) == "str") => {
            items.into_iter().filter_map(text).collect()
        }
        Some(Value::Array(items)) if items.iter().all(Value::is_array) => {
            items.iter().filter_map(Value::as_array).map(|items| PromptInput::Ids(ids(items).into())).collect()
        }
        Some(Value::Array(items)) => vec![PromptInput::Ids(ids(&items).into())],
        prompt => prompt.and_then(text).into_iter().collect(),
    }
}
