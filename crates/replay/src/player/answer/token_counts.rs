//! Token counts of an answer that was recorded or written without them: by the model's tokenizer where there is one, else
//! an estimate of four bytes of text a token, and four tokens around each message.

use std::sync::OnceLock;

use serde_json::{Map, Value, json};

use crate::player::answer::engine_input::{EngineExchange, EngineInput};
use api::{
    Endpoint,
    answers::{Answer, Choice},
    template_kwargs,
};
use recording::{canonical::SharedBody, cassette::wire_message};
use text::prompt::{SpecialTokens, Tokenizer};

/// Bytes of text that count as one token.
const BYTES_PER_TOKEN: usize = 4;

/// Tokens of a message beside its text: its role and its borders.
const AROUND_MESSAGE: usize = 4;

/// Counter of tokens, by a tokenizer once there is one.
#[derive(Debug, Default)]
pub(in crate::player) struct Counter {
    tokenizer: OnceLock<Tokenizer>,
    /// The most tokens of a request of the simulated engine that responses pass through, where there is one.
    most_tokens: OnceLock<u32>,
}

impl Counter {
    /// Counts with the model's tokenizer from now on.
    pub(in crate::player) fn with(&self, tokenizer: Tokenizer) {
        // The first one stays.
        let _known = self.tokenizer.set(tokenizer);
    }

    /// Lets another one count as this one does.
    pub(in crate::player) fn share_with(&self, other: &Self) {
        self.tokenizer.get().cloned().into_iter().for_each(|tokenizer| other.with(tokenizer));
        self.most_tokens.get().into_iter().for_each(|most| other.make_engine_inputs(*most));
    }

    /// Makes token ids of requests and responses too from now on, for an engine whose requests have so many tokens at the most.
    pub(in crate::player) fn make_engine_inputs(&self, most: u32) {
        let _known = self.most_tokens.set(most);
    }

    /// Returns true if token ids are made.
    pub(in crate::player) fn makes_engine_inputs(&self) -> bool {
        self.most_tokens.get().is_some()
    }

    /// The token ids of an exchange, where they are wanted and it is not too long.
    pub(in crate::player) fn engine_input(&self, exchange: &EngineExchange<'_>) -> Option<EngineInput> {
        EngineInput::of(exchange, self.tokenizer.get(), *self.most_tokens.get()?)
    }

    /// The token counts of a chat or completions answer, as far as they are known, with the missing ones counted.
    pub(in crate::player) fn filled(
        &self,
        usage: Option<&Value>,
        request: &SharedBody,
        choices: &[Map<String, Value>],
    ) -> Value {
        let text = |choice: &Map<String, Value>| match choice.get("message").map(wire_message) {
            Some(message) => Choice::read(&Map::from_iter([("message".to_owned(), message)])).text(),
            None => Choice::read(choice).text(),
        };
        self.filled_choices(usage, request, || choices.iter().map(text).collect())
    }

    fn filled_choices(&self, usage: Option<&Value>, request: &SharedBody, texts: impl Fn() -> Vec<String>) -> Value {
        let known = |name: &str| usage.and_then(|usage| usage.get(name)).and_then(Value::as_u64);
        let prompt = known("prompt_tokens").unwrap_or_else(|| whole(self.prompt(request)));
        let completion = known("completion_tokens");
        let completion = completion.unwrap_or_else(|| texts().iter().map(|text| whole(self.text(text))).sum());
        let mut filled = usage.and_then(Value::as_object).cloned().unwrap_or_default();
        filled.entry("prompt_tokens").or_insert(prompt.into());
        filled.entry("completion_tokens").or_insert(completion.into());
        filled.entry("total_tokens").or_insert((prompt + completion).into());
        filled.into()
    }

    /// An answer with token counts, where it has none.
    pub(in crate::player) fn filled_answer(
        &self,
        endpoint: Endpoint,
        mut answer: Answer,
        request: &SharedBody,
    ) -> Answer {
        if let Some(usage) = self.filled_usage(endpoint, answer.fields(), request) {
            answer.set_usage(usage);
        }
        answer
    }

