//! What the headers of a request have to have.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::{EndpointReply, parameters::Parameters, reply::refused};
use crate::mcp::{
    era::{MODERN, VERSION, unsupported},
    message::RpcMessage,
};

/// Code of the error for headers that do not agree with the body.
const HEADER_MISMATCH: i64 = -32020;

/// Code of the error for parameters that are missing.
const INVALID_PARAMS: i64 = -32602;

/// The entry of `_meta` with the client's capabilities.
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// Headers that decide about a request, as they came.
#[derive(Debug, Clone, Default)]
pub struct McpHeaders {
    /// `Accept`.
    pub accept: Option<String>,
    /// `Mcp-Session-Id`.
    pub session: Option<String>,
    /// `MCP-Protocol-Version`.
    pub version: Option<String>,
    /// `Mcp-Method`.
    pub method: Option<String>,
    /// `Mcp-Name`.
    pub name: Option<String>,
    /// `Mcp-Param-…`: the rest of the name in lower case, and the value.
    pub parameters: Vec<(String, String)>,
}

impl McpHeaders {
    /// Whether they name a version without sessions.
    pub(super) fn is_modern(&self) -> bool {
        self.version.as_deref().is_some_and(|version| MODERN.contains(&version))
    }

    pub(super) fn takes_events(&self) -> bool {
        self.accept.as_deref().is_some_and(|accept| accept.contains("text/event-stream"))
    }

    pub(super) fn takes_events_only(&self) -> bool {
        let takes_json = |accept: &str| accept.contains("application/json") || accept.contains("*/*");
        self.takes_events() && !self.accept.as_deref().is_some_and(takes_json)
    }
}

/// Returns whether a message is of the modern era; the error is the response to one that has not what it has to have then.
pub(super) fn check_modern(
    head: &McpHeaders,
    message: Option<&RpcMessage>,
    parameters: &Parameters,
) -> Result<bool, EndpointReply> {
    let of_head = head.version.as_deref();
    let Some(RpcMessage::Request { id, method, params }) = message else {
        return Ok(head.is_modern());
    };
    let of_body = params.get("_meta").and_then(|meta| meta.get(VERSION));
    if of_body.is_none() && !head.is_modern() {
        return Ok(false);
    }
    let refuse = |code: i64, message: &str| Err(refused(Some(id), 400, code, message));
    let Some(version) = of_body else { return refuse(INVALID_PARAMS, "_meta has no protocolVersion") };
    if !params.get("_meta").and_then(|meta| meta.get(CAPABILITIES)).is_some_and(Value::is_object) {
        return refuse(INVALID_PARAMS, "_meta has no clientCapabilities");
    }
    if of_head != version.as_str() {
        return refuse(HEADER_MISMATCH, "MCP-Protocol-Version is missing, or not that of the body");
    }
    if !head.is_modern() {
        return Err(EndpointReply::Whole { status: 400, body: Some(unsupported(id, version)), session: None });
    }
    if head.method.as_deref() != Some(method) {
        return refuse(HEADER_MISMATCH, "Mcp-Method is missing, or not that of the body");
    }
    let named = named_in_headers(method, params);
    if named.is_some() && head.name.as_deref().and_then(decoded).as_deref() != named {
        return refuse(HEADER_MISMATCH, "Mcp-Name is missing, or not that of the body");
    }
    if method == "tools/call" && !parameters.agree(params, &head.parameters) {
        return refuse(HEADER_MISMATCH, "Mcp-Param-... is missing, or not the argument in the body");
    }
    Ok(true)
}

/// What a request names, as `Mcp-Name` has it.
#[must_use]
pub fn named_in_headers<'a>(method: &str, params: &'a Value) -> Option<&'a str> {
    match method {
        "tools/call" | "prompts/get" => params.get("name")?.as_str(),
        "resources/read" => params.get("uri")?.as_str(),
        _ => None,
    }
}

/// The value of a header that may be packed, as `=?base64?…?=`; `None` where it is packed badly.
pub(super) fn decoded(value: &str) -> Option<String> {
    let Some(packed) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(value.to_owned());
    };
    STANDARD.decode(packed).ok().and_then(|bytes| String::from_utf8(bytes).ok())
}
