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

/// A chat answer. `prompt_text` where the client asked for it.
#[must_use]
pub fn chat_body(head: &Head, choices: &[AnswerChoice], usage: &Usage, prompt_text: Option<&str>) -> String {
    let mut out = head.full().to_owned();
    for (index, choice) in choices.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        out.push_str(&format!(
            "{comma}{{\"index\":{index},\"message\":{},\"logprobs\":{},\"finish_reason\":{},\"stop_reason\":{},\
             \"token_ids\":{},\"routed_experts\":null}}",
            message_json(choice),
            json_or_null(choice.logprobs.as_deref()),
            escaped(&choice.finish),
            reason_json(&choice.stop_reason),
            ids_json(choice.ids.as_deref()),
        ));
    }
    put_tail(&mut out, head, usage);
    let prompt_ids = choices.first().and_then(|choice| choice.prompt_ids.as_deref());
    out.push_str(&format!(
        ",\"prompt_logprobs\":{},\"prompt_token_ids\":{},\"prompt_text\":{},\"kv_transfer_params\":null,\
         \"ec_transfer_params\":null,\"metrics\":{}}}",
        json_or_null(choices.first().and_then(|choice| choice.prompt_logprobs.as_deref())),
        ids_json(prompt_ids),
        prompt_text.map_or_else(|| "null".to_owned(), escaped),
        usage.full_times(),
    ));
    out
}

/// A completions answer.
#[must_use]
pub fn completion_body(head: &Head, choices: &[AnswerChoice], usage: &Usage) -> String {
    let mut out = head.full().to_owned();
    for (index, choice) in choices.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        out.push_str(&format!(
            "{comma}{{\"index\":{index},\"text\":{},\"logprobs\":{},\"finish_reason\":{},\"stop_reason\":{},\
             \"token_ids\":{},\"prompt_logprobs\":{},\"prompt_token_ids\":{},\"routed_experts\":null}}",
            escaped(&choice.text),
            json_or_null(choice.logprobs.as_deref()),
            escaped(&choice.finish),
            reason_json(&choice.stop_reason),
            ids_json(choice.ids.as_deref()),
            json_or_null(choice.prompt_logprobs.as_deref()),
            ids_json(choice.prompt_ids.as_deref()),
        ));
    }
    put_tail(&mut out, head, usage);
    out.push_str(",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":");
    out.push_str(&usage.full_times());
    out.push('}');
    out
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
    out.push_str(&format!(
        "],\"service_tier\":null,\"system_fingerprint\":{},\"usage\":{}",
        head.fingerprint().unwrap_or("null"),
        usage.full(head.api())
    ));
}

fn json_or_null(json: Option<&str>) -> &str {
    json.unwrap_or("null")
}

fn ids_json(ids: Option<&[u32]>) -> String {
    serde_json::to_string(&ids).unwrap_or_else(|_| "null".to_owned())
}
