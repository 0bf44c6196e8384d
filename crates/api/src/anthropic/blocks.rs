//! Messages made of content blocks as chat messages, and tools as chat tools.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::SystemMessages;
use crate::{ApiError, python};

/// Beginning of a line that a client adds for its own accounting.
const BILLING: &str = "x-anthropic-billing-header";

/// The chat messages of a request.
pub(super) fn messages(body: &Map<String, Value>, messages: &[Value], system: SystemMessages) -> Vec<Value> {
    let mut out = Vec::new();
    let mut leading: Vec<String> = match body.get("system") {
        Some(Value::String(text)) if !text.is_empty() => vec![text.clone()],
        Some(Value::Array(blocks)) => blocks.iter().filter_map(plain_text).collect(),
        _ => Vec::new(),
    };
    if system == SystemMessages::First {
        leading.extend(messages.iter().filter(|message| message["role"] == "system").filter_map(system_text));
    }
    if !leading.is_empty() {
        out.push(json!({"role": "system", "content": leading.concat()}));
    }
    for message in messages {
        match message["role"].as_str() {
            Some("system") if system == SystemMessages::First => {}
            Some("system") => {
                let text = system_text(message).filter(|text| !text.is_empty());
                out.extend(text.map(|text| json!({"role": "system", "content": text})));
            }
            Some(role) => put_message(role, &message["content"], &mut out),
            None => {}
        }
    }
    out
}

/// A text block's text, unless it is empty or a client's accounting.
fn plain_text(block: &Value) -> Option<String> {
    let text = block.get("text").and_then(Value::as_str).filter(|_| block["type"] == "text")?;
    (!text.is_empty() && !text.starts_with(BILLING)).then(|| text.to_owned())
}

fn system_text(message: &Value) -> Option<String> {
    match &message["content"] {
        Value::String(text) => (!text.starts_with(BILLING)).then(|| text.clone()),
        Value::Array(blocks) => {
            let texts: Vec<String> = blocks.iter().filter_map(plain_text).collect();
            (!texts.is_empty()).then(|| texts.concat())
        }
        _ => None,
    }
}

fn put_message(role: &str, content: &Value, out: &mut Vec<Value>) {
    let mut message = Map::from_iter([("role".to_owned(), role.into())]);
    match content {
        Value::Array(blocks) => {
            let mut parts = BlockParts::default();
            for block in blocks {
                parts.put(role, block, out);
            }
            parts.into_message(&mut message);
        }
        text => drop(message.insert("content".to_owned(), text.clone())),
    }
    if role != "user" || message.contains_key("content") {
        out.push(Value::Object(message));
    }
}

/// Parts of a chat message from one message's blocks.
#[derive(Default)]
struct BlockParts {
    content: Vec<Value>,
    tool_calls: Vec<Value>,
    reasoning: Option<String>,
}

impl BlockParts {
    /// Results of tools are messages of their own, before the one that they came in.
    fn put(&mut self, role: &str, block: &Value, out: &mut Vec<Value>) {
        match block["type"].as_str().unwrap_or_default() {
            "text" if block["text"].as_str().is_some_and(|text| !text.is_empty()) => {
                self.content.push(json!({"type": "text", "text": block["text"]}));
            }
            "image" if python::truthy(block.get("source")) => self.content.push(image(&block["source"])),
            "thinking" => {
                if let Some(thought) = block["thinking"].as_str() {
                    self.reasoning.get_or_insert_default().push_str(thought);
                }
            }
            "tool_use" => self.tool_calls.push(tool_call(block)),
            "tool_result" if role == "user" => put_tool_result(block, out),
            "tool_result" => {
                let content = block.get("content").filter(|content| python::truthy(Some(content)));
                let text = content.map(python::display).unwrap_or_default();
                self.content.push(json!({"type": "text", "text": format!("Tool result: {text}")}));
            }
            _ => {}
        }
    }

