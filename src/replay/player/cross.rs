//! Records of chats for requests to `/v1/messages` and `/v1/responses` (`--cross-api`): such a request is compared as the chat request
//! that the engine makes of it, and the record is served in its own family's words.
//!
//! What only one of the families has to say does not count: how many tokens there may be, and whether calls may be parallel. Texts in
//! parts count as one text.
//!
//! Limits: a response that continues a stored one (`previous_response_id`) is not compared; bodies that were packed are not either.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use http::Uri;
use serde_json::{Map, Value, json};

use super::{
    Config,
    request::Asked,
    secrets,
    serve::{Timed, Told},
};
use crate::{
    api::{
        CacheUse, ChatAnswer, Endpoint, Translate,
        anthropic::{MessageEvents, MessagesRequest, SystemMessages, message_body},
        endpoints::CHAT,
        responses::{ResponseEvents, ResponseHead, ResponsesRequest, response_body},
    },
    recording::canonical::{Call, FieldPath, Rules, SharedBody},
    recording::redaction::Redactor,
};

/// Fields that do not count across families.
const OF_ONE_FAMILY: [&str; 3] = ["$.max_tokens", "$.max_completion_tokens", "$.parallel_tool_calls"];

/// A family whose requests a chat may answer.
#[derive(Debug, Clone)]
pub(super) enum Family {
    Message,
    Response(Arc<ResponsesRequest>),
}

/// How chats and requests of other families are compared.
pub(super) fn rules(rules: &Rules) -> Rules {
    let mut rules = rules.clone();
    rules.joins_texts = true;
    rules.ignored.extend(OF_ONE_FAMILY.iter().filter_map(|path| path.parse::<FieldPath>().ok()));
    rules
}

/// The chat request that a request of another family stands for; `None` where it stands for none.
pub(super) fn as_chat(asked: &Asked, config: &Config, rules: &Rules) -> Option<(Asked, Family)> {
    let (mut chat, family) = match Endpoint::of_path(asked.path()) {
        Endpoint::Messages => {
            (MessagesRequest::parse(&asked.bytes).ok()?.chat_body(SystemMessages::Inline).ok()?, Family::Message)
        }
        Endpoint::Responses => {
            let request = ResponsesRequest::parse(&asked.bytes).ok().filter(|request| request.previous().is_none())?;
            let chat = request.chat_body(request.messages(Vec::new()).ok()?);
            (chat, Family::Response(Arc::new(request)))
        }
        Endpoint::Chat | Endpoint::Completions | Endpoint::Embeddings | Endpoint::Other => return None,
    };
    if chat.get("response_format").is_some_and(|format| *format == json!({"type": "text"})) {
        chat.shift_remove("response_format");
    }
    Some((asked_as(asked, chat, config, rules), family))
}

fn asked_as(asked: &Asked, chat: Map<String, Value>, config: &Config, rules: &Rules) -> Asked {
    let mut parts = asked.parts.clone();
    parts.uri = Uri::from_static(CHAT);
    let body = SharedBody::from(Value::Object(chat));
    let (shown, _) = secrets::shown_body(&mut Redactor::new(&config.secrets), &body, None);
    let identity = rules.identify(&Call { method: "POST", path: CHAT, headers: &asked.counted, body: &shown });
    Asked {
        identity,
        parts,
        bytes: Bytes::new(),
        body,
        raw: None,
        shown,
        counted: asked.counted.clone(),
        session: asked.session.clone(),
    }
}

impl Family {
    /// A chat's answer in the words of this family.
    pub(super) fn tell(&self, told: Told, status: u16) -> Told {
        match told {
            Told::Events(events) => Told::Events(self.events(events)),
            Told::Body { ms, content_type, bytes } => {
                let text = String::from_utf8_lossy(&bytes);
                let own = if status < 400 { self.body(&text) } else { self.error(&text) };
                Told::Body { ms, content_type, bytes: own.map_or_else(|| bytes.clone(), Bytes::from) }
            }
        }
    }

    fn body(&self, chat: &str) -> Option<String> {
        let answer = ChatAnswer::read(chat).ok()?;
        Some(match self {
            Self::Message => message_body(&answer),
            Self::Response(request) => response_body(request, &head(request, chat), &answer),
        })
    }

    /// An error of the chat in the family's envelope, where it has one of its own.
    fn error(&self, chat: &str) -> Option<String> {
        let error: Value = serde_json::from_str(chat).ok()?;
        let error = error.get("error").filter(|_| matches!(self, Self::Message))?;
        let own = json!({"type": error.get("type"), "message": error.get("message")});
        Some(json!({"type": "error", "error": own}).to_string())
    }

    fn events(&self, events: Vec<Timed>) -> Vec<Timed> {
        let first = events.first().map(data_of).unwrap_or_default();
        match self {
            Self::Message => translated(with_prompt_tokens(events), MessageEvents::new(), VecDeque::new()),
            Self::Response(request) => {
                let mut translator = ResponseEvents::new(Arc::clone(request), head(request, &first));
                let opening = translator.open();
                translated(events, translator, opening)
            }
        }
    }
}

/// Events in other words, each when the original one is due; the opening ones come with the first.
fn translated(events: Vec<Timed>, mut translator: impl Translate, mut out: VecDeque<Bytes>) -> Vec<Timed> {
    let mut told = Vec::with_capacity(events.len());
    for event in events {
        translator.translate(&event.bytes, &mut out);
        told.extend(out.drain(..).map(|bytes| Timed { ms: event.ms, bytes }));
    }
    told
}

/// A message tells the prompt's tokens with its first event, where a chat does with its last one.
fn with_prompt_tokens(mut events: Vec<Timed>) -> Vec<Timed> {
    let usage = events.iter().rev().take(2).find_map(|event| {
        serde_json::from_str::<Value>(&data_of(event)).ok()?.get("usage")?.get("prompt_tokens").cloned()
    });
    if let (Some(prompt), Some(first)) = (usage, events.first_mut())
        && let Ok(Value::Object(mut chunk)) = serde_json::from_str(&data_of(first))
    {
        chunk.insert("usage".to_owned(), json!({"prompt_tokens": prompt, "completion_tokens": 0}));
        *first = Timed::new(first.ms, None, &Value::Object(chunk).to_string());
    }
    events
}

fn data_of(event: &Timed) -> String {
    let text = String::from_utf8_lossy(&event.bytes);
    text.trim_end().strip_prefix("data: ").unwrap_or_default().to_owned()
}

/// What a response says that its request does not, by what a chat's answer or its first event says.
fn head(request: &ResponsesRequest, chat: &str) -> ResponseHead {
    let chat: Value = serde_json::from_str(chat).unwrap_or_default();
    let text = |name: &str| chat.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let id = text("id");
    ResponseHead {
        id: format!("resp_{}", id.strip_prefix("chatcmpl-").unwrap_or(&id)),
        created_at: chat.get("created").and_then(Value::as_u64).unwrap_or_default(),
        model: text("model"),
        temperature: 1.0,
        top_p: 1.0,
        max_output_tokens: request.most_tokens(),
        cache: CacheUse::default(),
    }
}