    /// The token counts of an answer, those that it has or else counted ones.
    pub(in crate::player) fn filled_usage(
        &self,
        endpoint: Endpoint,
        answer: &Map<String, Value>,
        request: &SharedBody,
    ) -> Option<Value> {
        let known = answer.get("usage").filter(|usage| !usage.is_null());
        let choices = || Choice::all(endpoint, answer);
        let texts = || choices().iter().map(Choice::text).collect::<Vec<_>>();
        if endpoint.has_choices() {
            return Some(self.filled_choices(known, request, texts));
        }
        if known.is_some() || !endpoint.generates() {
            return known.cloned();
        }
        let (input, output) = (whole(self.prompt(request)), whole(self.text(&texts().concat())));
        Some(match endpoint {
            Endpoint::Responses => json!({"input_tokens": input, "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": output, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": input + output}),
            _ => json!({"input_tokens": input, "output_tokens": output}),
        })
    }

    fn prompt(&self, request: &SharedBody) -> usize {
        let body = request.value();
        let exact = self.tokenizer.get().zip(body.as_object()).and_then(|(tokenizer, body)| match body.get("prompt") {
            Some(prompt) => tokenizer.ids_of_completion(prompt),
            None => tokenizer.ids_of_chat(body, &template_kwargs(body)),
        });
        if let Some(ids) = exact {
            return ids.len();
        }
        let conversation = ["system", "instructions", "messages", "input", "prompt", "tools"];
        let parts = conversation.iter().filter_map(|name| body.get(*name));
        parts.map(|part| estimate(&texts_of(part)) + AROUND_MESSAGE * part.as_array().map_or(0, Vec::len)).sum()
    }

    pub(in crate::player) fn text(&self, text: &str) -> usize {
        let exact = self.tokenizer.get().and_then(|tokenizer| tokenizer.encode(text, SpecialTokens::Skip).ok());
        exact.map_or_else(|| estimate(text), |ids| ids.len())
    }
}

fn estimate(text: &str) -> usize {
    text.len().div_ceil(BYTES_PER_TOKEN)
}

fn whole(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// All texts of a value one after the other, those under `type`, `role` and ids left out.
pub(in crate::player) fn texts_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(texts_of).collect(),
        Value::Object(fields) => {
            let names = ["type", "role", "id", "tool_call_id", "call_id", "tool_use_id", "status", "signature"];
            let texts = fields.iter().filter(|(name, _)| !names.contains(&name.as_str()));
            texts.map(|(_, value)| texts_of(value)).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_estimated_and_what_is_known_stays() {
        let request = SharedBody::from(json!({"model": "m", "messages": [
            {"role": "user", "content": "0123456789"}, {"role": "user", "content": [{"type": "text", "text": "01"}]}]}));
        let choice = json!({"message": {"role": "assistant", "content": "01234567"}, "finish_reason": "stop"});
        let choices = [choice.as_object().unwrap().clone()];
        let counter = Counter::default();
        let all = counter.filled(None, &request, &choices);
        assert_eq!(all, json!({"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13}));
        let known = counter.filled(Some(&json!({"completion_tokens": 7})), &request, &choices);
        assert_eq!(known, json!({"completion_tokens": 7, "prompt_tokens": 11, "total_tokens": 18}));
        let message = json!({"type": "message", "content": [{"type": "text", "text": "01234567"}]});
        let message = Answer::read(Endpoint::Messages, message).unwrap();
        let filled = counter.filled_answer(Endpoint::Messages, message, &request);
        assert_eq!(filled.fields()["usage"], json!({"input_tokens": 11, "output_tokens": 2}));
        assert_eq!(counter.filled_answer(Endpoint::Messages, filled.clone(), &SharedBody::default()), filled);
    }
}
