//! What a model said, told as a chat or completions answer: one body, or a stream in the recorded rhythm.

use serde_json::{Map, Value, json};

use super::{fresh::made_up, request::Asked, scored, serve::Timed};
use crate::recording::cassette::{Moment, Record, call_of, wire_message};

/// What every event of an answer says of it.
#[derive(Debug)]
pub(super) struct Head {
    id: Value,
    created: Value,
    model: Value,
    fingerprint: Option<Value>,
    chat: bool,
}

impl Head {
    pub(super) fn of(record: &Record, asked: &Asked) -> Self {
        let chat = asked.path().contains("chat");
        let known = |name: &str| record.side.as_ref().and_then(|side| side.head.get(name)).cloned();
        Self {
            id: known("id").unwrap_or_else(|| made_up(record, asked.path()).into()),
            created: known("created").unwrap_or_else(|| 0.into()),
            model: known("model").or_else(|| asked.body.get("model").cloned()).unwrap_or_default(),
            fingerprint: known("system_fingerprint"),
            chat,
        }
    }

    /// An answer, or one event of it, around its choices.
    fn around(&self, event: &str, choices: &Value) -> Value {
        let object = match (self.chat, event) {
            (true, kind) => format!("chat.completion{kind}"),
            (false, _) => "text_completion".to_owned(),
        };
        let mut answer =
            json!({"id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices});
        if let (Some(fingerprint), Some(fields)) = (&self.fingerprint, answer.as_object_mut()) {
            fields.insert("system_fingerprint".to_owned(), fingerprint.clone());
        }
        answer
    }

    /// The event of the token counts.
    pub(super) fn usage(&self, usage: &Value) -> Value {
        let mut event = self.around(".chunk", &json!([]));
        if let Some(fields) = event.as_object_mut() {
            fields.insert("usage".to_owned(), with_total(usage));
        }
        event
    }
}

/// Token counts with their sum.
fn with_total(usage: &Value) -> Value {
    let mut usage = usage.clone();
    let count = |name: &str| usage.get(name).and_then(Value::as_u64);
    let total = count("prompt_tokens").zip(count("completion_tokens")).map(|(prompt, completion)| prompt + completion);
    if let (Some(total), Some(fields)) = (total, usage.as_object_mut()) {
        fields.entry("total_tokens").or_insert_with(|| total.into());
    }
    usage
}

/// One body.
pub(super) fn body(record: &Record, asked: &Asked, choices: &[Map<String, Value>], usage: &Value) -> String {
    let head = Head::of(record, asked);
    let choice = |(index, choice): (usize, &Map<String, Value>)| {
        let mut told = Map::new();
        told.insert("index".to_owned(), index.into());
        for (name, value) in choice.iter().filter(|(name, _)| name.as_str() != "index") {
            let value = if name == "message" { wire_message(value) } else { value.clone() };
            told.insert(name.clone(), value);
        }
        told.entry("logprobs").or_insert(Value::Null);
        Value::Object(told)
    };
    let mut answer = head.around("", &choices.iter().enumerate().map(choice).collect());
    if let Some(fields) = answer.as_object_mut() {
        fields.insert("usage".to_owned(), with_total(usage));
    }
    answer.to_string()
}

/// A stream: what is said in as many pieces as were recorded, else word by word.
pub(super) fn events(record: &Record, asked: &Asked, choices: &[Map<String, Value>], usage: &Value) -> Vec<Timed> {
    let head = Head::of(record, asked);
    let times: Vec<f64> = record.side.iter().flat_map(|side| &side.events).map(|Moment(ms, ..)| *ms).collect();
    let rhythm = Rhythm { times: &times, end: record.side.as_ref().map_or(0.0, |side| side.ms) };
    let mut events = Vec::new();
    for (index, choice) in choices.iter().enumerate() {
        let deltas =
            if head.chat { chat_deltas(choice, rhythm.pieces()) } else { text_deltas(choice, rhythm.pieces()) };
        let most = deltas.len();
        for (at, delta) in deltas.into_iter().enumerate() {
            let mut told = json!({"index": index});
            if let (Some(told), Value::Object(delta)) = (told.as_object_mut(), delta) {
                told.extend(delta);
                told.entry("finish_reason").or_insert(Value::Null);
            }
            events.push((rhythm.at(at, most), head.around(".chunk", &json!([told]))));
        }
    }
    events.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let mut told: Vec<Timed> = events.iter().map(|(ms, event)| Timed::new(*ms, None, &event.to_string())).collect();
    let end = told.last().map_or(0.0, |last| last.ms).max(rhythm.end);
    if asked.wants_usage() {
        told.push(Timed::new(end, None, &head.usage(usage).to_string()));
    }
    told.push(Timed::new(end, None, "[DONE]"));
    told
}

/// When events came.
struct Rhythm<'a> {
    times: &'a [f64],
    end: f64,
}

impl Rhythm<'_> {
    /// How many pieces were said, where it is known.
    fn pieces(&self) -> Option<usize> {
        // The role, the end of the choice and the end of the stream say nothing.
        (!self.times.is_empty()).then(|| self.times.len().saturating_sub(3).max(1))
    }

