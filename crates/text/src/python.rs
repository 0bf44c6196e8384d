//! JSON as Python's `json` reads and writes it, and floats as Python prints them.
//!
//! Python reads more than JSON: `NaN` and `Infinity`, integers of any size, the last of several keys of one name.

use std::fmt::Write;

/// Text that is not JSON, in Python's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyntaxError {
    /// Python's message.
    pub message: &'static str,
    /// The byte that it is about.
    pub at: usize,
}

/// The message for a text that nests deeper than is read, which is an error of Python's own.
pub const TOO_DEEP: &str = "maximum recursion depth exceeded";

/// Values that are made of a text as it is read.
pub trait Build<'a> {
    /// A value.
    type Value;
    /// Makes a number, `null`, `true`, `false`, `NaN` or an infinity, which begins at this byte.
    fn scalar(&mut self, text: &'a str, at: usize) -> Self::Value;
    /// Makes a string of what stands between its quotes.
    fn string(&mut self, raw: &'a str) -> Self::Value;
    /// Makes an empty list.
    fn list(&mut self) -> Self::Value;
    /// Makes an empty object.
    fn object(&mut self) -> Self::Value;
    /// Adds to a list.
    fn push(&mut self, list: &mut Self::Value, item: Self::Value);
    /// Adds to an object; `raw_key` is what stands between the key's quotes.
    fn insert(&mut self, object: &mut Self::Value, raw_key: &'a str, value: Self::Value);
}

/// `json.loads`: a value, and white space around it. Lists and objects nest `deepest` levels at most.
///
/// # Errors
/// Python's, with its place.
pub fn read<'a, B: Build<'a>>(text: &'a str, deepest: usize, build: &mut B) -> Result<B::Value, SyntaxError> {
    let mut reader = PythonReader { text, at: 0, depth: 0, deepest, build };
    reader.skip_blanks();
    let value = reader.value()?;
    reader.skip_blanks();
    if reader.at < text.len() { reader.fail("Extra data") } else { Ok(value) }
}

/// `raw_decode`: the value that a text begins with, and its bytes.
pub(crate) fn read_first<'a, B: Build<'a>>(
    text: &'a str,
    deepest: usize,
    build: &mut B,
) -> Result<(B::Value, usize), SyntaxError> {
    let mut reader = PythonReader { text, at: 0, depth: 0, deepest, build };
    reader.value().map(|value| (value, reader.at))
}

struct PythonReader<'a, 'b, B> {
    text: &'a str,
    at: usize,
    depth: usize,
    deepest: usize,
    build: &'b mut B,
}

impl<'a, B: Build<'a>> PythonReader<'a, '_, B> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn fail<T>(&self, message: &'static str) -> Result<T, SyntaxError> {
        Err(SyntaxError { message, at: self.at })
    }

    fn value(&mut self) -> Result<B::Value, SyntaxError> {
        match self.peek() {
            Some(b'"') => self.string().map(|raw| self.build.string(raw)),
            Some(b'{' | b'[') if self.depth == self.deepest => self.fail(TOO_DEEP),
            Some(open @ (b'{' | b'[')) => {
                self.depth += 1;
                let value = if open == b'{' { self.object() } else { self.list() };
                self.depth -= 1;
                value
            }
            _ => self.scalar(),
        }
    }

    fn scalar(&mut self) -> Result<B::Value, SyntaxError> {
        let (rest, at) = (self.rest(), self.at);
        let words = ["null", "true", "false", "NaN", "Infinity", "-Infinity"];
        let word = words.iter().find(|word| rest.starts_with(**word));
        let scalar = rest.get(..word.map_or_else(|| number(rest), |word| word.len())).unwrap_or_default();
        if scalar.is_empty() {
            return self.fail("Expecting value");
        }
        self.at += scalar.len();
        Ok(self.build.scalar(scalar, at))
    }

    /// What stands between the quotes of a string.
    fn string(&mut self) -> Result<&'a str, SyntaxError> {
        let start = self.at;
        self.at += 1;
        while let Some(byte) = self.peek() {
            let at = self.at;
            self.at += 1;
            match byte {
                b'"' => return Ok(self.text.get(start + 1..at).unwrap_or_default()),
                b'\\' => self.escape(at)?,
                0..0x20 => return Err(SyntaxError { message: "Invalid control character at", at }),
                _ => {}
            }
        }
        Err(SyntaxError { message: "Unterminated string starting at", at: start })
    }

    /// Skips an escape that begins at `at`; a text that ends there is a string without an end.
    fn escape(&mut self, at: usize) -> Result<(), SyntaxError> {
        match self.peek() {
            None | Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                let digits = self.text.as_bytes().get(self.at + 1..self.at + 5).unwrap_or_default();
                if digits.len() < 4 || !digits.iter().all(u8::is_ascii_hexdigit) {
                    return Err(SyntaxError { message: "Invalid \\uXXXX escape", at: at + 1 });
                }
                self.at += 5;
            }
            Some(_) => return Err(SyntaxError { message: "Invalid \\escape", at }),
        }
        Ok(())
    }

    fn object(&mut self) -> Result<B::Value, SyntaxError> {
        let mut object = self.build.object();
        self.at += 1;
        self.skip_blanks();
        if self.take(b'}') {
            return Ok(object);
        }
        loop {
            if self.peek() != Some(b'"') {
                return self.fail("Expecting property name enclosed in double quotes");
            }
            let key = self.string()?;
            self.skip_blanks();
            if !self.take(b':') {
                return self.fail("Expecting ':' delimiter");
            }
            self.skip_blanks();
            let value = self.value()?;
            self.build.insert(&mut object, key, value);
            if self.ends(b'}')? {
                return Ok(object);
            }
        }
    }

    fn list(&mut self) -> Result<B::Value, SyntaxError> {
        let mut list = self.build.list();
        self.at += 1;
        self.skip_blanks();
        if self.take(b']') {
            return Ok(list);
        }
        loop {
            let item = self.value()?;
            self.build.push(&mut list, item);
            if self.ends(b']')? {
                return Ok(list);
            }
        }
    }

    /// After a member: true behind the closing bracket, false behind a comma.
    fn ends(&mut self, bracket: u8) -> Result<bool, SyntaxError> {
        self.skip_blanks();
        if self.take(bracket) {
            return Ok(true);
        }
        if !self.take(b',') {
            return self.fail("Expecting ',' delimiter");
        }
        self.skip_blanks();
        Ok(false)
    }
}

