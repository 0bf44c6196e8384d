//! Changes of a server's tools since they were recorded, by class.
//!
//! Tools are compared by name, their arguments by the properties of their schemas, those within others too. A tool that is gone and one
//! that is new with the same arguments are one that was renamed; so are two arguments of one schema.
//!
//! Limits: so many changes of one tool are listed; schemas behind `$ref` and in `allOf` and the like are compared as a whole.

use std::{collections::HashMap, fmt};

use base::one_line::clipped;
use net::wire::value_text;
use serde_json::{Map, Value};

const MOST: usize = 50;

/// Depth of properties within others.
const DEEPEST: usize = 32;

/// Entries of schemas and tools that are for people only.
const PROSE: [&str; 4] = ["description", "title", "examples", "$comment"];

base::named! {
    /// Class of a change.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum ChangeClass {
        /// A tool or an argument is new.
        Added = "added",
        /// A tool or an argument is gone.
        Removed = "removed",
        /// It has another name.
        Renamed = "renamed",
        /// An argument takes values of another type, or others of its type.
        TypeChanged = "type changed",
        /// An argument has to be given that did not have to be.
        RequiredAdded = "required added",
        /// Something else of what is not for people only.
        Changed = "changed",
        /// Only what is for people.
        DescriptionOnly = "description only",
    }
}

/// A change of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolChange {
    /// The tool, by its recorded name where it has one.
    pub tool: String,
    /// Its class.
    pub class: ChangeClass,
    /// What it is about: an argument such as `filter.limit`, the new name, types; empty for the tool itself.
    pub what: String,
}

impl fmt::Display for ToolChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what.as_str() {
            "" => f.write_str(self.class.name()),
            what => write!(f, "{}: {what}", self.class.name()),
        }
    }
}

/// The changes from a recorded result of `tools/list` to another one.
#[must_use]
pub fn tool_changes(recorded: &Value, now: &Value) -> Vec<ToolChange> {
    let (before, after) = (by_name(recorded), by_name(now));
    let mut found = Vec::new();
    let gone = recorded_names(recorded).into_iter().filter(|name| !after.contains_key(name));
    let new: Vec<&str> = recorded_names(now).into_iter().filter(|name| !before.contains_key(name)).collect();
    let mut by_arguments: HashMap<String, Vec<&str>> = HashMap::new();
    for name in new.iter().rev() {
        by_arguments.entry(arguments_of(after.get(name))).or_default().push(name);
    }
    let mut renamed: Vec<&str> = Vec::new();
    for name in gone {
        let change = |class, what: &str| ToolChange { tool: name.to_owned(), class, what: what.to_owned() };
        let arguments = arguments_of(before.get(name));
        // Tools without arguments are all alike.
        let partner = by_arguments.get_mut(&arguments).filter(|_| !arguments.is_empty()).and_then(Vec::pop);
        found.push(match partner {
            Some(partner) => change(ChangeClass::Renamed, partner),
            None => change(ChangeClass::Removed, ""),
        });
        renamed.extend(partner);
    }
    for name in recorded_names(recorded) {
        if let (Some(before), Some(after)) = (before.get(name), after.get(name)) {
            found.extend(changes_of(name, before, after));
        }
    }
    let added = new.into_iter().filter(|name| !renamed.contains(name));
    found.extend(added.map(|name| ToolChange {
        tool: name.to_owned(),
        class: ChangeClass::Added,
        what: String::new(),
    }));
    found
}

fn tools(result: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let tools = result.get("tools").and_then(Value::as_array).into_iter().flatten();
    tools.filter_map(|tool| Some((tool.get("name")?.as_str()?, tool)))
}

fn recorded_names(result: &Value) -> Vec<&str> {
    tools(result).map(|(name, _)| name).collect()
}

fn by_name(result: &Value) -> HashMap<&str, &Value> {
    tools(result).collect()
}

/// The schema of a tool's arguments as text, without prose; empty where it has none.
fn arguments_of(tool: Option<&&Value>) -> String {
    let schema = tool.and_then(|tool| tool.get("inputSchema")).unwrap_or(&Value::Null);
    let has_any = schema.get("properties").and_then(Value::as_object).is_some_and(|properties| !properties.is_empty());
    if has_any { without_prose(schema).to_string() } else { String::new() }
}

fn changes_of(name: &str, before: &Value, after: &Value) -> Vec<ToolChange> {
    if before == after {
        return Vec::new();
    }
    let mut found = Vec::new();
    let schema = |tool: &Value| tool.get("inputSchema").cloned().unwrap_or_default();
    compare("", &schema(before), &schema(after), DEEPEST, &mut found);
    found.truncate(MOST);
    if found.is_empty() {
        let class = if without_prose(before) == without_prose(after) {
            ChangeClass::DescriptionOnly
        } else {
            ChangeClass::Changed
        };
        let what = entries_that_differ(before, after, class == ChangeClass::DescriptionOnly).join(", ");
        found.push((class, what));
    }
    found.into_iter().map(|(class, what)| ToolChange { tool: name.to_owned(), class, what }).collect()
}

