//! What has to be known of a client's message to post it.

use serde_json::Value;

/// A message on its way to the server.
#[derive(Debug, Clone)]
pub(in crate::mcp) struct OutgoingMessage {
    pub(in crate::mcp) line: Vec<u8>,
    pub(in crate::mcp) kind: MessageKind,
    pub(in crate::mcp) method: Option<String>,
    /// What headers of the modern era repeat.
    pub(in crate::mcp) params: Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::mcp) enum MessageKind {
    /// The request that opens a session; with its id, as JSON.
    Initialize(String),
    /// Any other request; with its id, as JSON.
    Request(String),
    /// It cancels the request with this id, as JSON.
    Cancel(String),
    /// A notification, a reply, or several messages.
    Other,
}

impl OutgoingMessage {
    /// Reads a line; `None` where it is no JSON object or array.
    pub(in crate::mcp) fn read(line: Vec<u8>) -> Option<Self> {
        let mut message: Value = serde_json::from_slice(&line).ok()?;
        if !(message.is_object() || message.is_array()) {
            return None;
        }
        let method = message.get("method").and_then(Value::as_str).map(str::to_owned);
        let id = message.get("id").filter(|id| !id.is_null()).map(Value::to_string);
        let params = message.get_mut("params").map(Value::take).unwrap_or_default();
        let kind = match (method.as_deref(), id) {
            (Some("initialize"), Some(id)) => MessageKind::Initialize(id),
            (Some(_), Some(id)) => MessageKind::Request(id),
            (Some("notifications/cancelled"), None) => match params.get("requestId") {
                Some(id) => MessageKind::Cancel(id.to_string()),
                None => MessageKind::Other,
            },
            _ => MessageKind::Other,
        };
        Some(Self { line, kind, method, params })
    }

    /// The id, where an answer is due.
    pub(in crate::mcp) fn id(&self) -> Option<&str> {
        match &self.kind {
            MessageKind::Initialize(id) | MessageKind::Request(id) => Some(id),
            MessageKind::Cancel(_) | MessageKind::Other => None,
        }
    }

    /// The revision that it names, in the modern era.
    pub(in crate::mcp) fn version(&self) -> Option<&str> {
        self.params.get("_meta")?.get("io.modelcontextprotocol/protocolVersion")?.as_str()
    }
}
