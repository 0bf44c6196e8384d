//! What a prompt asks of the records, and what it gets.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::{
    api::{GenerationRequest, LogprobsOptions, MaxTokens},
    play::{
        generate::{choice::ChoiceScript, guided::GuidedRules, parse::ParsedBy},
        load::account::TraceSession,
        recorded::failure::RecordedFailure,
        request::admitted::AnswerBeginning,
    },
    recording::trace::PromptLogprobs,
    replay::account::http::record_names,
    text::prompt::PromptHashes,
};

/// A prompt that looks for its records, with the parameters of its request.
#[derive(Debug)]
pub(in crate::play) struct PromptQuery<'a> {
    pub(in crate::play) request_id: Option<&'a str>,
    pub(in crate::play) model: &'a str,
    /// True where the request names none, where several were recorded.
    pub(in crate::play) takes_any_model: bool,
    /// Choices of the request's prompts before this one.
    pub(in crate::play) choices_before: usize,
    /// Whose records are consumed.
    pub(in crate::play) session: Option<&'a TraceSession>,
    /// The recorded errors of its request, in replay order.
    pub(in crate::play) errors: &'a [usize],
    pub(in crate::play) prompt: &'a [u32],
    pub(in crate::play) hashes: &'a PromptHashes,
    /// Hashes by which a record of the same media is found; `None` without media.
    pub(in crate::play) media: Option<&'a PromptHashes>,
    /// Tokens to repeat under [`Synthetic::Echo`](crate::play::Synthetic::Echo).
    pub(in crate::play) echo: &'a Arc<[u32]>,
    pub(in crate::play) choices: usize,
    pub(in crate::play) max_tokens: MaxTokens,
    pub(in crate::play) seed: Option<i64>,
    /// True where the likeliest token is taken at each place, whatever the seed.
    pub(in crate::play) is_greedy: bool,
    pub(in crate::play) ignore_eos: bool,
    pub(in crate::play) min_tokens: u32,
    /// Constraints of made-up text.
    pub(in crate::play) rules: Option<&'a GuidedRules>,
    /// Which log probabilities are sent.
    pub(in crate::play) logprobs: &'a LogprobsOptions,
    /// Parser of the answer's text.
    pub(in crate::play) parsed: Option<&'a ParsedBy>,
    /// Tokens that reasoning may have.
    pub(in crate::play) thinking_budget: Option<i64>,
    pub(in crate::play) request: &'a GenerationRequest,
    pub(in crate::play) beginning: &'a AnswerBeginning,
}

impl PromptQuery<'_> {
    /// Checks whether a request is one that could continue an answer.
    pub(in crate::play) fn may_continue(&self) -> bool {
        self.choices == 1 && self.media.is_none() && !self.request.is_constrained()
    }
}

/// Scripts of one prompt's choices, and their origin.
#[derive(Debug, Default)]
pub(in crate::play) struct PromptScripts {
    pub(in crate::play) scripts: Vec<ChoiceScript>,
    /// The error that was recorded instead of an answer.
    pub(in crate::play) failure: Option<RecordedFailure>,
    /// The payload of the event that ended the recorded stream, where it failed and the payload was recorded.
    pub(in crate::play) failing_event: Option<String>,
    /// Tokens of a prompt with media, as recorded; here each medium is but a placeholder.
    pub(in crate::play) prompt_tokens: Option<u32>,
    /// Cached prompt tokens, as recorded.
    pub(in crate::play) cached: u32,
    /// The records in replay order, none for made-up tokens.
    pub(in crate::play) records: Vec<usize>,
    /// Recorded log probabilities of the prompt, where the request asks for some.
    pub(in crate::play) prompt_logprobs: Option<PromptLogprobs>,
    /// Way in which they were found, or kind of made-up tokens.
    pub(in crate::play) by: String,
}

/// Headers about the origin of an answer.
pub(in crate::play) fn headers_of(chosen: &[PromptScripts], session: Option<&TraceSession>) -> HeaderMap {
    let records = record_names(chosen.iter().flat_map(|chosen| &chosen.records).map(usize::to_string));
    let mut headers = HeaderMap::new();
    if let (false, Ok(value)) = (records.is_empty(), HeaderValue::from_str(&records)) {
        headers.insert(HeaderName::from_static("x-vcr-record"), value);
    }
    if let Some(Ok(by)) = chosen.first().map(|chosen| HeaderValue::from_str(&chosen.by)) {
        headers.insert(HeaderName::from_static("x-vcr-match"), by);
    }
    if let Some(Ok(name)) = session.and_then(TraceSession::name).map(HeaderValue::from_str) {
        headers.insert(HeaderName::from_static("x-vcr-session"), name);
    }
    headers
}
