//! A Responses request as the chat request that it stands for.

use serde_json::{Map, Value, json};

use super::{items, schema};
use crate::{
    Api, ApiError, GenerationRequest, json, python, request::check_constraint, schema::check_body,
    token_in_out::RenderRequest, values,
};

/// Fields that are spelled alike in both requests.
const PASSED_ON: &[&str] = &[
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "include_reasoning",
    "structured_outputs",
    "parallel_tool_calls",
    "priority",
    "cache_salt",
    "session_id",
    "watermarking",
    "user",
    "kv_transfer_params",
    "ec_transfer_params",
    "vllm_xargs",
    "chat_template_kwargs",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "request_id",
];

/// A request to `/v1/responses` whose body fits the schema.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponsesRequest {
    pub(super) body: Map<String, Value>,
}

impl ResponsesRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// The engine's or the framework's error for a body that does not fit.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut body = json::object(body)?;
        schema::before(&mut body)?;
        check_body(&schema::REQUEST, &body)?;
        check_constraint(&body).map(|()| Self { body })
    }

    /// Returns whether the response is to be made in the background.
    #[must_use]
    pub fn is_background(&self) -> bool {
        self.is_set("background", false)
    }

    /// Returns whether the response is to be kept, where responses are.
    #[must_use]
    pub fn is_stored(&self) -> bool {
        self.is_set("store", true)
    }

    /// The response that this one follows.
    #[must_use]
    pub fn previous(&self) -> Option<&str> {
        self.given("previous_response_id").and_then(Value::as_str)
    }

    /// Checks that what came before is given in one way.
    ///
    /// # Errors
    /// 400 for messages beside a response.
    pub fn check_previous(&self) -> Result<(), ApiError> {
        let is_given = |name: &str| python::truthy(self.given(name));
        if is_given("previous_input_messages") && is_given("previous_response_id") {
            let message = "Only one of `previous_input_messages` and `previous_response_id` can be set.";
            return Err(ApiError::invalid_request(400, message, "previous_response_id"));
        }
        Ok(())
    }

    /// The model that was requested.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.given("model").and_then(Value::as_str)
    }

    /// The id that the body asks for.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.given("request_id").and_then(Value::as_str)
    }

    /// The messages that the request comes to after an earlier conversation.
    ///
    /// # Errors
    /// An item of a kind that the engine does not take.
    pub fn messages(&self, history: Vec<Value>) -> Result<Vec<Value>, ApiError> {
        let instructions = self.given("instructions").and_then(Value::as_str);
        items::messages(instructions, history, self.given("input"))
    }

    /// The chat request of these messages.
    ///
    /// # Errors
    /// A value that the answer could not repeat, or the engine's error for a chat request that cannot be.
    pub fn chat(&self, messages: Vec<Value>) -> Result<GenerationRequest, ApiError> {
        self.check_repeated()?;
        self.chat_request(messages)
    }

    /// The chat request of these messages, to be rendered.
    ///
    /// # Errors
    /// The engine's error for a chat request that cannot be.
    pub fn rendered(&self, messages: Vec<Value>) -> Result<(GenerationRequest, RenderRequest), ApiError> {
        let body = self.scored_body(messages.clone());
        Ok((self.chat_request(messages)?, RenderRequest::of_responses(body)))
    }

    /// Returns whether log probabilities of the message are to be sent.
    pub(super) fn includes_logprobs(&self) -> bool {
        let is_logprobs = |part: &Value| part == "message.output_text.logprobs";
        self.given("include").and_then(Value::as_array).is_some_and(|parts| parts.iter().any(is_logprobs))
    }

    /// Returns whether the prompt and the answer are to be sent as the model has them.
    pub(super) fn sends_raw(&self) -> bool {
        self.is_set("enable_response_messages", false)
    }

    /// The chat request's body with the log probabilities that are wanted.
    fn scored_body(&self, messages: Vec<Value>) -> Map<String, Value> {
        let mut body = self.chat_body(messages);
        if self.includes_logprobs() {
            body.insert("logprobs".to_owned(), true.into());
            body.extend(self.given("top_logprobs").map(|top| ("top_logprobs".to_owned(), top.clone())));
        }
        body
    }

    fn chat_request(&self, messages: Vec<Value>) -> Result<GenerationRequest, ApiError> {
        let format = self.given("text").and_then(|text| text.get("format"));
        if self.given("structured_outputs").is_some() && format.is_some_and(|format| !format.is_null()) {
            let message = "Cannot specify both structured_outputs and text.format";
            return Err(ApiError::parameter("structured_outputs", message));
        }
        let mut request = GenerationRequest::translated(Api::Chat, self.scored_body(messages))?;
        (request.return_token_ids, request.return_prompt_text) = (self.sends_raw(), self.sends_raw());
        request.max_tokens = request.max_tokens.map(|(_, count)| ("max_output_tokens", count));
        request.takes_any_tools = true;
        Ok(request)
    }

    /// The most output tokens that were requested; 0 where none are named.
    #[must_use]
    pub fn most_tokens(&self) -> u32 {
        let most = self.given("max_output_tokens").and_then(Value::as_u64);
        most.map_or(0, |most| u32::try_from(most).unwrap_or(u32::MAX))
    }

    /// The body of the chat request of these messages.
    #[must_use]
    pub fn chat_body(&self, messages: Vec<Value>) -> Map<String, Value> {
        let mut chat = Map::new();
        let mut put = |name: &str, value: Value| drop(chat.insert(name.to_owned(), value));
        put("messages", Value::Array(messages));
        for name in PASSED_ON {
            if let Some(value) = self.given(name) {
                put(name, value.clone());
            }
        }
        if let Some(most) = self.given("max_output_tokens") {
            put("max_completion_tokens", most.clone());
        }
        if self.is_set("stream", false) {
            put("stream", true.into());
            put("stream_options", json!({"include_usage": true}));
        }
        if self.given("truncation").is_some_and(|truncation| truncation != "disabled") {
            put("truncate_prompt_tokens", (-1).into());
        }
        if items::continues(self.given("input")) {
            put("add_generation_prompt", false.into());
            put("continue_final_message", true.into());
        }
        if let Some(effort) = self.given("reasoning").and_then(|reasoning| reasoning.get("effort")) {
            put("reasoning_effort", effort.clone());
        }
        if let Some(format) = self.given("text").and_then(|text| text.get("format")) {
            put("response_format", response_format(format));
        }
        let tools = items::chat_tools(self.tools());
        if !tools.is_empty() {
            put("tools", Value::Array(tools));
            put("tool_choice", self.chat_tool_choice());
        }
        chat
    }

    /// Checks that fields that a response repeats of its request have a value there.
    fn check_repeated(&self) -> Result<(), ApiError> {
        let rules = [
            ("background", "Input should be a valid boolean", "bool_type"),
            ("truncation", "Input should be 'auto' or 'disabled'", "literal_error"),
        ];
        for (name, message, kind) in rules {
            if self.body.get(name).is_some_and(Value::is_null) {
                return Err(ApiError::bad_request(format!(
                    "1 validation error for ResponsesResponse\n{name}\n  {message} [type={kind}, input_value=None, \
                     input_type=NoneType]\n    For further information visit https://errors.pydantic.dev/2.14/v/{kind}"
                )));
            }
        }
        Ok(())
    }

    fn chat_tool_choice(&self) -> Value {
        match self.given("tool_choice") {
            Some(choice) if choice.get("name").is_some() => {
                json!({"type": "function", "function": {"name": choice["name"]}})
            }
            Some(Value::String(word)) => word.as_str().into(),
            _ => "auto".into(),
        }
    }

    pub(super) fn tools(&self) -> &[Value] {
        self.body.get("tools").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }

    pub(super) fn given(&self, name: &str) -> Option<&Value> {
        self.body.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn is_set(&self, name: &str, absent: bool) -> bool {
        match self.body.get(name) {
            None => absent,
            Some(value) => values::is_set(value),
        }
    }

    pub(super) fn number(&self, name: &str, absent: f64) -> f64 {
        self.given(name).and_then(|value| values::float(value).ok()).unwrap_or(absent)
    }
}

fn response_format(format: &Value) -> Value {
    if format["type"] != "json_schema" {
        return format.clone();
    }
    let mut schema = format.as_object().cloned().unwrap_or_default();
    schema.shift_remove("type");
    json!({"type": "json_schema", "json_schema": schema})
}
