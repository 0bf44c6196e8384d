//! Reads a body as Python's `json` does; where it is not JSON, gives Python's error with its position.
//!
//! Python reads more than JSON: UTF-16 and UTF-32, which its first bytes give away; `NaN` and `Infinity` become the texts of which a number can be read, a byte order mark is
//! passed over, half a surrogate pair is refused as the tokenizer refuses it.

use std::{iter::Peekable, ops::Range, str::CharIndices};

use serde_json::{Map, Value};

use super::{
    error::ApiError,
    issues::{Fault, Issues, Loc},
    json_tree::Reading,
};
use net::wire::json_as_utf8;

/// Depth from which on faults of a body are no longer located.
const DEPTH: usize = 200;

/// Reads a body. `Ok(None)` is an empty body.
///
/// # Errors
/// When it is not JSON, with the position in characters.
pub(super) fn read(body: &[u8]) -> Result<Option<Value>, ApiError> {
    read_by(&Reading::new(false), body)
}

/// As [`read`], by a reading that bounds the values and may take the ids of a prompt apart.
///
/// # Errors
/// Also for too many values.
fn read_by(reading: &Reading, body: &[u8]) -> Result<Option<Value>, ApiError> {
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
///
/// # Errors
/// Also for anything else.
pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    object_by(&Reading::new(false), body)
}

/// As [`object`], by a reading that may take the ids of a prompt apart.
///
/// # Errors
/// The same.
pub(super) fn object_by(reading: &Reading, body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match read_by(reading, body)? {
        Some(Value::Object(map)) => Ok(map),
        None | Some(Value::Null) => Err(missing_body()),
        Some(other) => Err(Issues::one(&Loc::BODY, Fault::NO_ATTRIBUTES, &other)),
    }
}

/// The error for a request that has to have a body.
pub(super) fn missing_body() -> ApiError {
    Issues::one(&Loc::BODY, Fault::MISSING, &Value::Null)
}

/// Constants that Python reads and others do not.
fn leniently(body: &[u8], reading: &Reading) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(body).map_err(|_| ApiError::unreadable())?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut scanner = Scanner::new(text);
    if let Err(fault) = scanner.document() {
        return Err(located(text, &fault));
    }
    let (mut plain, mut done) = (String::with_capacity(text.len() + 2 * scanner.constants.len()), 0);
    for constant in scanner.constants {
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
        located(text, &DecodeError { message: "Expecting value", at: 0 })
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
        let fault = Scanner::new(&text).document().err().unwrap_or(DecodeError { message: "Expecting value", at: 0 });
        let before = text.get(..fault.at).unwrap_or(&text);
        let (lines, line) = (before.matches('\n').count() + 1, before.rsplit('\n').next().unwrap_or_default());
        let column = line.chars().count() + 1;
        format!("{}: line {lines} column {column} (char {})", fault.message, before.chars().count())
    })
}

fn located(text: &str, fault: &DecodeError) -> ApiError {
    let position = text.char_indices().take_while(|(at, _)| *at < fault.at).count();
    Issues::one(&Loc::BODY.item(position), Fault::NoJson(fault.message), &Value::Object(Map::new()))
}

/// Python's message, and the byte it is about.
#[derive(Debug, PartialEq)]
struct DecodeError {
    message: &'static str,
    at: usize,
}