    fn into_message(self, message: &mut Map<String, Value>) {
        if let Some(reasoning) = self.reasoning {
            message.insert("reasoning".to_owned(), reasoning.into());
        }
        if !self.tool_calls.is_empty() {
            message.insert("tool_calls".to_owned(), Value::Array(self.tool_calls));
        }
        match self.content.as_slice() {
            [] => {}
            [only] if only["type"] == "text" => drop(message.insert("content".to_owned(), only["text"].clone())),
            _ => drop(message.insert("content".to_owned(), Value::Array(self.content))),
        }
    }
}

fn image_url(source: &Value) -> String {
    let text = |name: &str, or: &str| source.get(name).and_then(Value::as_str).unwrap_or(or).to_owned();
    if source["type"] == "url" {
        return text("url", "");
    }
    format!("data:{};base64,{}", text("media_type", "image/jpeg"), text("data", ""))
}

fn image(source: &Value) -> Value {
    json!({"type": "image_url", "image_url": {"url": image_url(source)}})
}

fn tool_call(block: &Value) -> Value {
    let arguments =
        block.get("input").filter(|input| input.is_object()).map_or_else(|| "{}".to_owned(), Value::to_string);
    json!({
        "id": block["id"].as_str().filter(|id| !id.is_empty()).unwrap_or("call_0"),
        "type": "function",
        "function": {"name": block["name"].as_str().unwrap_or_default(), "arguments": arguments},
    })
}

