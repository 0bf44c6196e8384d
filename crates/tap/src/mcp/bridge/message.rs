//! What has to be known of a client's message to post it.

use serde_json::Value;

/// A message on its way to the server.
#[derive(Debug, Clone)]
pub(in crate::mcp) struct OutgoingMessage {
    pub(in crate::mcp) line: Vec<u8>,
    pub(in crate::mcp) method: Option<String>,
    /// The id as JSON, where an answer is due.
    pub(in crate::mcp) id: Option<String>,
    /// What headers of the modern era repeat.
    pub(in crate::mcp) params: Value,
}

impl OutgoingMessage {
    /// Reads a line; `None` where it is no JSON object or array.
    pub(in crate::mcp) fn read(line: Vec<u8>) -> Option<Self> {
        let mut message: Value = serde_json::from_slice(&line).ok()?;
        if !(message.is_object() || message.is_array()) {
            return None;
        }
        let method = message.get("method").and_then(Value::as_str).map(str::to_owned);
        let id = message.get("id").filter(|id| method.is_some() && !id.is_null()).map(Value::to_string);
        let params = message.get_mut("params").map(Value::take).unwrap_or_default();
        Some(Self { line, method, id, params })
    }

    /// Whether it is a request that opens a session.
    pub(in crate::mcp) fn opens_session(&self) -> bool {
        self.id.is_some() && self.method.as_deref() == Some("initialize")
    }

    /// The id of the request that it cancels, as JSON.
    pub(in crate::mcp) fn cancelled(&self) -> Option<String> {
        let is_cancel = self.id.is_none() && self.method.as_deref() == Some("notifications/cancelled");
        self.params.get("requestId").filter(|_| is_cancel).map(Value::to_string)
    }

    /// The revision that it names, in the modern era.
    pub(in crate::mcp) fn version(&self) -> Option<&str> {
        self.params.get("_meta")?.get("io.modelcontextprotocol/protocolVersion")?.as_str()
    }
}
