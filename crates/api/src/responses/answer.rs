//! The response object: what it repeats of its request, and its output items.

use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use super::{ResponsesRequest, item_id};
use crate::{
    CacheUse,
    answers::{ChoicePart, ChoiceView, RawText, TokenCounts, WholeChat, words::TextKind},
};

/// Fields of a response that are not from its request.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponseHead {
    /// The whole id.
    pub id: String,
    /// Seconds since 1970.
    pub created_at: u64,
    /// The model, as it is served.
    pub model: String,
    /// The temperature where the request names none.
    pub temperature: f64,
    /// The nucleus where the request names none.
    pub top_p: f64,
    /// The most output tokens that there could be.
    pub max_output_tokens: u32,
    /// Use of the prefix cache.
    pub cache: CacheUse,
}

/// The lowest temperature above zero that the engine samples with.
const LEAST_TEMPERATURE: f64 = 0.01;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// Waiting for its turn in the background.
    Queued,
    InProgress,
    /// Over.
    Completed,
    /// Over, at the most tokens that it may have.
    Incomplete,
    /// Over, because a filter took the rest.
    Filtered,
}

impl Status {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete | Self::Filtered => "incomplete",
        }
    }

    /// Returns the status of a response whose chat ended so.
    pub(super) fn of_finish(finish: Option<&str>) -> Self {
        match finish {
            Some("length") => Self::Incomplete,
            Some("content_filter") => Self::Filtered,
            _ => Self::Completed,
        }
    }
}

/// Tokens and times of a response.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Spent {
    counts: TokenCounts,
    /// Times, where the chat has them.
    metrics: Option<Value>,
    /// Prompt and answer as the model has them, where they are sent.
    pub(super) raw: Option<[RawMessage; 2]>,
}

/// A prompt or an answer as the model has it.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct RawMessage {
    text: String,
    ids: Vec<u32>,
}

impl RawMessage {
    pub(super) fn add(&mut self, more: RawText<'_>) {
        self.text.push_str(more.text);
        self.ids.extend(more.ids.unwrap_or_default());
    }

    fn json(&self) -> Value {
        if self.text.is_empty() && self.ids.is_empty() {
            return Value::Null;
        }
        json!([{"message": self.text, "tokens": self.ids, "type": "raw_message_tokens"}])
    }
}

impl Spent {
    /// Reads what a chat took.
    pub(super) fn of(counts: TokenCounts, metrics: Option<&Value>) -> Self {
        Self { counts, metrics: metrics.map(|metrics| filled(Some(metrics), METRICS)), raw: None }
    }
}

const METRICS: &[&str] = &[
    "time_to_first_token_ms",
    "generation_time_ms",
    "queue_time_ms",
    "mean_itl_ms",
    "tokens_per_second",
    "speculative_decoding",
];

/// A response without an output yet.
pub(super) fn pending(request: &ResponsesRequest, head: &ResponseHead) -> Value {
    response(request, head, Status::InProgress, &[], None)
}

/// The body of a response that is about to be made in the background.
#[must_use]
pub fn queued_body(request: &ResponsesRequest, head: &ResponseHead) -> String {
    response(request, head, Status::Queued, &[], None).to_string()
}

pub(super) fn response_body(request: &ResponsesRequest, head: &ResponseHead, chat: &WholeChat<'_>) -> String {
    let scored = ChatLogprobs::read(request, chat.logprobs.as_deref());
    let scored = scored.map_or(Value::Null, |logprobs| logprobs.of_message(true).into());
    let output = items(&head.id, &chat.choice, &scored);
    let mut spent = Spent::of(chat.counts, chat.metrics.as_ref());
    if request.sends_raw() {
        let mut raw = [RawMessage::default(), RawMessage::default()];
        raw.iter_mut().zip([chat.prompt, chat.raw]).for_each(|(message, text)| message.add(text));
        spent.raw = Some(raw);
    }
    response(request, head, Status::of_finish(chat.choice.finish_reason), &output, Some(&spent)).to_string()
}

