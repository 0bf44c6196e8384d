//! Secrets that only a later name makes secrets: a prompt spells a password, and the response passes it on as the argument `password`.
//!
//! In the record the prompt has a placeholder; in the request that is to be replayed it is plain text, since the name comes after it. Where
//! a record differs from a request in nothing but such texts, they are its secrets too, and the record is looked for once more.
//! Limits: the closest records are compared; a secret has no whitespace.
//!
//! See docs/decisions/0066-secrets-that-only-the-answer-names.md.

use std::{collections::HashSet, sync::Arc};

use serde_json::Value;
use tokio::task::spawn_blocking;

use crate::{
    matching::requests::Lookup,
    player::{CassettePlayer, receive::IncomingRequest},
};
use recording::redaction::{has_placeholder, placeholders};

/// Records that are compared.
const MOST: usize = 8;

/// Longest such secret, in bytes.
const LONGEST: usize = 512;

/// A kind of secret and its value.
pub(in crate::player) type NamedSecret = (Arc<str>, String);

impl CassettePlayer {
    /// Looks for the record of a request once more, where it can have secrets that only its record shows.
    pub(in crate::player) async fn or_named_later(
        self: &Arc<Self>,
        asked: IncomingRequest,
        lookup: Lookup,
    ) -> Result<(IncomingRequest, Lookup), &'static str> {
        if lookup != Lookup::Nothing || !self.has_placeholders() {
            return Ok((asked, lookup));
        }
        let player = Arc::clone(self);
        // Comparing takes milliseconds that no other request should wait for.
        let found = spawn_blocking(move || match player.named_later(&asked) {
            Some((named, lookup)) => (named, lookup),
            None => (asked, Lookup::Nothing),
        });
        found.await.map_err(|_| "the records could not be compared")
    }

    fn has_placeholders(&self) -> bool {
        self.config.cassettes.iter().any(|cassette| !cassette.placeholders.is_empty())
    }

    fn named_later(&self, asked: &IncomingRequest) -> Option<(IncomingRequest, Lookup)> {
        let body = asked.identity.body();
        let near = self.index.closest(&asked.identity, &HashSet::new(), MOST);
        let recorded = near.into_iter().filter_map(|at| self.index.identity(at));
        recorded.filter_map(|recorded| secrets(&recorded.body(), &body)).find_map(|secrets| {
            let named = asked.with_secrets(&secrets, &self.config);
            let lookup = self.select(&named);
            matches!(lookup, Lookup::Found(_)).then_some((named, lookup))
        })
    }
}

/// Returns the texts of a request for which its record has placeholders; `None` where they differ in more, or in nothing.
fn secrets(recorded: &Value, asked: &Value) -> Option<Vec<NamedSecret>> {
    let mut found = Vec::new();
    (collect(recorded, asked, &mut found) && !found.is_empty()).then_some(found)
}

/// Collects them; false where something else differs.
fn collect(recorded: &Value, asked: &Value, found: &mut Vec<NamedSecret>) -> bool {
    match (recorded, asked) {
        (Value::String(recorded), Value::String(asked)) => recorded == asked || collect_text(recorded, asked, found),
        (Value::Array(recorded), Value::Array(asked)) => {
            recorded.len() == asked.len()
                && recorded.iter().zip(asked).all(|(recorded, asked)| collect(recorded, asked, found))
        }
        (Value::Object(recorded), Value::Object(asked)) => {
            let same =
                |(name, value): (&String, &Value)| asked.get(name).is_some_and(|asked| collect(value, asked, found));
            recorded.len() == asked.len() && recorded.iter().all(same)
        }
        (recorded, asked) => recorded == asked,
    }
}

/// Collects what stands in a text where the recorded one has placeholders; false where anything else differs.
fn collect_text(recorded: &str, asked: &str, found: &mut Vec<NamedSecret>) -> bool {
    if !has_placeholder(recorded) {
        return false;
    }
    let spans: Vec<_> = placeholders(recorded).collect();
    let first = spans.first().map_or(recorded.len(), |(span, _)| span.start);
    let Some(mut rest) = asked.strip_prefix(recorded.get(..first).unwrap_or_default()) else { return false };
    let ends = spans.iter().skip(1).map(|(span, _)| span.start).chain([recorded.len()]);
    for ((span, placeholder), end) in spans.iter().zip(ends) {
        let after = recorded.get(span.end..end).unwrap_or_default();
        let at = if end == recorded.len() { rest.strip_suffix(after).map(str::len) } else { rest.find(after) };
        let Some((value, left)) = at.and_then(|at| rest.split_at_checked(at)) else { return false };
        if value != recorded.get(span.clone()).unwrap_or_default() {
            let is_value = !value.is_empty() && value.len() <= LONGEST && !value.contains(char::is_whitespace);
            if !is_value || has_placeholder(value) {
                return false;
            }
            found.push((Arc::clone(&placeholder.kind), value.to_owned()));
        }
        rest = left.strip_prefix(after).unwrap_or_default();
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_secrets_where_nothing_else_differs() {
        let found = |recorded: &str, asked: &str| {
            let found = secrets(&json!({"content": recorded}), &json!({"content": asked}))?;
            Some(found.into_iter().map(|(kind, value)| format!("{kind}={value}")).collect::<Vec<_>>().join(","))
        };
        for (recorded, asked, expected) in [
            ("it is [REDACTED:password:1].", "it is hunter2.", Some("password=hunter2")),
            ("[REDACTED:pin:1] and [REDACTED:email:2]", "1234 and [REDACTED:email:2]", Some("pin=1234")),
            ("[REDACTED:pin:1]-[REDACTED:pin:2]", "12-34", Some("pin=12,pin=34")),
            ("it is [REDACTED:password:1].", "it is hunter2!", None),
            ("it is [REDACTED:password:1].", "it is not a password.", None),
            ("it is [REDACTED:password:1].", "it is .", None),
            ("[REDACTED:pin:1]", "[REDACTED:pin:2]", None),
            ("[REDACTED:pin:1]", "[REDACTED:pin:1]", None),
            ("it is here", "it is there", None),
        ] {
            assert_eq!(found(recorded, asked).as_deref(), expected, "{recorded} {asked}");
        }
    }

    #[test]
    fn other_differences_are_none() {
        let recorded = json!({"a": ["[REDACTED:pin:1]"], "n": 1});
        for (asked, is_found) in [
            (json!({"a": ["1234"], "n": 1}), true),
            (json!({"a": ["1234"], "n": 2}), false),
            (json!({"a": ["1234"]}), false),
            (json!({"a": ["1234", "5"], "n": 1}), false),
            (json!({"a": [1234], "n": 1}), false),
        ] {
            assert_eq!(secrets(&recorded, &asked).is_some(), is_found, "{asked}");
        }
    }
}
