//! Reads a body as Python's `json` does; where it is not JSON, gives Python's error with its position.
//!
//! Python reads more than JSON: UTF-16 and UTF-32, which its first bytes give away; `NaN`, `Infinity` and whole numbers of more than 64 bits become
//! [texts that stand for a number](NUMBER), a byte order mark is ignored, and half a surrogate pair becomes U+FFFD, but is refused, as
//! the tokenizer refuses it, in a field whose text is tokenized.
//!
//! Limits: digits beyond 64 bits are kept of the body's own fields and of lists in them; elsewhere they are those of the nearest double. Nothing
//! is read beyond a depth of 128.

use std::ops::Range;

use serde_json::{Map, Value};

use super::{
    error::ApiError,
    issues::{FieldFault, Issues, Loc},
    json_tree::TreeReading,
    python::{NUMBER, is_whole},
};
use net::wire::json_as_utf8;
use text::python::{self, Build, SyntaxError};

/// Depth from which on faults of a body are no longer located.
const DEPTH: usize = 200;

/// Digits of a whole number that Python reads.
const MOST_DIGITS: usize = 4300;

/// Fields whose text is tokenized, at any depth.
const TOKENIZED: &[&str] = &[
    "arguments",
    "content",
    "documents",
    "input",
    "instructions",
    "output",
    "prompt",
    "reasoning",
    "refusal",
    "summary",
    "system",
    "text",
    "thinking",
    "tools",
];

/// The error of a text that Python would read, and that is refused here.
const UNKNOWN: SyntaxError = SyntaxError { message: "Expecting value", at: 0 };

/// Reads a body. `Ok(None)` is an empty body.
/// Errors: when it is not JSON, with the position in characters.
pub(super) fn read(body: &[u8]) -> Result<Option<Value>, ApiError> {
    read_by(&TreeReading::new(false), body)
}

/// As [`read`], by a reading that bounds the values and may take the ids of a prompt apart.
fn read_by(reading: &TreeReading, body: &[u8]) -> Result<Option<Value>, ApiError> {
    if body.is_empty() {
        return Ok(None);
    }
    let body = json_as_utf8(body);
    let too_many = || reading.too_many().map_or(Ok(()), |message| Err(ApiError::bad_request(message)));
    match reading.read(&body) {
        Ok(value) if !reading.is_rounded() => return Ok(Some(value)),
        Err(error) if is_too_deep(&error) => return Err(ApiError::unreadable()),
        _ => too_many()?,
    }
    leniently(&body, reading).or_else(|error| too_many().and(Err(error))).map(Some)
}

/// The reader has no other mark of such an error.
fn is_too_deep(error: &serde_json::Error) -> bool {
    error.to_string().contains("recursion limit")
}

pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    object_by(&TreeReading::new(false), body)
}

/// As [`object`], by a reading that may take the ids of a prompt apart.
pub(super) fn object_by(reading: &TreeReading, body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match read_by(reading, body)? {
        Some(Value::Object(map)) => Ok(map),
        None | Some(Value::Null) => Err(missing_body()),
        Some(other) => Err(Issues::one(&Loc::BODY, FieldFault::NO_ATTRIBUTES, &other)),
    }
}

pub(super) fn missing_body() -> ApiError {
    Issues::one(&Loc::BODY, FieldFault::MISSING, &Value::Null)
}

/// Reads what Python reads and others do not.
fn leniently(body: &[u8], reading: &TreeReading) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(body).map_err(|_| ApiError::unreadable())?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut numbers = Numbers::default();
    let found = python::read(text, DEPTH, &mut numbers).map_err(|error| located(text, error))?;
    if numbers.is_too_long {
        return Err(ApiError::unreadable());
    }
    if found.refused {
        let message = "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]";
        return Err(ApiError::bad_request(message));
    }
    let (mut plain, mut done) = (String::with_capacity(text.len() + 8 * numbers.places.len()), 0);
    for (at, place) in numbers.places.iter().enumerate() {
        let [before, number] = [done..place.start, place.clone()].map(|part| text.get(part).unwrap_or_default());
        plain.push_str(before);
        match found.numbers.binary_search(&at) {
            Ok(_) => plain.extend(["\"", NUMBER, number, "\""]),
            Err(_) if number.parse().is_ok_and(f64::is_finite) => plain.push_str(number),
            Err(_) => plain.extend(["\"", number, "\""]),
        }
        done = place.end;
    }
    plain.push_str(text.get(done..).unwrap_or_default());
    let plain = if found.halves { without_halves(&plain) } else { plain };
    reading
        .read(plain.as_bytes())
        .map_err(|error| if is_too_deep(&error) { ApiError::unreadable() } else { located(text, UNKNOWN) })
}

