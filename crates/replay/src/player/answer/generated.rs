//! Token counts of a response from a record, by which it is paced and counted.

use std::{borrow::Cow, sync::OnceLock};

use serde_json::{Map, Value, json};

use crate::{
    player::{
        answer::engine_input::{EngineExchange, EngineInput},
        incoming::IncomingRequest,
    },
    timing::TokenChunk,
};
use api::{
    Endpoint,
    answers::{Answer, ChoiceView, Observation, TokenCounts, added_text},
    template_kwargs,
};
use engine::guided::{Guide, GuideError};
use recording::{
    canonical::SharedBody,
    cassette::{AnswerContent, CassetteRecord, Sidecar, SseEvent, wire_message},
    children::children,
};
use text::prompt::{SpecialTokens, Tokenizer};

/// The most choices of a stream that makes up no answer.
const MOST_CHOICES: usize = 1000;

/// Token counts of a model's response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// How many of them were found in the prefix cache.
    pub cached_tokens: u32,
    /// The most tokens that a choice could have had; 0 where the request has no limit.
    pub max_tokens: u32,
    /// The choices in order.
    pub choices: Vec<GeneratedChoice>,
    /// The same for a simulated engine; `None` without one, and where it is too long for it.
    pub engine_input: Option<EngineInput>,
}

/// One choice of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeneratedChoice {
    /// Tokens of its prompt: of several prompts, which a response counts together, an equal share.
    pub prompt_tokens: u32,
    /// Its tokens.
    pub tokens: u32,
    /// Why it ended, in the engine's words.
    pub finish: &'static str,
}

/// Usage and finish reasons of a record's answer.
struct AnswerFacts {
    counts: TokenCounts,
    finishes: Vec<&'static str>,
    /// Of the choices, where they are wanted.
    texts: Vec<String>,
}

/// Returns the counts of an answer; `None` for an error, and for what is not generated.
pub(crate) fn of(record: &CassetteRecord, incoming: &IncomingRequest, counter: &Counter) -> Option<Generated> {
    let endpoint = Endpoint::of_path(incoming.path());
    if record.answer.status >= 400 || !endpoint.generates() {
        return None;
    }
    let AnswerFacts { counts, finishes, texts } = answered(record, endpoint, incoming, counter)?;
    let prompt_tokens = counts.prompt.unwrap_or(0);
    let mut generated = Generated {
        prompt_tokens,
        cached_tokens: counts.cached.unwrap_or(0),
        max_tokens: token_limit(
            ["max_completion_tokens", "max_tokens", "max_output_tokens"]
                .map(|name| incoming.body.get(name).unwrap_or(&Value::Null)),
        ),
        choices: shared(prompt_tokens, short(incoming.prompts()), counts.completion.unwrap_or(0), finishes),
        engine_input: None,
    };
    if counter.makes_engine_inputs() {
        generated.engine_input = generated.engine_input(texts, incoming, counter);
    }
    Some(generated)
}

fn answered(
    record: &CassetteRecord,
    endpoint: Endpoint,
    incoming: &IncomingRequest,
    counter: &Counter,
) -> Option<AnswerFacts> {
    let word = |finish: Option<&str>| match finish {
        None if record.aborted.is_some() => "abort",
        finish => word(finish),
    };
    let has_texts = counter.makes_engine_inputs();
    Some(match &record.answer.content {
        AnswerContent::Choices { choices, usage } => {
            let finish = |choice: &Map<String, Value>| word(ChoiceView::read(choice).finish_reason);
            AnswerFacts {
                counts: TokenCounts::read(&counter.filled(usage_of(record, usage).as_deref(), &incoming.body, choices)),
                finishes: choices.iter().map(finish).collect(),
                texts: choices.iter().filter(|_| has_texts).map(text_of).collect(),
            }
        }
        AnswerContent::Json(Value::Object(answer)) => {
            let choices = ChoiceView::all(endpoint, answer);
            let usage = counter.filled_usage(endpoint, answer, &incoming.body).unwrap_or_default();
            AnswerFacts {
                counts: TokenCounts::read(&usage),
                finishes: choices.iter().map(|choice| word(choice.finish_reason)).collect(),
                texts: choices.iter().filter(|_| has_texts).map(ChoiceView::text).collect(),
            }
        }
        AnswerContent::Events(events) if has_texts => streamed(events, counter)?,
        _ => return None,
    })
}

/// A choice, as a file shows it, with its message as it is on the wire.
pub(crate) fn on_the_wire(choice: &Map<String, Value>) -> Map<String, Value> {
    let mut choice = choice.clone();
    choice.get_mut("message").into_iter().for_each(|message| *message = wire_message(message));
    choice
}

fn text_of(choice: &Map<String, Value>) -> String {
    ChoiceView::read(&on_the_wire(choice)).text()
}

