//! Reads a body as Python's `json` does; where it is not JSON, gives Python's error with its position.
//!
//! Python reads more than JSON: UTF-16 and UTF-32, which its first bytes give away; `NaN` and `Infinity` become the texts of which a number can be read, a byte order mark is
//! ignored, half a surrogate pair is refused as the tokenizer refuses it.

use std::ops::Range;

use serde_json::{Map, Value};

use super::{
    error::ApiError,
    issues::{FieldFault, Issues, Loc},
    json_tree::TreeReading,
};
use net::wire::json_as_utf8;
use text::python::{self, Build, SyntaxError};

/// Depth from which on faults of a body are no longer located.
const DEPTH: usize = 200;

/// The error of a text that Python would read, and that is refused here.
const UNKNOWN: SyntaxError = SyntaxError { message: "Expecting value", at: 0 };

/// Reads a body. `Ok(None)` is an empty body.
///
/// # Errors
/// When it is not JSON, with the position in characters.
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
    if let Ok(value) = reading.read(&body) {
        return Ok(Some(value));
    }
    too_many()?;
    leniently(&body, reading).or_else(|error| too_many().and(Err(error))).map(Some)
}

/// Reads a body that has to be an object.
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

/// The error for a request that has to have a body.
pub(super) fn missing_body() -> ApiError {
    Issues::one(&Loc::BODY, FieldFault::MISSING, &Value::Null)
}

/// Constants that Python reads and others do not.
fn leniently(body: &[u8], reading: &TreeReading) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(body).map_err(|_| ApiError::unreadable())?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut constants = Constants::default();
    python::read(text, DEPTH, &mut constants).map_err(|error| located(text, error))?;
    let (mut plain, mut done) = (String::with_capacity(text.len() + 2 * constants.0.len()), 0);
    for constant in constants.0 {
        let [before, name] = [done..constant.start, constant.clone()].map(|part| text.get(part).unwrap_or_default());
        plain.extend([before, "\"", name, "\""]);
        done = constant.end;
    }
    plain.push_str(text.get(done..).unwrap_or_default());
    let refused = || {
        ApiError::bad_request("TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]")
    };
    reading.read(plain.as_bytes()).map_err(|error| {
        if ["surrogate", "hex escape"].iter().any(|word| error.to_string().contains(word)) {
            return refused();
        }
        located(text, UNKNOWN)
    })
}

/// Reads a body as a handler does that reads it itself.
///
/// # Errors
/// Python's whole message.
pub(super) fn read_plainly(body: &[u8]) -> Result<Value, String> {
    let body = json_as_utf8(body);
    serde_json::from_slice(&body).map_err(|_| {
        let text = String::from_utf8_lossy(&body);
        let fault = python::read(&text, DEPTH, &mut Constants::default()).err().unwrap_or(UNKNOWN);
        let before = text.get(..fault.at).unwrap_or(&text);
        let (lines, line) = (before.matches('\n').count() + 1, before.rsplit('\n').next().unwrap_or_default());
        let column = line.chars().count() + 1;
        format!("{}: line {lines} column {column} (char {})", fault.message, before.chars().count())
    })
}

fn located(text: &str, fault: SyntaxError) -> ApiError {
    let position = text.char_indices().take_while(|(at, _)| *at < fault.at).count();
    Issues::one(&Loc::BODY.item(position), FieldFault::NoJson(fault.message), &Value::Object(Map::new()))
}

/// Places of the constants that JSON does not have, and of numbers that are too large for it.
#[derive(Default)]
struct Constants(Vec<Range<usize>>);

impl Build<'_> for Constants {
    type Value = ();

    fn scalar(&mut self, text: &str, at: usize) {
        let is_constant = text.ends_with(['N', 'y']);
        if is_constant || text.parse::<f64>().is_ok_and(f64::is_infinite) {
            self.0.push(at..at + text.len());
        }
    }

    fn string(&mut self, _: &str) {}

    fn list(&mut self) {}

    fn object(&mut self) {}

    fn push(&mut self, (): &mut (), (): ()) {}

    fn insert(&mut self, (): &mut (), _: &str, (): ()) {}
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
        let expected = serde_json::json!({"a": ["NaN", "-Infinity", "NaN", "1e999", 2], "é": "Infinity"});
        assert_eq!(read(body.as_bytes()).unwrap(), Some(expected));
        let many = format!("[{}NaN]", "NaN,".repeat(200_000));
        assert_eq!(read(many.as_bytes()).unwrap().unwrap().as_array().unwrap().len(), 200_001);
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
        let scanned = |text: &str| python::read(text, DEPTH, &mut Constants::default());
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
