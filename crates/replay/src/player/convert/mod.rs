//! Cassettes from traces and from what other tools wrote, and traces from cassettes.
//!
//! A trace's record is a choice of an answer, a cassette's is an exchange: choices of one request become one record. Answers go
//! into a trace word by word and, under its key `answer`, as the cassette shows them, so that the way back gives the same cassette.
//!
//! Limits: a trace holds posted requests only. What a trace does not hold (requests, texts) cannot become a cassette.

use std::borrow::Cow;

use recording::yaml::{self, YamlNode};

mod aimock;
mod from_trace;
mod http_log;
mod to_trace;

pub use aimock::{ConvertedFixtures, aimock, is_aimock};
pub use from_trace::{FromTrace, UnconvertibleRecords, from_trace};
pub use http_log::{HttpLog, http_log, is_http_log};
pub use to_trace::{Counts, ToTrace, to_trace};

/// The key of a trace's record under which an answer stands as a cassette shows it.
const ANSWER: &str = "answer";

/// Reads YAML, or JSON as YAML, whose reader names lines.
fn read_file(text: &str) -> Result<YamlNode, String> {
    let text = text.trim_start_matches('\u{feff}');
    let is_json = text.trim_start().starts_with('{');
    let text = if is_json { with_whole_characters(text) } else { Cow::Borrowed(text) };
    yaml::parse(&text).map_err(|error| error.to_string())
}

/// JSON without pairs of escapes for one character, which YAML does not have.
fn with_whole_characters(json: &str) -> Cow<'_, str> {
    let unit = |escape: &str| u16::from_str_radix(escape.strip_prefix("\\u")?.get(..4)?, 16).ok();
    let (mut whole, mut copied, mut at) = (String::new(), 0, 0);
    while let Some(next) = json.get(at..).and_then(|rest| rest.find('\\')).map(|next| at + next) {
        let units = [next, next + 6].map(|at| json.get(at..).and_then(unit));
        let pair = units.map(|unit| unit.unwrap_or_default());
        at = match char::decode_utf16(pair).next() {
            Some(Ok(character)) if character.len_utf16() == 2 => {
                whole.extend([json.get(copied..next).unwrap_or_default(), character.encode_utf8(&mut [0; 4])]);
                copied = next + 12;
                copied
            }
            // What stands behind a backslash is no beginning of an escape.
            _ => next + 2,
        };
    }
    if copied == 0 { Cow::Borrowed(json) } else { Cow::Owned(whole + json.get(copied..).unwrap_or_default()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_escapes_are_one_character_and_the_rest_stays() {
        for (json, whole) in [
            (r#"{"a": "\ud83d\ude00!"}"#, "{\"a\": \"\u{1f600}!\"}"),
            (r#"{"a": "\\ud83d\\ude00"}"#, r#"{"a": "\\ud83d\\ude00"}"#),
            (r#"{"a": "\\\ud83d\ude00\u00e9 \ud83d x"}"#, "{\"a\": \"\\\\\u{1f600}\\u00e9 \\ud83d x\"}"),
            ("{\"\u{e9}\\", "{\"\u{e9}\\"),
        ] {
            assert_eq!(with_whole_characters(json), whole);
        }
    }
}
