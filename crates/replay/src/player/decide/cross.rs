//! Records of chats for requests to `/v1/messages` and `/v1/responses` (`--cross-api`): such a request is compared as the chat request
//! that the engine makes of it, and the record is served in its own family's words.
//!
//! Fields that only one of the families has do not count: how many tokens there may be, and whether calls may be parallel. Texts in
//! parts count as one text.
//!
//! Limits: a response that continues a stored one (`previous_response_id`) is not compared; bodies that were packed are not either.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Uri;
use serde_json::{Map, Value, json};

use crate::player::{
    PlayerConfig,
    answer::{
        content::{self, ContentReply, time},
        generated::Counter,
    },
    incoming::IncomingRequest,
    secrets,
};
use api::{
    CacheUse, Endpoint,
    answers::{Answer, ChatStream, FromChat, TimedEvent, TokenCounts, WholeChat},
    anthropic::{MessageEncoder, MessagesRequest, SystemMessages},
    endpoints::CHAT,
    responses::{ResponseEncoder, ResponseHead, ResponsesRequest},
};
use base::one_line::clipped;
use net::wire::EventBuffer;
use recording::{
    canonical::{CanonicalRules, FieldPath, RequestParts, SharedBody},
    cassette::{AnswerContent, CassetteRecord},
    redaction::Redactor,
};

/// Fields that do not count across families.
const OF_ONE_FAMILY: [&str; 3] = ["$.max_tokens", "$.max_completion_tokens", "$.parallel_tool_calls"];

/// A family whose requests a chat may answer.
#[derive(Debug, Clone)]
pub(crate) enum ChatFamily {
    Message,
    Response(Arc<ResponsesRequest>),
}

/// Returns the rules by which chats and requests of other families are compared.
pub(crate) fn rules(rules: &CanonicalRules) -> CanonicalRules {
    let mut rules = rules.clone();
    rules.joins_texts = true;
    rules.ignored.extend(OF_ONE_FAMILY.iter().filter_map(|path| path.parse::<FieldPath>().ok()));
    rules
}

/// The chat request that a request of another family stands for; `None` where it stands for none.
pub(crate) fn as_chat(
    incoming: &IncomingRequest,
    config: &PlayerConfig,
    rules: &CanonicalRules,
) -> Option<(IncomingRequest, ChatFamily)> {
    let (mut chat, family) = chat_of(incoming)?;
    if matches!(&family, ChatFamily::Response(request) if request.previous().is_some()) {
        return None;
    }
    if chat.get("response_format").is_some_and(|format| *format == json!({"type": "text"})) {
        chat.shift_remove("response_format");
    }
    Some((request_as(incoming, chat, config, rules), family))
}

/// Returns whether the answer of a record is written as a chat's although requests of another family get it.
pub(crate) fn is_written_as_chat(record: &CassetteRecord, incoming: &IncomingRequest) -> bool {
    let is_chat = matches!(record.answer.content, AnswerContent::Choices { .. });
    is_chat && matches!(Endpoint::of_path(incoming.path()), Endpoint::Messages | Endpoint::Responses)
}

/// The same for an answer that was written as a chat's for any family: whatever the request continues.
pub(crate) fn stands_for(incoming: &IncomingRequest, config: &PlayerConfig) -> Option<(IncomingRequest, ChatFamily)> {
    let (chat, family) = chat_of(incoming)?;
    Some((request_as(incoming, chat, config, &config.rules), family))
}

/// Describes why a request of another family is no chat.
pub(crate) fn invalid(incoming: &IncomingRequest) -> String {
    let error = match Endpoint::of_path(incoming.path()) {
        Endpoint::Messages => MessagesRequest::parse(&incoming.bytes).err(),
        _ => ResponsesRequest::parse(&incoming.bytes).err(),
    };
    let why = error.map_or_else(String::new, |error| format!(": {}", clipped(&error.message, 200)));
    format!("the body is not a valid request to {}{why}", incoming.path())
}

/// The body of the chat that a request of another family is to the engine.
fn chat_of(incoming: &IncomingRequest) -> Option<(Map<String, Value>, ChatFamily)> {
    match Endpoint::of_path(incoming.path()) {
        Endpoint::Messages => {
            let request = MessagesRequest::parse(&incoming.bytes).ok()?;
            Some((request.chat_body(SystemMessages::Inline).ok()?, ChatFamily::Message))
        }
        Endpoint::Responses => {
            let request = ResponsesRequest::parse(&incoming.bytes).ok()?;
            let chat = request.chat_body(request.messages(Vec::new()).ok()?);
            Some((chat, ChatFamily::Response(Arc::new(request))))
        }
        Endpoint::Chat | Endpoint::Completions | Endpoint::Embeddings | Endpoint::Other => None,
    }
}

