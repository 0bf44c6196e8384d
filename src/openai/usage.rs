//! Token counts, in the shapes in which the engine writes them: chat tells created cache tokens, completions do not.

use super::{Api, RequestTimes};

/// What the server says about cached prompt tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CachedTokens {
    /// Nothing, as a server without `--enable-prompt-tokens-details`.
    #[default]
    Untold,
    /// This many were found in the prefix cache.
    Found(u32),
}

/// Token counts of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Prompt tokens, over all prompts.
    pub prompt: u32,
    /// Output tokens, over all choices.
    pub completion: u32,
    /// Cached prompt tokens.
    pub cached: CachedTokens,
    /// Times, where they are told.
    pub times: Option<RequestTimes>,
}

impl Usage {
    fn counts(&self) -> String {
        let total = self.prompt.saturating_add(self.completion);
        format!("\"prompt_tokens\":{},\"total_tokens\":{total},\"completion_tokens\":{}", self.prompt, self.completion)
    }

    /// The times on the last event of a stream, with what comes before them.
    pub(super) fn closing_times(&self) -> String {
        self.times.map(|times| format!(",\"metrics\":{}", times.closing(self.completion))).unwrap_or_default()
    }

    /// The times in a full body.
    pub(super) fn full_times(&self) -> String {
        self.times.map_or_else(|| "null".to_owned(), |times| times.full(self.completion))
    }

    /// On every event of a stream that asked for it.
    pub(super) fn continuous(&self, api: Api) -> String {
        match api {
            Api::Chat => format!("{{{},\"completion_tokens_details\":null}}", self.counts()),
            Api::Completions => format!("{{{}}}", self.counts()),
        }
    }

    /// On the last event of a stream; nulls are left out.
    pub(super) fn closing(&self, api: Api) -> String {
        match (self.cached, api) {
            (CachedTokens::Untold, _) => format!("{{{}}}", self.counts()),
            (CachedTokens::Found(cached), Api::Chat) => format!(
                "{{{},\"prompt_tokens_details\":{{\"cached_tokens\":{cached},\"created_cache_tokens\":0}}}}",
                self.counts()
            ),
            (CachedTokens::Found(cached), Api::Completions) => {
                format!("{{{},\"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}", self.counts())
            }
        }
    }

    /// In a full body; every null is there.
    pub(super) fn full(&self, api: Api) -> String {
        let details = match (self.cached, api) {
            (CachedTokens::Untold, _) => "null".to_owned(),
            (CachedTokens::Found(cached), Api::Chat) => {
                format!("{{\"cached_tokens\":{cached},\"created_cache_tokens\":0,\"multimodal_tokens\":null}}")
            }
            (CachedTokens::Found(cached), Api::Completions) => {
                format!("{{\"cached_tokens\":{cached},\"created_cache_tokens\":null,\"multimodal_tokens\":null}}")
            }
        };
        format!("{{{},\"prompt_tokens_details\":{details},\"completion_tokens_details\":null}}", self.counts())
    }
}
