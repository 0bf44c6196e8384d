//! JSON as Python's `json` reads and writes it: integers of any size, `NaN`, duplicate keys where the last one wins.
//!
//! Limits: halves of surrogate pairs become U+FFFD; text nested deeper than [`DEEPEST`] is no JSON.

use serde_json::json;

use crate::prompt::python_json;

/// About where Python gives up.
pub(super) const DEEPEST: usize = 900;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    /// Its digits.
    Int(String),
    Float(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// Text that is no JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotJson;

impl Json {
    /// `json.loads`: a value, and white space around it.
    pub(super) fn read(text: &str) -> Result<Self, NotJson> {
        let (value, length) = Self::read_first(text.trim_start_matches(is_blank))?;
        let rest = text.trim_start_matches(is_blank).get(length..).unwrap_or_default();
        if rest.chars().all(is_blank) { Ok(value) } else { Err(NotJson) }
    }

    /// `raw_decode`: the value that a text begins with, and its bytes.
    pub(super) fn read_first(text: &str) -> Result<(Self, usize), NotJson> {
        let mut reader = Reader { text, at: 0, depth: 0 };
        let value = reader.value()?;
        Ok((value, reader.at))
    }

    /// `json.dumps` without ASCII escapes.
    pub(super) fn write(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Int(digits) => digits.clone(),
            Self::Float(value) if value.is_nan() => "NaN".to_owned(),
            Self::Float(value) if value.is_infinite() => if *value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
            Self::Float(value) => python_json(&json!(value)),
            Self::Text(text) => python_json(&json!(text)),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(Self::write).collect();
                format!("[{}]", items.join(", "))
            }
            Self::Object(members) => {
                let member = |(key, value): &(String, Self)| format!("{}: {}", python_json(&json!(key)), value.write());
                let members: Vec<String> = members.iter().map(member).collect();
                format!("{{{}}}", members.join(", "))
            }
        }
    }

    /// The value of a key of an object.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        members.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// Returns true for a value that is true in Python.
    pub(super) fn is_truthy(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Int(digits) => !digits.trim_start_matches(['-', '0']).is_empty(),
            Self::Float(value) => *value != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::List(items) => !items.is_empty(),
            Self::Object(members) => !members.is_empty(),
        }
    }

    /// Returns true if it has no number that is infinite or NaN.
    pub(super) fn is_finite(&self) -> bool {
        match self {
            Self::Float(value) => value.is_finite(),
            Self::List(items) => items.iter().all(Self::is_finite),
            Self::Object(members) => members.iter().all(|(_, value)| value.is_finite()),
            Self::Null | Self::Bool(_) | Self::Int(_) | Self::Text(_) => true,
        }
    }
}

