//! A conversation in a request, and how it is to be rendered.

use serde_json::{Map, Value};

use super::{
    body::{ValidBody, ids},
    error::ApiError,
    python,
};

/// The role of answers.
const ASSISTANT: &str = "assistant";

/// A conversation and how to render it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ChatPrompt {
    /// The messages as they came.
    pub messages: Vec<Value>,
    /// The tools, where there are any. The model sees them under `tool_choice: none` too.
    pub tools: Option<Vec<Value>>,
    /// Documents for the template.
    pub documents: Option<Vec<Value>>,
    /// True where the template opens the assistant's turn.
    pub add_generation_prompt: bool,
    /// True where the last message is to be continued.
    pub continue_final_message: bool,
    /// Further variables of the template.
    pub template_kwargs: Map<String, Value>,
    /// A template instead of the model's.
    pub template: Option<String>,
    /// A prompt that was already tokenized (`kv_transfer_params.prompt_token_ids`, from a router).
    pub token_ids: Option<Vec<u32>>,
}

impl ChatPrompt {
    /// Takes the conversation out of a body that fits the schema.
    pub(super) fn take(map: &mut Map<String, Value>) -> Self {
        let [messages, tools, documents] = ["messages", "tools", "documents"].map(|name| match map.get_mut(name) {
            Some(Value::Array(items)) => Some(std::mem::take(items)),
            _ => None,
        });
        let body = ValidBody(map);
        let forwarded = body.get("kv_transfer_params").and_then(|params| params.get("prompt_token_ids"));
        Self {
            messages: messages.unwrap_or_default(),
            tools: tools.filter(|tools| !tools.is_empty()),
            documents,
            add_generation_prompt: body.flag("add_generation_prompt", true),
            continue_final_message: body.flag("continue_final_message", false),
            template_kwargs: template_kwargs(body.0),
            template: body.text("chat_template"),
            token_ids: forwarded.and_then(Value::as_array).map(|items| ids(items)),
        }
    }

    /// The template that the request brings, in its own field or among the template's variables.
    #[must_use]
    pub fn own_template(&self) -> Option<&str> {
        let named = self.template_kwargs.get("chat_template").and_then(Value::as_str);
        self.template.as_deref().filter(|template| !template.is_empty()).or(named)
    }

    /// The role of the answer: the assistant's, or that of the last message where the template opens no turn.
    #[must_use]
    pub fn answer_role(&self) -> &str {
        let last = self.messages.last().and_then(|message| message.get("role")?.as_str());
        last.filter(|_| !self.add_generation_prompt).unwrap_or(ASSISTANT)
    }

    /// Returns whether the last message is by the role that answers, so that `echo` repeats it.
    #[must_use]
    pub fn ends_with_answer(&self) -> bool {
        let last = self.messages.last().and_then(|message| message.get("role")?.as_str());
        last == Some(self.answer_role())
    }

    /// Checks that there is a conversation and that it ends in one way.
    ///
    /// # Errors
    /// 400 where a template could not be applied.
    pub fn check_conversation(&self) -> Result<(), ApiError> {
        if self.messages.is_empty() {
            return Err(ApiError::bad_request(
                "Cannot apply chat template to an empty conversation. Provide at least one message.",
            ));
        }
        if self.template_kwargs.contains_key("messages") {
            return Err(ApiError::bad_request(
                "jinja2.environment.Template.render() got multiple values for keyword argument 'messages'",
            ));
        }
        if let Some(tools @ (Value::Bool(_) | Value::Number(_))) = self.template_kwargs.get("tools") {
            return Err(ApiError::bad_request(format!("'{}' object is not iterable", python::class(tools))));
        }
        if self.continue_final_message && self.add_generation_prompt {
            return Err(ApiError::bad_request(
                "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when \
                 you want the model to continue the final message, and add_generation_prompt when you want to add a \
                 header that will prompt it to start a new assistant message instead.",
            ));
        }
        Ok(())
    }

    /// Returns whether a variable of the template is true as Python has it; `None` where the request does not set it.
    #[must_use]
    pub fn is_set(&self, variable: &str) -> Option<bool> {
        self.template_kwargs.get(variable).map(|value| python::truthy(Some(value)))
    }

    /// Checks that a template may be brought, where one is.
    ///
    /// # Errors
    /// 400 where it may not.
    pub fn check_template(&self, templates: RequestTemplates) -> Result<(), ApiError> {
        let named = self.template_kwargs.get("chat_template").is_some_and(|template| !template.is_null());
        if templates == RequestTemplates::Trusted || (self.template.is_none() && !named) {
            return Ok(());
        }
        Err(ApiError::bad_request(
            "Chat template is passed with request, but --trust-request-chat-template is not set. Refused request with \
             untrusted chat template.",
        ))
    }
}

/// Choice whether a request may bring its own chat template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RequestTemplates {
    /// It is refused.
    #[default]
    Refused,
    /// It is used (vLLM's `--trust-request-chat-template`).
    Trusted,
}

/// The further variables that a chat request gives its template. A reasoning effort is one, and decides whether to think where
/// nothing else does.
#[must_use]
pub fn template_kwargs(body: &Map<String, Value>) -> Map<String, Value> {
    let mut kwargs = given_kwargs(body);
    if let Some(effort) = body.get("reasoning_effort").and_then(Value::as_str) {
        kwargs.entry("enable_thinking").or_insert_with(|| (effort != "none").into());
        kwargs.insert("reasoning_effort".to_owned(), effort.into());
    }
    kwargs
}

/// The variables in its `chat_template_kwargs`; the engine takes `null` and `"auto"` for none.
pub(crate) fn given_kwargs(body: &Map<String, Value>) -> Map<String, Value> {
    let mut kwargs = body.get("chat_template_kwargs").and_then(Value::as_object).cloned().unwrap_or_default();
    kwargs.retain(|_, value| !value.is_null() && value != "auto");
    kwargs
}
