//! What a prompt asks of the records, and what it gets.

use http::HeaderMap;

use crate::{
    ServerState,
    generate::{choice::ChoiceScript, guided::GuidedRules, parse::ParsedBy},
    load::account::TraceSession,
    recorded::failure::RecordedFailure,
    request::admitted::PromptRead,
};
use api::GenerationRequest;
use recording::trace::PromptLogprobs;
use replay::{
    account::http::{put, record_names},
    matching::MatchQuery,
};

/// A prompt that looks for its records, with the parameters of its request.
#[derive(Debug)]
pub(crate) struct PromptQuery<'a> {
    pub(crate) request_id: Option<&'a str>,
    /// The name of the model whose records answer.
    pub(crate) model: Option<&'a str>,
    /// Choices of the request's prompts before this one.
    pub(crate) choices_before: usize,
    /// Whose records are consumed.
    pub(crate) session: Option<&'a TraceSession>,
    /// What is found by its request, where it is the first prompt of it.
    pub(crate) recorded: Option<&'a RequestRecords>,
    pub(crate) prompt: &'a PromptRead,
    /// True where the likeliest token is taken at each place, whatever the seed.
    pub(crate) is_greedy: bool,
    /// Constraints of made-up text.
    pub(crate) rules: Option<&'a GuidedRules>,
    /// Parser of the answer's text.
    pub(crate) parsed: Option<&'a ParsedBy>,
    pub(crate) request: &'a GenerationRequest,
}

impl<'a> PromptQuery<'a> {
    /// Choices of this prompt.
    pub(crate) fn choices(&self) -> usize {
        usize::try_from(self.request.choices).unwrap_or(usize::MAX)
    }

    /// The same, as the matcher looks for it.
    pub(crate) fn matched(&self, state: &'a ServerState) -> MatchQuery<'a> {
        MatchQuery {
            request_id: self.request_id,
            hashes: &self.prompt.hashes,
            choices: self.choices(),
            choices_before: u32::try_from(self.choices_before).unwrap_or(u32::MAX),
            model: Some(state.asked_model(self.model)),
        }
    }

    /// Checks whether a request is one that could continue an answer.
    pub(crate) fn may_continue(&self) -> bool {
        self.request.choices == 1 && self.prompt.media.is_none() && !self.request.is_constrained()
    }
}

/// What a trace holds of a request and finds by it, beside responses.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestRecords {
    /// Its errors, in replay order.
    pub(crate) errors: Vec<usize>,
    pub(crate) taken: Option<TakenRecord>,
}

/// A record without a response that took its turn among the responses of its request: it is consumed and not counted yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TakenRecord {
    pub(crate) record: usize,
    pub(crate) again: bool,
}

/// Scripts of one prompt's choices, and their origin.
#[derive(Debug, Default)]
pub(crate) struct PromptScripts {
    pub(crate) scripts: Vec<ChoiceScript>,
    /// The error that was recorded instead of an answer.
    pub(crate) failure: Option<RecordedFailure>,
    /// The payload of the event that ended the recorded stream, where it failed and the payload was recorded.
    pub(crate) failing_event: Option<String>,
    /// Tokens of a prompt with media, as recorded; here each medium is but a placeholder.
    pub(crate) prompt_tokens: Option<u32>,
    /// Cached prompt tokens, as recorded.
    pub(crate) cached: u32,
    /// The records in replay order, none for made-up tokens.
    pub(crate) records: Vec<usize>,
    /// Recorded log probabilities of the prompt, where the request asks for some.
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
    /// Way in which they were found, or kind of made-up tokens.
    pub(crate) by: String,
}

/// Headers about the origin of an answer.
pub(crate) fn headers_of(chosen: &[PromptScripts], session: Option<&TraceSession>) -> HeaderMap {
    let records = record_names(chosen.iter().flat_map(|chosen| &chosen.records).map(usize::to_string));
    let mut headers = HeaderMap::new();
    if !records.is_empty() {
        put(&mut headers, "x-vcr-record", &records);
    }
    if let Some(chosen) = chosen.first() {
        put(&mut headers, "x-vcr-match", &chosen.by);
    }
    if let Some(name) = session.and_then(TraceSession::name) {
        put(&mut headers, "x-vcr-session", name);
    }
    headers
}
