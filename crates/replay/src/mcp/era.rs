//! The two eras of the protocol: with `initialize` (legacy), and with the version in every request (modern). A client of one is answered
//! from a recording of the other as far as their messages mean the same.

use serde_json::{Map, Value, json};

use super::{
    message::{Id, error},
    record_index::RecordIndex,
};
use recording::mcp::{McpEvent, McpRecord};

/// Revisions with `initialize`, the oldest first.
pub(super) const LEGACY: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// Revisions without it.
pub(super) const MODERN: [&str; 1] = ["2026-07-28"];

/// The entry of `_meta` in which a modern request has its version.
pub(super) const VERSION: &str = "io.modelcontextprotocol/protocolVersion";

/// Code of the error for a version that is not served.
const UNSUPPORTED_VERSION: i64 = -32022;

/// Methods whose modern results have a lifetime.
const CACHEABLE: [&str; 6] =
    ["server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Era {
    Legacy,
    Modern,
}

impl Era {
    /// The era of a request by its own version; the error is the response where no such version is served.
    pub(super) fn of(id: &Id, params: &Value) -> Result<Self, Value> {
        let Some(version) = params.get("_meta").and_then(|meta| meta.get(VERSION)) else { return Ok(Self::Legacy) };
        match version.as_str() {
            Some(version) if MODERN.contains(&version) => Ok(Self::Modern),
            _ => Err(unsupported(id, version)),
        }
    }

    /// Why a record cannot answer a client of this era, if it cannot.
    pub(super) fn refuses(self, record: &McpRecord) -> Option<&'static str> {
        let asks = record.events.iter().any(|event| matches!(event, McpEvent::Ask { .. }));
        let result = record.answer().and_then(|answer| answer.get("result"));
        let wants_input = result.is_some_and(|result| result.get("resultType") == Some(&json!("input_required")));
        match self {
            Self::Modern if asks => {
                Some("the server asked its client for something, which it may not do in this protocol version")
            }
            Self::Legacy if wants_input => Some("its result asks for input, which this protocol version does not have"),
            Self::Modern | Self::Legacy => None,
        }
    }

    /// Brings an answer into the form of this era.
    pub(super) fn convert(self, method: &str, answer: &mut Map<String, Value>) {
        let Some(result) = answer.get_mut("result").and_then(Value::as_object_mut) else { return };
        let of_modern = [("resultType", json!("complete")), ("ttlMs", json!(0)), ("cacheScope", json!("private"))];
        for (at, (name, value)) in of_modern.into_iter().enumerate() {
            match self {
                Self::Modern if at == 0 || CACHEABLE.contains(&method) => {
                    result.entry(name).or_insert(value);
                }
                Self::Modern => {}
                Self::Legacy => drop(result.shift_remove(name)),
            }
        }
    }
}

/// The response to a request of a version that is not served.
pub(super) fn unsupported(id: &Id, version: &Value) -> Value {
    let data = json!({"supported": MODERN, "requested": version});
    error(Some(id), UNSUPPORTED_VERSION, "Unsupported protocol version", Some(data))
}

/// The result of `server/discover` for a recording without one; `None` where a client has to use `initialize`: where the recorded server asked
/// its client for something.
pub(super) fn discovered(index: &RecordIndex) -> Option<Value> {
    if index.records().iter().any(|indexed| Era::Modern.refuses(&indexed.record).is_some()) {
        return None;
    }
    let field = recorded(index, "initialize");
    let info = field("serverInfo").unwrap_or_else(server_info);
    let result = json!({
        "supportedVersions": MODERN,
        "capabilities": field("capabilities").unwrap_or_else(|| index.capabilities()),
        "_meta": {"io.modelcontextprotocol/serverInfo": info},
    });
    Some(with_instructions(result, field("instructions")))
}