fn put_tool_result(block: &Value, out: &mut Vec<Value>) {
    let (mut texts, mut images, mut references) = (Vec::new(), Vec::new(), Vec::new());
    match &block["content"] {
        Value::String(text) => texts.push(text.clone()),
        Value::Array(items) => {
            for item in items {
                match item["type"].as_str() {
                    Some("text") => texts.push(item["text"].as_str().unwrap_or_default().to_owned()),
                    Some("image") => images.push(image(&item["source"])),
                    Some("tool_reference") => {
                        let name = ["tool_name", "name"].iter().find_map(|key| item[*key].as_str());
                        references.extend(name.map(|name| json!({"type": "tool_reference", "name": name})));
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
    let id = block["tool_use_id"].as_str().unwrap_or_default();
    out.push(json!({"role": "tool", "tool_call_id": id, "content": texts.join("\n")}));
    if !images.is_empty() {
        out.push(json!({"role": "user", "content": images}));
    }
    if !references.is_empty() {
        out.push(json!({"role": "tool", "tool_call_id": id, "content": references}));
    }
}

/// The tools in effect at the end of the conversation, as chat tools.
/// Errors: a change to a tool that was not declared.
pub(super) fn tools(declared: Option<&Value>, messages: &[Value]) -> Result<Option<Vec<Value>>, ApiError> {
    let blocks = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let changes: Vec<&Value> =
        blocks.filter(|block| ["tool_addition", "tool_removal"].iter().any(|kind| block["type"] == *kind)).collect();
    if changes.is_empty() && declared.is_none() {
        return Ok(None);
    }
    let mut tools = DeclaredTools::default();
    for tool in declared.and_then(Value::as_array).into_iter().flatten() {
        tools.put(tool);
    }
    for change in changes {
        tools.apply(change)?;
    }
    Ok(Some(tools.in_order.iter().flatten().map(chat_tool).collect()))
}

/// Tools by name, in the order in which they were declared.
#[derive(Default)]
struct DeclaredTools<'a> {
    /// `None` in the place of one that was removed, so that the others keep theirs.
    in_order: Vec<Option<Tool<'a>>>,
    places: HashMap<&'a str, usize>,
}

#[derive(Clone, Copy)]
struct Tool<'a> {
    declared: &'a Value,
    /// Whether it was added by a change, which takes `defer_loading` back.
    is_loaded: bool,
}

impl<'a> DeclaredTools<'a> {
    fn put(&mut self, declared: &'a Value) {
        let name = declared["name"].as_str().unwrap_or_default();
        let tool = Some(Tool { declared, is_loaded: false });
        match self.places.get(name).and_then(|place| self.in_order.get_mut(*place)) {
            Some(known) => *known = tool,
            None => {
                self.places.insert(name, self.in_order.len());
                self.in_order.push(tool);
            }
        }
    }

    fn apply(&mut self, change: &'a Value) -> Result<(), ApiError> {
        let tool = &change["tool"];
        if tool["type"] == "tool_definition" {
            self.put(&tool["definition"]);
            return Ok(());
        }
        let name = tool["name"].as_str().unwrap_or_default();
        let Some(known) = self.places.get(name).and_then(|place| self.in_order.get_mut(*place)) else {
            let kind = change["type"].as_str().unwrap_or_default();
            let name = python::repr(name);
            return Err(ApiError::bad_request(format!(
                "{kind} references tool {name}, which is not declared in tools"
            )));
        };
        if change["type"] == "tool_removal" {
            *known = None;
            self.places.remove(name);
        } else {
            known.iter_mut().for_each(|tool| tool.is_loaded = true);
        }
        Ok(())
    }
}

fn chat_tool(Tool { declared: tool, is_loaded }: &Tool<'_>) -> Value {
    let mut schema = tool["input_schema"].clone();
    if let Value::Object(schema) = &mut schema {
        schema.entry("type").or_insert_with(|| "object".into());
    }
    let mut function = Map::from_iter([("name".to_owned(), tool["name"].clone())]);
    function.insert("description".to_owned(), tool["description"].clone());
    function.insert("parameters".to_owned(), schema);
    for name in ["strict", "defer_loading"].into_iter().filter(|name| *name == "strict" || !is_loaded) {
        function.extend(tool.get(name).filter(|value| !value.is_null()).map(|value| (name.to_owned(), value.clone())));
    }
    json!({"type": "function", "function": function})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_stay_in_their_places_and_one_that_is_declared_again_after_its_removal_is_the_last() {
        let tool = |name: &str, more: Value| json!({"name": name, "input_schema": {}, "defer_loading": more});
        let declared =
            json!([tool("a", json!(true)), tool("b", json!(true)), tool("a", json!(false)), tool("c", json!(true))]);
        let change = |kind: &str, tool: Value| json!({"type": kind, "tool": tool});
        let reference = |name: &str| json!({"type": "tool_reference", "name": name});
        let definition = |name: &str| json!({"type": "tool_definition", "definition": tool(name, Value::Null)});
        let changes = json!([{"role": "user", "content": [
            change("tool_addition", reference("b")),
            change("tool_removal", reference("a")),
            change("tool_addition", definition("a")),
            change("tool_addition", definition("d")),
        ]}]);
        let listed = |messages: &Value| -> Vec<(String, Value)> {
            let tools = tools(Some(&declared), messages.as_array().unwrap()).unwrap().unwrap();
            let functions = tools.iter().map(|tool| &tool["function"]);
            functions.map(|tool| (tool["name"].as_str().unwrap().to_owned(), tool["defer_loading"].clone())).collect()
        };
        let named = |name: &str, deferred: Value| (name.to_owned(), deferred);
        assert_eq!(listed(&json!([])), [named("a", json!(false)), named("b", json!(true)), named("c", json!(true))]);
        let after =
            [named("b", Value::Null), named("c", json!(true)), named("a", Value::Null), named("d", Value::Null)];
        assert_eq!(listed(&changes), after);
        let gone =
            json!([{"content": [change("tool_removal", reference("c")), change("tool_addition", reference("c"))]}]);
        let error = tools(Some(&declared), gone.as_array().unwrap()).unwrap_err();
        assert_eq!(error.message, "tool_addition references tool 'c', which is not declared in tools");
    }
}
