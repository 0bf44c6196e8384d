//! One source of messages, as the recorder sees it: an HTTP exchange with an MCP server, or a side of a connection over stdio.

use bytes::Bytes;
use http::{Method, StatusCode};
use serde::{Deserialize, de::IgnoredAny};

use super::{EventData, ExchangeEnd};
use crate::{
    account::DEFAULT_SESSION,
    mcp::{LineSplitter, MOST_BYTES, ReadLine, Sender},
};

/// Whose messages are put together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct StreamKey {
    /// The session of the account in whose cassette they are recorded.
    pub(super) account: Box<str>,
    pub(super) of: Of,
}

/// Distinguishes the messages of a session of the account.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Of {
    Session(usize, Box<str>),
    /// Messages to a server that name no session.
    Shared(usize),
    /// The exchange that may begin a session.
    Opening(u64),
    Process(u64),
    /// The one connection over stdio.
    Connection,
}

impl StreamKey {
    /// The one connection over stdio.
    pub(super) fn connection() -> Self {
        Self { account: DEFAULT_SESSION.into(), of: Of::Connection }
    }

    /// Its name beside those of other sessions of the server; what is put together without a session has none.
    pub(super) fn name(&self) -> String {
        match &self.of {
            Of::Session(_, name) => name.to_string(),
            Of::Process(number) => format!("process {number}"),
            Of::Shared(_) | Of::Opening(_) | Of::Connection => String::new(),
        }
    }
}

/// Treatment of the requests of an exchange that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// They are recorded, or their answer comes in another stream.
    Kept,
    /// They are recorded without an answer: this side ended it.
    Cut(Sender),
    /// They did not come to an MCP server, or not all of it is known.
    LeftOut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyForm {
    Events,
    Json,
    /// It holds no message, or is compressed.
    Other,
}

#[derive(Debug)]
pub(super) struct MessageSource {
    pub(super) key: StreamKey,
    pub(super) server: usize,
    /// The side that its bytes are of.
    pub(super) sender: Sender,
    number: u64,
    method: Option<Method>,
    status: StatusCode,
    content: MessageContent,
    pub(super) is_lost: bool,
}

#[derive(Debug)]
enum MessageContent {
    Events(EventData),
    Json(Vec<u8>),
    Lines(LineSplitter),
    None,
}

impl MessageSource {
    /// An HTTP exchange, whose response is still to come.
    pub(super) fn exchange(number: u64, key: StreamKey, server: usize, method: Method) -> Self {
        let (sender, method, status) = (Sender::Server, Some(method), StatusCode::OK);
        Self { key, server, sender, number, method, status, content: MessageContent::None, is_lost: false }
    }

    pub(super) fn side(number: u64, sender: Sender) -> Self {
        let content = MessageContent::Lines(LineSplitter::new(MOST_BYTES));
        let (key, status) = (StreamKey::connection(), StatusCode::OK);
        Self { key, server: 0, sender, number, method: None, status, content, is_lost: false }
    }

    pub(super) fn is_posted(&self) -> bool {
        self.method.as_ref() == Some(&Method::POST)
    }

    /// The number that its server's messages have: none in a stream that is only listened to, and over stdio.
    pub(super) fn of_messages(&self) -> Option<u64> {
        self.is_posted().then_some(self.number)
    }

    pub(super) fn answered(&mut self, status: StatusCode, form: BodyForm) {
        self.status = status;
        self.content = match form {
            BodyForm::Events => MessageContent::Events(EventData::new(MOST_BYTES)),
            BodyForm::Json => MessageContent::Json(Vec::new()),
            BodyForm::Other => MessageContent::None,
        };
    }

    /// Notes that something of it is missing: of lines the one that it was in, of an exchange all of it is lost.
    pub(super) fn lose(&mut self) {
        match &mut self.content {
            MessageContent::Lines(lines) => lines.lose(),
            _ => (self.is_lost, self.content) = (true, MessageContent::None),
        }
    }

    /// Takes bytes and gives the messages that end in them.
    pub(super) fn push(&mut self, bytes: Bytes) -> Vec<ReadLine> {
        match &mut self.content {
            MessageContent::Events(events) => return events.push(bytes),
            MessageContent::Lines(lines) => return lines.push(&bytes),
            MessageContent::Json(body) if body.len() + bytes.len() <= MOST_BYTES => body.extend_from_slice(&bytes),
            MessageContent::Json(_) => self.lose(),
            MessageContent::None => {}
        }
        Vec::new()
    }

    pub(super) fn finish(&mut self, end: ExchangeEnd) -> Option<ReadLine> {
        match &mut self.content {
            MessageContent::Json(body) if end == ExchangeEnd::Whole => {
                let body = std::mem::take(body);
                let is_message = !body.trim_ascii().is_empty() && (!self.is_refusal() || has_id(&body));
                is_message.then_some(ReadLine::Line(body))
            }
            MessageContent::Lines(lines) if end == ExchangeEnd::Whole => lines.finish(),
            _ => None,
        }
    }

    /// Outcome of its requests; `has_open` where one of them has no answer.
    pub(super) fn fate(&self, end: ExchangeEnd, has_open: bool) -> Fate {
        let is_resumable = matches!(&self.content, MessageContent::Events(events) if events.is_resumable());
        match end {
            _ if self.is_lost || self.is_refusal() => Fate::LeftOut,
            ExchangeEnd::Unanswered => Fate::LeftOut,
            _ if !has_open || is_resumable => Fate::Kept,
            ExchangeEnd::ClientLeft => Fate::Cut(Sender::Client),
            ExchangeEnd::Whole | ExchangeEnd::ServerBroke => Fate::Cut(Sender::Server),
        }
    }

    pub(super) fn ends_session(&self, end: ExchangeEnd) -> bool {
        let is_deleted = self.method == Some(Method::DELETE) && end == ExchangeEnd::Whole && self.status.is_success();
        let is_gone =
            self.is_posted() && self.status == StatusCode::NOT_FOUND && matches!(self.key.of, Of::Session(..));
        is_deleted || is_gone || matches!(self.key.of, Of::Opening(_))
    }

    fn is_refusal(&self) -> bool {
        self.status.is_client_error() || self.status.is_server_error()
    }
}

/// Whether a body is the answer to a request.
fn has_id(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct AnswerId {
        id: Option<IgnoredAny>,
    }
    serde_json::from_slice::<AnswerId>(body).is_ok_and(|answer| answer.id.is_some())
}
