//! MCP in cassettes: a message of the client, and what the server sent because of it, in one ordered list.
//!
//! A record is `POST /mcp/SERVER` with `method` and `params`, whatever transport it was recorded on. Its answer is the result
//! (`json: {result: ...}`) or the `error`; where the server sent more than that, `events` holds all of it: notifications
//! (`method`, `params`), requests of the server (with the client's `reply`), the answer, and what came after the answer before the
//! client sent anything else. What JSON-RPC adds (`jsonrpc`, `id`) is not recorded: every replay has ids of its own.
//!
//! See docs/decisions/0086-mcp-records-are-exchanges.md.

use serde_json::{Map, Value, json};

use super::{
    canonical::{McpCall, mcp_summary},
    cassette::{AnswerContent, CassetteRecord, RecordedAnswer, SseEvent, TransportFault},
};

/// One recorded message of a client with its consequences.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct McpRecord {
    /// Name of the server.
    pub server: String,
    /// Method of the request or notification.
    pub method: String,
    /// Its parameters; null for none.
    pub params: Value,
    /// Messages of the server, in order.
    pub events: Vec<McpEvent>,
    /// Why there is no answer although one was due.
    pub broken: Option<Broken>,
}

/// Reason for which a request has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// The client cancelled it or left.
    Cancelled,
    /// The server ended.
    ServerEnded,
}

/// One message of a server.
#[derive(Debug, Clone, PartialEq)]
pub enum McpEvent {
    /// A notification.
    Notify {
        /// Its method.
        method: String,
        /// Its parameters; null for none.
        params: Value,
    },
    /// A request to the client, such as `elicitation/create`.
    Ask {
        /// Its method.
        method: String,
        /// Its parameters; null for none.
        params: Value,
        /// The client's `result` or `error`; `None` where it sent neither.
        reply: Option<Map<String, Value>>,
    },
    /// The answer: `result` or `error`.
    Answer(Map<String, Value>),
}

impl McpRecord {
    /// Reads a record; `None` where it is none of MCP.
    ///
    /// # Errors
    /// When its answer is none of an MCP server; the text gives the reason.
    pub fn read(record: &CassetteRecord) -> Option<Result<Self, String>> {
        let body = record.body.fields();
        let call = record.mcp_call()?;
        let (server, method) = (call.server, call.method.to_owned());
        let params = body.get("params").cloned().unwrap_or_default();
        let broken = match (record.answer.fault, record.aborted) {
            (Some(_), _) => Some(Broken::ServerEnded),
            (None, Some(_)) => Some(Broken::Cancelled),
            (None, None) => None,
        };
        Some(events(&record.answer).map(|events| Self { server, method, params, events, broken }))
    }

    /// The record as a cassette has it, without its number.
    #[must_use]
    pub fn record(&self) -> CassetteRecord {
        let mut body = Map::new();
        body.insert("method".to_owned(), self.method.clone().into());
        // Parameters without any entry are none.
        if self.params.as_object().is_some_and(|params| !params.is_empty()) {
            body.insert("params".to_owned(), self.params.clone());
        }
        let count = self.events.len();
        let is_answered = self.answer().is_some();
        let content = match self.events.as_slice() {
            [] => AnswerContent::Empty,
            [McpEvent::Answer(answer)] => AnswerContent::Json(answer.clone().into()),
            events => AnswerContent::Events(events.iter().map(McpEvent::shown).collect()),
        };
        let fault = (self.broken == Some(Broken::ServerEnded)).then_some(TransportFault::reset(count));
        let is_notification = !is_answered && self.broken.is_none();
        CassetteRecord {
            method: "POST".to_owned(),
            path: McpCall::path(&self.server),
            body: Value::Object(body).into(),
            aborted: (self.broken == Some(Broken::Cancelled)).then_some(count as u64),
            answer: RecordedAnswer {
                status: if is_notification { 202 } else { 200 },
                content,
                fault,
                ..RecordedAnswer::default()
            },
            ..CassetteRecord::default()
        }
    }

    /// The answer, where there is one.
    #[must_use]
    pub fn answer(&self) -> Option<&Map<String, Value>> {
        self.events.iter().find_map(|event| match event {
            McpEvent::Answer(answer) => Some(answer),
            McpEvent::Notify { .. } | McpEvent::Ask { .. } => None,
        })
    }

    /// Bytes of everything in it, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let events = self.events.iter().map(|event| match event {
            McpEvent::Notify { params, .. } => bytes_of(params),
            McpEvent::Ask { params, reply, .. } => bytes_of(params) + reply.iter().map(bytes_of_fields).sum::<usize>(),
            McpEvent::Answer(answer) => bytes_of_fields(answer),
        });
        bytes_of(&self.params) + events.sum::<usize>()
    }

    /// Whether the server sent anything that belongs to no request that is still without its answer.
    #[must_use]
    pub fn has_unsolicited(&self) -> bool {
        let is_request = self.answer().is_some() || self.broken.is_some();
        let answered = self.events.iter().position(|event| matches!(event, McpEvent::Answer(_)));
        if is_request { answered.is_some_and(|at| at + 1 < self.events.len()) } else { !self.events.is_empty() }
    }

    /// A few words by which people recognise it.
    #[must_use]
    pub fn summary(&self) -> String {
        format!("{} {}", self.server, mcp_summary(&self.method, &self.params))
    }
}

fn bytes_of(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(bytes_of).sum::<usize>() + 2,
        Value::Object(fields) => bytes_of_fields(fields),
    }
}

fn bytes_of_fields(fields: &Map<String, Value>) -> usize {
    fields.iter().map(|(name, value)| name.len() + bytes_of(value) + 4).sum::<usize>() + 2
}