    /// The time of one event of so many.
    fn at(&self, index: usize, of: usize) -> f64 {
        let place = index.saturating_mul(self.times.len().saturating_sub(1)).checked_div(of.saturating_sub(1).max(1));
        self.times.get(place.unwrap_or(0)).copied().unwrap_or(0.0)
    }
}

fn chat_deltas(choice: &Map<String, Value>, pieces: Option<usize>) -> Vec<Value> {
    let message = choice.get("message").cloned().unwrap_or_default();
    let logprobs = choice.get("logprobs").filter(|logprobs| scored::has_any(logprobs));
    let opening = json!({"delta": {"role": "assistant", "content": ""}, "logprobs": null});
    let text = |name: &str| message.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let is_plain = ["reasoning", "reasoning_content", "refusal", "tool_calls"]
        .iter()
        .all(|name| message.get(*name).is_none_or(|other| other.is_null() || other == "" || *other == json!([])));
    let cut =
        logprobs.filter(|_| is_plain).and_then(|all| scored::cut(text("content").unwrap_or_default(), all, pieces));
    if let Some((pieces, rest)) = cut {
        let piece = |(text, logprobs)| json!({"delta": {"content": text}, "logprobs": logprobs});
        let end = json!({"delta": {}, "logprobs": rest});
        return [opening].into_iter().chain(pieces.into_iter().map(piece)).chain([with_end(end, choice)]).collect();
    }
    let mut deltas: Vec<Value> = Vec::new();
    for name in ["reasoning", "reasoning_content", "content", "refusal"] {
        let text = text(name).unwrap_or_default();
        deltas.extend(split(text, pieces).into_iter().map(|piece| json!({ name: piece })));
    }
    let calls = message.get("tool_calls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for (index, call) in calls.iter().enumerate() {
        let (id, name, arguments) = call_of(call);
        let start = json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
        deltas.push(json!({"tool_calls": [start]}));
        let part = |piece: String| json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]});
        deltas.extend(split(&arguments, pieces).into_iter().map(part));
    }
    // What the tokens do not spell is spread over all of it, the end too.
    let count = deltas.len() + 1;
    let mut spread = logprobs.map_or_else(|| vec![Value::Null; count], |all| scored::spread(all, count)).into_iter();
    let mut told = vec![opening];
    for delta in deltas {
        told.push(json!({"delta": delta, "logprobs": spread.next()}));
    }
    told.push(with_end(json!({"delta": {}, "logprobs": spread.next()}), choice));
    told
}

fn text_deltas(choice: &Map<String, Value>, pieces: Option<usize>) -> Vec<Value> {
    let text = choice.get("text").and_then(Value::as_str).unwrap_or_default();
    let logprobs = choice.get("logprobs").filter(|logprobs| scored::has_any(logprobs));
    let (parts, rest) = logprobs.and_then(|all| scored::cut(text, all, pieces)).unwrap_or_else(|| {
        let texts = split(text, pieces);
        let count = texts.len() + 1;
        let mut spread = logprobs.map_or_else(|| vec![Value::Null; count], |all| scored::spread(all, count));
        let rest = spread.pop();
        (texts.into_iter().zip(spread).collect(), rest)
    });
    let mut told: Vec<Value> =
        parts.into_iter().map(|(text, logprobs)| json!({"text": text, "logprobs": logprobs})).collect();
    told.push(with_end(json!({"text": "", "logprobs": rest}), choice));
    told
}

fn with_end(mut delta: Value, choice: &Map<String, Value>) -> Value {
    if let Some(fields) = delta.as_object_mut() {
        for name in ["finish_reason", "stop_reason"] {
            fields.extend(choice.get(name).map(|value| (name.to_owned(), value.clone())));
        }
    }
    delta
}

/// A text in so many pieces of about the same length, or word by word. Empty texts have none.
fn split(text: &str, pieces: Option<usize>) -> Vec<String> {
    let Some(pieces) = pieces else { return text.split_inclusive(' ').map(str::to_owned).collect() };
    let length = text.chars().count();
    let size = length.div_ceil(pieces.max(1)).max(1);
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(size).map(|piece| piece.iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_add_up_to_the_text() {
        for text in ["", "a", "one two  three", "naïve 日本語 text"] {
            for pieces in [None, Some(1), Some(3), Some(100)] {
                let split = split(text, pieces);
                assert_eq!(split.concat(), text);
                assert!(split.iter().all(|piece| !piece.is_empty()));
                assert!(pieces.is_none_or(|pieces| split.len() <= pieces));
            }
        }
    }

    #[test]
    fn a_rhythm_is_stretched_over_other_events() {
        let rhythm = Rhythm { times: &[0.0, 10.0, 20.0, 30.0], end: 30.0 };
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(|at| rhythm.at(at, 7)), [0.0, 0.0, 10.0, 10.0, 20.0, 20.0, 30.0]);
        assert_eq!((rhythm.at(0, 1), rhythm.at(1, 2)), (0.0, 30.0));
        assert_eq!(Rhythm { times: &[], end: 0.0 }.at(3, 4), 0.0);
    }
}
