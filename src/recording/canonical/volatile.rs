//! Texts that no two runs share.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

static SHAPES: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let uuid = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
    let time = r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2})?";
    Regex::new(&format!(r"(?i)\b(?:{uuid}|{time})")).ok()
});

/// The first text in a value that looks like a time or a random id.
#[must_use]
pub fn volatile_text(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => SHAPES.as_ref()?.find(text).map(|found| found.as_str()),
        Value::Array(items) => items.iter().find_map(volatile_text),
        Value::Object(map) => map.values().find_map(volatile_text),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_and_made_up_ids_are_found() {
        let found = |text: &str| volatile_text(&json!({"a": [1, text]})).map(str::to_owned);
        assert_eq!(found("it is 2026-06-17T12:00:05Z now").as_deref(), Some("2026-06-17T12:00:05"));
        let id = "6f1c2f0e-8a3b-4c5d-9e7f-001122334455";
        assert_eq!(found(&format!("run {id}!")).as_deref(), Some(id));
        assert_eq!(found("on 2026-06-17, at 12:00 or in version 1.2-3"), None);
    }
}