/// Counts of a stream that makes up no answer, as one that failed in its middle; `None` where it has no text.
fn streamed(events: &[SseEvent], counter: &Counter) -> Option<AnswerFacts> {
    let (mut counts, mut texts) = (TokenCounts::default(), Vec::<String>::new());
    for SseEvent { data, .. } in events {
        if let Some(usage) = data.get("usage").filter(|usage| usage.is_object()) {
            counts = TokenCounts::read(usage);
        }
        let choice = Observation::read(data.to_string().as_bytes()).map(|observed| observed.choice);
        let Some(choice) = choice.filter(|choice| *choice < MOST_CHOICES) else { continue };
        if texts.len() <= choice {
            texts.resize(choice + 1, String::new());
        }
        let added = added_text(data, choice).unwrap_or_default();
        texts.get_mut(choice).into_iter().for_each(|text| text.push_str(&added));
    }
    let counted = texts.iter().map(|text| u32::try_from(counter.text(text)).unwrap_or(u32::MAX));
    let completion = counts.completion.unwrap_or_else(|| counted.fold(0, u32::saturating_add));
    counts.completion = Some(completion);
    let finishes = texts.iter().map(|_| "error").collect();
    (completion > 0 && !texts.is_empty()).then_some(AnswerFacts { counts, finishes, texts })
}

impl Generated {
    /// Lets an engine compute the tokens of so many events only, and at least one.
    pub(crate) fn break_off(&mut self, chunks: &[TokenChunk], events: usize) {
        let Some(EngineInput { outputs, .. }) = &mut self.engine_input else { return };
        for (choice, output) in outputs.iter_mut().enumerate() {
            let shown = chunks.iter().filter(|chunk| chunk.choice == choice && chunk.event < events);
            let tokens = shown.map(|chunk| usize::try_from(chunk.tokens).unwrap_or(usize::MAX));
            let fewest = usize::from(choice == 0);
            output.truncate(tokens.fold(0, usize::saturating_add).max(fewest));
        }
    }

    fn engine_input(&self, texts: Vec<String>, incoming: &IncomingRequest, counter: &Counter) -> Option<EngineInput> {
        let body = incoming.body.value();
        counter.engine_input(&EngineExchange {
            path: incoming.path(),
            bytes: &incoming.bytes,
            body: &body,
            session: incoming.header("x-session-id"),
            prompt_tokens: self.prompt_tokens,
            outputs: self.choices.iter().map(|choice| choice.tokens).zip(texts).collect(),
        })
    }
}

fn short(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The token counts of an answer of choices: as they were recorded where the answer is, else as the file has them.
pub(crate) fn usage_of<'a>(record: &CassetteRecord, shown: &'a Option<Value>) -> Option<Cow<'a, Value>> {
    let recorded = record.side.as_ref().and_then(Sidecar::usage).filter(|_| record.is_as_recorded());
    recorded.map(Cow::Owned).or(shown.as_ref().map(Cow::Borrowed))
}

/// The most tokens that a request lets a choice have, of its fields `max_completion_tokens`, `max_tokens` and `max_output_tokens`; 0 where
/// it has no limit.
#[must_use]
pub fn token_limit(fields: [&Value; 3]) -> u32 {
    fields.into_iter().find_map(Value::as_u64).map_or(0, short)
}

/// The tokens of an answer as those of its choices, which cannot be separated.
fn shared(prompt: u32, prompts: u32, tokens: u32, finishes: Vec<&'static str>) -> Vec<GeneratedChoice> {
    let many = short(finishes.len() as u64).max(1);
    let of_each = (many / prompts.max(1)).max(1);
    let part = |all: u32, parts: u32, at: u32| all / parts + u32::from(at < all % parts);
    let share = |(at, finish): (u32, &'static str)| GeneratedChoice {
        prompt_tokens: part(prompt, prompts.max(1), at / of_each),
        tokens: part(tokens, many, at),
        finish,
    };
    (0..).zip(finishes).map(share).collect()
}

/// The engine's word for the end of an answer.
fn word(finish: Option<&str>) -> &'static str {
    match finish {
        Some("length" | "max_tokens" | "incomplete") => "length",
        Some("abort") => "abort",
        Some("error" | "failed") => "error",
        Some("repetition") => "repetition",
        _ => "stop",
    }
}

/// Bytes of text that count as one token where there is no tokenizer.
pub(crate) const BYTES_PER_TOKEN: usize = 4;

/// Tokens of a message beside its text: its role and its borders.
const AROUND_MESSAGE: usize = 4;

/// Counter of the tokens of an answer that was recorded or written without their numbers: by the model's tokenizer once there is one, else
/// an estimate of four bytes of text a token, and four tokens around each message.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    /// The model's tokenizer, where it is known.
    pub(crate) tokenizer: OnceLock<Tokenizer>,
    /// The most tokens of a request of the simulated engine that responses pass through, where there is one.
    pub(crate) most_tokens: OnceLock<u32>,
    /// The tokenizer of made content, and what draws it.
    pub(crate) drawing: OnceLock<(Tokenizer, OnceLock<Result<Guide, GuideError>>)>,
}

