//! Secrets of a request that only its record shows: it has a placeholder where the request has plain text.
//!
//! Limits: a secret has no whitespace.
//!
//! See docs/decisions/0066-secrets-that-only-the-answer-names.md.

use std::collections::HashSet;

use serde_json::Value;

use super::requests::CassetteIndex;
use recording::{
    canonical::Identity,
    redaction::{Placeholder, SeenSecrets, has_placeholder, placeholders},
};

/// The closest records of a request that are compared with it.
const MOST: usize = 8;

/// Longest such secret, in bytes.
const LONGEST: usize = 512;

pub(crate) type NamedSecret = (Placeholder, String);

impl CassetteIndex {
    /// The secrets that each of the closest records shows to be in a request, of those that differ in nothing else. `seen` are the secrets
    /// that the request has placeholders for.
    pub(crate) fn named_later(
        &self,
        identity: &Identity,
        seen: &SeenSecrets,
    ) -> impl Iterator<Item = Vec<NamedSecret>> {
        let live = identity.body();
        let near = self.closest(identity, &HashSet::new(), MOST).into_iter().filter_map(|at| self.identity(at));
        near.filter_map(move |recorded| named_by_record(&recorded.body(), &live, seen))
    }
}

/// Returns the texts of a request for which its record has placeholders; `None` where they differ in more, or in nothing.
fn named_by_record(recorded: &Value, live: &Value, seen: &SeenSecrets) -> Option<Vec<NamedSecret>> {
    let mut found = Vec::new();
    if !collect(recorded, live, &mut found) || found.is_empty() {
        return None;
    }
    // Those that the request names have other numbers where the record names more before them, and other kinds where it names them
    // otherwise.
    for (_, value) in &mut found {
        if let Ok(own) = value.parse::<Placeholder>() {
            *value = seen.of_kind(&own.kind).find(|(number, _)| *number == own.number)?.1.to_owned();
        }
    }
    Some(found)
}

/// Returns true if two values without their secrets differ in placeholders at most: numbers are those of all that was searched together.
pub(crate) fn has_same_form(recorded: &Value, live: &Value) -> bool {
    let mut found = Vec::new();
    collect(recorded, live, &mut found) && found.iter().all(|(_, value)| value.parse::<Placeholder>().is_ok())
}

/// Collects them; false where something else differs.
fn collect(recorded: &Value, live: &Value, found: &mut Vec<NamedSecret>) -> bool {
    match (recorded, live) {
        (Value::String(recorded), Value::String(live)) => recorded == live || collect_text(recorded, live, found),
        (Value::Array(recorded), Value::Array(live)) => {
            recorded.len() == live.len()
                && recorded.iter().zip(live).all(|(recorded, live)| collect(recorded, live, found))
        }
        (Value::Object(recorded), Value::Object(live)) => {
            let same =
                |(name, value): (&String, &Value)| live.get(name).is_some_and(|live| collect(value, live, found));
            recorded.len() == live.len() && recorded.iter().all(same)
        }
        (recorded, live) => recorded == live,
    }
}

/// Collects what stands in a text where the recorded one has placeholders; false where anything else differs.
fn collect_text(recorded: &str, live: &str, found: &mut Vec<NamedSecret>) -> bool {
    if !has_placeholder(recorded) {
        return false;
    }
    let spans: Vec<_> = placeholders(recorded).collect();
    let first = spans.first().map_or(recorded.len(), |(span, _)| span.start);
    let Some(mut rest) = live.strip_prefix(recorded.get(..first).unwrap_or_default()) else { return false };
    let ends = spans.iter().skip(1).map(|(span, _)| span.start).chain([recorded.len()]);
    for ((span, placeholder), end) in spans.iter().zip(ends) {
        let after = recorded.get(span.end..end).unwrap_or_default();
        let at = if end == recorded.len() { rest.strip_suffix(after).map(str::len) } else { rest.find(after) };
        let Some((value, left)) = at.and_then(|at| rest.split_at_checked(at)) else { return false };
        if value != recorded.get(span.clone()).unwrap_or_default() {
            let is_value = !value.is_empty() && value.len() <= LONGEST && !value.contains(char::is_whitespace);
            if !is_value || (has_placeholder(value) && value.parse::<Placeholder>().is_err()) {
                return false;
            }
            found.push((placeholder.clone(), value.to_owned()));
        }
        rest = left.strip_prefix(after).unwrap_or_default();
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use recording::redaction::{RedactionRules, Redactor};

    #[test]
    fn texts_are_secrets_where_nothing_else_differs() {
        let rules = RedactionRules::default();
        let mut redactor = Redactor::new(&rules);
        redactor.learn_placed("hunter2hunter2", &"pin:1".parse().unwrap());
        let seen = redactor.seen();
        let found = |recorded: &str, live: &str| {
            let found = named_by_record(&json!({"content": recorded}), &json!({"content": live}), &seen)?;
            Some(found.into_iter().map(|(it, value)| format!("{}={value}", it.short())).collect::<Vec<_>>().join(","))
        };
        for (recorded, live, expected) in [
            ("it is [REDACTED:password:1].", "it is hunter2.", Some("password:1=hunter2")),
            ("[REDACTED:pin:1] and [REDACTED:email:2]", "1234 and [REDACTED:email:2]", Some("pin:1=1234")),
            ("[REDACTED:pin:1]-[REDACTED:pin:2]", "12-34", Some("pin:1=12,pin:2=34")),
            ("it is [REDACTED:password:1].", "it is hunter2!", None),
            ("it is [REDACTED:password:1].", "it is not a password.", None),
            ("it is [REDACTED:password:1].", "it is .", None),
            ("[REDACTED:pin:1]", "[REDACTED:pin:2]", None),
            ("[REDACTED:pin:1] [REDACTED:pin:2]", "1234 [REDACTED:pin:1]", Some("pin:1=1234,pin:2=hunter2hunter2")),
            ("[REDACTED:key:1]", "[REDACTED:pin:1]", Some("key:1=hunter2hunter2")),
            ("[REDACTED:pin:1] [REDACTED:pin:2]", "1234 [REDACTED:email:1]", None),
            ("[REDACTED:pin:1]", "[REDACTED:pin:1]", None),
            ("it is here", "it is there", None),
        ] {
            assert_eq!(found(recorded, live).as_deref(), expected, "{recorded} {live}");
        }
    }

    #[test]
    fn other_differences_are_none() {
        let recorded = json!({"a": ["[REDACTED:pin:1]"], "n": 1});
        for (live, is_found) in [
            (json!({"a": ["1234"], "n": 1}), true),
            (json!({"a": ["1234"], "n": 2}), false),
            (json!({"a": ["1234"]}), false),
            (json!({"a": ["1234", "5"], "n": 1}), false),
            (json!({"a": [1234], "n": 1}), false),
        ] {
            assert_eq!(named_by_record(&recorded, &live, &SeenSecrets::default()).is_some(), is_found, "{live}");
        }
    }
}