/// Bytes of the number that a text begins with, `-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?`; 0 where it begins with none.
fn number(text: &str) -> usize {
    let digits = |from: usize| text.bytes().skip(from).take_while(u8::is_ascii_digit).count();
    let byte = |at: usize| text.as_bytes().get(at).copied();
    let start = usize::from(byte(0) == Some(b'-'));
    let mut end = match (byte(start), digits(start)) {
        (_, 0) => return 0,
        (Some(b'0'), _) => start + 1,
        (_, count) => start + count,
    };
    if byte(end) == Some(b'.') && digits(end + 1) > 0 {
        end += 1 + digits(end + 1);
    }
    if matches!(byte(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(byte(end + 1), Some(b'+' | b'-')));
        let count = digits(end + 1 + sign);
        end += if count > 0 { 1 + sign + count } else { 0 };
    }
    end
}

/// The text of what stands between the quotes of a string. Halves of surrogate pairs become U+FFFD.
#[must_use]
pub fn unescaped(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((plain, escape)) = rest.split_once('\\') {
        out.push_str(plain);
        let mut chars = escape.chars();
        match chars.next() {
            Some('b') => out.push('\u{8}'),
            Some('f') => out.push('\u{c}'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('u') => {
                let (c, length) = escaped_character(escape);
                out.push(c);
                chars = escape.get(length..).unwrap_or_default().chars();
            }
            Some(c) => out.push(c),
            None => {}
        }
        rest = chars.as_str();
    }
    out + rest
}

/// The character of an escape that begins with its `u`, and its bytes: those of two escapes for a surrogate pair.
#[must_use]
pub fn escaped_character(escape: &str) -> (char, usize) {
    let unit = |at: usize| escape.get(at..at + 4).and_then(|digits| u16::from_str_radix(digits, 16).ok());
    let first = unit(1).unwrap_or_default();
    let second = if escape.get(5..7) == Some("\\u") { unit(7) } else { None };
    match second.map(|second| char::decode_utf16([first, second]).next()) {
        Some(Some(Ok(pair))) if u32::from(pair) > 0xffff => (pair, 11),
        _ => (char::from_u32(u32::from(first)).unwrap_or(char::REPLACEMENT_CHARACTER), 5),
    }
}

/// Writes a text as `json.dumps` does; `ascii` is its `ensure_ascii`.
pub fn write_string(text: &str, ascii: bool, out: &mut String) {
    let json = serde_json::to_string(text).unwrap_or_default();
    if !ascii {
        return out.push_str(&json);
    }
    for c in json.chars() {
        if c > '~' {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
}

/// `repr` of a string: single quotes unless it holds some and no double ones.
#[must_use]
pub fn repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// A float as `json.dumps` writes it.
#[must_use]
pub fn json_float(value: f64) -> String {
    match value {
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        value if value.is_nan() => "NaN".to_owned(),
        value => repr_float(value),
    }
}

/// A float as `repr` writes it: the shortest digits that read back, an exponent below 1e-4 and from 1e16 on.
#[must_use]
pub fn repr_float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    // Of two equally short and equally close texts Python takes the even one, as ryu does and the standard library does not.
    let mut buffer = ryu::Buffer::new();
    let text = buffer.format(value);
    if let Some((digits, exponent)) = text.split_once('e') {
        return match exponent.strip_prefix('-') {
            Some(exponent) => format!("{digits}e-{exponent:0>2}"),
            None => format!("{digits}e+{exponent:0>2}"),
        };
    }
    let sign = if text.starts_with('-') { "-" } else { "" };
    match text.trim_start_matches('-').strip_prefix("0.0000").map(|digits| digits.split_at_checked(1)) {
        Some(Some((first, ""))) => format!("{sign}{first}e-05"),
        Some(Some((first, rest))) => format!("{sign}{first}.{rest}e-05"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_pythons() {
        for (value, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-1.0, "-1.0"),
            (3.5, "3.5"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (1e22, "1e+22"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (0.0001, "0.0001"),
            (0.000_01, "1e-05"),
            (-0.000_042, "-4.2e-05"),
            (1e-7, "1e-07"),
            (-1.5e-7, "-1.5e-07"),
            (1e300, "1e+300"),
            (5e-324, "5e-324"),
            (9_007_199_254_740_993.0, "9007199254740992.0"),
            (12.75, "12.75"),
            (100.0, "100.0"),
            (-11.931_228_637_695_312, "-11.931228637695312"),
        ] {
            assert_eq!((json_float(value).as_str(), repr_float(value).as_str()), (expected, expected));
        }
        assert_eq!([f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(repr_float), ["nan", "inf", "-inf"]);
        assert_eq!([f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(json_float), ["NaN", "Infinity", "-Infinity"]);
    }

    #[test]
    fn escapes_are_characters() {
        assert_eq!(unescaped(r#"a\"\\\/\b\f\n\r\t\u00e9\ud83e\udd80é"#), "a\"\\/\u{8}\u{c}\n\r\té🦀é");
        assert_eq!(unescaped(r"\ud83e\u0041\udd80\ud83e"), "\u{fffd}A\u{fffd}\u{fffd}");
    }
}