/// Without a parser there is one message, whatever is in it.
fn items(id: &str, choice: &ChoiceView<'_>, scored: &Value) -> Vec<Value> {
    let mut out = Vec::new();
    for part in &choice.parts {
        let place = out.len();
        match part {
            ChoicePart::Words(TextKind::Reasoning, thought) => {
                out.push(reasoning(&item_id("rs", id, place), thought, None))
            }
            ChoicePart::Words(TextKind::Text, text) => {
                out.push(message(&item_id("msg", id, place), Some(text_part(text, scored)), Status::Completed))
            }
            ChoicePart::Words(TextKind::Refusal, text) => {
                out.push(message(&item_id("msg", id, place), Some(refusal_part(text)), Status::Completed))
            }
            ChoicePart::Words(TextKind::Arguments, _) => {}
            ChoicePart::Call(call) => {
                let id = item_id("fc", id, place);
                out.push(function_call(&id, (call.id, call.name), &call.arguments, Status::Completed));
            }
        }
    }
    if out.is_empty() && !choice.is_parsed {
        out.push(message(&item_id("msg", id, 0), None, Status::Completed));
    }
    out
}

/// Log probabilities of a chat.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ChatLogprobs<'a> {
    #[serde(borrow)]
    content: Vec<MessageToken<'a>>,
}

#[derive(Debug, Deserialize)]
struct MessageToken<'a> {
    token: String,
    bytes: Value,
    /// The number as it is written: a reader of JSON may miss its last digit.
    #[serde(borrow)]
    logprob: &'a RawValue,
    #[serde(borrow)]
    top_logprobs: Option<Vec<Self>>,
}

impl<'a> ChatLogprobs<'a> {
    /// Reads those of a request that wants them.
    pub(super) fn read(request: &ResponsesRequest, json: Option<&'a str>) -> Option<Self> {
        json.filter(|_| request.includes_logprobs()).and_then(|json| serde_json::from_str(json).ok())
    }

    /// Those of a message; events leave the bytes out.
    pub(super) fn of_message(&self, has_bytes: bool) -> Vec<Value> {
        self.content.iter().map(|scored| scored.json(has_bytes)).collect()
    }
}

impl MessageToken<'_> {
    fn json(&self, has_bytes: bool) -> Value {
        let number: f64 = self.logprob.get().parse().unwrap_or_default();
        let mut token = json!({"token": self.token, "bytes": self.bytes, "logprob": number});
        if let (Some(top), Some(token)) = (&self.top_logprobs, token.as_object_mut()) {
            token.insert("top_logprobs".to_owned(), top.iter().map(|scored| scored.json(has_bytes)).collect());
        }
        if let (Some(token), false) = (token.as_object_mut(), has_bytes) {
            token.shift_remove("bytes");
        }
        token
    }
}

pub(super) fn message(id: &str, part: Option<Value>, status: Status) -> Value {
    let content = Vec::from_iter(part);
    json!({"id": id, "content": content, "role": "assistant", "status": status.name(), "type": "message", "phase": null})
}