/// A text in whose escapes halves of surrogate pairs are U+FFFD.
fn without_halves(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((plain, escape)) = rest.split_once('\\') {
        let (c, length) = if escape.starts_with('u') { python::escaped_character(escape) } else { ('\\', 1) };
        let (escape, behind) = escape.split_at_checked(length).unwrap_or((escape, ""));
        out.extend([plain, "\\", if c == '\u{fffd}' { "ufffd" } else { escape }]);
        rest = behind;
    }
    out + rest
}

/// Reads a body as a handler does that reads it itself.
/// Errors: Python's whole message.
pub(super) fn read_plainly(body: &[u8]) -> Result<Value, String> {
    let body = json_as_utf8(body);
    serde_json::from_slice(&body).map_err(|_| {
        let text = String::from_utf8_lossy(&body);
        let fault = python::read(&text, DEPTH, &mut Numbers::default()).err().unwrap_or(UNKNOWN);
        let before = text.get(..fault.at).unwrap_or(&text);
        let (lines, line) = (before.matches('\n').count() + 1, before.rsplit('\n').next().unwrap_or_default());
        let column = line.chars().count() + 1;
        format!("{}: line {lines} column {column} (char {})", fault.message, before.chars().count())
    })
}

fn located(text: &str, fault: SyntaxError) -> ApiError {
    if fault.message == python::TOO_DEEP {
        return ApiError::unreadable();
    }
    let position = text.char_indices().take_while(|(at, _)| *at < fault.at).count();
    Issues::one(&Loc::BODY.item(position), FieldFault::NoJson(fault.message), &Value::Object(Map::new()))
}

/// Places of the numbers that JSON does not have, and of those that are too large for 64 bits.
#[derive(Default)]
struct Numbers {
    places: Vec<Range<usize>>,
    is_too_long: bool,
}

/// What a value holds of them, and of halves of surrogate pairs.
#[derive(Default)]
struct Found {
    is_object: bool,
    /// Those that stand in it, or in lists in it.
    numbers: Vec<usize>,
    halves: bool,
    /// True where a text with such a half would be tokenized.
    refused: bool,
}

impl Found {
    fn take(&mut self, other: Self) {
        self.halves |= other.halves;
        self.refused |= other.refused;
        if !other.is_object {
            self.numbers.extend(other.numbers);
        }
    }
}

