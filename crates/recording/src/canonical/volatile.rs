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
static SHAPES: [VolatileShape; 8] = [
    shape!("a uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "UUID", true),
    shape!("a time", r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}[0-9:.]*(Z|[+-]\d{2}:?\d{2})?", "TIME", true),
    shape!("a date", r"\d{4}-\d{2}-\d{2}", "DATE", false),
    shape!(
        "a date",
        r"((Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day,? )?(\d{1,2}\.? )?(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* \d{1,4}(, \d{4})?",
        "DATE",
        false
    ),
    shape!("a date", r"\d{1,2}\x2f\d{1,2}\x2f\d{4}", "DATE", false),
    shape!("a time of day", r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[AaPp][Mm])?", "TIME", false),
    shape!("a duration", r"\d+(\.\d+)? ?(ms|s|seconds|minutes)\b", "DURATION", false),
    shape!("a long number or hex id", r"\b([0-9a-f]{16,64}|\d{10,19})\b", "ID", false),
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

/// The form of text by which two edited passages differ, or two of them, where they differ by nothing else.
#[must_use]
pub fn volatile_edit(
    recorded: &str,
    received: &str,
) -> Option<(&'static VolatileShape, Option<&'static VolatileShape>)> {
    let even = |shape: &VolatileShape, (a, b): (&str, &str)| {
        let pattern = shape.pattern.as_ref().filter(|pattern| pattern.is_match(a))?;
        let even = |text: &str| pattern.replace_all(text, NoExpand("\0")).into_owned();
        Some((even(a), even(b)))
    };
    let evens = |shape: &VolatileShape, texts: (&str, &str)| even(shape, texts).is_some_and(|(a, b)| a == b);
    let texts = (recorded, received);
    if let Some(only) = SHAPES.iter().find(|shape| evens(shape, texts)) {
        return Some((only, None));
    }
    SHAPES.iter().find_map(|first| {
        let (a, b) = even(first, texts)?;
        let second = SHAPES.iter().find(|second| evens(second, (&a, &b)))?;
        Some((first, Some(second)))
    })
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
            ("Sunday, November 29, 2026", "Monday, November 30, 2026", "a date"),
            ("29/11/2026", "1/12/2026", "a date"),
            ("at 9:05 AM", "at 10:15 PM", "a time of day"),
            ("in 0.42s", "in 12s", "a duration"),
            ("1718600000 ", "1718609999 ", "a long number or hex id"),
        ] {
            let (shape, second) = volatile_edit(a, b).unwrap_or_else(|| panic!("{a}"));
            assert_eq!((shape.name, second.is_none()), (name, true), "{a}");
            let scrub: Scrub = shape.scrub.parse().unwrap();
            let even = |text: &str| {
                let mut value = json!(text);
                scrub.apply(&mut value);
                value
            };
            assert_eq!(even(a), even(b), "{}", shape.scrub);
        }
        let (a, b) =
            ("at 2026-06-17T12:00:05Z, run 6f1c2f0e-8a3b-4c5d-9e7f-001122334455", "at 2026-06-18T01:00:06Z, run ");
        let two = volatile_edit(a, &format!("{b}00000000-8a3b-4c5d-9e7f-001122334455"));
        assert_eq!(
            two.map(|(one, other)| [Some(one.name), other.map(|it| it.name)]),
            Some([Some("a uuid"), Some("a time")])
        );
        for (a, b) in
            [("London", "Paris"), ("2026-06-17 London", "2026-06-18 Paris"), ("0.2", "0.7"), ("2026-06-17", "")]
        {
            assert!(volatile_edit(a, b).is_none(), "{a} {b}");
        }
    }
}
