//! Redaction of the records of one exchange: secrets in texts that clients or engines can put into a record.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    recording::redaction::{Redactor, Rules},
    recording::trace::{ErrorResponse, Record},
    replay::player::redact_response,
};

/// Redactor of the records of one exchange, in their order.
pub(super) struct RecordRedactor<'a> {
    redactor: Redactor<'a>,
    /// The request had a secret, which the hashes of its prompt would reveal.
    request_had_any: bool,
}

impl<'a> RecordRedactor<'a> {
    pub(super) fn new(rules: &'a Rules) -> Self {
        Self { redactor: Redactor::new(rules), request_had_any: false }
    }

    /// Redacts secrets, and drops ids and hashes that would reveal them. True if there were any.
    pub(super) fn redact(&mut self, record: &mut Record) -> bool {
        let redactor = &mut self.redactor;
        let mut any = record.request.as_mut().is_some_and(|request| redactor.json(request));
        self.request_had_any |= any;
        for text in [&mut record.request_id, &mut record.group, &mut record.model].into_iter().flatten() {
            any |= redactor.text(text).map(|clean| *text = clean).is_some();
        }
        if let Some(Value::String(path)) = record.extra.get_mut("path") {
            any |= redactor.text(path).map(|clean| *path = clean).is_some();
        }
        if let Some(text) = &mut record.text
            && redactor.json_pieces(text)
        {
            any = true;
            record.output_token_ids = None;
        }
        if spells_a_secret(record, redactor) {
            any = true;
            (record.logprobs, record.prompt_logprobs) = (None, None);
            record.output_token_ids = None;
        }
        any |= record.error.as_mut().is_some_and(|error| redact_error(error, redactor));
        if let Some(response) = &mut record.response {
            any |= redact_response(redactor, Arc::make_mut(response));
        }
        if self.request_had_any {
            record.block_hashes.clear();
            record.mm_hashes.clear();
            record.prompt_hash = None;
            record.request_key = None;
        }
        any
    }
}

/// Returns true if the texts of tokens with log probabilities make up a secret.
fn spells_a_secret(record: &Record, redactor: &mut Redactor<'_>) -> bool {
    let output = record.logprobs.iter().map(|logprobs| {
        let tokens = logprobs.prompt.iter().chain(&logprobs.tokens);
        tokens.map(|token| token.text.clone().unwrap_or_default()).collect::<Vec<_>>()
    });
    let prompt = record.prompt_logprobs.iter().map(|logprobs| {
        let own = logprobs.tokens.iter().map(|place| place.0.first().and_then(|own| own.text.clone()));
        own.map(Option::unwrap_or_default).collect()
    });
    output.chain(prompt).any(|mut texts: Vec<String>| redactor.json_pieces(&mut texts))
}

/// Redacts the headers and the body of an error. True where anything was found.
fn redact_error(error: &mut ErrorResponse, redactor: &mut Redactor<'_>) -> bool {
    let mut any = false;
    for (name, value) in &mut error.headers {
        any |= redactor.header(name, value).map(|clean| *value = clean).is_some();
    }
    let clean = error.body.as_ref().and_then(|body| redactor.body(body.as_bytes()));
    any | clean.map(|clean| error.body = Some(String::from_utf8_lossy(&clean).into_owned())).is_some()
}
