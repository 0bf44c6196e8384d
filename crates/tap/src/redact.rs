//! Redaction of the records of one exchange: secrets in texts that clients or engines can put into a record.

use std::sync::Arc;

use serde_json::json;

use super::{channels::Channels, observed_choice::ObservedChoice};
use recording::{
    redaction::{RedactionRules, Redactor},
    trace::{Record, RecordedErrorResponse, ResponseContent},
};
use replay::player::redact_response;

/// Redactor of the records of one exchange, in their order.
pub(super) struct RecordRedactor<'a> {
    redactor: Redactor<'a>,
    /// The request had a secret, which the hashes of its prompt would reveal.
    request_had_any: bool,
}

impl<'a> RecordRedactor<'a> {
    pub(super) fn new(rules: &'a RedactionRules) -> Self {
        Self { redactor: Redactor::new(rules), request_had_any: false }
    }

    /// Notes the secrets that the choices name, which are found in the records of others too.
    pub(super) fn learn_choices(&mut self, choices: &[ObservedChoice]) {
        let texts = choices.iter().flat_map(|choice| choice.channels.texts(&choice.text));
        texts.for_each(|text| self.redactor.learn_text(&text));
    }

    /// Returns true if the budget is used up, so that records have no content from here on.
    pub(super) fn is_exhausted(&self) -> bool {
        self.redactor.is_exhausted()
    }

    /// Returns true if a request that is recorded as ids spells a secret; hashes of its prompt are left out then.
    pub(super) fn is_secret_request(&mut self, text: &str) -> bool {
        let has_any = self.redactor.json(&mut json!(text));
        self.request_had_any |= has_any;
        has_any
    }

    /// Redacts secrets, and drops ids and hashes that would reveal them. True if there were any.
    pub(super) fn redact(&mut self, record: &mut Record, channels: &Channels) -> bool {
        self.redactor.of_answer(false);
        learn(&mut self.redactor, record);
        // The short parts come first: they stay where the search of others takes too long.
        let mut any = redact_names(&mut self.redactor, record);
        let redactor = &mut self.redactor;
        let in_request = record.request.as_mut().is_some_and(|request| redactor.json(request));
        self.request_had_any |= in_request;
        any |= in_request;
        redactor.of_answer(true);
        if let Some(text) = &mut record.text {
            let in_channels = channels.redact(text, |pieces| redactor.json_pieces(pieces));
            if redactor.json_pieces(text) || in_channels {
                any = true;
                (record.output_token_ids, record.logprobs) = (None, None);
            }
        }
        if record.token_texts().iter_mut().any(|tokens| redactor.json_pieces(tokens)) {
            any = true;
            (record.logprobs, record.prompt_logprobs) = (None, None);
            record.output_token_ids = None;
        }
        for event in record.events.iter_mut().flatten() {
            let clean = redactor.body(event.as_bytes());
            any |= clean.map(|clean| *event = String::from_utf8_lossy(&clean).into_owned()).is_some();
        }
        any |= record.error.as_mut().is_some_and(|error| redact_error(error, redactor));
        if let Some(response) = &mut record.response {
            any |= redact_response(redactor, Arc::make_mut(response));
        }
        if self.request_had_any {
            leave_out_hashes(record);
        }
        if redactor.is_exhausted() {
            leave_out_content(record);
        }
        any
    }
}

/// Notes the secrets that a record names.
fn learn(redactor: &mut Redactor<'_>, record: &Record) {
    if let Some(request) = &record.request {
        redactor.learn(request);
    }
    if let Some(body) = record.error.as_ref().and_then(|error| error.body.as_deref()) {
        redactor.learn_text(body);
    }
    if let Some(ResponseContent::Body(body)) = record.response.as_deref().map(|response| &response.content) {
        redactor.learn_text(&String::from_utf8_lossy(body));
    }
}

/// Redacts what names the request, and what only some records have. True if anything was found.
fn redact_names(redactor: &mut Redactor<'_>, record: &mut Record) -> bool {
    let mut any = redactor.fields(&mut record.extra);
    for text in record.names_mut().into_iter().filter_map(|(_, text)| text.as_mut()) {
        any |= redactor.text(text).map(|clean| *text = clean).is_some();
    }
    any
}

