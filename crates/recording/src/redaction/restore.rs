//! Values in place of placeholders: what redaction took out is put back.
//!
//! A value is escaped as the place of its placeholder needs it: once in JSON text, twice in JSON within a string of JSON.

use std::{borrow::Cow, collections::HashMap, fmt, ops::Range, sync::LazyLock};

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::{
    Placeholder, RedactionRules,
    edits::{TextReplacement, apply, apply_to_pieces},
    has_placeholder, placeholders,
    redactor::DEEPEST_NESTING,
    scan::{Scalar, leaves},
    trail::Trail,
};
use crate::children::{as_value, children_mut, rename};

/// Text is walked without looking for anything.
static NOTHING: LazyLock<RedactionRules> = LazyLock::new(RedactionRules::none);

/// Values by their placeholders. They are secrets: none is shown by `{:?}`.
#[derive(Default, Clone, PartialEq, Eq)]
pub struct PlaceholderValues(HashMap<Placeholder, Box<str>>);

impl fmt::Debug for PlaceholderValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Values({})", self.0.len())
    }
}

impl FromIterator<(Placeholder, Box<str>)> for PlaceholderValues {
    fn from_iter<I: IntoIterator<Item = (Placeholder, Box<str>)>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl PlaceholderValues {
    /// Returns true if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a value, in place of another one of the same placeholder.
    pub fn insert(&mut self, placeholder: Placeholder, value: &str) {
        self.0.insert(placeholder, value.into());
    }

    /// Whether there is a value of a placeholder. One that is a placeholder itself is none.
    #[must_use]
    pub fn has(&self, placeholder: &Placeholder) -> bool {
        self.0.get(placeholder).is_some_and(|value| value.parse::<Placeholder>().is_err())
    }

    /// Text with values in it, JSON or not; `None` where none of its placeholders has one.
    #[must_use]
    pub fn text(&self, text: &str) -> Option<String> {
        let edits = self.edits(text);
        (!edits.is_empty()).then(|| apply(text, &edits))
    }

    /// As [`text`](Self::text), of text that was cut into pieces. A value stands in the piece where its placeholder begins.
    pub fn pieces(&self, pieces: &mut [String]) -> bool {
        let edits = self.edits(&pieces.concat());
        apply_to_pieces(pieces, &edits);
        !edits.is_empty()
    }

    /// Puts values into the texts of a JSON value, and into the names of its fields. True where there were any.
    pub fn json(&self, value: &mut Value) -> bool {
        let any = self.texts(value);
        let renamed = |name: &str| self.text(name).unwrap_or_else(|| name.to_owned());
        rename(value, &mut |name| has_placeholder(name).then(|| renamed(name))) || any
    }

    fn texts(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => self.text(text).map(|with| *text = with).is_some(),
            value => children_mut(value).fold(false, |any, (_, value)| self.texts(value) || any),
        }
    }

    /// As [`json`](Self::json), of the fields of an object.
    pub fn fields(&self, fields: &mut Map<String, Value>) -> bool {
        as_value(fields, |value| self.json(value))
    }

    fn edits(&self, text: &str) -> Vec<TextReplacement> {
        if !has_placeholder(text) {
            return Vec::new();
        }
        let found: Vec<(Range<usize>, Placeholder)> = placeholders(text).collect();
        let spans: Vec<Range<usize>> = found.iter().map(|(span, _)| span.clone()).collect();
        let placed = found.into_iter().zip(depths(text, &spans, 0));
        placed.filter_map(|((span, it), depth)| Some((span, escaped(self.0.get(&it)?, depth)))).collect()
    }
}