fn request_as(
    incoming: &IncomingRequest,
    chat: Map<String, Value>,
    config: &PlayerConfig,
    rules: &CanonicalRules,
) -> IncomingRequest {
    let mut parts = incoming.parts.clone();
    parts.uri = Uri::from_static(CHAT);
    let body = SharedBody::from(Value::Object(chat));
    let mut redactor = Redactor::new(&config.secrets);
    let (shown, _) = secrets::shown_body(&mut redactor, &body, None);
    let identity =
        rules.identify(&RequestParts { method: "POST", path: CHAT, headers: &incoming.counted, body: &shown });
    IncomingRequest {
        identity,
        parts,
        bytes: Bytes::new(),
        body,
        raw: None,
        shown,
        seen: redactor.seen(),
        counted: incoming.counted.clone(),
        session: incoming.session.clone(),
        at: incoming.at,
        delivered: None,
    }
}

impl ChatFamily {
    pub(crate) fn endpoint(&self) -> Endpoint {
        match self {
            Self::Message => Endpoint::Messages,
            Self::Response(_) => Endpoint::Responses,
        }
    }

    /// Encodes the answer of a chat's record as one of this family.
    pub(crate) fn answer(&self, record: &CassetteRecord, chat: &IncomingRequest, counter: &Counter) -> ContentReply {
        if let Some(events) = content::events(record, chat, counter) {
            return ContentReply::stream(self.events(&events));
        }
        let mut reply = content::reply(record, chat, counter);
        reply.content.change(|body| {
            let text = String::from_utf8_lossy(body);
            if record.answer.status < 400 { self.body(&text) } else { self.error(&text) }
        });
        reply
    }

    fn body(&self, chat: &str) -> Option<String> {
        let answer = Answer::parse(Endpoint::Chat, chat)?;
        Some(self.encoder(answer.fields(), &mut EventBuffer::default()).body(&WholeChat::of(&answer)))
    }

    /// The encoder of this family, by a chat's answer or its first event. Events before the first token are appended.
    fn encoder(&self, chat: &Map<String, Value>, opening: &mut EventBuffer) -> Box<dyn FromChat> {
        match self {
            Self::Message => Box::new(MessageEncoder::default()),
            Self::Response(request) => {
                let mut encoder = ResponseEncoder::new(Arc::clone(request), head(request, chat));
                encoder.open(opening);
                Box::new(encoder)
            }
        }
    }

    /// An error of the chat in the family's envelope, where it has one of its own.
    fn error(&self, chat: &str) -> Option<String> {
        let error: Value = serde_json::from_str(chat).ok()?;
        let error = error.get("error").filter(|_| matches!(self, Self::Message))?;
        let own = json!({"type": error.get("type"), "message": error.get("message")});
        Some(json!({"type": "error", "error": own}).to_string())
    }

    /// Encodes the events of a chat as those of this family, each when the original one is due; the opening ones come with the first.
    fn events(&self, events: &[TimedEvent]) -> Vec<(Duration, Bytes)> {
        let json = |event: &TimedEvent| serde_json::from_str::<Value>(&event.data).unwrap_or_default();
        // A message has the prompt's tokens in its first event, a chat in one of its last two.
        let prompt = events.iter().rev().take(2).find_map(|event| TokenCounts::read(json(event).get("usage")?).prompt);
        let first = events.first().and_then(|event| json(event).as_object().cloned()).unwrap_or_default();
        let mut out = EventBuffer::default();
        let mut chat = ChatStream::new(self.encoder(&first, &mut out), prompt);
        let mut all = Vec::with_capacity(events.len());
        for TimedEvent { ms, data, .. } in events {
            chat.read(data, &mut out);
            all.extend(out.by_ref().map(|bytes| (time(*ms), bytes)));
        }
        all
    }
}

/// Fields of a response that are not from its request, by a chat's answer or its first event.
fn head(request: &ResponsesRequest, chat: &Map<String, Value>) -> ResponseHead {
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
