//! Requests of MCP as cassettes have them: `POST /mcp/SERVER` with `method` and `params`, without what JSON-RPC adds to them.
//!
//! See docs/decisions/0086-mcp-records-are-exchanges.md.

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

use super::{CanonicalKey, Identity, SharedList, normal};
use base::one_line::clipped;
use net::wire::percent_decoded;

/// Path below which the servers are.
const ROOT: &str = "/mcp/";

/// A message of a client to an MCP server: a request, or a notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpCall<'a> {
    /// Name of the server.
    pub server: String,
    /// Method, such as `tools/call`.
    pub method: &'a str,
}

impl<'a> McpCall<'a> {
    /// Reads a recorded request; `None` where it is none of MCP. Requests that were recorded as HTTP still have their `jsonrpc`.
    pub(crate) fn of(method: &str, path: &str, body: &'a Value) -> Option<Self> {
        let name = path.split('?').next()?.strip_prefix(ROOT).filter(|name| !name.is_empty() && !name.contains('/'))?;
        let called = body.get("method")?.as_str()?;
        let is_ours = method == "POST" && body.get("jsonrpc").is_none();
        is_ours.then(|| Self { server: percent_decoded(name).into_owned(), method: called })
    }

    /// Returns the path of a server; the name is one that [`is_server_name`] takes.
    #[must_use]
    pub fn path(server: &str) -> String {
        format!("{ROOT}{server}")
    }

    /// Returns the boundary: `tool:<server>/<tool>` for calls of tools, else `mcp:<server>`.
    #[must_use]
    pub fn boundary(&self, body: &Value) -> String {
        let tool = body.get("params").and_then(|params| params.get("name")).and_then(Value::as_str);
        match tool.filter(|_| self.method == "tools/call") {
            Some(tool) => format!("tool:{}/{tool}", self.server),
            None => format!("mcp:{}", self.server),
        }
    }
}

impl McpCall<'_> {
    /// Returns the identity of a message whose method and parameters that count are these: its route is the method at the server.
    #[must_use]
    pub fn identity(&self, mut canonical: Value) -> Identity {
        normal::even_numbers(&mut canonical);
        let route = format!("{} {}", self.method, Self::path(&self.server));
        let key = CanonicalKey(xxh3_128(&[route.as_bytes(), &normal::sorted(&canonical)].concat()));
        Identity {
            boundary: self.boundary(&canonical),
            route,
            fields: canonical,
            list: None,
            key,
            exact: key,
            chain: SharedList::default(),
        }
    }
}

/// Returns a few words by which people recognise a request: the method, what it names, and its arguments.
#[must_use]
pub fn mcp_summary(method: &str, params: &Value) -> String {
    let text = |name: &str| params.get(name).and_then(Value::as_str);
    let named = text("name").or_else(|| text("uri")).map(|name| format!(" {name}")).unwrap_or_default();
    let arguments = params.get("arguments").filter(|arguments| !arguments.is_null()).map(Value::to_string);
    let arguments = arguments.map(|arguments| format!(" {arguments}")).unwrap_or_default();
    clipped(&format!("{method}{named}{arguments}"), 100)
}

/// Returns whether a server can have this name: 1 to 100 letters, digits, `-`, `_` and `.`, not only points.
#[must_use]
pub fn is_server_name(name: &str) -> bool {
    let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    is_word && (1..=100).contains(&name.len()) && !name.bytes().all(|byte| byte == b'.')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_are_told_from_other_requests() {
        let body = json!({"method": "tools/call", "params": {"name": "now"}});
        let call = McpCall::of("POST", "/mcp/time?x=1", &body).unwrap();
        assert_eq!(
            (call.server.as_str(), call.method, call.boundary(&body).as_str()),
            ("time", "tools/call", "tool:time/now")
        );
        let listed = json!({"method": "tools/list"});
        assert_eq!(McpCall::of("POST", "/mcp/time", &listed).unwrap().boundary(&listed), "mcp:time");
        let wire = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
        for (method, path, body) in [
            ("GET", "/mcp/time", &listed),
            ("POST", "/mcp/", &listed),
            ("POST", "/mcp/a/b", &listed),
            ("POST", "/mcp/time", &wire),
        ] {
            assert_eq!(McpCall::of(method, path, body), None, "{method} {path} {body}");
        }
    }

    #[test]
    fn names_of_servers_are_words() {
        assert!(
            is_server_name("file-system_2.x") && !is_server_name("..") && !is_server_name("a/b") && !is_server_name("")
        );
    }
}