/// How often what stands at each of these places is escaped.
fn depths(text: &str, spans: &[Range<usize>], nesting: u8) -> Vec<u8> {
    if nesting >= DEEPEST_NESTING || !is_json(text) {
        return vec![0; spans.len()];
    }
    // What stands in no string is in the name of a field.
    let mut depths = vec![1; spans.len()];
    let mut at = 0;
    leaves(text, Trail::new(&NOTHING, []), |_, leaf| {
        let Scalar::Text { decoded, .. } = &leaf.value else { return };
        let rest = spans.get(at..).unwrap_or_default();
        at += rest.iter().take_while(|span| span.start < leaf.span.start).count();
        let rest = spans.get(at..).unwrap_or_default();
        let count = rest.iter().take_while(|span| span.end <= leaf.span.end).count();
        if count == 0 {
            return;
        }
        let inside: Vec<Range<usize>> = placeholders(decoded).map(|(span, _)| span).collect();
        if inside.len() == count {
            let own = depths.iter_mut().skip(at).zip(self::depths(decoded, &inside, nesting + 1));
            own.for_each(|(depth, within)| *depth = within + 1);
        }
        at += count;
    });
    depths
}

/// Returns true for JSON, whole or cut; text that begins with a placeholder is none.
fn is_json(text: &str) -> bool {
    match text.trim_start().as_bytes().first() {
        Some(b'{') => true,
        Some(b'[') => serde_json::from_str::<IgnoredAny>(text).is_ok(),
        _ => false,
    }
}

/// A value as it stands in a string of JSON, so many times within another one.
fn escaped(value: &str, depth: u8) -> String {
    let mut text = Cow::Borrowed(value);
    for _ in 0..depth {
        let quoted = Value::from(&*text).to_string();
        text = quoted.get(1..quoted.len() - 1).unwrap_or_default().to_owned().into();
    }
    text.into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ODD: &str = "a \"b\"\n\\c";

    fn values() -> PlaceholderValues {
        let of = |name: &str, value: &str| (name.parse().unwrap(), value.into());
        [of("email:1", "jane@example.org"), of("password:1", ODD)].into_iter().collect()
    }

    #[test]
    fn values_are_escaped_as_deep_as_they_stand() {
        let nested = |inner: &str| json!({"a": json!({"b": inner}).to_string()}).to_string();
        let with = values().text(&nested("x [REDACTED:password:1] y [REDACTED:email:1] [REDACTED:email:2]")).unwrap();
        assert_eq!(with, nested(&format!("x {ODD} y jane@example.org [REDACTED:email:2]")));
        assert_eq!(values().text("say \"[REDACTED:password:1]\"").unwrap(), format!("say \"{ODD}\""));
        assert_eq!(
            values().text("[REDACTED:password:1] is \"[REDACTED:password:1]\"").unwrap(),
            format!("{ODD} is \"{ODD}\"")
        );
        assert_eq!(values().text("nothing [REDACTED:email:2] here"), None);
    }

    #[test]
    fn names_of_fields_and_lists_have_values_too() {
        let mut body = json!({"[REDACTED:email:1]": ["[REDACTED:email:1]", 1, null], "b": true});
        assert!(values().json(&mut body));
        assert_eq!(body, json!({"jane@example.org": ["jane@example.org", 1, null], "b": true}));
        let text = json!({"[REDACTED:password:1]": 1}).to_string();
        assert_eq!(values().text(&text).unwrap(), json!({ODD: 1}).to_string());
    }

    #[test]
    fn pieces_are_put_together_wherever_they_are_cut() {
        let whole = json!({"to": "[REDACTED:email:1]", "why": "[REDACTED:password:1]!"}).to_string();
        let wanted = json!({"to": "jane@example.org", "why": format!("{ODD}!")}).to_string();
        for cut in 1..whole.len() {
            let (one, other) = whole.split_at(cut);
            let mut pieces = [one.to_owned(), String::new(), other.to_owned()];
            assert!(values().pieces(&mut pieces), "{cut}");
            assert_eq!(pieces.concat(), wanted, "{cut}");
        }
    }

    #[test]
    fn nothing_shows_a_value() {
        assert_eq!(format!("{:?}", values()), "Values(2)");
    }
}
