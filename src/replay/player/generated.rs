//! Token counts of a response from a record, by which it is paced and counted.

use serde_json::{Map, Value};

use super::{request::IncomingRequest, token_counts::Counter};
use crate::{
    api::{
        Endpoint,
        answers::{Choice, Counts},
    },
    recording::cassette::{Content, Record},
};

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
}

/// One choice of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeneratedChoice {
    /// Its tokens.
    pub tokens: u32,
    /// Why it ended, in the engine's words.
    pub finish: &'static str,
}

/// Returns the counts of an answer; `None` for an error, and for what is not generated.
pub(super) fn of(record: &Record, asked: &IncomingRequest, counter: &Counter) -> Option<Generated> {
    let endpoint = Endpoint::of_path(asked.path());
    if record.answer.status >= 400 || !endpoint.generates() {
        return None;
    }
    let word = |finish: Option<&str>| match finish {
        None if record.aborted.is_some() => "abort",
        finish => word(finish),
    };
    let (usage, finishes): (_, Vec<_>) = match &record.answer.content {
        Content::Choices { choices, usage } => {
            let finish = |choice: &Map<String, Value>| word(Choice::read(choice).finish_reason);
            (counter.filled(usage.as_ref(), &asked.body, choices), choices.iter().map(finish).collect())
        }
        Content::Json(Value::Object(answer)) => {
            let finishes = Choice::all(endpoint, answer).iter().map(|choice| word(choice.finish_reason)).collect();
            (counter.filled_usage(endpoint, answer, &asked.body).unwrap_or_default(), finishes)
        }
        Content::Json(_) | Content::Empty | Content::Events(_) | Content::Text(_) | Content::Bytes(_) => return None,
    };
    let counts = Counts::read(&usage);
    let most = ["max_completion_tokens", "max_tokens", "max_output_tokens"];
    let most = most.iter().find_map(|name| asked.body.get(name)?.as_u64()).map_or(0, short);
    Some(Generated {
        prompt_tokens: counts.prompt.unwrap_or(0),
        cached_tokens: counts.cached.unwrap_or(0),
        max_tokens: most,
        choices: shared(counts.completion.unwrap_or(0), finishes),
    })
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
