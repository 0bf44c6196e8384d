//! A Messages request as the chat request that it stands for.

use serde_json::{Map, Value, json};

use super::{blocks, schema};
use crate::{
    Api, ApiError, GenerationRequest, schema::read, token_in_out::RenderRequest, tool_choice::ToolUse, values,
};
use text::parsers::ToolChoice;

/// Places of system messages in the model's chat template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SystemMessages {
    /// Anywhere.
    Inline,
    /// Only first: all of them become one.
    First,
}

/// A request to `/v1/messages` or `/v1/messages/count_tokens` whose body fits the schema.
#[derive(Debug, Clone, PartialEq)]
pub struct MessagesRequest {
    body: Map<String, Value>,
}

impl MessagesRequest {
    /// Reads the body of a request for an answer.
    ///
    /// # Errors
    /// The framework's error for a body that does not fit.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        Ok(Self { body: read(&schema::REQUEST, body)? })
    }

    /// Reads the body of a request for a token count.
    ///
    /// # Errors
    /// The framework's error for a body that does not fit.
    pub fn parse_count(body: &[u8]) -> Result<Self, ApiError> {
        let mut body = read(&schema::COUNT, body)?;
        for generation_only in ["max_tokens", "stream", "stop_sequences", "temperature", "top_p", "top_k"] {
            body.remove(generation_only);
        }
        Ok(Self { body })
    }

    /// Returns whether there are system messages among the messages.
    #[must_use]
    pub fn has_inline_system(&self) -> bool {
        self.messages().iter().any(|message| message["role"] == "system")
    }

    fn messages(&self) -> &[Value] {
        self.body.get("messages").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }

    /// The chat request.
    ///
    /// # Errors
    /// The engine's error for a chat request that cannot be, or of changes to tools that there are not.
    pub fn chat(&self, system: SystemMessages) -> Result<GenerationRequest, ApiError> {
        GenerationRequest::of(Api::Chat, self.chat_body(system)?)
    }

    /// The chat request, to be rendered.
    ///
    /// # Errors
    /// Changes to tools that there are not.
    pub fn rendered(&self, system: SystemMessages) -> Result<RenderRequest, ApiError> {
        Ok(RenderRequest::of_chat(self.chat_body(system)?))
    }

    /// The body of the chat request.
    ///
    /// # Errors
    /// Changes to tools that there are not.
    pub fn chat_body(&self, system: SystemMessages) -> Result<Map<String, Value>, ApiError> {
        let mut chat = Map::new();
        chat.insert("messages".to_owned(), Value::Array(blocks::messages(&self.body, self.messages(), system)));
        for name in PASSED_ON {
            if let Some(value) = self.given(name) {
                chat.insert((*name).to_owned(), value.clone());
            }
        }
        if let Some(most) = self.given("max_tokens") {
            chat.insert("max_completion_tokens".to_owned(), most.clone());
        }
        if let Some(stop) = self.given("stop_sequences") {
            chat.insert("stop".to_owned(), stop.clone());
        }
        let streams = self.given("stream").is_some_and(values::is_set);
        if streams {
            chat.insert("stream".to_owned(), true.into());
            let usage = json!({"include_usage": true, "continuous_usage_stats": true});
            chat.insert("stream_options".to_owned(), usage);
        }
        self.put_output_config(&mut chat);
        self.put_thinking(&mut chat);
        self.put_tools(&mut chat)?;
        Ok(chat)
    }

    fn given(&self, name: &str) -> Option<&Value> {
        self.body.get(name).filter(|value| !value.is_null())
    }

    fn put_output_config(&self, chat: &mut Map<String, Value>) {
        let Some(config) = self.given("output_config") else { return };
        let schema =
            config["format"].get("schema").filter(|schema| schema.as_object().is_some_and(|map| !map.is_empty()));
        if let Some(schema) = schema {
            let format = json!({"type": "json_schema", "json_schema": {"name": "json_schema", "schema": schema}});
            chat.insert("response_format".to_owned(), format);
        }
        if let Some(effort) = config.get("effort").filter(|effort| !effort.is_null()) {
            chat.insert("reasoning_effort".to_owned(), effort.clone());
        }
    }

    fn put_thinking(&self, chat: &mut Map<String, Value>) {
        let Some(thinking) = self.given("thinking") else { return };
        if thinking["type"] == "disabled" {
            chat.insert("reasoning_effort".to_owned(), "none".into());
        } else if let Some(budget) = thinking.get("budget_tokens") {
            chat.insert("thinking_token_budget".to_owned(), budget.clone());
        }
    }

    /// Checks a choice among no tools, which the chat request does not have: the engine looks only at whether tool calls
    /// could be found. An empty list of tools is one to choose from.
    ///
    /// # Errors
    /// 400 where that needs a parser that the server does not have.
    pub fn check_choice(&self, finds_calls: bool) -> Result<(), ApiError> {
        let choice = match self.given("tool_choice") {
            Some(choice) => match chat_choice(choice) {
                Value::String(word) if word == "none" => ToolChoice::None,
                Value::String(word) if word == "required" => ToolChoice::Required,
                Value::Object(_) => ToolChoice::Named(choice["name"].as_str().unwrap_or_default().to_owned()),
                _ => ToolChoice::Auto,
            },
            None if self.given("tools").is_some() => ToolChoice::Auto,
            None => ToolChoice::None,
        };
        ToolUse { choice, only_first: false }.check(finds_calls)
    }

    /// Returns whether it offers no tools and leaves the choice open: the engine looks for calls in the text of such an answer, which it does not for a
    /// chat without tools.
    #[must_use]
    pub fn may_call_unoffered(&self) -> bool {
        let is_open = self.given("tool_choice").is_none_or(|choice| chat_choice(choice) == "auto");
        is_open && self.given("tools").and_then(Value::as_array).is_none_or(Vec::is_empty)
    }

    fn put_tools(&self, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
        let Some(tools) = blocks::tools(self.given("tools"), self.messages())?.filter(|tools| !tools.is_empty()) else {
            return Ok(());
        };
        let named = self.given("tool_choice").filter(|choice| choice["type"] == "tool").map(|choice| &choice["name"]);
        if let Some(Value::String(name)) = named
            && !tools.iter().any(|tool| tool.pointer("/function/name") == named)
        {
            return Err(ApiError::bad_request(format!("The tool with name '{name}' is not found in the tools list.")));
        }
        chat.insert("tools".to_owned(), Value::Array(tools));
        let Some(choice) = self.given("tool_choice") else {
            chat.insert("tool_choice".to_owned(), "auto".into());
            return Ok(());
        };
        let parallel = !choice.get("disable_parallel_tool_use").is_some_and(values::is_set);
        chat.insert("parallel_tool_calls".to_owned(), parallel.into());
        chat.insert("tool_choice".to_owned(), chat_choice(choice));
        Ok(())
    }
}

/// A choice of tools in a chat's words.
fn chat_choice(choice: &Value) -> Value {
    match choice["type"].as_str() {
        Some("any") => json!("required"),
        Some("none") => json!("none"),
        Some("tool") => json!({"type": "function", "function": {"name": choice["name"]}}),
        _ => json!("auto"),
    }
}

/// Fields that are spelled alike in both requests.
const PASSED_ON: &[&str] = &[
    "model",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "watermarking",
    "cache_salt",
    "kv_transfer_params",
    "ec_transfer_params",
    "vllm_xargs",
    "chat_template_kwargs",
];
