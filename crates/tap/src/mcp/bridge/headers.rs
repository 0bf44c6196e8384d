//! Headers of the modern era, which repeat what is in the message.

use std::collections::HashMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::message::OutgoingMessage;
use replay::mcp::named_in_headers;

/// Names of tools' arguments that are repeated in headers, by the tool: the header's end and the argument.
pub(super) type Annotated = HashMap<String, Vec<(String, String)>>;

/// Adds the headers of a request in this revision.
pub(super) fn add(headers: &mut HeaderMap, outgoing: &OutgoingMessage, version: &str, annotated: &Annotated) {
    let Some(method) = &outgoing.method else { return };
    put(headers, "mcp-protocol-version", version);
    put(headers, "mcp-method", method);
    let params = &outgoing.params;
    let Some(name) = named_in_headers(method, params) else { return };
    put(headers, "mcp-name", name);
    let arguments = annotated.get(name).filter(|_| method == "tools/call").into_iter().flatten();
    for (header, argument) in arguments {
        let value = match params.get("arguments").and_then(|arguments| arguments.get(argument)) {
            Some(Value::String(text)) => text.clone(),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
            Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => continue,
        };
        put(headers, &format!("mcp-param-{}", header.to_ascii_lowercase()), &value);
    }
}

/// Reads which arguments of listed tools are repeated in headers.
pub(super) fn annotations(result: &Value) -> Annotated {
    let tools = result.get("tools").and_then(Value::as_array).into_iter().flatten();
    let of_tool = |tool: &Value| {
        let properties = tool.get("inputSchema")?.get("properties")?.as_object()?;
        let header = |schema: &Value| schema.get("x-mcp-header")?.as_str().map(str::to_owned);
        let found: Vec<(String, String)> =
            properties.iter().filter_map(|(name, schema)| Some((header(schema)?, name.clone()))).collect();
        Some((tool.get("name")?.as_str()?.to_owned(), found))
    };
    tools.filter_map(of_tool).filter(|(_, found)| !found.is_empty()).collect()
}

fn put(headers: &mut HeaderMap, name: &str, value: &str) {
    let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(&encoded(value))) else { return };
    headers.insert(name, value);
}

/// The text as a header may have it: visible ASCII and spaces inside; anything else, and what looks encoded, in base64.
fn encoded(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) && text.trim() == text;
    let looks_encoded = text.starts_with("=?base64?") && text.ends_with("?=");
    if is_plain && !looks_encoded { text.to_owned() } else { format!("=?base64?{}?=", STANDARD.encode(text)) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn headers(message: &Value, annotated: &Annotated) -> Vec<(String, String)> {
        let outgoing = OutgoingMessage::read(message.to_string().into_bytes()).unwrap();
        let mut headers = HeaderMap::new();
        add(&mut headers, &outgoing, "2026-07-28", annotated);
        headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect()
    }

    #[test]
    fn headers_repeat_the_message() {
        let schema = json!({"properties": {"region": {"x-mcp-header": "Region"}, "n": {"x-mcp-header": "N"}, "q": {}}});
        let annotated = annotations(&json!({"tools": [{"name": "buy", "inputSchema": schema}, {"name": "x"}]}));
        let call = json!({"id": 1, "method": "tools/call", "params": {"name": "buy", "arguments": {"region": " é", "n": 2, "q": 1}}});
        let expected = [
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "tools/call"),
            ("mcp-name", "buy"),
            ("mcp-param-region", "=?base64?IMOp?="),
            ("mcp-param-n", "2"),
        ];
        assert_eq!(headers(&call, &annotated), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let read = json!({"id": 1, "method": "resources/read", "params": {"uri": "=?base64?a?="}});
        assert!(
            headers(&read, &annotated).contains(&("mcp-name".to_owned(), "=?base64?PT9iYXNlNjQ/YT89?=".to_owned()))
        );
    }
}
