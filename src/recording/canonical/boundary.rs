//! Boundary of a request: the service that it is sent to.

use serde_json::Value;

use super::mcp::McpCall;
use crate::api::endpoints::route;

/// `llm:<model>` for requests to a model, `tool:<server>/<tool>` and `mcp:<server>` for those of MCP, else `http:<METHOD path>`.
#[must_use]
pub fn boundary(method: &str, path: &str, body: &Value) -> String {
    if method == "POST" && route(path).is_some_and(|route| route.asks_model) {
        format!("llm:{}", body.get("model").and_then(Value::as_str).unwrap_or_default())
    } else if let Some(call) = McpCall::of(method, path, body) {
        call.boundary(body)
    } else {
        format!("http:{method} {path}")
    }
}
