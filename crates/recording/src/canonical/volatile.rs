//! Texts that no two runs share.

use std::sync::LazyLock;

use regex::{NoExpand, Regex};
use serde_json::Value;

use crate::children::children;

/// A form of text that differs from run to run.
#[derive(Debug)]
pub struct VolatileShape {
    /// Its name for people, with its article.
    pub name: &'static str,
    /// The edit that makes all texts of this form equal, as `--scrub` takes it.
    pub scrub: &'static str,
    pattern: LazyLock<Option<Regex>>,
    /// Whether [`volatile_text`] looks for it.
    is_noted: bool,
}

/// Declares a shape: its pattern stands in its edit too.
macro_rules! shape {
    ($name:literal, $pattern:literal, $word:literal, $is_noted:literal) => {
        VolatileShape {
            name: $name,
            scrub: concat!("s/", $pattern, "/", $word, "/"),
            pattern: LazyLock::new(|| Regex::new($pattern).ok()),
            is_noted: $is_noted,
        }
    };
}

/// The forms, those that hold others first.
static SHAPES: [VolatileShape; 10] = [
    shape!("a uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "UUID", true),
    shape!("a time", r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}[0-9:.]*(Z|[+-]\d{2}:?\d{2})?", "TIME", true),
    shape!("a date", r"\d{4}-\d{2}-\d{2}", "DATE", false),
    shape!(
        "a date",
        r"((Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? )?(\d{1,2}\.? )?(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* \d{1,4}(, \d{4})?",
        "DATE",
        false
    ),
    shape!("a date", r"\d{1,2}[.\/]\d{1,2}[.\/]\d{4}", "DATE", false),
    shape!("a port", r"(localhost|127\.0\.0\.1|\[::1\]):\d{2,5}\b", "PORT", false),
    shape!("a time of day", r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[AaPp][Mm])?\b", "TIME", false),
    shape!("a duration", r"\d+(\.\d+)? ?(ms|s|seconds|minutes)\b", "DURATION", false),
    shape!("a temporary file", r"\btmp[a-z0-9_]{6,8}\b", "TEMPORARY", false),
    shape!("a long number or hex id", r"(\b|_)([0-9a-f]{16,64}|\d{10,19})\b", "ID", false),
];

/// The first text in a value that looks like a time or a random id.
#[must_use]
pub fn volatile_text(value: &Value) -> Option<&str> {
    let first = |text: &'_ str| -> Option<std::ops::Range<usize>> {
        let noted = SHAPES.iter().filter(|shape| shape.is_noted);
        let found = noted.filter_map(|shape| Some(shape.pattern.as_ref()?.find(text)?.range()));
        found.min_by_key(|range| range.start)
    };
    let own = value.as_str().and_then(|text| text.get(first(text)?));
    own.or_else(|| children(value).find_map(|(_, value)| volatile_text(value)))
}

/// The forms of text by which two edited passages differ, where they differ by nothing else; else none.
#[must_use]
pub fn volatile_edit(recorded: &str, received: &str) -> Vec<&'static VolatileShape> {
    let (mut texts, mut found) = ([recorded.to_owned(), received.to_owned()], Vec::new());
    for shape in &SHAPES {
        let Some(pattern) = shape.pattern.as_ref() else { continue };
        let [recorded, received] = texts
            .each_ref()
            .map(|text| pattern.find_iter(text).map(|found| found.as_str().to_owned()).collect::<Vec<_>>());
        if recorded.len() == received.len() && recorded != received {
            found.push(shape);
            texts = texts.map(|text| pattern.replace_all(&text, NoExpand("\0")).into_owned());
        }
    }
    let [recorded, received] = texts;
    if recorded == received { found } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::canonical::Scrub;

    #[test]
    fn times_and_made_up_ids_are_found() {
        let found = |text: &str| volatile_text(&json!({"a": [1, text]})).map(str::to_owned);
        assert_eq!(found("it is 2026-06-17T12:00:05Z now").as_deref(), Some("2026-06-17T12:00:05Z"));
        let id = "6f1c2f0e-8a3b-4c5d-9e7f-001122334455";
        assert_eq!(found(&format!("run {id}!")).as_deref(), Some(id));
        assert_eq!(found("on 2026-06-17, at 12:00 or in version 1.2-3"), None);
    }

    #[test]
    fn the_edit_of_a_shape_makes_its_texts_equal() {
        for (a, b, name) in [
            ("on 2026-06-17, ", "on 2026-06-18, ", "a date"),
            ("2026-06-17T12:00:05Z", "2026-06-18T01:00:05.25+02:00", "a time"),
            ("6f1c2f0e-8a3b-4c5d-9e7f-001122334455", "00000000-8a3b-4c5d-9e7f-001122334455", "a uuid"),
            ("June 17, 2026", "July 3, 2026", "a date"),
            ("17 June 2026", "3 July 2026", "a date"),
            ("at 9:05 AM", "at 10:15 PM", "a time of day"),
            ("in 0.42s", "in 12s", "a duration"),
            ("1718600000 ", "1718609999 ", "a long number or hex id"),
            ("run_0123456789abcdef", "run_fedcba9876543210", "a long number or hex id"),
            ("Sunday, November 29, ", "Monday, November 30, ", "a date"),
            ("29/11/2026", "1/12/2026", "a date"),
            ("/tmp/tmpab12cd/a", "/tmp/tmp_x9_1yz/a", "a temporary file"),
            ("http://127.0.0.1:34567/a", "http://127.0.0.1:44567/a", "a port"),
            (
                "2026-06-17T12:00:05Z id 6f1c2f0e-8a3b-4c5d-9e7f-001122334455",
                "2026-06-18T12:00:05Z id 00000000-8a3b-4c5d-9e7f-001122334455",
                "a uuid + a time",
            ),
        ] {
            let shapes = volatile_edit(a, b);
            assert_eq!(shapes.iter().map(|shape| shape.name).collect::<Vec<_>>().join(" + "), name, "{a}");
            let even = |text: &str| {
                let mut value = json!(text);
                shapes.iter().for_each(|shape| shape.scrub.parse::<Scrub>().unwrap().apply(&mut value));
                value
            };
            assert_eq!(even(a), even(b), "{a}");
        }
        for (a, b) in [
            ("London", "Paris"),
            ("2026-06-17 London", "2026-06-18 Paris"),
            ("0.2", "0.7"),
            (":34567", ":44567"),
            ("2026-06-17", ""),
        ] {
            assert!(volatile_edit(a, b).is_empty(), "{a} {b}");
        }
    }
}
