//! Token counts, in the shapes in which the engine writes them: chat tells created cache tokens, completions do not.

use super::{Api, RequestTimes};

/// What the server says about cached prompt tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CachedTokens {
    /// Nothing, as a server without `--enable-prompt-tokens-details`.
    #[default]
    Untold,
    /// How the prefix cache took part.
    Told(CacheUse),
}

/// How the prefix cache took part in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheUse {
    /// Tokens that were found in it.
    pub found: u32,
    /// Tokens that were computed and put into it: those of the prompt's other full blocks.
    pub created: u32,
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
    /// Output tokens of reasoning; told by a chat on a server that parses reasoning.
    pub reasoning: Option<u32>,
    /// Times, where they are told.
    pub times: Option<RequestTimes>,
}

impl Usage {
    fn counts(&self) -> String {
        let total = self.prompt.saturating_add(self.completion);
        format!("\"prompt_tokens\":{},\"total_tokens\":{total},\"completion_tokens\":{}", self.prompt, self.completion)
    }

    fn output_details(&self) -> String {
        self.reasoning.map_or_else(|| "null".to_owned(), |tokens| format!("{{\"reasoning_tokens\":{tokens}}}"))
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
            Api::Chat => format!("{{{},\"completion_tokens_details\":{}}}", self.counts(), self.output_details()),
            Api::Completions => format!("{{{}}}", self.counts()),
        }
    }

    /// On the last event of a stream; nulls are left out.
    pub(super) fn closing(&self, api: Api) -> String {
        let cached = match (self.cached, api) {
            (CachedTokens::Untold, _) => String::new(),
            (CachedTokens::Told(CacheUse { found, created }), Api::Chat) => {
                format!(",\"prompt_tokens_details\":{{\"cached_tokens\":{found},\"created_cache_tokens\":{created}}}")
            }
            (CachedTokens::Told(CacheUse { found, .. }), Api::Completions) => {
                format!(",\"prompt_tokens_details\":{{\"cached_tokens\":{found}}}")
            }
        };
        let output = match self.reasoning {
            Some(_) => format!(",\"completion_tokens_details\":{}", self.output_details()),
            None => String::new(),
        };
        format!("{{{}{cached}{output}}}", self.counts())
    }

    /// In a full body; every null is there.
    pub(super) fn full(&self, api: Api) -> String {
        let details = match (self.cached, api) {
            (CachedTokens::Untold, _) => "null".to_owned(),
            (CachedTokens::Told(CacheUse { found, created }), Api::Chat) => {
                format!("{{\"cached_tokens\":{found},\"created_cache_tokens\":{created},\"multimodal_tokens\":null}}")
            }
            (CachedTokens::Told(CacheUse { found, .. }), Api::Completions) => {
                format!("{{\"cached_tokens\":{found},\"created_cache_tokens\":null,\"multimodal_tokens\":null}}")
            }
        };
        let output = self.output_details();
        format!("{{{},\"prompt_tokens_details\":{details},\"completion_tokens_details\":{output}}}", self.counts())
    }
}
