//! Mistakes in the answers of rules that any reader of YAML takes: reasons of the end that no API has, and calls that are none.

use serde_json::Value;

use super::{error::Wrong, template};
use crate::yaml::{YamlEntry, YamlKind, YamlNode};

/// The reasons for which a chat or a completion ends: OpenAI's and vLLM's.
const FINISH_REASONS: [&str; 8] =
    ["stop", "length", "tool_calls", "content_filter", "function_call", "abort", "error", "repetition"];

/// Finds the mistakes of an answer.
pub(super) fn of(answer: &YamlNode) -> Vec<Wrong> {
    let choices = answer.get("choices").and_then(YamlNode::items).unwrap_or_default();
    let holders = std::iter::once(answer).chain(choices);
    let holders = holders.flat_map(|holder| std::iter::once(holder).chain(holder.get("message")));
    let entries = holders.filter_map(YamlNode::entries).flatten();
    entries
        .flat_map(|YamlEntry { key, value, .. }| match key.as_str() {
            "finish_reason" => reason(value).err().into_iter().collect(),
            "tool_calls" => calls(value),
            _ => Vec::new(),
        })
        .collect()
}

fn reason(node: &YamlNode) -> Result<(), Wrong> {
    match &node.kind {
        YamlKind::Scalar(Value::Null) => Ok(()),
        YamlKind::Scalar(Value::String(text))
            if FINISH_REASONS.contains(&text.as_str()) || template::is_template(text) =>
        {
            Ok(())
        }
        _ => Err(Wrong::at(node.line, format!("`finish_reason` is none of {}", FINISH_REASONS.join(", ")))),
    }
}

fn calls(node: &YamlNode) -> Vec<Wrong> {
    if matches!(node.kind, YamlKind::Scalar(Value::Null)) {
        return Vec::new();
    }
    match node.items() {
        Some(calls) => calls.iter().filter_map(|item| call(item).err()).collect(),
        None => vec![Wrong::at(
            node.line,
            "`tool_calls` has to be a list such as [{name: weather, arguments: {city: Paris}}]",
        )],
    }
}

/// Checks a call, which has its name and arguments itself or in `function`.
fn call(node: &YamlNode) -> Result<(), Wrong> {
    let function = node.get("function").unwrap_or(node);
    let name = function.get("name").and_then(YamlNode::text).filter(|name| !name.is_empty());
    name.ok_or_else(|| Wrong::at(node.line, "a call of `tool_calls` needs a `name`"))?;
    let known: &[&str] = if node.get("function").is_some() {
        &["id", "type", "index", "function"]
    } else {
        &["id", "type", "index", "name", "arguments"]
    };
    let unknown = node.entries().unwrap_or_default().iter().find(|entry| !known.contains(&entry.key.as_str()));
    if let Some(YamlEntry { key, line, .. }) = unknown {
        return Err(Wrong::at(*line, format!("`{key}` of a call is none of {}", known.join(", "))));
    }
    match function.get("arguments").map(|arguments| (arguments, &arguments.kind)) {
        None | Some((_, YamlKind::Map(_) | YamlKind::Scalar(Value::String(_)))) => Ok(()),
        Some((arguments, _)) => {
            Err(Wrong::at(arguments.line, "`arguments` of a call has to be a map, or JSON as a text"))
        }
    }
}