/// Names of the entries of two tools that differ.
fn entries_that_differ(before: &Value, after: &Value, counts_prose: bool) -> Vec<String> {
    let names =
        |tool: &Value| tool.as_object().map(|fields| fields.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    let mut all = names(before);
    all.extend(names(after).into_iter().filter(|name| before.get(name).is_none()));
    let value = |tool: &Value, name: &str| {
        let value = tool.get(name).cloned().unwrap_or_default();
        if counts_prose { value } else { without_prose(&value) }
    };
    all.retain(|name| (counts_prose || !PROSE.contains(&name.as_str())) && value(before, name) != value(after, name));
    all
}

type ClassifiedChanges = Vec<(ChangeClass, String)>;

/// Adds the changes of the properties of two schemas.
fn compare(place: &str, before: &Value, after: &Value, depth: usize, found: &mut ClassifiedChanges) {
    if before == after || depth == 0 || found.len() >= MOST {
        return;
    }
    let (old, new) = (properties(before), properties(after));
    let (had_to, has_to) = (required(before), required(after));
    let named = |name: &str| if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") };
    let gone: Vec<&String> = old.keys().filter(|name| !new.contains_key(*name)).collect();
    let mut fresh: Vec<&String> = new.keys().filter(|name| !old.contains_key(*name)).collect();
    let is_one = gone.len() == 1 && fresh.len() == 1;
    for name in gone {
        let same = |other: &&String| match (old.get(name), new.get(*other)) {
            (Some(before), Some(after)) => before == after || is_one && type_of(before) == type_of(after),
            _ => false,
        };
        match fresh.iter().position(same).map(|at| fresh.remove(at)) {
            Some(partner) => found.push((ChangeClass::Renamed, format!("{} to {}", named(name), named(partner)))),
            None => found.push((ChangeClass::Removed, named(name))),
        }
    }
    for name in fresh {
        let class = if has_to.contains(&name.as_str()) { ChangeClass::RequiredAdded } else { ChangeClass::Added };
        found.push((class, named(name)));
    }
    for (name, before) in &old {
        let Some(after) = new.get(name) else { continue };
        if has_to.contains(&name.as_str()) && !had_to.contains(&name.as_str()) {
            found.push((ChangeClass::RequiredAdded, named(name)));
        }
        compare_one(&named(name), before, after, depth, found);
    }
}

fn compare_one(place: &str, before: &Value, after: &Value, depth: usize, found: &mut ClassifiedChanges) {
    if before == after {
        return;
    }
    let (old, new) = (type_of(before), type_of(after));
    if old != new {
        found.push((ChangeClass::TypeChanged, format!("{place} from {} to {}", short(&old), short(&new))));
        return;
    }
    let count = found.len();
    compare(place, before, after, depth - 1, found);
    if let (Some(before), Some(after)) = (before.get("items"), after.get("items")) {
        compare_one(&format!("{place}[]"), before, after, depth.saturating_sub(1).max(1), found);
    }
    if found.len() == count && without_prose(before) != without_prose(after) {
        found.push((ChangeClass::Changed, place.to_owned()));
    }
}

fn properties(schema: &Value) -> Map<String, Value> {
    schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default()
}

fn required(schema: &Value) -> Vec<&str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

/// What decides which values there are: the type, and values that are listed.
fn type_of(schema: &Value) -> Value {
    const DECIDING: [&str; 6] = ["type", "enum", "const", "format", "anyOf", "oneOf"];
    let fields = schema.as_object().into_iter().flatten().filter(|(name, _)| DECIDING.contains(&name.as_str()));
    let fields: Map<String, Value> = fields.map(|(name, value)| (name.clone(), without_prose(value))).collect();
    match (fields.len(), fields.get("type")) {
        (1, Some(kind)) => kind.clone(),
        _ => fields.into(),
    }
}

/// A value without what is for people only; names of arguments are no such entries.
fn without_prose(value: &Value) -> Value {
    strip(value, false, DEEPEST * 4)
}

fn strip(value: &Value, names_arguments: bool, depth: usize) -> Value {
    match value {
        _ if depth == 0 => value.clone(),
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| names_arguments || !PROSE.contains(&name.as_str()));
            kept.map(|(name, value)| {
                let names_arguments = !names_arguments && (name == "properties" || name == "$defs");
                (name.clone(), strip(value, names_arguments, depth - 1))
            })
            .collect::<Map<String, Value>>()
            .into()
        }
        Value::Array(items) => items.iter().map(|item| strip(item, false, depth - 1)).collect(),
        leaf => leaf.clone(),
    }
}

