//! Boundary of a request: the service that it is sent to.
//!
//! A request that names its upstream has it behind: `llm:claude @anthropic`. See docs/decisions/0082-upstreams-by-name.md.

use serde_json::Value;

use super::mcp::McpCall;
use api::endpoints::route;

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

/// Header of a recorded request that names its upstream, where there are several.
pub const UPSTREAM_HEADER: &str = "x-vcr-upstream";

/// The part of boundaries and routes that stands for the upstream which a request names: empty, or a space, `@` and the name.
#[must_use]
pub fn upstream_suffix(headers: &[(String, String)]) -> String {
    let named = headers.iter().find(|(name, _)| name == UPSTREAM_HEADER);
    named.map_or_else(String::new, |(_, upstream)| format!(" @{upstream}"))
}

/// A boundary without the upstream that it names, and the name.
#[must_use]
pub fn split_upstream(boundary: &str) -> (&str, Option<&str>) {
    boundary.rsplit_once(" @").map_or((boundary, None), |(bare, upstream)| (bare, Some(upstream)))
}