pub(super) fn text_part(text: &str, logprobs: &Value) -> Value {
    json!({"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs})
}

/// The part of a refusal, which the engine never writes: a chat that was recorded or written by hand may have one.
pub(super) fn refusal_part(text: &str) -> Value {
    json!({"refusal": text, "type": "refusal"})
}

pub(super) fn reasoning(id: &str, thought: &str, status: Option<Status>) -> Value {
    json!({
        "id": id, "summary": [], "type": "reasoning", "content": [{"text": thought, "type": "reasoning_text"}],
        "encrypted_content": null, "status": status.map(Status::name),
    })
}

pub(super) fn function_call(id: &str, (call_id, name): (&str, &str), arguments: &str, status: Status) -> Value {
    json!({
        "arguments": arguments, "call_id": call_id, "name": name, "type": "function_call", "id": id, "async": null,
        "caller": null, "namespace": null, "status": status.name(),
    })
}

pub(super) fn response(
    request: &ResponsesRequest,
    head: &ResponseHead,
    status: Status,
    output: &[Value],
    spent: Option<&Spent>,
) -> Value {
    let given = |name: &str| request.given(name).cloned().unwrap_or_default();
    let or = |name: &str, absent: Value| request.given(name).cloned().unwrap_or(absent);
    let incomplete = match status {
        Status::Incomplete => json!({"reason": "max_output_tokens"}),
        Status::Filtered => json!({"reason": "content_filter"}),
        Status::Queued | Status::InProgress | Status::Completed => Value::Null,
    };
    let (temperature, top_p) = sampled(request, head);
    let raw = |at: usize| spent.and_then(|spent| Some(spent.raw.as_ref()?.get(at)?.json())).unwrap_or_default();
    let mut response = json!({
        "id": head.id,
        "created_at": head.created_at,
        "incomplete_details": incomplete,
        "instructions": given("instructions"),
        "metadata": given("metadata"),
        "model": head.model,
        "object": "response",
        "output": output,
        "parallel_tool_calls": request.is_set("parallel_tool_calls", true) || given("parallel_tool_calls").is_null(),
        "temperature": temperature,
        "tool_choice": tool_choice(&or("tool_choice", "auto".into())),
        "tools": request.tools().iter().map(tool).collect::<Vec<_>>(),
        "top_p": top_p,
        "background": request.is_set("background", false),
        "max_output_tokens": head.max_output_tokens,
        "max_tool_calls": given("max_tool_calls"),
        "previous_response_id": given("previous_response_id"),
        "prompt": null,
        "reasoning": filled(request.given("reasoning"), &["context", "effort", "generate_summary", "mode", "summary"]),
        "service_tier": or("service_tier", "auto".into()),
        "status": status.name(),
        "text": text_config(request.given("text")),
        "top_logprobs": if request.includes_logprobs() { or("top_logprobs", 0.into()) } else { Value::Null },
        "truncation": or("truncation", "disabled".into()),
        "usage": spent.map(|spent| usage(spent.counts, head.cache)),
        "user": given("user"),
        "metrics": spent.and_then(|spent| spent.metrics.as_ref()),
        "presence_penalty": request.number("presence_penalty", 0.0),
        "frequency_penalty": request.number("frequency_penalty", 0.0),
        "kv_transfer_params": null,
        "ec_transfer_params": null,
        "input_messages": raw(0),
        "output_messages": raw(1),
    });
    if let Value::Object(fields) = &mut response {
        fields.retain(|name, value| name != "metrics" || !value.is_null());
    }
    response
}

/// Temperature and nucleus as the engine samples: without a temperature the nucleus is all there is, and a very low
/// temperature is raised.
fn sampled(request: &ResponsesRequest, head: &ResponseHead) -> (f64, f64) {
    let (temperature, top_p) = (request.number("temperature", head.temperature), request.number("top_p", head.top_p));
    if temperature > 0.0 { (temperature.max(LEAST_TEMPERATURE), top_p) } else { (temperature, 1.0) }
}

/// `known` is the use of the prefix cache where the chat does not have it.
fn usage(counts: TokenCounts, known: CacheUse) -> Value {
    let [input, output] = [counts.prompt, counts.completion].map(Option::unwrap_or_default);
    let found = counts.cached.map(|found| CacheUse { found, created: counts.created.unwrap_or(0) });
    let cache = found.unwrap_or(known);
    json!({
        "input_tokens": input,
        "input_tokens_details": {
            "cached_tokens": cache.found, "cache_write_tokens": cache.created, "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": output,
        "output_tokens_details": {
            "reasoning_tokens": counts.reasoning.unwrap_or(0), "tool_output_tokens": 0, "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": input.saturating_add(output),
    })
}

/// An object with exactly these keys, null where it had none.
fn filled(object: Option<&Value>, keys: &[&str]) -> Value {
    let Some(object) = object else { return Value::Null };
    let field = |key: &&str| ((*key).to_owned(), object.get(*key).cloned().unwrap_or_default());
    Value::Object(keys.iter().map(field).collect::<Map<String, Value>>())
}

fn text_config(text: Option<&Value>) -> Value {
    let mut config = filled(text, &["format", "verbosity"]);
    if let Some(format) = config.get_mut("format") {
        let keys: &[&str] = match format["type"].as_str() {
            Some("json_schema") => &["name", "schema", "type", "description", "strict"],
            Some(_) => &["type"],
            None => return config,
        };
        *format = filled(Some(format), keys);
    }
    config
}

fn tool_choice(choice: &Value) -> Value {
    match choice["type"].as_str() {
        Some("function" | "custom") => filled(Some(choice), &["name", "type"]),
        _ => choice.clone(),
    }
}

fn tool(tool: &Value) -> Value {
    let keys: &[&str] = match tool["type"].as_str() {
        Some("function") => &[
            "name",
            "parameters",
            "strict",
            "type",
            "allowed_callers",
            "async",
            "defer_loading",
            "description",
            "output_schema",
        ],
        Some("custom") => &["name", "type", "allowed_callers", "async", "defer_loading", "description", "format"],
        Some("web_search") => &["type", "external_web_access", "filters", "search_context_size", "user_location"],
        Some("web_search_preview") => &["type", "search_content_types", "search_context_size", "user_location"],
        _ => return tool.clone(),
    };
    filled(Some(tool), keys)
}
