//! Responses, and the messages that they are made of.

use serde_json::Value;

use super::McpHeaders;
use crate::mcp::message::{INVALID_REQUEST, Id, METHOD_NOT_FOUND, error};

/// Response to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum EndpointReply {
    /// One body, or none.
    Whole {
        /// Status.
        status: u16,
        /// JSON.
        body: Option<Value>,
        /// Name of the MCP session that begins.
        session: Option<String>,
    },
    /// Events.
    Events {
        /// Those that are there already.
        messages: Vec<Value>,
        /// Whether others may follow.
        is_open: bool,
        /// Name of the MCP session that begins.
        session: Option<String>,
    },
    /// The recorded server ended after these events.
    Ended(Vec<Value>),
    /// The real server answers.
    Forward(Box<McpForward>),
}

/// A message that goes to the real server.
#[derive(Debug, Clone, PartialEq)]
pub struct McpForward {
    /// Id of the request; `None` where no answer is due.
    pub id: Option<Value>,
    /// Parameters of the client's `initialize`, where the message belongs to a session that it began; `None` where the message is it,
    /// and in the modern era.
    pub opening: Option<Value>,
    /// Name of the MCP session that begins.
    pub session: Option<String>,
    /// Whether it is recorded.
    pub is_recorded: bool,
}

/// Something for a stream that is open.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamMessage {
    /// A message.
    Message(u64, Value),
    /// Its end.
    End(u64),
}

pub(super) fn whole(status: u16, body: Option<Value>) -> EndpointReply {
    EndpointReply::Whole { status, body, session: None }
}

pub(super) fn refused(id: Option<&Id>, status: u16, code: i64, message: &str) -> EndpointReply {
    whole(status, Some(error(id, code, message, None)))
}

#[derive(Debug, Default)]
pub(super) struct Own {
    pub(super) messages: Vec<Value>,
    pub(super) is_done: bool,
    pub(super) has_ended: bool,
    pub(super) is_forwarded: bool,
}

impl Own {
    /// The response; `session` is the name of the MCP session that begins.
    pub(super) fn reply(
        mut self,
        head: &McpHeaders,
        (is_request, is_modern): (bool, bool),
        session: Option<String>,
    ) -> EndpointReply {
        if self.has_ended {
            return EndpointReply::Ended(self.messages);
        }
        if !is_request {
            return whole(202, None);
        }
        let answer = self.messages.iter().rposition(|message| message.get("method").is_none());
        let is_plain = self.messages.len() == 1 && !head.takes_events_only() || !head.takes_events();
        match answer.filter(|_| self.is_done && is_plain) {
            Some(at) => {
                let body = self.messages.swap_remove(at);
                EndpointReply::Whole { status: status(&body, is_modern), body: Some(body), session }
            }
            None => EndpointReply::Events { messages: self.messages, is_open: !self.is_done, session },
        }
    }
}

fn status(body: &Value, is_modern: bool) -> u16 {
    match body.pointer("/error/code").and_then(Value::as_i64) {
        Some(METHOD_NOT_FOUND) if is_modern => 404,
        Some(INVALID_REQUEST) if body.get("id").is_none_or(Value::is_null) => 400,
        _ => 200,
    }
}
