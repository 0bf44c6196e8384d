//! Token counts, in the shapes in which the engine writes them: chats have created cache tokens, completions do not.

use super::{
    Api, RequestTimes,
    escape::{EscapeOutput, put_number},
};

/// Cached prompt tokens that the server reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CachedTokens {
    /// Nothing, as a server without `--enable-prompt-tokens-details`.
    #[default]
    Hidden,
    /// Use of the prefix cache.
    Reported(CacheUse),
}

/// Use of the prefix cache by a prompt.
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
    /// Output tokens of reasoning; reported by a chat on a server that parses reasoning.
    pub reasoning: Option<u32>,
    /// Times, where they are sent.
    pub times: Option<RequestTimes>,
}

impl Usage {
    fn put_counts(&self, out: &mut impl EscapeOutput) {
        out.put("\"prompt_tokens\":");
        put_number(out, self.prompt);
        out.put(",\"total_tokens\":");
        put_number(out, self.prompt.saturating_add(self.completion));
        out.put(",\"completion_tokens\":");
        put_number(out, self.completion);
    }

    fn put_output_details(&self, out: &mut impl EscapeOutput) {
        let Some(tokens) = self.reasoning else { return out.put("null") };
        out.put("{\"reasoning_tokens\":");
        put_number(out, tokens);
        out.put("}");
    }

    /// The times on the last event of a stream, with what comes before them.
    pub(super) fn put_closing_times(&self, out: &mut impl EscapeOutput) {
        let Some(times) = self.times else { return };
        out.put(",\"metrics\":");
        out.put(&times.closing(self.completion));
    }

    pub(super) fn put_full_times(&self, out: &mut impl EscapeOutput) {
        match self.times {
            Some(times) => out.put(&times.full(self.completion)),
            None => out.put("null"),
        }
    }

    /// On every event of a stream that asked for it.
    pub(super) fn put_continuous(&self, out: &mut impl EscapeOutput, api: Api) {
        out.put("{");
        self.put_counts(out);
        if api == Api::Chat {
            out.put(",\"completion_tokens_details\":");
            self.put_output_details(out);
        }
        out.put("}");
    }

    /// On the last event of a stream; nulls are left out.
    pub(super) fn put_closing(&self, out: &mut impl EscapeOutput, api: Api) {
        out.put("{");
        self.put_counts(out);
        if let CachedTokens::Reported(CacheUse { found, created }) = self.cached {
            out.put(",\"prompt_tokens_details\":{\"cached_tokens\":");
            put_number(out, found);
            if api == Api::Chat {
                out.put(",\"created_cache_tokens\":");
                put_number(out, created);
            }
            out.put("}");
        }
        if self.reasoning.is_some() {
            out.put(",\"completion_tokens_details\":");
            self.put_output_details(out);
        }
        out.put("}");
    }

    /// In a full body; every null is there.
    pub(super) fn put_full(&self, out: &mut impl EscapeOutput, api: Api) {
        out.put("{");
        self.put_counts(out);
        out.put(",\"prompt_tokens_details\":");
        match self.cached {
            CachedTokens::Hidden => out.put("null"),
            CachedTokens::Reported(CacheUse { found, created }) => {
                out.put("{\"cached_tokens\":");
                put_number(out, found);
                out.put(",\"created_cache_tokens\":");
                match api {
                    Api::Chat => put_number(out, created),
                    Api::Completions => out.put("null"),
                }
                out.put(",\"multimodal_tokens\":null}");
            }
        }
        out.put(",\"completion_tokens_details\":");
        self.put_output_details(out);
        out.put("}");
    }
}
