//! Answers with the canary, as the server behind the gateway gives them: the same tokens on every endpoint.
//!
//! A mark of its own stands before the canary, so that one character of it is distinguished from the same character elsewhere.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{
    canary::Canary,
    matrix::{CanaryField, CanaryPosition, SweepCell},
};
use crate::{
    api::{
        CacheUse, Endpoint,
        answers::{Answer, ChatStream, FromChat},
        anthropic::MessageEncoder,
        responses::{ResponseEncoder, ResponseHead, ResponsesRequest},
    },
    net::wire::{EventBuffer, value_text},
    prove::{Extras, ReadEvents, answer_events, request},
    recording::cassette::SseEvent,
};

/// Prefix of the canary, or of the text in its place.
pub(super) const MARK: &str = "» ";

/// Tokens before and after it.
const LEAD: [&str; 5] = ["The", " note", " here", " says", " "];
const TAIL: [&str; 5] = [" and", " that", " is", " all", "."];

/// Text of what has no canary.
const BESIDE: [&str; 3] = ["Nothing", " to", " see."];

const TOOL: &str = "save_note";

const PROMPT_TOKENS: usize = 16;

#[derive(Debug, Clone)]
pub(super) struct WrittenAnswer {
    /// As a stream, its last event included.
    pub events: Vec<SseEvent>,
    /// As a body.
    pub body: Value,
}

/// The request of a cell, with its marker; `is_clean` for the one without the canary.
pub(super) fn requested(cell: &SweepCell, canary: &Canary, model: &str, marker: &str, is_clean: bool) -> Bytes {
    let prompt = format!("Please read the note {marker}.");
    let prompt = match cell.field {
        CanaryField::Echo => format!("{} {prompt}", tokens(cell, canary, is_clean).concat()),
        _ => prompt,
    };
    let tools = if cell.field == CanaryField::Arguments { vec![TOOL.to_owned()] } else { Vec::new() };
    let extras = Extras { tools, has_logprobs: cell.field == CanaryField::Logprobs };
    let mut body = request(cell.endpoint, model, &prompt, &extras);
    if let Some(fields) = body.as_object_mut() {
        if !cell.is_stream {
            fields.shift_remove("stream_options");
            fields.insert("stream".to_owned(), false.into());
        }
        match cell.field {
            CanaryField::Choice => drop(fields.insert("n".to_owned(), 2.into())),
            CanaryField::Echo => drop(fields.insert("echo".to_owned(), true.into())),
            _ => {}
        }
    }
    Bytes::from(body.to_string())
}

/// The answer of a cell on an endpoint; `None` where answers of this endpoint do not have its field.
pub(super) fn written(
    endpoint: Endpoint,
    cell: &SweepCell,
    canary: &Canary,
    model: &str,
    is_clean: bool,
) -> Option<WrittenAnswer> {
    if !cell.field.is_on(endpoint) {
        return None;
    }
    let tokens = tokens(cell, canary, is_clean);
    let mut events = match endpoint {
        Endpoint::Completions => completion(cell.field, &tokens, model),
        _ => chat(cell.field, &tokens, model),
    };
    if matches!(endpoint, Endpoint::Messages | Endpoint::Responses) {
        events = translated(endpoint, &events, model)?;
        if cell.field == CanaryField::Refusal {
            events.iter_mut().for_each(|event| event.data = as_refusal(&event.data));
        }
    }
    let body = Answer::accumulate(endpoint, &answer_events(&events))?.into_body();
    Some(WrittenAnswer { events, body })
}

fn tokens(cell: &SweepCell, canary: &Canary, is_clean: bool) -> Vec<String> {
    let text = if is_clean { canary.clean(cell.form) } else { canary.shown(cell.form).into_owned() };
    let is_json = cell.field == CanaryField::Arguments;
    let mut pieces = cell.split.pieces(&text);
    if is_json {
        pieces.iter_mut().for_each(|piece| *piece = escaped(piece));
    }
    let mut tokens: Vec<String> = Vec::new();
    tokens.extend(is_json.then(|| "{\"note\": \"".to_owned()));
    if cell.position == CanaryPosition::Start {
        // In the first token of the text itself.
        pieces.first_mut().into_iter().for_each(|first| first.insert_str(0, MARK));
    } else {
        tokens.extend(LEAD.map(str::to_owned));
        tokens.push(MARK.to_owned());
    }
    tokens.extend(pieces);
    if cell.position != CanaryPosition::End {
        tokens.extend(TAIL.map(str::to_owned));
    }
    tokens.extend(is_json.then(|| "\"}".to_owned()));
    tokens
}

/// A text as it stands between the quotes of JSON.
pub(super) fn escaped(text: &str) -> String {
    let json = Value::from(text).to_string();
    json.get(1..json.len().saturating_sub(1)).unwrap_or_default().to_owned()
}