fn short(value: &Value) -> String {
    clipped(&value_text(value), 60)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn changes(before: &Value, after: &Value) -> Vec<String> {
        let list = |tool: &Value| json!({"tools": [tool]});
        tool_changes(&list(before), &list(after)).iter().map(|it| format!("{} {it}", it.tool)).collect()
    }

    fn search(properties: &Value, required: &Value) -> Value {
        json!({"name": "search", "description": "Finds", "inputSchema": {"type": "object", "properties": properties, "required": required}})
    }

    #[test]
    fn arguments_change_by_class() {
        let q = json!({"type": "string", "description": "Words"});
        let before = search(&json!({"q": q, "limit": {"type": "integer"}}), &json!(["q"]));
        for (properties, required, expected) in [
            (json!({"q": q, "limit": {"type": "integer"}}), json!(["q"]), None),
            (
                json!({"q": q, "limit": {"type": "integer"}, "page": {"type": "integer"}}),
                json!(["q"]),
                Some("added: page"),
            ),
            (json!({"q": q}), json!(["q"]), Some("removed: limit")),
            (json!({"query": q, "limit": {"type": "integer"}}), json!(["query"]), Some("renamed: q to query")),
            (
                json!({"q": q, "limit": {"type": "string"}}),
                json!(["q"]),
                Some("type changed: limit from integer to string"),
            ),
            (json!({"q": q, "limit": {"type": "integer"}}), json!(["q", "limit"]), Some("required added: limit")),
            (
                json!({"q": q, "limit": {"type": "integer"}, "page": {"type": "integer"}}),
                json!(["q", "page"]),
                Some("required added: page"),
            ),
            (
                json!({"q": {"type": "string", "description": "Text"}, "limit": {"type": "integer"}}),
                json!(["q"]),
                Some("description only: inputSchema"),
            ),
            (json!({"q": q, "limit": {"type": "integer", "maximum": 5}}), json!(["q"]), Some("changed: limit")),
        ] {
            let expected: Vec<String> = expected.iter().map(|change| format!("search {change}")).collect();
            assert_eq!(changes(&before, &search(&properties, &required)), expected);
        }
        let described = json!({"name": "search", "description": "Looks up", "inputSchema": before["inputSchema"]});
        assert_eq!(changes(&before, &described), ["search description only: description"]);
        let hinted = json!({"name": "search", "description": "Finds", "inputSchema": before["inputSchema"], "annotations": {"readOnlyHint": true}});
        assert_eq!(changes(&before, &hinted), ["search changed: annotations"]);
    }

    #[test]
    fn arguments_within_others_are_compared_too() {
        let of = |inner: Value| {
            search(
                &json!({"filter": {"type": "object", "properties": inner}, "tags": {"type": "array", "items": {"type": "string"}}}),
                &json!([]),
            )
        };
        let before = of(json!({"description": {"type": "string"}}));
        assert_eq!(
            changes(&before, &of(json!({"description": {"type": "integer"}}))),
            ["search type changed: filter.description from string to integer"]
        );
        assert_eq!(
            changes(&before, &of(json!({}))),
            ["search removed: filter.description"],
            "it is the name of an argument"
        );
        let mut items = before.clone();
        items["inputSchema"]["properties"]["tags"]["items"]["type"] = json!("integer");
        assert_eq!(changes(&before, &items), ["search type changed: tags[] from string to integer"]);
        let mut deep = json!({"type": "string"});
        for _ in 0..100 {
            deep = json!({"type": "object", "properties": {"a": deep}});
        }
        let mut other = deep.clone();
        other["properties"]["b"] = json!({});
        assert_eq!(
            changes(&search(&json!({"d": deep}), &json!([])), &search(&json!({"d": other}), &json!([]))),
            ["search added: d.b"]
        );
    }

    #[test]
    fn tools_come_go_and_are_renamed() {
        let tool = |name: &str, argument: &str| json!({"name": name, "inputSchema": {"type": "object", "properties": {argument: {"type": "string"}}}});
        let bare = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
        let before = json!({"tools": [tool("a", "x"), tool("b", "y"), bare("c")]});
        let after = json!({"tools": [tool("b", "y"), tool("a2", "x"), bare("d"), tool("e", "z")]});
        let found: Vec<String> = tool_changes(&before, &after).iter().map(|it| format!("{} {it}", it.tool)).collect();
        assert_eq!(found, ["a renamed: a2", "c removed", "d added", "e added"]);
        assert_eq!(tool_changes(&before, &before), []);
        assert_eq!(tool_changes(&json!(7), &json!({"tools": [7, {}]})), []);
    }
}
