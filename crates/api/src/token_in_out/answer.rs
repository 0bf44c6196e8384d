//! Encoder of a completion as token ids.

use std::collections::HashMap;

use super::TokenRequest;
use crate::{
    Api, UsageEvents,
    answer::{AnswerChoice, json_or_null},
    escape::{EscapeOutput, put_escaped, put_ids, put_number},
    stream::{AnswerHead, ChoiceChunk, StopReason, put_reason},
    usage::Usage,
};
use net::wire::EventBuffer;

/// Encoder of a token response.
#[derive(Debug)]
pub struct TokenEncoder {
    /// True where choices have the text of their ids.
    has_text: bool,
    repeats_prompt: bool,
    /// Tokens so far, by the choice.
    produced: HashMap<u32, usize>,
}

struct TokenInOutChoice<'a> {
    index: u32,
    finish: Option<(&'a str, &'a StopReason)>,
    ids: Option<&'a [u32]>,
    text: &'a str,
    logprobs: Option<&'a str>,
    /// The number of all its tokens, once it is over.
    end: Option<usize>,
}

impl TokenEncoder {
    /// Encodes the response to this request.
    #[must_use]
    pub fn new(request: &TokenRequest) -> Self {
        Self { has_text: request.has_text(), repeats_prompt: request.repeats_prompt(), produced: HashMap::new() }
    }

    /// Appends the event of new tokens; none where there are none to show.
    pub(crate) fn add(&mut self, head: &AnswerHead, piece: &ChoiceChunk<'_>, out: &mut EventBuffer) {
        let &ChoiceChunk { index, finish, ids, text, logprobs, .. } = piece;
        let produced = self.produced.entry(index).or_default();
        *produced += ids.map_or(0, <[u32]>::len);
        let end = finish.map(|_| *produced);
        let is_silent = ids.is_none_or(<[u32]>::is_empty) && (!self.has_text || text.is_empty());
        if is_silent && finish.is_none() {
            return;
        }
        let prompt = std::mem::take(&mut self.repeats_prompt).then_some(piece.prompt_ids);
        out.put(head.event_size(), |out| {
            put_start(head, out);
            match head.usage_events {
                UsageEvents::EveryEvent => piece.usage.put_full(out, Api::Completions),
                UsageEvents::None | UsageEvents::AtEnd => out.put("null"),
            }
            if let Some(ids) = prompt {
                out.put(",\"prompt_token_ids\":");
                put_ids(out, ids);
            }
            self.put_mode(out);
            self.put_choice(out, &TokenInOutChoice { index, finish, ids, text, logprobs, end });
            out.put("]}\n\n");
        });
    }

    /// Appends the event of the token counts.
    pub(crate) fn put_closing(&self, head: &AnswerHead, usage: &Usage, out: &mut EventBuffer) {
        out.put(head.event_size(), |out| {
            put_start(head, out);
            usage.put_closing(out, Api::Completions);
            self.put_mode(out);
            out.put("]}\n\n");
        });
    }

    /// Encodes a whole response.
    pub(crate) fn body(&self, head: &AnswerHead, choices: &[AnswerChoice], usage: &Usage) -> String {
        let mut out = String::with_capacity(head.event_size());
        out.put("{\"request_id\":");
        put_request_id(head, &mut out);
        out.put(",\"model\":");
        put_escaped(&mut out, &head.model);
        out.put(",\"created\":");
        out.put(itoa::Buffer::new().format(head.created));
        out.put(",\"usage\":");
        usage.put_full(&mut out, Api::Completions);
        out.put(",\"prompt_logprobs\":null,\"prompt_token_id_logprobs\":null,\"prompt_token_ids\":");
        let prompt = choices.first().filter(|_| self.repeats_prompt).and_then(|choice| choice.prompt_ids.as_deref());
        put_ids(&mut out, prompt);
        out.put(",\"mm_placeholders\":null,\"metrics\":null,\"kv_transfer_params\":");
        out.put(json_or_null(choices.last().and_then(|choice| choice.kv_transfer_params.as_deref())));
        out.put(",\"ec_transfer_params\":null");
        self.put_mode(&mut out);
        for (index, choice) in (0..).zip(choices) {
            if index > 0 {
                out.put(",");
            }
            let finish = Some((choice.finish.as_str(), &choice.stop_reason));
            let (ids, text) = (choice.ids.as_deref(), choice.text.as_str());
            let (end, logprobs) = (Some(ids.map_or(0, <[u32]>::len)), choice.logprobs.as_deref());
            self.put_choice(&mut out, &TokenInOutChoice { index, finish, ids, text, logprobs, end });
        }
        out.put("]}");
        out
    }

    /// Appends the mode, and the beginning of the choices.
    fn put_mode(&self, out: &mut impl EscapeOutput) {
        out.put(if self.has_text { ",\"output_mode\":\"text\"" } else { ",\"output_mode\":\"tokens\"" });
        out.put(",\"choices\":[");
    }

    fn put_choice(&self, out: &mut impl EscapeOutput, choice: &TokenInOutChoice<'_>) {
        out.put("{\"index\":");
        put_number(out, choice.index);
        out.put(",\"finish_reason\":");
        match choice.finish {
            Some((finish, reason)) => {
                put_escaped(out, finish);
                out.put(",\"stop_reason\":");
                put_reason(out, reason);
            }
            None => out.put("null,\"stop_reason\":null"),
        }
        out.put(",\"token_ids\":");
        put_ids(out, choice.ids);
        out.put(",\"routed_experts\":null,\"sampling_mask\":null,\"weight_versions\":");
        match choice.end {
            Some(end) => {
                out.put("[{\"version\":\"default\",\"start\":0,\"end\":");
                out.put(itoa::Buffer::new().format(end));
                out.put("}]");
            }
            None => out.put("null"),
        }
        if self.has_text {
            out.put(",\"text\":");
            put_escaped(out, choice.text);
        }
        out.put(",\"logprobs\":");
        out.put(choice.logprobs.unwrap_or("null"));
        out.put("}");
    }
}

/// Appends the beginning of an event up to its token counts.
fn put_start(head: &AnswerHead, out: &mut impl EscapeOutput) {
    out.put("data: {\"request_id\":");
    put_request_id(head, out);
    out.put(",\"usage\":");
}

fn put_request_id(head: &AnswerHead, out: &mut impl EscapeOutput) {
    let id = head.id.as_str();
    put_escaped(out, &["generate-tokens-", id.strip_prefix("cmpl-").unwrap_or(id)].concat());
}
