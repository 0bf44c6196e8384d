//! Full answers, with every key and null in the engine's order.

use super::{
    escape::escaped,
    stream::{Head, StopReason, reason_json},
    usage::Usage,
};

/// One choice of a full answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerChoice {
    /// The whole text.
    pub text: String,
    /// A chat's text taken apart, where the server parses it.
    pub message: Option<Message>,
    /// Why it ended.
    pub finish: String,
    /// What ended it, where there is more to say.
    pub stop_reason: StopReason,
    /// The ids, where the client asked for them.
    pub ids: Option<Vec<u32>>,
    /// The prompt's ids, where the client asked for them.
    pub prompt_ids: Option<Vec<u32>>,
    /// Log probabilities as JSON, where the client asked for them.
    pub logprobs: Option<String>,
    /// Those of the prompt as JSON, where the client asked for them.
    pub prompt_logprobs: Option<String>,
}

/// The parts of a chat answer's text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// What is said.
    pub content: Option<String>,
    /// What is thought.
    pub reasoning: Option<String>,
    /// The functions that are called.
    pub calls: Vec<MessageCall>,
}

/// A function that is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageCall {
    /// The call's id.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// Its arguments, JSON as text.
    pub arguments: String,
}

/// What a body takes beside its head and its texts.
const REST: usize = 768;

/// A chat answer. `prompt_text` where the client asked for it.
#[must_use]
pub fn chat_body(head: &Head, choices: &[AnswerChoice], usage: &Usage, prompt_text: Option<&str>) -> String {
    let mut out = opened(head, choices);
    for (index, choice) in choices.iter().enumerate() {
        let message = message_json(choice);
        put_all(&mut out, &[comma(index), "{\"index\":", &index.to_string(), ",\"message\":", &message]);
        put_choice(&mut out, choice);
        out.push_str(",\"routed_experts\":null}");
    }
    put_tail(&mut out, head, usage);
    let prompt_ids = choices.first().and_then(|choice| choice.prompt_ids.as_deref());
    put_all(
        &mut out,
        &[
            ",\"prompt_logprobs\":",
            json_or_null(choices.first().and_then(|choice| choice.prompt_logprobs.as_deref())),
            ",\"prompt_token_ids\":",
            &ids_json(prompt_ids),
            ",\"prompt_text\":",
            &prompt_text.map_or_else(|| "null".to_owned(), escaped),
            ",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":",
            &usage.full_times(),
            "}",
        ],
    );
    out
}

/// A completions answer.
#[must_use]
pub fn completion_body(head: &Head, choices: &[AnswerChoice], usage: &Usage) -> String {
    let mut out = opened(head, choices);
    for (index, choice) in choices.iter().enumerate() {
        let text = escaped(&choice.text);
        put_all(&mut out, &[comma(index), "{\"index\":", &index.to_string(), ",\"text\":", &text]);
        put_choice(&mut out, choice);
        put_all(
            &mut out,
            &[
                ",\"prompt_logprobs\":",
                json_or_null(choice.prompt_logprobs.as_deref()),
                ",\"prompt_token_ids\":",
                &ids_json(choice.prompt_ids.as_deref()),
                ",\"routed_experts\":null}",
            ],
        );
    }
    put_tail(&mut out, head, usage);
    put_all(
        &mut out,
        &[",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":", &usage.full_times(), "}"],
    );
    out
}

fn opened(head: &Head, choices: &[AnswerChoice]) -> String {
    let texts: usize = choices.iter().map(|choice| choice.text.len()).sum();
    let mut out = String::with_capacity(head.full().len() + texts + REST);
    out.push_str(head.full());
    out
}

fn comma(index: usize) -> &'static str {
    if index == 0 { "" } else { "," }
}

fn put_all(out: &mut String, parts: &[&str]) {
    for part in parts {
        out.push_str(part);
    }
}

/// What both families tell of a choice beside what it says.
fn put_choice(out: &mut String, choice: &AnswerChoice) {
    put_all(
        out,
        &[
            ",\"logprobs\":",
            json_or_null(choice.logprobs.as_deref()),
            ",\"finish_reason\":",
            &escaped(&choice.finish),
            ",\"stop_reason\":",
            &reason_json(&choice.stop_reason),
            ",\"token_ids\":",
            &ids_json(choice.ids.as_deref()),
        ],
    );
}

pub(super) fn message_json(choice: &AnswerChoice) -> String {
    let spelled = |content: &str, calls: &str, reasoning: &str| {
        format!(
            "{{\"role\":\"assistant\",\"content\":{content},\"refusal\":null,\"annotations\":null,\"audio\":null,\
             \"function_call\":null,{calls}\"reasoning\":{reasoning}}}"
        )
    };
    let Some(message) = &choice.message else { return spelled(&escaped(&choice.text), "", "null") };
    let or_null = |text: &Option<String>| text.as_deref().map_or_else(|| "null".to_owned(), escaped);
    let calls: Vec<String> = message.calls.iter().map(call_json).collect();
    let calls = if calls.is_empty() { String::new() } else { format!("\"tool_calls\":[{}],", calls.join(",")) };
    spelled(&or_null(&message.content), &calls, &or_null(&message.reasoning))
}

fn call_json(call: &MessageCall) -> String {
    format!(
        "{{\"id\":{},\"type\":\"function\",\"function\":{{\"name\":{},\"arguments\":{}}}}}",
        escaped(&call.id),
        escaped(&call.name),
        escaped(&call.arguments)
    )
}

fn put_tail(out: &mut String, head: &Head, usage: &Usage) {
    let fingerprint = head.fingerprint().unwrap_or("null");
    put_all(
        out,
        &["],\"service_tier\":null,\"system_fingerprint\":", fingerprint, ",\"usage\":", &usage.full(head.api())],
    );
}

fn json_or_null(json: Option<&str>) -> &str {
    json.unwrap_or("null")
}

fn ids_json(ids: Option<&[u32]>) -> String {
    serde_json::to_string(&ids).unwrap_or_else(|_| "null".to_owned())
}
