//! Parts of a request to derender that fit the schema, read.

use serde_json::{Map, Value, json};

use crate::values;

/// One token answer, or one chunk of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenAnswer {
    /// Its id, where it has one.
    pub id: Option<String>,
    /// Its choices.
    pub choices: Vec<TokenAnswerChoice>,
    /// The prompt's ids, where it has them.
    pub prompt_ids: Option<Vec<i64>>,
    /// Tokens of the prompt and of the output, where it counts them.
    pub usage: Option<(i64, i64)>,
    pub(super) prompt_logprobs: Value,
    pub(super) kv_transfer_params: Value,
    pub(super) metrics: Value,
}

/// One choice of it.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenAnswerChoice {
    /// Its index.
    pub index: i64,
    /// Why it ended, where it did.
    pub finish: Option<String>,
    /// Its tokens; `None` where it has none.
    pub ids: Option<Vec<i64>>,
    /// The log probabilities of its tokens: `None` where it has none, `Some(None)` where they are null.
    pub logprobs: Option<Option<Vec<ScoredToken>>>,
    pub(super) stop_reason: Value,
}

/// A token with its log probability and the tokens that could have been.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredToken {
    /// Its id.
    pub id: i64,
    /// The natural logarithm of its probability.
    pub logprob: f64,
    /// The others, in their order.
    pub others: Vec<(i64, f64)>,
}

/// State that the client of a stream carries from chunk to chunk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamState {
    /// The tokens whose text is not settled, as the vocabulary spells them.
    pub tokens: Vec<String>,
    /// Place in them where the text begins that is decoded.
    pub prefix: i64,
    /// Place in them where the text ends that was sent.
    pub read: i64,
    /// True where the role was sent.
    pub role_sent: bool,
    /// The last tokens.
    pub context: Vec<i64>,
    /// Characters sent so far.
    pub text_offset: i64,
    /// All tokens so far, where they are parsed.
    pub output: Vec<i64>,
    /// Number of them that came with each chunk.
    pub chunks: Vec<i64>,
    /// True where a tool call was sent.
    pub tools_streamed: bool,
    /// The ids of the calls so far.
    pub call_ids: Vec<String>,
}

impl TokenAnswer {
    /// `finish` is what a choice without a finish reason ended with.
    pub(super) fn read(value: &Value, finish: Option<&str>) -> Self {
        let usage = value.get("usage").filter(|usage| !usage.is_null());
        let count = |usage: &Value, name: &str| usage.get(name).map_or(0, int);
        Self {
            id: value.get("request_id").and_then(Value::as_str).map(str::to_owned),
            choices: items(value.get("choices")).iter().map(|choice| TokenAnswerChoice::read(choice, finish)).collect(),
            prompt_ids: value.get("prompt_token_ids").and_then(Value::as_array).map(|ids| ints(ids)),
            usage: usage.map(|usage| (count(usage, "prompt_tokens"), count(usage, "completion_tokens"))),
            prompt_logprobs: value.get("prompt_logprobs").map(prompt_logprobs).unwrap_or_default(),
            kv_transfer_params: value.get("kv_transfer_params").cloned().unwrap_or_default(),
            metrics: value.get("metrics").map(metrics).unwrap_or_default(),
        }
    }

    /// Positions of the prompt that log probabilities are given for.
    pub(super) fn prompt_positions(&self) -> usize {
        self.prompt_logprobs.as_array().map_or(0, Vec::len)
    }
}

