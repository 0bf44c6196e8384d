//! Tools and their JSON schemas: their prose goes, the names of tools and parameters stay.

use serde_json::{Map, Value};

const PROSE: [&str; 4] = ["description", "title", "examples", "$comment"];

/// Keywords that hold a schema, a list of schemas, and schemas by name.
const ONE: [&str; 10] = [
    "items",
    "additionalProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
];
const LISTED: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
const NAMED: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// Fields of a tool that hold a schema.
const SCHEMAS: [&str; 4] = ["parameters", "input_schema", "inputSchema", "outputSchema"];

/// Takes the prose out of a body's tools and of their schemas, and sorts what the schemas require.
pub(super) fn strip_prose(body: &mut Value, keeps_descriptions: bool) {
    for list in ["tools", "functions"] {
        let tools = body.get_mut(list).and_then(Value::as_array_mut);
        for tool in tools.map(Vec::as_mut_slice).unwrap_or_default().iter_mut().filter_map(Value::as_object_mut) {
            strip_tool(tool, keeps_descriptions);
            if let Some(function) = tool.get_mut("function").and_then(Value::as_object_mut) {
                strip_tool(function, keeps_descriptions);
            }
        }
    }
}

fn strip_tool(tool: &mut Map<String, Value>, keeps_descriptions: bool) {
    if !keeps_descriptions {
        tool.retain(|name, value| !(["description", "title"].contains(&name.as_str()) && value.is_string()));
    }
    for name in SCHEMAS {
        if let Some(schema) = tool.get_mut(name) {
            strip(schema);
        }
    }
}

fn strip(schema: &mut Value) {
    let Some(keywords) = schema.as_object_mut() else { return };
    keywords.retain(|name, _| !PROSE.contains(&name.as_str()));
    for (name, value) in keywords.iter_mut() {
        match (name.as_str(), value) {
            (name, value) if ONE.contains(&name) => strip(value),
            (name, Value::Array(schemas)) if LISTED.contains(&name) => schemas.iter_mut().for_each(strip),
            (name, Value::Object(schemas)) if NAMED.contains(&name) => schemas.values_mut().for_each(strip),
            ("required", Value::Array(names)) => names.sort_by(|a, b| a.as_str().cmp(&b.as_str())),
            _ => {}
        }
    }
}