/// Sets a member; one of that name keeps its place.
pub(super) fn set(members: &mut Vec<(String, Json)>, key: String, value: Json) {
    match members.iter_mut().find(|(known, _)| *known == key) {
        Some((_, old)) => *old = value,
        None => members.push((key, value)),
    }
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn take(&mut self, literal: &str) -> bool {
        let found = self.rest().starts_with(literal);
        self.at += if found { literal.len() } else { 0 };
        found
    }

    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches(is_blank).len();
    }

    fn value(&mut self) -> Result<Json, NotJson> {
        const WORDS: [(&str, Json); 6] = [
            ("null", Json::Null),
            ("true", Json::Bool(true)),
            ("false", Json::Bool(false)),
            ("NaN", Json::Float(f64::NAN)),
            ("Infinity", Json::Float(f64::INFINITY)),
            ("-Infinity", Json::Float(f64::NEG_INFINITY)),
        ];
        if let Some((_, value)) = WORDS.into_iter().find(|(word, _)| self.take(word)) {
            return Ok(value);
        }
        match self.rest().chars().next() {
            Some('"') => self.string().map(Json::Text),
            Some(c @ ('[' | '{')) => {
                self.depth += 1;
                if self.depth > DEEPEST {
                    return Err(NotJson);
                }
                let value = if c == '[' { self.list() } else { self.object() };
                self.depth -= 1;
                value
            }
            _ => self.number(),
        }
    }

    fn list(&mut self) -> Result<Json, NotJson> {
        self.at += 1;
        let mut items = Vec::new();
        self.skip_blanks();
        if self.take("]") {
            return Ok(Json::List(items));
        }
        loop {
            self.skip_blanks();
            items.push(self.value()?);
            self.skip_blanks();
            if self.take("]") {
                return Ok(Json::List(items));
            }
            if !self.take(",") {
                return Err(NotJson);
            }
        }
    }

    fn object(&mut self) -> Result<Json, NotJson> {
        self.at += 1;
        let mut members = Vec::new();
        self.skip_blanks();
        if self.take("}") {
            return Ok(Json::Object(members));
        }
        loop {
            self.skip_blanks();
            if !self.rest().starts_with('"') {
                return Err(NotJson);
            }
            let key = self.string()?;
            self.skip_blanks();
            if !self.take(":") {
                return Err(NotJson);
            }
            self.skip_blanks();
            let value = self.value()?;
            set(&mut members, key, value);
            self.skip_blanks();
            if self.take("}") {
                return Ok(Json::Object(members));
            }
            if !self.take(",") {
                return Err(NotJson);
            }
        }
    }

    fn string(&mut self) -> Result<String, NotJson> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let c = self.rest().chars().next().ok_or(NotJson)?;
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(out),
                '\\' => out.push(self.escape()?),
                c if c < ' ' => return Err(NotJson),
                c => out.push(c),
            }
        }
    }

    fn escape(&mut self) -> Result<char, NotJson> {
        let c = self.rest().chars().next().ok_or(NotJson)?;
        self.at += c.len_utf8();
        Ok(match c {
            '"' | '\\' | '/' => c,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let first = self.unit()?;
                let before = self.at;
                if (0xd800..0xdc00).contains(&first) && self.take("\\u") {
                    let second = self.unit()?;
                    if let Some(Ok(pair)) = char::decode_utf16([first, second]).next() {
                        return Ok(pair);
                    }
                    self.at = before;
                }
                char::from_u32(u32::from(first)).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return Err(NotJson),
        })
    }

    fn unit(&mut self) -> Result<u16, NotJson> {
        let digits = self.rest().get(..4).filter(|digits| digits.chars().all(|c| c.is_ascii_hexdigit()));
        let unit = u16::from_str_radix(digits.ok_or(NotJson)?, 16).map_err(|_| NotJson)?;
        self.at += 4;
        Ok(unit)
    }

    /// `-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?`
    fn number(&mut self) -> Result<Json, NotJson> {
        let rest = self.rest();
        let digits = |from: usize| rest.get(from..).unwrap_or_default().bytes().take_while(u8::is_ascii_digit).count();
        let start = usize::from(rest.starts_with('-'));
        let mut end = match digits(start) {
            0 => return Err(NotJson),
            _ if rest.get(start..).is_some_and(|rest| rest.starts_with('0')) => start + 1,
            count => start + count,
        };
        let mut is_float = false;
        if rest.get(end..).is_some_and(|rest| rest.starts_with('.')) && digits(end + 1) > 0 {
            end += 1 + digits(end + 1);
            is_float = true;
        }
        if let Some(exponent) = rest.get(end..).and_then(|rest| rest.strip_prefix(['e', 'E'])) {
            let sign = usize::from(exponent.starts_with(['+', '-']));
            if digits(end + 1 + sign) > 0 {
                end += 1 + sign + digits(end + 1 + sign);
                is_float = true;
            }
        }
        let text = rest.get(..end).unwrap_or_default();
        let value = if is_float {
            Json::Float(text.parse().map_err(|_| NotJson)?)
        } else {
            Json::Int(if text == "-0" { "0" } else { text }.to_owned())
        };
        self.at += end;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_and_written_as_python_does() {
        let round = |text: &str| Json::read(text).map(|value| value.write());
        let text =
            r#" {"a":[1,2.50,1e5,-0,12345678901234567890123],"b":null,"a":{"\u00e9\ud83e\udd80":"x\n"},"n":NaN} "#;
        assert_eq!(round(text).unwrap(), r#"{"a": {"é🦀": "x\n"}, "b": null, "n": NaN}"#);
        assert_eq!(round("[1, 2.50, 1e5, -0, 1E400]").unwrap(), "[1, 2.5, 100000.0, 0, Infinity]");
        for broken in ["", "{", "{\"a\":1,}", "[1 2]", "\"a\nb\"", "01", "1.", "nul", "{a:1}", "'a'", "1 2"] {
            assert_eq!(round(broken), Err(NotJson), "{broken}");
        }
        assert_eq!(Json::read(&"[".repeat(100_000)), Err(NotJson));
        assert_eq!(Json::read_first("1.x").unwrap(), (Json::Int("1".to_owned()), 1));
    }
}