impl Build<'_> for Numbers {
    type Value = Found;

    fn scalar(&mut self, text: &str, at: usize) -> Found {
        let is_number = text.ends_with(|end: char| end.is_ascii_digit());
        let is_large = is_number && text.parse::<f64>().is_ok_and(|number| number.is_infinite());
        let is_long = is_number && is_whole(text) && text.parse::<i64>().is_err() && text.parse::<u64>().is_err();
        self.is_too_long |= is_long && text.trim_start_matches('-').len() > MOST_DIGITS;
        if !(is_large || is_long || text.ends_with(['N', 'y'])) {
            return Found::default();
        }
        self.places.push(at..at + text.len());
        Found { numbers: vec![self.places.len() - 1], ..Found::default() }
    }

    fn string(&mut self, raw: &str) -> Found {
        let halves = raw.contains("\\u") && serde_json::from_str::<String>(&format!("\"{raw}\"")).is_err();
        Found { halves, ..Found::default() }
    }

    fn list(&mut self) -> Found {
        Found::default()
    }

    fn object(&mut self) -> Found {
        Found { is_object: true, ..Found::default() }
    }

    fn push(&mut self, list: &mut Found, item: Found) {
        list.take(item);
    }

    fn insert(&mut self, object: &mut Found, raw_key: &str, value: Found) {
        object.refused |= value.halves && TOKENIZED.contains(&raw_key);
        object.halves |= self.string(raw_key).halves;
        object.take(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_other_encodings_are_read() {
        let text = r#"{"model": "é"}"#;
        let utf16: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let utf32: Vec<u8> = text.chars().flat_map(|c| u32::from(c).to_be_bytes()).collect();
        for body in
            [utf16.clone(), [b"\xff\xfe".to_vec(), utf16].concat(), utf32, [b"\xef\xbb\xbf", text.as_bytes()].concat()]
        {
            assert_eq!(read(&body).unwrap(), Some(serde_json::json!({"model": "é"})));
            assert!(read_plainly(&body).is_ok());
        }
    }

    #[test]
    fn constants_that_json_does_not_have_become_texts() {
        let body = r#"{"a": [NaN, -Infinity, "NaN", 1e999, 2], "é": Infinity}"#;
        let number = |text: &str| format!("{NUMBER}{text}");
        let list = serde_json::json!([number("NaN"), number("-Infinity"), "NaN", number("1e999"), 2]);
        let expected = serde_json::json!({"a": list, "é": number("Infinity")});
        assert_eq!(read(body.as_bytes()).unwrap(), Some(expected));
        let within = r#"{"a": {"b": [NaN, 1e999]}}"#;
        assert_eq!(read(within.as_bytes()).unwrap(), Some(serde_json::json!({"a": {"b": ["NaN", "1e999"]}})));
        let many = format!("[{}NaN]", "NaN,".repeat(200_000));
        assert_eq!(read(many.as_bytes()).unwrap().unwrap().as_array().unwrap().len(), 200_001);
    }

    #[test]
    fn whole_numbers_keep_their_digits() {
        let number = |text: &str| format!("{NUMBER}{text}");
        let body = r#"{"n": 1000000000000000000000000000000, "prompt": [[-9223372036854775809]], "a": {"b": 18446744073709551616}, "c": 18446744073709551615}"#;
        let expected = serde_json::json!({"n": number("1000000000000000000000000000000"),
            "prompt": [[number("-9223372036854775809")]], "a": {"b": 18_446_744_073_709_551_616.0}, "c": u64::MAX});
        assert_eq!(read(body.as_bytes()).unwrap(), Some(expected));
        let digits = |count| format!("{{\"a\": {}}}", "1".repeat(count));
        assert_eq!(read(digits(4300).as_bytes()).unwrap(), Some(serde_json::json!({"a": number(&"1".repeat(4300))})));
        assert_eq!(read(digits(4301).as_bytes()).unwrap_err(), ApiError::unreadable());
    }

    #[test]
    fn halves_of_surrogate_pairs_are_refused_where_text_is_tokenized() {
        let body = r#"{"user": "\\\ud800\ud83d\ude00", "\udc00": "a", "n": NaN}"#;
        let expected = serde_json::json!({"user": "\\\u{fffd}😀", "\u{fffd}": "a", "n": format!("{NUMBER}NaN")});
        assert_eq!(read(body.as_bytes()).unwrap(), Some(expected));
        for body in [r#"{"prompt": ["a", "\ud800"]}"#, r#"{"messages": [{"content": [{"text": "\udfff"}]}]}"#] {
            assert!(read(body.as_bytes()).unwrap_err().message.starts_with("TextEncodeInput"), "{body}");
        }
    }

    #[test]
    fn a_body_that_nests_too_deeply_is_no_body() {
        for deep in ["[".repeat(2000), "{\"a\":".repeat(2000), format!("[NaN,{}", "[".repeat(2000))] {
            assert_eq!(read(deep.as_bytes()).unwrap_err(), ApiError::unreadable());
        }
    }

    #[test]
    fn a_body_of_too_many_values_is_refused() {
        let many = |item: &str| format!("[{}1]", format!("{item},").repeat(4 << 20));
        for body in [many("1"), many("NaN")] {
            let error = read(body.as_bytes()).unwrap_err();
            assert!((error.status, error.message.contains("4194304 JSON values")) == (400, true), "{}", error.message);
        }
    }

    #[test]
    fn faults_are_located_as_python_locates_them() {
        let scanned = |text: &str| python::read(text, DEPTH, &mut Numbers::default()).map(drop);
        for (text, message, at) in [
            (r#"{"model": "x", "messages": ["#, "Expecting value", 28),
            ("{", "Expecting property name enclosed in double quotes", 1),
            (r#"{"a" 1}"#, "Expecting ':' delimiter", 5),
            (r#"{"a": 1 "b"}"#, "Expecting ',' delimiter", 8),
            (r#"{"a": "#, "Expecting value", 6),
            ("[1] x", "Extra data", 4),
            ("[01]", "Expecting ',' delimiter", 2),
            ("\"abc", "Unterminated string starting at", 0),
            ("\"a\nb\"", "Invalid control character at", 2),
            ("nope", "Expecting value", 0),
        ] {
            assert_eq!(scanned(text), Err(SyntaxError { message, at }), "{text}");
        }
        assert_eq!(scanned(r#" {"a": [1, -2.5e3, "x\u00e9", null, {}]} "#), Ok(()));
    }
}