fn event(data: Value) -> SseEvent {
    SseEvent { name: None, data }
}

/// The last events of a stream of choices: the token counts and the end.
fn closed(mut events: Vec<SseEvent>, head: &dyn Fn(Value) -> Value, tokens: usize) -> Vec<SseEvent> {
    let mut usage = head(json!([]));
    let counts = json!({
        "prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens, "total_tokens": PROMPT_TOKENS + tokens,
    });
    if let Some(fields) = usage.as_object_mut() {
        fields.insert("usage".to_owned(), counts);
    }
    events.extend([event(usage), event("[DONE]".into())]);
    events
}

fn chat(field: CanaryField, tokens: &[String], model: &str) -> Vec<SseEvent> {
    let head = |choices: Value| json!({"id": "chatcmpl-sweep", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": model, "choices": choices});
    let choice = |index: usize, delta: Value, logprobs: Value, finish: Value| {
        event(head(json!([{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}])))
    };
    let add = |index: usize, name: &str, token: &str| {
        choice(index, Value::Object(Map::from_iter([(name.to_owned(), token.into())])), Value::Null, Value::Null)
    };
    let role = |index| choice(index, json!({"role": "assistant", "content": ""}), Value::Null, Value::Null);
    let mut events = vec![role(0)];
    match field {
        CanaryField::Arguments => {
            let call = json!({"index": 0, "id": "call_sweep_1", "type": "function", "function": {"name": TOOL, "arguments": ""}});
            events.push(choice(0, json!({"tool_calls": [call]}), Value::Null, Value::Null));
            events.extend(tokens.iter().map(|token| {
                let call = json!({"index": 0, "function": {"arguments": token}});
                choice(0, json!({"tool_calls": [call]}), Value::Null, Value::Null)
            }));
        }
        CanaryField::Logprobs => events.extend(tokens.iter().map(|token| {
            let bytes = token.as_bytes();
            let top = json!({"token": token, "logprob": -0.25, "bytes": bytes});
            let entry = json!({"token": token, "logprob": -0.25, "bytes": bytes, "top_logprobs": [top]});
            choice(0, json!({"content": token}), json!({"content": [entry]}), Value::Null)
        })),
        CanaryField::Choice => {
            events.push(role(1));
            events.extend(BESIDE.map(|token| add(0, "content", token)));
            events.extend(tokens.iter().map(|token| add(1, "content", token)));
            events.push(choice(1, json!({}), Value::Null, "stop".into()));
        }
        CanaryField::Reasoning => {
            events.extend(tokens.iter().map(|token| add(0, "reasoning", token)));
            events.extend(BESIDE.map(|token| add(0, "content", token)));
        }
        // On other endpoints it is made a refusal later.
        CanaryField::Refusal => events.extend(tokens.iter().map(|token| add(0, "refusal", token))),
        CanaryField::Content | CanaryField::Echo => {
            events.extend(tokens.iter().map(|token| add(0, "content", token)));
        }
    }
    let finish = if field == CanaryField::Arguments { "tool_calls" } else { "stop" };
    events.push(choice(0, json!({}), Value::Null, finish.into()));
    closed(events, &head, tokens.len())
}

fn completion(field: CanaryField, tokens: &[String], model: &str) -> Vec<SseEvent> {
    let head = |choices: Value| json!({"id": "cmpl-sweep", "object": "text_completion", "created": 1_700_000_000, "model": model, "choices": choices});
    let choice = |index: usize, text: &str, logprobs: Value, finish: Value| {
        event(head(json!([{"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}])))
    };
    let mut events = Vec::new();
    let (index, mut offset) = (usize::from(field == CanaryField::Choice), 0);
    for token in tokens {
        let logprobs = if field == CanaryField::Logprobs {
            let top = Value::Object(Map::from_iter([(token.clone(), json!(-0.25))]));
            json!({"tokens": [token], "token_logprobs": [-0.25], "top_logprobs": [top], "text_offset": [offset]})
        } else {
            Value::Null
        };
        offset += token.chars().count();
        events.push(choice(index, token, logprobs, Value::Null));
    }
    if field == CanaryField::Choice {
        events.extend(BESIDE.map(|token| choice(0, token, Value::Null, Value::Null)));
        events.push(choice(1, "", Value::Null, "stop".into()));
    }
    if field == CanaryField::Echo {
        events.extend(BESIDE.map(|token| choice(0, token, Value::Null, Value::Null)));
    }
    events.push(choice(0, "", Value::Null, "stop".into()));
    closed(events, &head, tokens.len())
}

/// The events of a chat in the form of another endpoint. What is a refusal there passes as content.
fn translated(endpoint: Endpoint, chat: &[SseEvent], model: &str) -> Option<Vec<SseEvent>> {
    let mut out = EventBuffer::default();
    let to: Box<dyn FromChat> = if endpoint == Endpoint::Messages {
        Box::new(MessageEncoder::default())
    } else {
        let request = ResponsesRequest::parse(json!({"model": model, "input": "note"}).to_string().as_bytes()).ok()?;
        let head = ResponseHead {
            id: "resp_sweep".to_owned(),
            created_at: 1_700_000_000,
            model: model.to_owned(),
            temperature: 1.0,
            top_p: 1.0,
            max_output_tokens: request.most_tokens(),
            cache: CacheUse::default(),
        };
        let mut encoder = ResponseEncoder::new(Arc::new(request), head);
        encoder.open(&mut out);
        Box::new(encoder)
    };
    let mut stream = ChatStream::new(to, u32::try_from(PROMPT_TOKENS).ok());
    for SseEvent { data, .. } in chat {
        let mut data = data.clone();
        if let Some(delta) = data.pointer_mut("/choices/0/delta").and_then(Value::as_object_mut)
            && let Some(refusal) = delta.shift_remove("refusal")
        {
            delta.insert("content".to_owned(), refusal);
        }
        stream.read(&value_text(&data), &mut out);
    }
    Some(ReadEvents::of(&out.into_bytes()).events)
}

/// An event of a response whose text is a refusal.
fn as_refusal(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kind = fields.get("type").and_then(Value::as_str).unwrap_or_default();
            let is_text = kind.contains("output_text");
            let renamed =
                fields.iter().filter(|(name, _)| !is_text || !["annotations", "logprobs"].contains(&name.as_str()));
            let renamed = renamed.map(|(name, value)| match name.as_str() {
                "type" => (name.clone(), value.as_str().unwrap_or_default().replace("output_text", "refusal").into()),
                "text" if is_text => ("refusal".to_owned(), value.clone()),
                _ => (name.clone(), as_refusal(value)),
            });
            Value::Object(renamed.collect())
        }
        Value::Array(items) => items.iter().map(as_refusal).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        prove::ENDPOINTS,
        sweep::{CanaryForm, TokenSplit, matrix},
    };

    #[test]
    fn every_answer_has_the_canary_in_its_field_and_no_clean_one_has_it() {
        let canary = Canary::new("sk-\"é\"-4711".to_owned(), vec![]).unwrap();
        let mut seen = 0;
        for cell in matrix(&canary, &ENDPOINTS, &[vec!["stream".to_owned(), "plain".to_owned()]], 0) {
            let answer = written(cell.endpoint, &cell, &canary, "m", false).unwrap();
            let (body, wanted) = (answer.body.to_string(), escaped(canary.text()));
            let forms = [wanted.clone(), escaped(&wanted)];
            assert!(forms.iter().any(|form| body.contains(form)), "{cell}: {body}");
            let clean = written(cell.endpoint, &cell, &canary, "m", true).unwrap();
            assert!(!clean.body.to_string().contains("sk-") && clean.events.len() == answer.events.len(), "{cell}");
            seen += 1;
        }
        assert_eq!(seen, 17 * 3 * 16);
    }

    #[test]
    fn tokens_are_events_on_every_endpoint() {
        let canary = Canary::new("abcdef".to_owned(), vec![]).unwrap();
        for endpoint in ENDPOINTS {
            let cell = SweepCell {
                endpoint,
                is_stream: true,
                field: CanaryField::Content,
                form: CanaryForm::Plain,
                position: CanaryPosition::Middle,
                split: TokenSplit::At(2),
            };
            let answer = written(endpoint, &cell, &canary, "m", false).unwrap();
            let events: Vec<String> = answer.events.iter().map(|event| event.data.to_string()).collect();
            let place = |token: &str| events.iter().position(|event| event.contains(token));
            assert_eq!(place("\"cdef\"").unwrap(), place("\"ab\"").unwrap() + 1, "{events:#?}");
        }
    }

    #[test]
    fn a_refusal_of_a_response_is_none_of_its_texts() {
        let canary = Canary::new("abcdef".to_owned(), vec![]).unwrap();
        let cell = SweepCell {
            endpoint: Endpoint::Responses,
            is_stream: true,
            field: CanaryField::Refusal,
            form: CanaryForm::Plain,
            position: CanaryPosition::Start,
            split: TokenSplit::Whole,
        };
        let answer = written(cell.endpoint, &cell, &canary, "m", false).unwrap();
        let text = answer.body.to_string();
        assert!(text.contains("\"refusal\":\"» abcdef and") && !text.contains("output_text"), "{text}");
        assert!(answer.events.iter().any(|event| event.data["type"] == "response.refusal.delta"));
    }
}