/// The result of `initialize` for a recording without one.
pub(super) fn initialized(index: &RecordIndex, version: &str) -> Value {
    let field = recorded(index, "server/discover");
    let info = field("_meta").and_then(|meta| meta.get("io.modelcontextprotocol/serverInfo").cloned());
    let result = json!({
        "protocolVersion": version,
        "capabilities": field("capabilities").unwrap_or_else(|| index.capabilities()),
        "serverInfo": info.unwrap_or_else(server_info),
    });
    with_instructions(result, field("instructions"))
}

/// The fields of the first recorded result of a method.
pub(super) fn recorded(index: &RecordIndex, method: &str) -> impl Fn(&str) -> Option<Value> {
    let result = index.first_of(method).and_then(|indexed| indexed.record.answer()?.get("result"));
    move |name| result?.get(name).cloned()
}

fn with_instructions(mut result: Value, instructions: Option<Value>) -> Value {
    if let (Some(instructions), Some(fields)) = (instructions, result.as_object_mut()) {
        fields.insert("instructions".to_owned(), instructions);
    }
    result
}

fn server_info() -> Value {
    json!({"name": "vllm-vcr", "version": env!("CARGO_PKG_VERSION")})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::{
        McpSession,
        tests::{STRICT, first, send, session, session_of, text},
    };

    #[test]
    fn results_have_the_fields_of_their_era() {
        let converted = |era: Era, method: &str, result: Value| {
            let mut answer = json!({"result": result}).as_object().cloned().unwrap();
            era.convert(method, &mut answer);
            answer["result"].clone()
        };
        let modern = json!({"resultType": "complete", "ttlMs": 0, "cacheScope": "private"});
        assert_eq!(converted(Era::Modern, "tools/list", json!({})), modern);
        assert_eq!(converted(Era::Modern, "tools/call", json!({})), json!({"resultType": "complete"}));
        let recorded = json!({"resultType": "input_required", "ttlMs": 5, "cacheScope": "public", "x": 1});
        assert_eq!(converted(Era::Modern, "tools/list", recorded.clone()), recorded);
        assert_eq!(converted(Era::Legacy, "tools/list", recorded), json!({"x": 1}));
    }

    /// A request of the modern era.
    fn modern(id: u64, method: &str, mut params: Value) -> Value {
        params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    fn playing(text: &str) -> McpSession {
        session_of(text, STRICT)
    }

    #[test]
    fn a_modern_client_is_answered_from_a_legacy_recording() {
        let mut session = playing(
            r"vcr: 1
records:
- request: POST /mcp/s
  body: {method: initialize, params: {protocolVersion: 2025-06-18}}
  answer: {json: {result: {protocolVersion: 2025-06-18, capabilities: {tools: {}}, serverInfo: {name: real}, instructions: Be kind.}}}
- request: POST /mcp/s
  body: {method: tools/list}
  answer: {json: {result: {tools: []}}}
- request: POST /mcp/s
  body: {method: tools/call, params: {name: a}}
  answer: {json: {result: {content: []}}}
",
        );
        let found = &send(&mut session, &modern(1, "server/discover", json!({})))[0]["result"];
        assert_eq!(
            (&found["supportedVersions"], &found["capabilities"]),
            (&json!(["2026-07-28"]), &json!({"tools": {}}))
        );
        assert_eq!(
            (&found["resultType"], &found["ttlMs"], &found["instructions"]),
            (&json!("complete"), &json!(0), &json!("Be kind."))
        );
        assert_eq!(found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "real");
        let listed = &send(&mut session, &modern(2, "tools/list", json!({})))[0]["result"];
        assert_eq!(listed, &json!({"tools": [], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}));
        let called = &send(&mut session, &modern(3, "tools/call", json!({"name": "a"})))[0]["result"];
        assert_eq!(called, &json!({"content": [], "resultType": "complete"}));
        let mut unknown = modern(4, "tools/list", json!({}));
        unknown["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2099-01-01");
        let refused = &send(&mut session, &unknown)[0]["error"];
        assert_eq!(
            (&refused["code"], &refused["data"]),
            (&json!(-32022), &json!({"supported": ["2026-07-28"], "requested": "2099-01-01"}))
        );
        assert_eq!(session.report().sessions["default"].misses.len(), 0);
    }

    #[test]
    fn a_legacy_client_is_answered_from_a_modern_recording() {
        let mut session = playing(
            r"vcr: 1
records:
- request: POST /mcp/s
  body: {method: server/discover}
  answer: {json: {result: {supportedVersions: [2026-07-28], capabilities: {tools: {listChanged: true}}, instructions: Be quick., _meta: {io.modelcontextprotocol/serverInfo: {name: real}}}}}
- request: POST /mcp/s
  body: {method: tools/list, params: {_meta: {io.modelcontextprotocol/protocolVersion: 2026-07-28}}}
  answer: {json: {result: {resultType: complete, ttlMs: 9, cacheScope: public, tools: []}}}
- request: POST /mcp/s
  body: {method: tools/call, params: {name: a, _meta: {io.modelcontextprotocol/protocolVersion: 2026-07-28}}}
  answer: {json: {result: {resultType: input_required, requestState: x}}}
",
        );
        let opened =
            &send(&mut session, &json!({"id": 0, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}))
                [0];
        let expected = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": true}},
            "serverInfo": {"name": "real"}, "instructions": "Be quick."});
        assert_eq!(opened["result"], expected);
        let listed = &send(&mut session, &json!({"id": 1, "method": "tools/list"}))[0]["result"];
        assert_eq!(listed, &json!({"tools": []}));
        let refused =
            &send(&mut session, &json!({"id": 2, "method": "tools/call", "params": {"name": "a"}}))[0]["error"];
        assert_eq!((&refused["code"], &refused["data"]["vcr"]["reason"]), (&json!(40400), &json!("era")));
        assert_eq!(
            send(&mut session, &modern(3, "tools/call", json!({"name": "a"})))[0]["result"]["requestState"],
            "x"
        );
    }

    #[test]
    fn what_a_server_asks_cannot_be_asked_of_a_modern_client() {
        let mut session = session(STRICT);
        let call = modern(1, "tools/call", json!({"name": "search", "arguments": {"q": "a"}}));
        let refused = &send(&mut session, &call)[0]["error"];
        assert_eq!((&refused["code"], &refused["data"]["vcr"]["reason"]), (&json!(40400), &json!("era")));
        assert_eq!(send(&mut session, &modern(2, "server/discover", json!({})))[0]["error"]["code"], -32601);
        assert_eq!(
            text(&first(&mut session, &json!(3))[0]),
            "first",
            "the record is still there for a client that can be asked"
        );
    }

    #[test]
    fn messages_of_a_subscription_name_the_callers_request() {
        let mut session = playing(
            r"vcr: 1
records:
- request: POST /mcp/s
  body: {method: subscriptions/listen, params: {notifications: {toolsListChanged: true}}}
  aborted: 1
  answer:
    events:
    - data: {method: notifications/subscriptions/acknowledged, params: {_meta: {io.modelcontextprotocol/subscriptionId: 7}}}
- request: POST /mcp/s
  body: {method: tools/call, params: {name: a}}
  answer:
    events:
    - data: {result: {content: []}}
    - data: {method: notifications/tools/list_changed, params: {_meta: {io.modelcontextprotocol/subscriptionId: 7}}}
",
        );
        let mut listen = modern(40, "subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
        listen["id"] = json!("mine");
        let heard = send(&mut session, &listen);
        let name = "io.modelcontextprotocol/subscriptionId";
        assert_eq!((heard.len(), &heard[0]["method"]), (1, &json!("notifications/subscriptions/acknowledged")));
        assert_eq!(heard[0]["params"]["_meta"][name], "mine");
        let called = send(&mut session, &modern(2, "tools/call", json!({"name": "a"})));
        assert_eq!((&called[0]["id"], &called[1]["params"]["_meta"][name]), (&json!(2), &json!("mine")));
    }
}
