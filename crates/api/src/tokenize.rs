//! `/tokenize` and `/detokenize`.

use serde::Serialize;
use serde_json::Value;

use super::{
    body::ValidBody,
    conversation::{ChatPrompt, RequestTemplates},
    error::ApiError,
    fields,
    issues::{Issues, Loc},
    json, messages, python,
    schema::{
        self, Field, Kind,
        Need::{Nullable, Optional, Required},
        Object, object,
    },
    unserved::MediaOptions,
    values,
};

/// A request to `/tokenize`.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizeRequest {
    /// The model that was requested.
    pub model: Option<String>,
    /// Input to tokenize.
    pub input: TokenizeInput,
    /// True where the tokenizer's own special tokens are added.
    pub add_special_tokens: bool,
    /// True where the tokens are returned as texts too.
    pub return_token_strs: bool,
    media: MediaOptions,
}

/// Input to tokenize.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenizeInput {
    /// Text as it is.
    Prompt(String),
    /// A conversation, rendered first.
    Chat(ChatPrompt),
}

impl TokenizeRequest {
    /// Reads a body: a conversation where it fits that schema, else a prompt.
    ///
    /// # Errors
    /// Not JSON, not an object, or fitting neither schema: the faults of both.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut map = match json::object(body) {
            Err(refused) if refused.message.contains("'model_attributes_type'") => {
                return Err(twice(&refused));
            }
            read => read?,
        };
        let both = |name| python::truthy(map.get(name));
        if map.contains_key("messages") && both("continue_final_message") && both("add_generation_prompt") {
            let message = "Cannot set both `continue_final_message` and `add_generation_prompt` to True.";
            return Err(ApiError::bad_request(message));
        }
        let is_chat = schema::takes(&CHAT, &map);
        let body = ValidBody(&map);
        let read = Self {
            model: body.text("model"),
            add_special_tokens: body.flag("add_special_tokens", !is_chat),
            return_token_strs: body.flag("return_token_strs", false),
            media: MediaOptions::read(&body),
            input: TokenizeInput::Prompt(body.text("prompt").unwrap_or_default()),
        };
        if is_chat {
            if let Some(Value::Array(messages)) = map.get("messages") {
                messages::check_late(messages, Issues::new)?;
            }
            return Ok(Self { input: TokenizeInput::Chat(ChatPrompt::take(&mut map)), ..read });
        }
        let mut issues = Issues::new();
        schema::check(&PROMPT, &map, &Loc::BODY, &mut issues);
        if !issues.is_empty() {
            schema::check(&CHAT, &map, &Loc::BODY, &mut issues);
        }
        issues.unless_any(read)
    }

    /// Checks what the engine refuses once the model is known.
    ///
    /// # Errors
    /// 400 for a template or options of media that may not be brought, and for a conversation that cannot be rendered.
    pub fn check_served(&self, templates: RequestTemplates) -> Result<(), ApiError> {
        let TokenizeInput::Chat(chat) = &self.input else { return self.media.check() };
        chat.check_template(templates)?;
        self.media.check()?;
        chat.check_conversation()
    }
}

/// A fault of the whole body, once for each schema.
fn twice(refused: &ApiError) -> ApiError {
    let issue = refused.message.split_once('\n').map(|(_, issue)| issue).unwrap_or_default();
    ApiError::framework(format!("2 validation errors:\n{issue}\n{issue}"), refused.param.clone())
}

const PROMPT: Object = object(&[
    Field("model", Kind::Text, Nullable),
    Field("prompt", Kind::Text, Required),
    Field("add_special_tokens", Kind::Flag, Optional),
    Field("return_token_strs", Kind::Flag, Nullable),
]);

const CHAT: Object = object(&[
    Field("model", Kind::Text, Nullable),
    Field("messages", messages::MESSAGES, Required),
    Field("add_generation_prompt", Kind::Flag, Optional),
    Field("return_token_strs", Kind::Flag, Nullable),
    Field("continue_final_message", Kind::Flag, Optional),
    Field("add_special_tokens", Kind::Flag, Optional),
    Field("chat_template", Kind::Text, Nullable),
    Field("chat_template_kwargs", Kind::Dictionary, Nullable),
    Field("media_io_kwargs", fields::MEDIA, Nullable),
    Field("mm_processor_kwargs", Kind::Dictionary, Nullable),
    Field("tools", fields::TOOLS, Nullable),
]);

const TOKENS: Object = object(&[
    Field("model", Kind::Text, Nullable),
    Field("tokens", Kind::List(&Kind::IntIn(0, i64::MAX as i128)), Required),
]);

/// The answer of `/tokenize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TokenizeResponse {
    /// Number of tokens.
    pub count: usize,
    /// The model's length in tokens.
    pub max_model_len: u32,
    /// The ids.
    pub tokens: Vec<u32>,
    /// The tokens as the vocabulary spells them, where they were requested.
    pub token_strs: Option<Vec<String>>,
}

/// A request to `/detokenize`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetokenizeRequest {
    /// The model that was requested.
    pub model: Option<String>,
    /// The ids.
    pub tokens: Vec<u32>,
}

impl DetokenizeRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Not JSON, not an object, or not with a list `tokens` of ids; ids of more than 32 bits.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let map = schema::read(&TOKENS, body)?;
        let body = ValidBody(&map);
        let is_narrow = |id: &Value| values::int(id).is_ok_and(|id| u32::try_from(id).is_ok());
        if !map.get("tokens").and_then(Value::as_array).is_none_or(|ids| ids.iter().all(is_narrow)) {
            return Err(ApiError::bad_request("number too large to fit in target type"));
        }
        Ok(Self { model: body.text("model"), tokens: body.ids("tokens") })
    }
}
