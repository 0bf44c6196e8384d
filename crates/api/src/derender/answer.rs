//! Answers of derender: every key and null in the engine's order, in streams too.

use serde_json::{Map, Value, json};

use super::read::{StreamState, TokenAnswer, TokenAnswerChoice};
use crate::{
    Api,
    answer::{AnswerChoice, put_message},
};
use text::parsers::Delta;

/// Fields that are constant over one answer.
#[derive(Debug, Clone)]
pub struct DerenderHead<'a> {
    /// The answer's id.
    pub id: &'a str,
    /// The model, as it was requested or is served.
    pub model: &'a str,
    /// When it was made, in seconds after 1970.
    pub created: u64,
}

/// A token in log probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// Its text; `None` for one that the vocabulary does not have.
    pub text: Option<String>,
    /// The natural logarithm of its probability.
    pub logprob: f64,
    /// The tokens that could have been.
    pub others: Vec<Self>,
}

impl TokenLogprob {
    fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    fn json(&self) -> Map<String, Value> {
        let bytes = self.text.as_deref().map(str::as_bytes);
        let fields = [("token", self.text().into()), ("logprob", self.logprob.into()), ("bytes", json!(bytes))];
        fields.into_iter().map(|(name, value): (&str, Value)| (name.to_owned(), value)).collect()
    }
}

/// Log probabilities of a chat; `None` where the choice has null for them.
#[must_use]
pub fn chat_tokens(tokens: Option<&[TokenLogprob]>) -> Value {
    let position = |token: &TokenLogprob| {
        let mut fields = token.json();
        fields.insert("top_logprobs".to_owned(), token.others.iter().map(TokenLogprob::json).collect());
        Value::Object(fields)
    };
    json!({"content": tokens.map(|tokens| tokens.iter().map(position).collect::<Vec<_>>())})
}

/// Log probabilities of a completion whose first token is so many characters from the start.
#[must_use]
pub fn completion_tokens(tokens: Option<&[TokenLogprob]>, start: i64) -> Value {
    let (mut offsets, mut logprobs, mut texts, mut top) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut offset = start;
    for token in tokens.unwrap_or_default() {
        offsets.push(offset);
        offset = offset.saturating_add(i64::try_from(token.text().chars().count()).unwrap_or(i64::MAX));
        logprobs.push(token.logprob);
        texts.push(token.text());
        let others: Map<String, Value> =
            token.others.iter().map(|other| (other.text().to_owned(), other.logprob.into())).collect();
        top.push(if others.is_empty() { Value::Null } else { Value::Object(others) });
    }
    json!({"text_offset": offsets, "token_logprobs": logprobs, "tokens": texts, "top_logprobs": top})
}

/// A choice of a whole chat answer: its text, or the parts that were found in it.
#[must_use]
pub fn chat_choice(choice: &TokenAnswerChoice, content: &AnswerChoice, logprobs: &Value, ids: Option<&[i64]>) -> Value {
    let mut message = String::new();
    put_message(&mut message, content);
    let message: Value = serde_json::from_str(&message).unwrap_or_default();
    json!({
        "index": choice.index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish,
        "stop_reason": choice.stop_reason, "token_ids": ids, "routed_experts": null,
    })
}

/// A choice of a whole completion answer.
#[must_use]
pub fn completion_choice(index: usize, choice: &TokenAnswerChoice, text: &str, logprobs: &Value) -> Value {
    json!({
        "index": index, "text": text, "logprobs": logprobs, "finish_reason": choice.finish,
        "stop_reason": choice.stop_reason, "token_ids": null, "prompt_logprobs": null, "prompt_token_ids": null,
        "routed_experts": null,
    })
}

/// A whole chat answer.
#[must_use]
pub fn chat_derendered(
    head: &DerenderHead<'_>,
    answer: &TokenAnswer,
    choices: &[Value],
    (prompt, output): (i64, i64),
) -> Value {
    json!({
        "id": head.id, "object": "chat.completion", "created": head.created, "model": head.model, "choices": choices,
        "service_tier": null, "system_fingerprint": null, "usage": usage(prompt, output),
        "prompt_logprobs": answer.prompt_logprobs, "prompt_token_ids": null, "prompt_text": null,
        "kv_transfer_params": answer.kv_transfer_params, "ec_transfer_params": null, "metrics": answer.metrics,
    })
}

