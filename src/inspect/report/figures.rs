//! Figures of a report by their place in its JSON, and how a page shows them.
//!
//! A figure is a `data` element: its `value` is the number of the JSON, `data-figure` the pointer to it (RFC 6901), its text for people.

use serde::Serialize;
use serde_json::Value;

use super::html::{attribute, escaped};
use crate::{inspect::text::time, net::wire::value_text};

/// Bytes of a pointer that a page names, at most.
const LONGEST_POINTER: usize = 1000;

/// Format of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Milliseconds, in the unit that suits them.
    Millis,
    /// Seconds, likewise.
    Seconds,
    /// A number between 0 and 1, as percent.
    Share,
    /// A percentage, with its sign.
    Change,
    /// A whole number.
    Count,
    /// A number with two digits behind the point.
    Decimal,
    /// The same, each second.
    PerSecond,
}

impl Format {
    pub(super) fn text(self, value: f64) -> String {
        let size = value.abs();
        let text = match self {
            Self::Millis => time(size),
            Self::Seconds => time(size * 1000.0),
            Self::Share => format!("{:.2} %", size * 100.0),
            Self::Change => format!("{size:.1} %"),
            Self::Count => grouped(size),
            Self::Decimal => format!("{size:.2}"),
            Self::PerSecond => format!("{size:.2} /s"),
        };
        // What is rounded to zero has no sign.
        match text.contains(|char| ('1'..='9').contains(&char)) {
            true if value < 0.0 => format!("−{text}"),
            true if self == Self::Change => format!("+{text}"),
            _ => text,
        }
    }
}

/// A whole number from zero up in groups of three digits, with narrow spaces between them.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::with_capacity(digits.len() * 2);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// A cell of a table, as HTML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) html: String,
    pub(super) is_number: bool,
}

impl Cell {
    /// Text that this program wrote.
    pub(super) fn label(text: &str) -> Self {
        Self { html: escaped(text), is_number: false }
    }

    fn nothing(is_number: bool) -> Self {
        Self { html: "<span class=\"none\">–</span>".to_owned(), is_number }
    }
}

/// The JSON of a report.
#[derive(Debug)]
pub(super) struct PageFigures(Value);

impl PageFigures {
    pub(super) fn of(report: &impl Serialize) -> serde_json::Result<Self> {
        serde_json::to_value(report).map(Self)
    }

    pub(super) const fn of_json(report: Value) -> Self {
        Self(report)
    }

    /// The JSON as text.
    pub(super) fn json(&self) -> String {
        self.0.to_string()
    }

    /// The value at a pointer; null where there is none.
    pub(super) fn at(&self, pointer: &str) -> &Value {
        self.0.pointer(pointer).unwrap_or(&Value::Null)
    }

    /// Length of the list at a pointer.
    pub(super) fn count(&self, pointer: &str) -> usize {
        self.at(pointer).as_array().map_or(0, Vec::len)
    }

    /// The text at a pointer; empty where there is none.
    pub(super) fn text(&self, pointer: &str) -> &str {
        self.at(pointer).as_str().unwrap_or_default()
    }

    /// The pairs of numbers at a pointer.
    pub(super) fn points(&self, pointer: &str) -> Vec<(f64, f64)> {
        let pair = |value: &Value| Some((value.get(0)?.as_f64()?, value.get(1)?.as_f64()?));
        self.at(pointer).as_array().into_iter().flatten().filter_map(pair).collect()
    }

    pub(super) fn number(&self, pointer: &str, format: Format) -> Cell {
        let Value::Number(number) = self.at(pointer) else { return Cell::nothing(true) };
        let text = escaped(&format.text(number.as_f64().unwrap_or_default()));
        let place = figure(pointer);
        Cell { html: format!("<data value=\"{number}\"{place}>{text}</data>"), is_number: true }
    }

    /// A cell with the text at a pointer, which a trace may hold.
    pub(super) fn name(&self, pointer: &str) -> Cell {
        let shown = match self.at(pointer) {
            Value::Null => return Cell::nothing(false),
            value => escaped(&value_text(value)),
        };
        Cell { html: format!("<bdi{}>{shown}</bdi>", figure(pointer)), is_number: false }
    }
}

/// The attribute with the place of a figure in the JSON; none where a name in it is too long.
fn figure(pointer: &str) -> String {
    if pointer.len() > LONGEST_POINTER {
        return String::new();
    }
    format!(" data-figure=\"{}\"", attribute(pointer))
}

/// A name as a part of a pointer.
pub(super) fn token(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_for_people_and_kept_for_programs() {
        let figures =
            PageFigures::of(&serde_json::json!({"a/b": {"ttft": 1234.5678, "count": 1_234_567, "share": 0.05}}))
                .unwrap();
        let pointer = format!("/{}/ttft", token("a/b"));
        let cell = figures.number(&pointer, Format::Millis);
        assert_eq!(cell.html, "<data value=\"1234.5678\" data-figure=\"/a~1b/ttft\">1.23 s</data>");
        let shown = |name: &str, format| figures.number(&format!("/a~1b/{name}"), format).html;
        assert!(shown("count", Format::Count).contains(">1\u{202f}234\u{202f}567<"));
        assert!(shown("share", Format::Share).contains(">5.00 %<"));
        assert!(shown("missing", Format::Share).contains(">–<"));
        assert_eq!(Format::Millis.text(-12.0), "−12.00 ms");
        assert_eq!([0.0, 100.0, -1000.0].map(|value| Format::Count.text(value)), ["0", "100", "−1\u{202f}000"]);
        assert_eq!([0.04, -0.04, 2.5].map(|value| Format::Change.text(value)), ["0.0 %", "0.0 %", "+2.5 %"]);
    }
}
