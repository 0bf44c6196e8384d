//! Token answers from completion answers.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::{OutputMode, TokenRequest};
use crate::api::{Translate, chunk::put};

/// Makes the events of a token stream.
#[derive(Debug)]
pub struct TokenEvents {
    mode: OutputMode,
    repeats_prompt: bool,
    produced: HashMap<u64, usize>,
}

impl TokenEvents {
    /// Makes the events of the answer to this request.
    #[must_use]
    pub fn new(request: &TokenRequest) -> Self {
        Self { mode: request.output_mode(), repeats_prompt: request.repeats_prompt(), produced: HashMap::new() }
    }

    fn event(&mut self, event: &Value) -> Option<Value> {
        let mut fields = Map::new();
        fields.insert("request_id".to_owned(), request_id(&event["id"]));
        let Some(choice) = event["choices"].get(0) else {
            fields.insert("usage".to_owned(), event["usage"].clone());
            fields.insert("output_mode".to_owned(), mode_name(self.mode).into());
            fields.insert("choices".to_owned(), json!([]));
            return Some(Value::Object(fields));
        };
        let produced = self.produced.entry(choice["index"].as_u64().unwrap_or(0)).or_default();
        *produced += choice["token_ids"].as_array().map_or(0, Vec::len);
        let is_last = !choice["finish_reason"].is_null();
        let is_silent = choice["token_ids"].as_array().is_none_or(Vec::is_empty)
            && (self.mode == OutputMode::Tokens || choice["text"] == "");
        if is_silent && !is_last {
            return None;
        }
        fields.insert("usage".to_owned(), usage(&event["usage"]));
        if self.repeats_prompt {
            self.repeats_prompt = false;
            fields.insert("prompt_token_ids".to_owned(), choice["prompt_token_ids"].clone());
        }
        fields.insert("output_mode".to_owned(), mode_name(self.mode).into());
        let end = is_last.then_some(*produced);
        fields.insert("choices".to_owned(), json!([token_choice(choice, self.mode, end)]));
        Some(Value::Object(fields))
    }
}

impl Translate for TokenEvents {
    fn translate(&mut self, event: &[u8], out: &mut VecDeque<Bytes>) {
        let data = event.strip_prefix(b"data: ").and_then(|data| serde_json::from_slice::<Value>(data).ok());
        match data.filter(|data| data.get("choices").is_some()) {
            Some(data) => out.extend(self.event(&data).map(|event| Bytes::from(format!("data: {event}\n\n")))),
            None => out.push_back(Bytes::copy_from_slice(event)),
        }
    }
}

/// The body of a token answer, from a completion's.
///
/// # Errors
/// Where `completion` is no completion.
pub fn token_body(request: &TokenRequest, completion: &str) -> Result<String, serde_json::Error> {
    let answer: &Value = &serde_json::from_str(completion)?;
    let choices = answer["choices"].as_array().map(Vec::as_slice).unwrap_or_default();
    let choice = |choice: &Value| {
        let end = choice["token_ids"].as_array().map_or(0, Vec::len);
        token_choice(choice, request.output_mode(), Some(end))
    };
    let prompt = choices.first().filter(|_| request.repeats_prompt()).map(|choice| &choice["prompt_token_ids"]);
    let body = json!({
        "request_id": request_id(&answer["id"]), "model": answer["model"], "created": answer["created"],
        "usage": usage(&answer["usage"]), "prompt_logprobs": null, "prompt_token_id_logprobs": null,
        "prompt_token_ids": prompt, "mm_placeholders": null, "metrics": null, "kv_transfer_params": null,
        "ec_transfer_params": null, "output_mode": mode_name(request.output_mode()),
        "choices": choices.iter().map(choice).collect::<Vec<_>>(),
    });
    Ok(body.to_string())
}

fn request_id(completion: &Value) -> Value {
    let id = completion.as_str().unwrap_or_default();
    format!("generate-tokens-{}", id.strip_prefix("cmpl-").unwrap_or(id)).into()
}

fn mode_name(mode: OutputMode) -> &'static str {
    match mode {
        OutputMode::Tokens => "tokens",
        OutputMode::Text => "text",
    }
}

/// A choice; `end` is the number of all its tokens, where it is over.
fn token_choice(choice: &Value, mode: OutputMode, end: Option<usize>) -> Value {
    let mut fields = json!({
        "index": choice["index"], "finish_reason": choice["finish_reason"], "stop_reason": choice["stop_reason"],
        "token_ids": choice["token_ids"], "routed_experts": null, "sampling_mask": null,
        "weight_versions": end.map(|end| json!([{"version": "default", "start": 0, "end": end}])),
    });
    if mode == OutputMode::Text {
        put(&mut fields, "text", choice["text"].clone());
    }
    put(&mut fields, "logprobs", Value::Null);
    fields
}

/// Counts with every null, in any place.
fn usage(usage: &Value) -> Value {
    let Value::Object(counts) = usage else { return Value::Null };
    let names =
        ["prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details"];
    let count = |name: &str| (name.to_owned(), counts.get(name).cloned().unwrap_or_default());
    Value::Object(names.into_iter().map(count).collect())
}