/// A whole completion answer. Transfer parameters of several prompts are given where they agree; their times
/// are not.
#[must_use]
pub fn completion_derendered(
    head: &DerenderHead<'_>,
    answers: &[TokenAnswer],
    choices: &[Value],
    (prompt, output): (i64, i64),
) -> Value {
    let params = answers.first().map(|answer| &answer.kv_transfer_params);
    let params = params.filter(|params| answers.iter().all(|answer| answer.kv_transfer_params == **params));
    let metrics = if let [one] = answers { Some(&one.metrics) } else { None };
    json!({
        "id": head.id, "object": "text_completion", "created": head.created, "model": head.model, "choices": choices,
        "service_tier": null, "system_fingerprint": null, "usage": usage(prompt, output),
        "kv_transfer_params": params, "ec_transfer_params": null, "metrics": metrics,
    })
}

/// A delta with the role, where it is sent now.
#[must_use]
pub fn delta(delta: &Delta, role: Option<&str>) -> Value {
    let mut fields = json!({"role": role, "content": delta.content, "reasoning": delta.reasoning});
    let call = |call: &text::parsers::CallDelta| {
        json!({
            "id": call.id, "type": call.id.as_ref().map(|_| "function"), "index": call.index,
            "function": {"name": call.name, "arguments": call.arguments},
        })
    };
    if let (Value::Object(map), false) = (&mut fields, delta.calls.is_empty()) {
        map.insert("tool_calls".to_owned(), delta.calls.iter().map(call).collect());
    }
    fields
}

/// The choice of a chat's chunk.
#[must_use]
pub fn chat_chunk_choice(
    choice: &TokenAnswerChoice,
    delta: &Value,
    logprobs: &Value,
    (finish, ids): (Option<&str>, Option<&[i64]>),
) -> Value {
    json!({
        "index": choice.index, "delta": delta, "logprobs": logprobs, "finish_reason": finish,
        "stop_reason": choice.stop_reason, "token_ids": ids,
    })
}

/// The choice of a completion's chunk.
#[must_use]
pub fn completion_chunk_choice(choice: &TokenAnswerChoice, text: &str, logprobs: &Value) -> Value {
    json!({
        "index": choice.index, "text": text, "logprobs": logprobs, "finish_reason": choice.finish,
        "stop_reason": choice.stop_reason, "prompt_token_ids": null, "token_ids": null,
    })
}

/// A chunk of an answer with what its client carries on. `prompt` is the number of the prompt's tokens, where it was given.
#[must_use]
pub fn chunk(
    api: Api,
    head: &DerenderHead<'_>,
    chunk: &TokenAnswer,
    choice: Option<Value>,
    prompt: Option<i64>,
    state: &StreamState,
) -> Value {
    let (object, nulls): (&str, &[&str]) = match api {
        Api::Chat => ("chat.completion.chunk", &["system_fingerprint", "prompt_token_ids", "prompt_text"]),
        Api::Completions => ("text_completion", &["system_fingerprint"]),
    };
    let choices: Vec<Value> = choice.into_iter().collect();
    let usage = chunk.usage.map(|(own, output)| usage(prompt.unwrap_or(own), output));
    let mut fields = json!({
        "id": head.id, "object": object, "created": head.created, "model": head.model, "choices": choices, "usage": usage,
    });
    if let Value::Object(fields) = &mut fields {
        fields.extend(nulls.iter().map(|name| ((*name).to_owned(), Value::Null)));
        fields.insert("metrics".to_owned(), json!(chunk.metrics));
    }
    json!({"chunk": fields, "stream_state": state.json()})
}

fn usage(prompt: i64, output: i64) -> Value {
    json!({
        "prompt_tokens": prompt, "total_tokens": prompt.saturating_add(output), "completion_tokens": output,
        "prompt_tokens_details": null, "completion_tokens_details": null,
    })
}
