//! Token counts of a response from a record, by which it is paced and counted.

use serde_json::{Map, Value};

use crate::{
    player::{
        answer::{
            engine_input::{EngineExchange, EngineInput},
            token_counts::Counter,
        },
        receive::request::IncomingRequest,
    },
    timing::TokenChunk,
};
use api::{
    Endpoint,
    answers::{Choice, Counts, Observation, added_text},
};
use recording::cassette::{Content, Record, SseEvent, wire_message};

/// The most choices of a stream that makes up no answer.
const MOST_CHOICES: usize = 1000;

/// Token counts of a model's response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// How many of them were found in the prefix cache.
    pub cached_tokens: u32,
    /// The most tokens that a choice could have had; 0 where the request does not say.
    pub max_tokens: u32,
    /// The choices in order.
    pub choices: Vec<GeneratedChoice>,
    /// The same for a simulated engine; `None` without one, and where it is too long for it.
    pub engine_input: Option<EngineInput>,
}

/// One choice of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeneratedChoice {
    /// Its tokens.
    pub tokens: u32,
    /// Why it ended, in the engine's words.
    pub finish: &'static str,
}

/// What a record says of its answer.
struct Answered {
    counts: Counts,
    finishes: Vec<&'static str>,
    /// Of the choices, where they are wanted.
    texts: Vec<String>,
}

/// Returns the counts of an answer; `None` for an error, and for what is not generated.
pub(in crate::player) fn of(record: &Record, asked: &IncomingRequest, counter: &Counter) -> Option<Generated> {
    let endpoint = Endpoint::of_path(asked.path());
    if record.answer.status >= 400 || !endpoint.generates() {
        return None;
    }
    let Answered { counts, finishes, texts } = answered(record, endpoint, asked, counter)?;
    let most = ["max_completion_tokens", "max_tokens", "max_output_tokens"];
    let most = most.iter().find_map(|name| asked.body.get(name)?.as_u64()).map_or(0, short);
    let mut generated = Generated {
        prompt_tokens: counts.prompt.unwrap_or(0),
        cached_tokens: counts.cached.unwrap_or(0),
        max_tokens: most,
        choices: shared(counts.completion.unwrap_or(0), finishes),
        engine_input: None,
    };
    if counter.makes_engine_inputs() {
        generated.engine_input = generated.engine_input(texts, asked, counter);
    }
    Some(generated)
}

fn answered(record: &Record, endpoint: Endpoint, asked: &IncomingRequest, counter: &Counter) -> Option<Answered> {
    let word = |finish: Option<&str>| match finish {
        None if record.aborted.is_some() => "abort",
        finish => word(finish),
    };
    let has_texts = counter.makes_engine_inputs();
    Some(match &record.answer.content {
        Content::Choices { choices, usage } => {
            let finish = |choice: &Map<String, Value>| word(Choice::read(choice).finish_reason);
            let text = |choice: &Map<String, Value>| match choice.get("message").map(wire_message) {
                Some(message) => Choice::read(&Map::from_iter([("message".to_owned(), message)])).text(),
                None => Choice::read(choice).text(),
            };
            Answered {
                counts: Counts::read(&counter.filled(usage.as_ref(), &asked.body, choices)),
                finishes: choices.iter().map(finish).collect(),
                texts: choices.iter().filter(|_| has_texts).map(text).collect(),
            }
        }
        Content::Json(Value::Object(answer)) => {
            let choices = Choice::all(endpoint, answer);
            let usage = counter.filled_usage(endpoint, answer, &asked.body).unwrap_or_default();
            Answered {
                counts: Counts::read(&usage),
                finishes: choices.iter().map(|choice| word(choice.finish_reason)).collect(),
                texts: choices.iter().filter(|_| has_texts).map(Choice::text).collect(),
            }
        }
        Content::Events(events) if has_texts => streamed(events, counter)?,
        Content::Json(_) | Content::Empty | Content::Events(_) | Content::Text(_) | Content::Bytes(_) => return None,
    })
}

/// Counts of a stream that makes up no answer, as one that failed in its middle; `None` where it has no text.
fn streamed(events: &[SseEvent], counter: &Counter) -> Option<Answered> {
    let (mut counts, mut texts) = (Counts::default(), Vec::<String>::new());
    for SseEvent { data, .. } in events {
        if let Some(usage) = data.get("usage").filter(|usage| usage.is_object()) {
            counts = Counts::read(usage);
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
    (completion > 0 && !texts.is_empty()).then_some(Answered { counts, finishes, texts })
}

impl Generated {
    /// Lets an engine compute the tokens of so many events only, and at least one.
    pub(in crate::player) fn break_off(&mut self, chunks: &[TokenChunk], events: usize) {
        let Some(EngineInput { outputs, .. }) = &mut self.engine_input else { return };
        for (choice, output) in outputs.iter_mut().enumerate() {
            let shown = chunks.iter().filter(|chunk| chunk.choice == choice && chunk.event < events);
            let tokens = shown.map(|chunk| usize::try_from(chunk.tokens).unwrap_or(usize::MAX));
            let fewest = usize::from(choice == 0);
            output.truncate(tokens.fold(0, usize::saturating_add).max(fewest));
        }
    }

    /// Token ids of its prompts and choices.
    fn engine_input(&self, texts: Vec<String>, asked: &IncomingRequest, counter: &Counter) -> Option<EngineInput> {
        let body = asked.body.value();
        counter.engine_input(&EngineExchange {
            path: asked.path(),
            bytes: &asked.bytes,
            body: &body,
            session: asked.header("x-session-id"),
            prompt_tokens: self.prompt_tokens,
            outputs: self.choices.iter().map(|choice| choice.tokens).zip(texts).collect(),
        })
    }
}

fn short(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The tokens of an answer as those of its choices, which cannot be separated.
fn shared(tokens: u32, finishes: Vec<&'static str>) -> Vec<GeneratedChoice> {
    let many = short(finishes.len() as u64).max(1);
    let share = |(at, finish): (u32, &'static str)| GeneratedChoice {
        tokens: tokens / many + u32::from(at < tokens % many),
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
