//! JSON-RPC messages of MCP.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use recording::{canonical::with_exact_integers, mcp::answer_of};

/// Bytes of one message at most. Longer ones pass a tap, but are not recorded; a player refuses them.
pub const MOST_BYTES: usize = 64 << 20;

/// Codes of JSON-RPC.
pub(super) const PARSE_ERROR: i64 = -32700;
pub(super) const INVALID_REQUEST: i64 = -32600;
pub(super) const METHOD_NOT_FOUND: i64 = -32601;

/// Id of a request: a string or an integer, which are never equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Id(String);

impl Id {
    /// Reads an id; `None` for what is neither a string nor a number.
    pub(super) fn of(value: &Value) -> Option<Self> {
        (value.is_string() || value.is_number()).then(|| Self(value.to_string()))
    }

    pub(super) fn value(&self) -> Value {
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

impl From<u64> for Id {
    fn from(number: u64) -> Self {
        Self(number.to_string())
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum RpcMessage {
    /// It wants an answer.
    Request { id: Id, method: String, params: Value },
    /// It wants none.
    Notification { method: String, params: Value },
    /// Answer to a request.
    Response {
        /// The id of the request; `None` where the request could not be read.
        id: Option<Id>,
        answer: Map<String, Value>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Malformed {
    /// Code of the error that it gets.
    pub code: i64,
    /// Reason, without anything of the line.
    pub why: &'static str,
    pub id: Option<Id>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum RpcLine {
    One(RpcMessage),
    /// A list of messages, as revision 2025-03-26 has them.
    Batch(Vec<Result<RpcMessage, Malformed>>),
}

impl RpcLine {
    /// Reads a line: JSON, of no deeper nesting than 128. Integers beyond 64 bits become text.
    pub(super) fn read(line: &[u8]) -> Result<Self, Malformed> {
        let no_json = Malformed { code: PARSE_ERROR, why: "the message is not JSON", id: None };
        let text = std::str::from_utf8(line).map_err(|_| no_json.clone())?;
        let exact = with_exact_integers(text);
        let value: Value = serde_json::from_str(&exact).map_err(|_| no_json)?;
        match value {
            Value::Array(items) if items.is_empty() => {
                Err(Malformed { code: INVALID_REQUEST, why: "a batch of no messages", id: None })
            }
            Value::Array(items) => Ok(Self::Batch(items.into_iter().map(RpcMessage::read).collect())),
            value => RpcMessage::read(value).map(Self::One),
        }
    }
}

impl RpcMessage {
    fn read(value: Value) -> Result<Self, Malformed> {
        let invalid = |why, id| Malformed { code: INVALID_REQUEST, why, id };
        let Value::Object(mut fields) = value else { return Err(invalid("a message is an object", None)) };
        let id = fields.get("id").and_then(Id::of);
        let has_id = fields.get("id").is_some_and(|id| !id.is_null());
        match fields.get_mut("method").map(Value::take) {
            Some(Value::String(method)) => {
                let params = fields.get_mut("params").map(Value::take).unwrap_or_default();
                if !(params.is_object() || params.is_null()) {
                    return Err(invalid("`params` is an object", id));
                }
                match (id, has_id) {
                    (Some(id), _) => Ok(Self::Request { id, method, params }),
                    (None, true) => Err(invalid("an `id` is a string or a number", None)),
                    (None, false) => Ok(Self::Notification { method, params }),
                }
            }
            Some(_) => Err(invalid("`method` is a string", id)),
            None => {
                let answer = answer_of(&fields)
                    .ok_or_else(|| invalid("a message has a `method`, a `result` or an `error`", id.clone()))?;
                Ok(Self::Response { id, answer })
            }
        }
    }
}

pub(super) fn response(id: Option<&Id>, answer: Map<String, Value>) -> Value {
    let mut fields = Map::new();
    fields.insert("jsonrpc".to_owned(), "2.0".into());
    fields.insert("id".to_owned(), id.map(Id::value).unwrap_or_default());
    fields.extend(answer);
    fields.into()
}

/// Reads the method of a message, and nothing else of it.
#[must_use]
pub fn method_of(message: &[u8]) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Method<'a> {
        #[serde(borrow)]
        method: Option<Cow<'a, str>>,
    }
    serde_json::from_slice::<Method<'_>>(message).ok()?.method
}

/// A response with an error, as JSON-RPC has it; the id is null where that of the request could not be read.
#[must_use]
pub fn error_response(id: Value, code: i64, message: &str, data: Option<Value>) -> Value {
    let mut error = json!({"code": code, "message": message});
    if let (Some(data), Some(fields)) = (data, error.as_object_mut()) {
        fields.insert("data".to_owned(), data);
    }
    Value::from_iter([("jsonrpc", "2.0".into()), ("id", id), ("error", error)])
}

pub(super) fn error(id: Option<&Id>, code: i64, message: &str, data: Option<Value>) -> Value {
    error_response(id.map(Id::value).unwrap_or_default(), code, message, data)
}

/// A request (with an id) or a notification on the wire.
pub(super) fn call(id: Option<&Id>, method: &str, params: Value) -> Value {
    let mut fields = Map::new();
    fields.insert("jsonrpc".to_owned(), "2.0".into());
    fields.extend(id.map(|id| ("id".to_owned(), id.value())));
    fields.insert("method".to_owned(), method.into());
    if !params.is_null() {
        fields.insert("params".to_owned(), params);
    }
    fields.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<RpcLine, Malformed> {
        RpcLine::read(text.as_bytes())
    }

    #[test]
    fn kinds_of_messages_are_told_apart() {
        let id = |text: &str| Id(text.to_owned());
        let request =
            |id: &str| RpcMessage::Request { id: Id(id.to_owned()), method: "ping".to_owned(), params: Value::Null };
        assert_eq!(read(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#), Ok(RpcLine::One(request("1"))));
        assert_eq!(read(r#"{"jsonrpc":"2.0","id":"1","method":"ping"}"#), Ok(RpcLine::One(request("\"1\""))));
        let notification = RpcMessage::Notification { method: "x".to_owned(), params: json!({}) };
        assert_eq!(read(r#"{"method":"x","params":{}}"#), Ok(RpcLine::One(notification.clone())));
        let answer = json!({"result": {"a": 1}}).as_object().cloned().unwrap();
        assert_eq!(
            read(r#"{"id":2,"result":{"a":1},"x":1}"#),
            Ok(RpcLine::One(RpcMessage::Response { id: Some(id("2")), answer }))
        );
        let Ok(RpcLine::Batch(items)) = read(r#"[{"method":"x","params":{}},7]"#) else { panic!() };
        assert!(items[0] == Ok(notification) && items[1].is_err());
    }

    #[test]
    fn what_is_no_message_has_a_code() {
        for (text, code) in [
            ("{", PARSE_ERROR),
            ("", PARSE_ERROR),
            ("7", INVALID_REQUEST),
            ("[]", INVALID_REQUEST),
            (r#"{"id":[],"method":"x"}"#, INVALID_REQUEST),
            (r#"{"id":1,"method":7}"#, INVALID_REQUEST),
            (r#"{"id":1,"method":"x","params":[1]}"#, INVALID_REQUEST),
            (r#"{"id":1}"#, INVALID_REQUEST),
            (&"[".repeat(100_000), PARSE_ERROR),
        ] {
            assert_eq!(read(text).unwrap_err().code, code);
        }
        assert_eq!(RpcLine::read(&[0xff, 0]).unwrap_err().code, PARSE_ERROR);
    }

    #[test]
    fn digits_are_kept_as_text() {
        let line = br#"{"id":1,"result":{"n":123456789012345678901234}}"#;
        let Ok(RpcLine::One(RpcMessage::Response { answer, .. })) = RpcLine::read(line) else { panic!() };
        assert_eq!(answer["result"]["n"], "123456789012345678901234");
    }
}
