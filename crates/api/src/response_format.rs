//! The schema of `response_format`: text, JSON or a JSON schema, or one of two kinds of structural tag. A value that fits
//! none of the three gets the faults of all three, as the engine reports them.
//!
//! Limits: what is inside a JSON schema or a structural tag is not judged.

use serde_json::{Map, Value};

use super::{
    fields::{attributes, dictionary, one_of},
    values::{Issue, Issues, flag, list, text},
};

const KINDS: &[&str] = &["text", "json_object", "json_schema"];
const TAG: &[&str] = &["structural_tag"];

/// Adds what is wrong with a `response_format`.
pub(super) fn check(value: &Value, loc: &str, issues: &mut Issues) {
    let Value::Object(map) = value else {
        issues.extend((0..3).map(|_| attributes(value, loc)));
        return;
    };
    let branches = [format(map, loc), structural_tag(map, loc), legacy_structural_tag(map, loc)];
    if branches.iter().all(|faults| !faults.is_empty()) {
        issues.extend(branches.into_iter().flatten());
    }
}

fn format(map: &Map<String, Value>, loc: &str) -> Vec<Issue> {
    let mut faults: Vec<Issue> = kind(map, loc, KINDS).into_iter().collect();
    match map.get("json_schema") {
        None | Some(Value::Null) => {}
        Some(Value::Object(schema)) => faults.extend(json_schema(schema, &format!("{loc}.json_schema"))),
        Some(other) => faults.push(attributes(other, &format!("{loc}.json_schema"))),
    }
    faults
}

fn json_schema(map: &Map<String, Value>, loc: &str) -> Vec<Issue> {
    let present = |name: &str| map.get(name).filter(|value| !value.is_null());
    let at = |name: &str| format!("{loc}.{name}");
    let mut faults = Vec::new();
    match map.get("name") {
        None => faults.push(Issue::missing(at("name"), map.len())),
        Some(name) => faults.extend(text(name, &at("name")).err()),
    }
    faults.extend(present("description").and_then(|value| text(value, &at("description")).err()));
    faults.extend(present("schema").filter(|value| !value.is_object()).map(|value| dictionary(value, &at("schema"))));
    faults.extend(present("strict").and_then(|value| flag(value, &at("strict")).err()));
    faults
}

fn structural_tag(map: &Map<String, Value>, loc: &str) -> Vec<Issue> {
    let mut faults: Vec<Issue> = kind(map, loc, TAG).into_iter().collect();
    faults.extend(required(map, loc, "format"));
    faults
}

fn legacy_structural_tag(map: &Map<String, Value>, loc: &str) -> Vec<Issue> {
    let mut faults: Vec<Issue> = kind(map, loc, TAG).into_iter().collect();
    for name in ["structures", "triggers"] {
        let fault = map.get(name).and_then(|value| list(value, &format!("{loc}.{name}")).err());
        faults.extend(required(map, loc, name).or(fault));
    }
    faults
}

fn kind(map: &Map<String, Value>, loc: &str, words: &[&str]) -> Option<Issue> {
    let kind = map.get("type").and_then(|value| one_of(value, &format!("{loc}.type"), words));
    required(map, loc, "type").or(kind)
}

fn required(map: &Map<String, Value>, loc: &str, name: &str) -> Option<Issue> {
    (!map.contains_key(name)).then(|| Issue::missing(format!("{loc}.{name}"), map.len()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(value: &Value) -> Vec<(String, String)> {
        let mut issues = Issues::default();
        check(value, "r", &mut issues);
        if issues.is_empty() {
            return Vec::new();
        }
        let message = issues.error().message;
        let part = |line: &str, key: &str| line.split(key).nth(1).unwrap().split('\'').nth(1).unwrap().to_owned();
        message.lines().skip(1).map(|line| (part(line, "'type': "), part(line, "'loc': "))).collect()
    }

    /// The faults as pydantic gave them for the engine's own model.
    #[test]
    fn a_value_that_fits_no_branch_has_the_faults_of_all() {
        let tags =
            ["type literal_error", "format missing", "type literal_error", "structures missing", "triggers missing"];
        for (value, first) in [
            (json!({"type": "xml"}), vec!["type literal_error"]),
            (json!({"type": "json_schema", "json_schema": 3}), vec!["json_schema model_attributes_type"]),
            (json!({"type": "json_schema", "json_schema": {"schema": {}}}), vec!["json_schema.name missing"]),
            (
                json!({"type": "json_schema", "json_schema": {"name": "a", "schema": 3, "strict": "maybe"}}),
                vec!["json_schema.schema dict_type", "json_schema.strict bool_parsing"],
            ),
            (
                json!({"type": "text", "json_schema": {"name": 3, "description": 4}}),
                vec!["json_schema.name string_type", "json_schema.description string_type"],
            ),
        ] {
            let got: Vec<String> = faults(&value)
                .into_iter()
                .map(|(kind, loc)| format!("{} {kind}", loc.trim_start_matches("r.")))
                .collect();
            assert_eq!(got, [first, tags.to_vec()].concat(), "{value}");
        }
        assert_eq!(faults(&json!("x")).len(), 3);
        assert_eq!(faults(&json!({})).len(), 6);
    }

    #[test]
    fn a_value_that_fits_one_branch_has_none() {
        for value in [
            json!({"type": "text"}),
            json!({"type": "json_object", "json_schema": null}),
            json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": true}}),
            json!({"type": "structural_tag", "format": {"type": "any_text"}}),
            json!({"type": "structural_tag", "structures": [], "triggers": []}),
        ] {
            assert_eq!(faults(&value), [], "{value}");
        }
    }
}