fn events(answer: &RecordedAnswer) -> Result<Vec<McpEvent>, String> {
    let events = match &answer.content {
        AnswerContent::Empty => Vec::new(),
        AnswerContent::Json(value) => vec![McpEvent::read(value)?],
        AnswerContent::Events(events) => {
            events.iter().map(|event| McpEvent::read(&event.data)).collect::<Result<_, _>>()?
        }
        AnswerContent::Choices { .. } | AnswerContent::Text(_) | AnswerContent::Bytes(_) => {
            return Err("the answer of an MCP server is `json: {result: …}`, `error` or `events`".to_owned());
        }
    };
    match events.iter().filter(|event| matches!(event, McpEvent::Answer(_))).count() {
        0 | 1 => Ok(events),
        many => Err(format!("a request has one `result` or `error`, not {many}")),
    }
}

impl McpEvent {
    fn read(data: &Value) -> Result<Self, String> {
        let fields = data.as_object().ok_or("a message of an MCP server is a map")?;
        if let Some(answer) = answer_of(fields) {
            return Ok(Self::Answer(answer));
        }
        let method = fields.get("method").and_then(Value::as_str);
        let method = method.ok_or("a message of an MCP server has a `result`, an `error` or a `method`")?.to_owned();
        let params = fields.get("params").cloned().unwrap_or_default();
        match fields.get("reply") {
            None => Ok(Self::Notify { method, params }),
            Some(Value::Null) => Ok(Self::Ask { method, params, reply: None }),
            Some(reply) => {
                let reply = reply.as_object().and_then(answer_of);
                let reply = reply.ok_or("the `reply` of a client is {result: …}, {error: …} or null")?;
                Ok(Self::Ask { method, params, reply: Some(reply) })
            }
        }
    }

    fn shown(&self) -> SseEvent {
        let message = |method: &str, params: &Value| {
            let mut fields = Map::new();
            fields.insert("method".to_owned(), method.into());
            if !params.is_null() {
                fields.insert("params".to_owned(), params.clone());
            }
            fields
        };
        let data = match self {
            Self::Answer(answer) => answer.clone(),
            Self::Notify { method, params } => message(method, params),
            Self::Ask { method, params, reply } => {
                let mut fields = message(method, params);
                fields.insert("reply".to_owned(), json!(reply));
                fields
            }
        };
        SseEvent { name: None, data: data.into() }
    }
}

/// The `result` or `error` of a response, without anything else; `None` where it has neither.
#[must_use]
pub fn answer_of(fields: &Map<String, Value>) -> Option<Map<String, Value>> {
    let (name, value) = fields.get_key_value("result").or_else(|| fields.get_key_value("error"))?;
    Some([(name.clone(), value.clone())].into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(events: Vec<McpEvent>, broken: Option<Broken>) -> McpRecord {
        let params = json!({"name": "search", "arguments": {"q": "a"}});
        McpRecord { server: "github".to_owned(), method: "tools/call".to_owned(), params, events, broken }
    }

    fn answer(value: Value) -> McpEvent {
        let Value::Object(fields) = value else { panic!("{value} is no object") };
        McpEvent::Answer(answer_of(&fields).unwrap())
    }

    #[test]
    fn what_is_written_is_read_again() {
        let notify = McpEvent::Notify { method: "notifications/progress".to_owned(), params: json!({"progress": 1}) };
        let ask = |reply: Value| McpEvent::Ask {
            method: "elicitation/create".to_owned(),
            params: Value::Null,
            reply: reply.as_object().cloned(),
        };
        for (events, broken, status) in [
            (vec![answer(json!({"result": {"content": []}}))], None, 200),
            (vec![answer(json!({"error": {"code": -32602, "message": "no"}}))], None, 200),
            (
                vec![
                    notify.clone(),
                    ask(json!({"result": {"action": "accept"}})),
                    answer(json!({"result": {}})),
                    notify.clone(),
                ],
                None,
                200,
            ),
            (vec![ask(Value::Null), notify], Some(Broken::ServerEnded), 200),
            (Vec::new(), Some(Broken::Cancelled), 200),
            (Vec::new(), None, 202),
        ] {
            let recorded = call(events, broken);
            let record = recorded.record();
            assert_eq!(record.answer.status, status);
            assert_eq!(McpRecord::read(&record).unwrap().unwrap(), recorded);
        }
    }

    #[test]
    fn answers_of_other_forms_are_refused() {
        for (content, expected) in [
            (AnswerContent::Json(json!({"content": []})), "has a `result`"),
            (AnswerContent::Text("x".to_owned()), "is `json: {result: …}`"),
            (
                AnswerContent::Events(vec![answer(json!({"result": 1})).shown(), answer(json!({"error": 1})).shown()]),
                "not 2",
            ),
            (AnswerContent::Events(vec![SseEvent { name: None, data: json!({"method": "x", "reply": 1}) }]), "`reply`"),
        ] {
            let mut record = call(Vec::new(), None).record();
            record.answer.content = content;
            let error = McpRecord::read(&record).unwrap().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(McpRecord::read(&CassetteRecord::default()), None);
    }

    #[test]
    fn parameters_without_an_entry_are_not_written() {
        let bare = McpRecord { params: json!({}), ..call(Vec::new(), None) };
        assert_eq!(bare.record().body.get("params"), None);
        assert!(call(Vec::new(), None).record().body.get("params").is_some());
    }

    #[test]
    fn a_summary_is_short() {
        assert_eq!(call(Vec::new(), None).summary(), r#"github tools/call search {"q":"a"}"#);
        assert_eq!(mcp_summary("resources/read", &json!({"uri": "file:///é".repeat(90)})).chars().count(), 101);
    }
}