struct Scanner<'a> {
    text: &'a str,
    chars: Peekable<CharIndices<'a>>,
    depth: usize,
    /// Where the constants are that JSON does not have, and numbers that are too large for it.
    constants: Vec<Range<usize>>,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, chars: text.char_indices().peekable(), depth: 0, constants: Vec::new() }
    }

    fn at(&mut self) -> usize {
        self.chars.peek().map_or(self.text.len(), |(at, _)| *at)
    }

    fn peek(&mut self) -> Option<char> {
        self.chars.peek().map(|(_, c)| *c)
    }

    fn blanks(&mut self) {
        while self.chars.next_if(|(_, c)| matches!(c, ' ' | '\t' | '\n' | '\r')).is_some() {}
    }

    fn fault<T>(&mut self, message: &'static str) -> Result<T, DecodeError> {
        let at = self.at();
        Err(DecodeError { message, at })
    }

    fn document(&mut self) -> Result<(), DecodeError> {
        self.blanks();
        self.value()?;
        self.blanks();
        if self.peek().is_some() { self.fault("Extra data") } else { Ok(()) }
    }

    fn value(&mut self) -> Result<(), DecodeError> {
        self.depth += 1;
        if self.depth > DEPTH {
            return self.fault("Expecting value");
        }
        let read = match self.peek() {
            Some('"') => self.string(),
            Some('{') => self.object(),
            Some('[') => self.array(),
            _ => self.scalar(),
        };
        self.depth -= 1;
        read
    }

    fn scalar(&mut self) -> Result<(), DecodeError> {
        let start = self.at();
        let rest = self.text.get(start..).unwrap_or_default();
        let constant = ["NaN", "Infinity", "-Infinity"].iter().find(|word| rest.starts_with(**word));
        let mut words = ["true", "false", "null"].iter().chain(constant);
        let length = words.find(|word| rest.starts_with(**word)).map_or_else(|| number(rest), |word| word.len());
        if length == 0 {
            return self.fault("Expecting value");
        }
        let scalar = rest.get(..length).unwrap_or_default();
        let is_huge = scalar.parse::<f64>().is_ok_and(f64::is_infinite);
        if constant.is_some() || is_huge {
            self.constants.push(start..start + length);
        }
        while self.chars.next_if(|(at, _)| *at < start + length).is_some() {}
        Ok(())
    }

    fn string(&mut self) -> Result<(), DecodeError> {
        let start = self.at();
        self.chars.next();
        while let Some((at, c)) = self.chars.next() {
            match c {
                '"' => return Ok(()),
                '\\' => match self.chars.next() {
                    Some((_, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't')) => {}
                    Some((_, 'u')) => {
                        for _ in 0..4 {
                            if self.chars.next_if(|(_, c)| c.is_ascii_hexdigit()).is_none() {
                                return Err(DecodeError { message: "Invalid \\uXXXX escape", at: at + 1 });
                            }
                        }
                    }
                    Some(_) => return Err(DecodeError { message: "Invalid \\escape", at }),
                    None => break,
                },
                c if u32::from(c) < 0x20 => return Err(DecodeError { message: "Invalid control character at", at }),
                _ => {}
            }
        }
        Err(DecodeError { message: "Unterminated string starting at", at: start })
    }

    fn object(&mut self) -> Result<(), DecodeError> {
        self.chars.next();
        self.blanks();
        if self.chars.next_if(|(_, c)| *c == '}').is_some() {
            return Ok(());
        }
        loop {
            if self.peek() != Some('"') {
                return self.fault("Expecting property name enclosed in double quotes");
            }
            self.string()?;
            self.blanks();
            if self.chars.next_if(|(_, c)| *c == ':').is_none() {
                return self.fault("Expecting ':' delimiter");
            }
            self.blanks();
            self.value()?;
            if self.closes('}')? {
                return Ok(());
            }
        }
    }

    fn array(&mut self) -> Result<(), DecodeError> {
        self.chars.next();
        self.blanks();
        if self.chars.next_if(|(_, c)| *c == ']').is_some() {
            return Ok(());
        }
        loop {
            self.value()?;
            if self.closes(']')? {
                return Ok(());
            }
        }
    }

    /// After a member: true at the closing bracket, false after a comma.
    fn closes(&mut self, bracket: char) -> Result<bool, DecodeError> {
        self.blanks();
        match self.peek() {
            Some(c) if c == bracket => {
                self.chars.next();
                Ok(true)
            }
            Some(',') => {
                self.chars.next();
                self.blanks();
                Ok(false)
            }
            _ => self.fault("Expecting ',' delimiter"),
        }
    }
}

/// Bytes of the JSON number that `rest` starts with; 0 when it starts with none.
fn number(rest: &str) -> usize {
    let digits = |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let sign = usize::from(rest.starts_with('-'));
    let whole = digits(rest.get(sign..).unwrap_or_default());
    if whole == 0 {
        return 0;
    }
    let mut length = sign + if rest.get(sign..).is_some_and(|rest| rest.starts_with('0')) { 1 } else { whole };
    let tail = rest.get(length..).unwrap_or_default();
    if let Some(fraction) = tail.strip_prefix('.').map(digits).filter(|count| *count > 0) {
        length += 1 + fraction;
    }
    let tail = rest.get(length..).unwrap_or_default();
    if let Some(exponent) = tail.strip_prefix(['e', 'E']) {
        let sign = usize::from(exponent.starts_with(['+', '-']));
        let count = digits(exponent.get(sign..).unwrap_or_default());
        if count > 0 {
            length += 1 + sign + count;
        }
    }
    length
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
            assert_eq!(Scanner::new(text).document(), Err(DecodeError { message, at }), "{text}");
        }
        assert_eq!(Scanner::new(r#" {"a": [1, -2.5e3, "x\u00e9", null, {}]} "#).document(), Ok(()));
    }
}