impl Counter {
    /// The maker of content under constraints, with its tokenizer; why there is none, or one without texts.
    pub(crate) fn guide(&self) -> Result<(&Tokenizer, &Guide), String> {
        let (tokenizer, guide) = self.drawing.get().ok_or("content is made by `play` only")?;
        if tokenizer.is_ids_only() {
            return Err("no content can be made without a tokenizer".to_owned());
        }
        let guide = guide.get_or_init(|| Guide::new(tokenizer)).as_ref().map_err(ToString::to_string)?;
        Ok((tokenizer, guide))
    }

    /// Returns true if token ids are made.
    pub(crate) fn makes_engine_inputs(&self) -> bool {
        self.most_tokens.get().is_some()
    }

    /// The token ids of an exchange, where they are wanted and it is not too long.
    pub(crate) fn engine_input(&self, exchange: &EngineExchange<'_>) -> Option<EngineInput> {
        EngineInput::of(exchange, self.tokenizer.get(), *self.most_tokens.get()?)
    }

    /// The token counts of a chat or completions answer, as far as they are known, with the missing ones counted.
    pub(crate) fn filled(&self, usage: Option<&Value>, request: &SharedBody, choices: &[Map<String, Value>]) -> Value {
        self.filled_choices(usage, request, || choices.iter().map(text_of).collect())
    }

    fn filled_choices(&self, usage: Option<&Value>, request: &SharedBody, texts: impl Fn() -> Vec<String>) -> Value {
        let known = |name: &str| usage.and_then(|usage| usage.get(name)).and_then(Value::as_u64);
        let prompt = known("prompt_tokens").unwrap_or_else(|| self.prompt(request) as u64);
        let completion = known("completion_tokens");
        let completion = completion.unwrap_or_else(|| texts().iter().map(|text| self.text(text) as u64).sum());
        let mut filled = usage.and_then(Value::as_object).cloned().unwrap_or_default();
        filled.entry("prompt_tokens").or_insert(prompt.into());
        filled.entry("completion_tokens").or_insert(completion.into());
        filled.entry("total_tokens").or_insert((prompt + completion).into());
        filled.into()
    }

    /// An answer with token counts, where it has none.
    pub(crate) fn filled_answer(&self, endpoint: Endpoint, mut answer: Answer, request: &SharedBody) -> Answer {
        if let Some(usage) = self.filled_usage(endpoint, answer.fields(), request) {
            answer.set_usage(usage);
        }
        answer
    }

    /// The token counts of an answer, those that it has or else counted ones.
    pub(crate) fn filled_usage(
        &self,
        endpoint: Endpoint,
        answer: &Map<String, Value>,
        request: &SharedBody,
    ) -> Option<Value> {
        let known = answer.get("usage").filter(|usage| !usage.is_null());
        let choices = || ChoiceView::all(endpoint, answer);
        let texts = || choices().iter().map(ChoiceView::text).collect::<Vec<_>>();
        if endpoint.has_choices() {
            return Some(self.filled_choices(known, request, texts));
        }
        if known.is_some() || !endpoint.generates() {
            return known.cloned();
        }
        let (input, output) = (self.prompt(request), self.text(&texts().concat()));
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

    pub(crate) fn text(&self, text: &str) -> usize {
        let exact = self.tokenizer.get().and_then(|tokenizer| tokenizer.encode(text, SpecialTokens::Skip).ok());
        exact.map_or_else(|| estimate(text), |ids| ids.len())
    }
}

fn estimate(text: &str) -> usize {
    text.len().div_ceil(BYTES_PER_TOKEN)
}

/// All texts of a value one after the other, those under `type`, `role` and ids left out.
pub(crate) fn texts_of(value: &Value) -> String {
    const LEFT_OUT: [&str; 8] = ["type", "role", "id", "tool_call_id", "call_id", "tool_use_id", "status", "signature"];
    if let Some(text) = value.as_str() {
        return text.to_owned();
    }
    let is_left_out = |name: Option<&str>| name.is_some_and(|name| LEFT_OUT.contains(&name));
    children(value).filter(|(name, _)| !is_left_out(*name)).map(|(_, value)| texts_of(value)).collect()
}

#[cfg(test)]
mod tests {
    use crate::player::answer::generated::*;

    #[test]
    fn several_prompts_and_choices_share_the_counts() {
        let parts = |prompts, tokens, choices| {
            let all = shared(7, prompts, tokens, vec!["stop"; choices]);
            all.iter().map(|choice| (choice.prompt_tokens, choice.tokens)).collect::<Vec<_>>()
        };
        assert_eq!(parts(1, 5, 2), [(7, 3), (7, 2)]);
        assert_eq!(parts(2, 4, 2), [(4, 2), (3, 2)]);
        assert_eq!(parts(2, 4, 4), [(4, 1), (4, 1), (3, 1), (3, 1)]);
        assert_eq!(parts(3, 1, 1), [(3, 1)]);
    }

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