impl TokenAnswerChoice {
    fn read(value: &Value, finish: Option<&str>) -> Self {
        let content = |logprobs: &Value| {
            let content = logprobs.get("content").and_then(Value::as_array);
            content.map(|content| content.iter().map(ScoredToken::read).collect())
        };
        Self {
            index: value.get("index").map_or(0, int),
            finish: match value.get("finish_reason") {
                None => finish.map(str::to_owned),
                Some(reason) => reason.as_str().map(str::to_owned),
            },
            stop_reason: match value.get("stop_reason") {
                Some(Value::String(text)) => text.as_str().into(),
                None | Some(Value::Null) => Value::Null,
                Some(other) => int(other).into(),
            },
            ids: value.get("token_ids").and_then(Value::as_array).map(|ids| ints(ids)),
            logprobs: value.get("logprobs").filter(|logprobs| !logprobs.is_null()).map(content),
        }
    }
}

impl ScoredToken {
    fn read(value: &Value) -> Self {
        let of = |value: &Value| (value.get("token_id").map_or(0, int), value.get("logprob").map_or(0.0, float));
        let (id, logprob) = of(value);
        Self { id, logprob, others: items(value.get("top_logprobs")).iter().map(of).collect() }
    }
}

impl StreamState {
    pub(super) fn read(value: &Value) -> Self {
        let texts =
            |name: &str| items(value.get(name)).iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>();
        let number = |name: &str| value.get(name).map_or(0, int);
        let numbers = |name: &str| ints(items(value.get(name)));
        let flag = |name: &str| value.get(name).is_some_and(values::is_set);
        Self {
            tokens: texts("prev_tokens"),
            prefix: number("prefix_offset"),
            read: number("read_offset"),
            role_sent: flag("role_sent"),
            context: numbers("logprob_context_token_ids"),
            text_offset: number("logprob_text_offset"),
            output: numbers("output_token_ids"),
            chunks: numbers("output_chunk_lens"),
            tools_streamed: flag("tools_streamed"),
            call_ids: texts("last_tool_call_ids"),
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "prev_tokens": self.tokens, "prefix_offset": self.prefix, "read_offset": self.read,
            "role_sent": self.role_sent, "logprob_context_token_ids": self.context,
            "logprob_text_offset": self.text_offset, "output_token_ids": self.output,
            "output_chunk_lens": self.chunks, "tools_streamed": self.tools_streamed,
            "last_tool_call_ids": self.call_ids,
        })
    }
}

pub(super) fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Whole numbers, cut to 64 bits.
pub(super) fn ints(items: &[Value]) -> Vec<i64> {
    items.iter().map(int).collect()
}

pub(super) fn int(value: &Value) -> i64 {
    values::clamped(values::int(value).unwrap_or(0))
}

fn float(value: &Value) -> f64 {
    values::float(value).unwrap_or(0.0)
}

/// By token id, with every key.
fn prompt_logprobs(value: &Value) -> Value {
    let entry = |entry: &Value| {
        let of = |name: &str| entry.get(name).cloned().unwrap_or_default();
        let rank = entry.get("rank").filter(|rank| !rank.is_null()).map(int);
        json!({"logprob": entry.get("logprob").map(float), "rank": rank, "decoded_token": of("decoded_token")})
    };
    let position = |position: &Value| match position {
        Value::Object(map) => {
            let id = |id: &String| int(&Value::from(id.as_str())).to_string();
            Value::Object(map.iter().map(|(key, value)| (id(key), entry(value))).collect())
        }
        _ => Value::Null,
    };
    value.as_array().map_or(Value::Null, |positions| positions.iter().map(position).collect())
}

/// Times with every key, and then what else there is.
fn metrics(value: &Value) -> Value {
    const TIMES: [&str; 5] =
        ["time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second"];
    let Value::Object(given) = value else { return Value::Null };
    let time = |name: &str| given.get(name).filter(|time| !time.is_null()).map(float);
    let mut metrics: Map<String, Value> = TIMES.iter().map(|name| ((*name).to_owned(), time(name).into())).collect();
    metrics.insert("speculative_decoding".to_owned(), Value::Null);
    metrics
        .extend(given.iter().filter(|(name, _)| !TIMES.contains(&name.as_str())).map(|(k, v)| (k.clone(), v.clone())));
    Value::Object(metrics)
}