/// Leaves out everything that could spell a secret, and marks the record.
fn leave_out_content(record: &mut Record) {
    leave_out_hashes(record);
    (record.request, record.text, record.events, record.response) = (None, None, None, None);
    (record.logprobs, record.prompt_logprobs) = (None, None);
    (record.output_token_ids, record.content_source) = (None, None);
    if let Some(error) = &mut record.error {
        (error.headers, error.body) = (Default::default(), None);
    }
    record.extra.insert("unsearched".to_owned(), json!(true));
}

fn leave_out_hashes(record: &mut Record) {
    (record.block_hashes, record.mm_hashes) = Default::default();
    record.prompt_hash = None;
    record.request_key = None;
}

/// Redacts the headers and the body of an error. True where anything was found.
fn redact_error(error: &mut RecordedErrorResponse, redactor: &mut Redactor<'_>) -> bool {
    let mut any = false;
    for (name, value) in &mut error.headers {
        any |= redactor.header(name, value).map(|clean| *value = clean).is_some();
    }
    let clean = error.body.as_ref().and_then(|body| redactor.body(body.as_bytes()));
    any | clean.map(|clean| error.body = Some(String::from_utf8_lossy(&clean).into_owned())).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use recording::trace::{Logprobs, TokenLogprobs};

    #[test]
    fn what_one_choice_names_is_found_in_the_records_of_others() {
        let rules = RedactionRules::default();
        let texts = [["use dishwasher-42"], [r#"{"password":"dishwasher-42"}"#]];
        let choices = texts.map(|text| ObservedChoice { text: text.map(str::to_owned).into(), ..Default::default() });
        let mut redactor = RecordRedactor::new(&rules);
        redactor.learn_choices(&choices);
        let mut record = Record { text: Some(choices[0].text.clone()), ..Record::default() };
        assert!(redactor.redact(&mut record, &Channels::default()));
        assert_eq!(record.text.unwrap(), ["use [REDACTED:password:1]"]);
    }

    #[test]
    fn secrets_of_two_channels_by_turns_are_found_and_what_spells_them_is_left_out() {
        let keys = ["ghp_abcdefghijklmnopqrstuvwxyz0123456789", "ghp_9876543210zyxwvutsrqponmlkjihgfedcba"];
        let pieces = keys.map(|key| key.as_bytes().chunks(3).map(|piece| String::from_utf8_lossy(piece).into_owned()));
        let [content, reasoning] = pieces.map(Iterator::collect::<Vec<_>>);
        let (mut channels, mut text) = (Channels::default(), Vec::new());
        for (at, pair) in content.into_iter().zip(reasoning).enumerate() {
            for (channel, piece) in [(0, pair.0), (1, pair.1)] {
                channels.push(channel, piece.len());
                if at % 2 == 0 { text.push(piece) } else { text.last_mut().unwrap().push_str(&piece) }
            }
        }
        let tokens = vec![TokenLogprobs::default()];
        let logprobs = Some(Logprobs { tokens, ..Logprobs::default() });
        let mut record = Record { text: Some(text), output_token_ids: Some(vec![1]), logprobs, ..Record::default() };
        let rules = RedactionRules::default();
        assert!(RecordRedactor::new(&rules).redact(&mut record, &channels));
        assert_eq!(record.text.unwrap().concat(), "[REDACTED:github_token:1][REDACTED:github_token:2]");
        assert_eq!((record.output_token_ids, record.logprobs), (None, None));
    }

    #[test]
    fn beyond_the_budget_records_have_no_content_and_say_so() {
        let rules = RedactionRules::default();
        let mut redactor =
            RecordRedactor { redactor: Redactor::new(&rules).within(10_000), ..RecordRedactor::new(&rules) };
        let request = Some(json!({"messages": ["harmless words ".repeat(1000), "more"]}));
        let model = Some("a-model".to_owned());
        let mut record = Record { model, request, prompt_hash: Some(1), ..Record::default() };
        redactor.redact(&mut record, &Channels::default());
        assert!(redactor.is_exhausted());
        assert_eq!((record.request, record.prompt_hash, record.model.as_deref()), (None, None, Some("a-model")));
        assert_eq!(record.extra.get("unsearched"), Some(&json!(true)));
    }
}
