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
}
