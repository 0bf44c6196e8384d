//! JSON that is not all there yet, completed as the engine's library for it does: open strings, lists and objects are
//! closed, and what could become something else is left out.
//!
//! It looks for quotes and brackets only, so some broken text is completed, and some that could be is not.

use super::json::{DEEPEST, JsonValue, NotJson};

/// Strings that are not closed: completed or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenStrings {
    Closed,
    LeftOut,
}

/// The value that a text begins with, completed where it is cut, and the bytes that it takes.
pub(super) fn read(text: &str, strings: OpenStrings) -> Result<(JsonValue, usize), NotJson> {
    let completed = complete(text, strings)?;
    match JsonValue::read(&completed) {
        Ok(value) => Ok((value, text.len())),
        // Something follows a value: the engine tries again with the text as it is, from its first byte on.
        Err(NotJson) => match JsonValue::read_first(completed.trim_start()) {
            Ok(_) => JsonValue::read_first(text),
            Err(NotJson) => Err(NotJson),
        },
    }
}

fn complete(text: &str, strings: OpenStrings) -> Result<String, NotJson> {
    let scan = BracketScan::new(text, strings)?;
    let (head, tail) = match scan {
        None => fix(text, strings)?,
        Some(scan) if scan.open.is_empty() => return Ok(text.to_owned()),
        Some(scan) if scan.in_string && strings == OpenStrings::LeftOut => scan.without_string(),
        Some(scan) if scan.in_string => scan.with_string()?,
        Some(scan) => scan.outside_string()?,
    };
    Ok(head + &tail)
}

type Fixed = Result<(String, String), NotJson>;

/// Quotes and brackets of a text.
struct BracketScan<'a> {
    text: &'a str,
    strings: OpenStrings,
    open: Vec<(usize, char)>,
    in_string: bool,
    /// Start of the last string.
    start: Option<usize>,
    end: Option<usize>,
    last: (usize, char),
}

impl<'a> BracketScan<'a> {
    /// `None` where the text has no bracket before its first quote.
    fn new(text: &'a str, strings: OpenStrings) -> Result<Option<Self>, NotJson> {
        let mut scan =
            Self { text, strings, open: Vec::new(), in_string: false, start: None, end: None, last: (0, ' ') };
        for (at, c) in text.char_indices().filter(|(_, c)| matches!(c, '"' | '[' | ']' | '{' | '}')) {
            if scan.last.1 == ' ' && c == '"' {
                return Ok(None);
            }
            scan.last = (at, c);
            match c {
                '"' if !scan.in_string => (scan.in_string, scan.start) = (true, Some(at)),
                '"' if !is_escaped(text, at) => (scan.in_string, scan.end) = (false, Some(at)),
                _ if scan.in_string => {}
                '}' | ']' => {
                    let opening = if c == '}' { '{' } else { '[' };
                    scan.open.pop().filter(|(_, open)| *open == opening).ok_or(NotJson)?;
                }
                _ => scan.open.push((at, c)),
            }
        }
        Ok((scan.last.1 != ' ').then_some(scan))
    }

    fn slice(&self, from: usize, to: usize) -> &'a str {
        self.text.get(from..to).unwrap_or_default()
    }

    fn innermost(&self) -> (usize, char) {
        self.open.last().copied().unwrap_or_default()
    }

    /// Returns the text that closes all open brackets but the innermost ones.
    fn closing(&self, but: usize) -> String {
        let open = self.open.iter().rev().skip(but);
        open.map(|(_, bracket)| if *bracket == '{' { '}' } else { ']' }).collect()
    }

    /// Cut before the key or item whose string is open.
    fn without_string(&self) -> (String, String) {
        let (at, bracket) = self.innermost();
        let start = self.start.unwrap_or_default();
        let cut = |to: usize| (self.slice(0, to).to_owned(), self.closing(0));
        if self.end.is_none_or(|end| at > end) && bracket == '{' {
            return cut(at + 1);
        }
        let from = self.end.map_or(at, |end| end.max(at)) + 1;
        if let Some(comma) = self.slice(from, start).rfind(',') {
            return cut(from + comma);
        }
        let mut key = self.end.unwrap_or(self.text.len().saturating_sub(1));
        loop {
            let Some(found) = self.slice(at, key).rfind('"').map(|found| at + found) else { return cut(at + 1) };
            if is_escaped(self.text, found) {
                key = found.saturating_sub(1);
                continue;
            }
            return self.slice(at, found).rfind(',').map_or_else(|| cut(at + 1), |comma| cut(at + comma));
        }
    }

    /// Closed where a value's string is open; without it where a key's is.
    fn with_string(&self) -> Fixed {
        let (at, bracket) = self.innermost();
        let start = self.start.unwrap_or_default();
        if bracket == '[' {
            return self.fixed(start, 0);
        }
        let from = self.end.map_or(at, |end| end.max(at));
        if self.slice(from + 1, start).contains(',') {
            let comma = from + self.slice(from, start).rfind(',').unwrap_or_default();
            let (head, tail) = fix(&format!("{{{}", self.slice(comma + 1, self.text.len())), self.strings)?;
            return Ok((self.slice(0, comma).to_owned() + head.get(1..).unwrap_or_default(), tail + &self.closing(1)));
        }
        if self.slice(from + 1, start).contains(':') {
            return self.fixed(start, 0);
        }
        Ok((self.slice(0, start).to_owned(), self.closing(0)))
    }

    fn outside_string(&self) -> Fixed {
        let (last, c) = self.last;
        let from = self.end.map_or(last, |end| end.max(last)) + 1;
        if let Some(comma) = self.slice(from, self.text.len()).rfind(',').map(|comma| from + comma) {
            let rest = self.slice(comma + 1, self.text.len());
            if rest.trim().is_empty() {
                return Ok((self.slice(0, comma).to_owned(), self.closing(0)));
            }
            if self.innermost().1 != '[' {
                return Err(NotJson);
            }
            let (_, head, tail) = self.fixed_behind(comma, '[')?;
            return Ok((head, tail + &self.closing(1)));
        }
        match c {
            ']' | '}' if self.slice(last + 1, self.text.len()).trim().is_empty() => {
                Ok((self.text.to_owned(), self.closing(0)))
            }
            ']' | '}' => Err(NotJson),
            '[' | '{' => self.fixed(last, 1),
            _ => self.behind_string(),
        }
    }

    /// The last thing is a string that is closed.
    fn behind_string(&self) -> Fixed {
        let (at, bracket) = self.innermost();
        if bracket == '[' {
            return Ok((self.text.to_owned(), self.closing(0)));
        }
        // Python's search from -1 on looks at the last character only; here a string has ended.
        let has_colon = self.slice(self.end.unwrap_or_default(), self.text.len()).contains(':');
        let start = self.start.unwrap_or_default();
        let Some(comma) = self.slice(at + 1, start).rfind(',').map(|comma| at + 1 + comma) else {
            return self.fixed(at, 1);
        };
        if !has_colon && self.slice(comma + 1, start).contains(':') {
            return Ok((self.text.to_owned(), self.closing(0)));
        }
        let (is_empty, head, tail) = self.fixed_behind(comma, '{')?;
        // A key alone is closed once too often, and so refused.
        let but = usize::from(is_empty || has_colon);
        Ok((head, tail + &self.closing(but)))
    }

    /// The text with what follows a place completed, and all brackets closed but the innermost ones.
    fn fixed(&self, from: usize, but: usize) -> Fixed {
        let (head, tail) = fix(self.slice(from, self.text.len()), self.strings)?;
        Ok((self.slice(0, from).to_owned() + &head, tail + &self.closing(but)))
    }

    /// The text with what follows a comma completed, as if that began with a bracket; true where nothing is left of it.
    fn fixed_behind(&self, comma: usize, bracket: char) -> Result<(bool, String, String), NotJson> {
        let (head, tail) = fix(&format!("{bracket}{}", self.slice(comma + 1, self.text.len())), self.strings)?;
        let inside = head.get(1..).unwrap_or_default();
        let shown = tail.get(..tail.len().saturating_sub(1)).unwrap_or_default();
        let is_empty = inside.is_empty() && shown.trim().is_empty();
        let kept = if is_empty { comma } else { comma + 1 };
        Ok((is_empty, self.slice(0, kept).to_owned() + inside, tail))
    }
}

fn is_escaped(text: &str, at: usize) -> bool {
    let before = text.get(..at).unwrap_or_default();
    (before.len() - before.trim_end_matches('\\').len()) % 2 == 1
}

/// Finds the complete part of a text, and its completion.
fn fix(text: &str, strings: OpenStrings) -> Fixed {
    match any(text.trim(), strings, 0) {
        Ok(Some(Value { length, completion })) => {
            Ok((text.get(..length).unwrap_or(text).to_owned(), completion.unwrap_or_default()))
        }
        Ok(None) | Err(_) => Err(NotJson),
    }
}

/// A value's end; `completion` if it is cut.
struct Value {
    length: usize,
    completion: Option<String>,
}

/// Reason why there is no value.
enum NoValue {
    End,
    /// It is no JSON.
    Broken,
}

/// A value, or none where it cannot be completed.
type PartialValue = Result<Option<Value>, NoValue>;

fn whole(length: usize) -> PartialValue {
    Ok(Some(Value { length, completion: None }))
}

fn cut(length: usize, completion: impl Into<String>) -> PartialValue {
    Ok(Some(Value { length, completion: Some(completion.into()) }))
}

/// A value inside of so many others.
fn any(text: &str, strings: OpenStrings, depth: usize) -> PartialValue {
    if depth > DEEPEST {
        return Err(NoValue::Broken);
    }
    let first = text.trim_start().chars().next().ok_or(NoValue::End)?;
    match first {
        '"' => return string(text, strings),
        '0'..='9' => return Ok(Some(number(text, depth))),
        '[' => return container(text, strings, depth, ']'),
        '{' => return container(text, strings, depth, '}'),
        _ => {}
    }
    for word in ["null", "true", "false", "Infinity"] {
        if text.starts_with(word) {
            return whole(if word == "true" { 4 } else { word.len() });
        }
        if word.starts_with(text) {
            return cut(0, word);
        }
    }
    if first == '-' {
        match text.chars().nth(1) {
            None => return Ok(None),
            Some('I') => {}
            Some(_) => return Ok(Some(number(text, depth))),
        }
    }
    for word in ["-Infinity", "NaN"] {
        if text.starts_with(word) {
            return whole(word.len());
        }
        if word.starts_with(text) {
            return cut(0, word);
        }
    }
    Err(NoValue::Broken)
}

fn string(text: &str, strings: OpenStrings) -> PartialValue {
    if text.is_empty() {
        return Err(NoValue::End);
    }
    let inside = text.strip_prefix('"').ok_or(NoValue::Broken)?;
    let mut escaped = None;
    for (at, c) in inside.char_indices() {
        match c {
            _ if escaped.is_some() => escaped = None,
            '\\' => escaped = Some(1 + at),
            '"' => return whole(at + 2),
            _ => {}
        }
    }
    if strings == OpenStrings::LeftOut {
        return Ok(None);
    }
    let end = escaped.unwrap_or(text.len());
    let head = text.get(..end).unwrap_or_default();
    for (escape, digits) in [("\\u", 5), ("\\U", 9), ("\\x", 3)] {
        let from = head.char_indices().rev().nth(digits - 1).map_or(0, |(at, _)| at);
        let found = head.get(from..).and_then(|tail| tail.rfind(escape)).map(|at| from + at);
        if let Some(at) = found.filter(|at| !is_escaped(head, *at)) {
            return cut(at, "\"");
        }
    }
    cut(end, "\"")
}

/// A list or an object.
fn container(text: &str, strings: OpenStrings, depth: usize, close: char) -> PartialValue {
    if !text.starts_with(['[', '{']) {
        return Err(NoValue::Broken);
    }
    let mut kept = 1;
    match items(text, strings, depth, close, &mut kept) {
        Err(NoValue::End) => cut(kept, close),
        found => found,
    }
}

/// The members of a list or an object; `kept` is where the last complete one ends.
fn items(text: &str, strings: OpenStrings, depth: usize, close: char, kept: &mut usize) -> PartialValue {
    let rest = |at: usize| text.get(at..).unwrap_or_default();
    let blank = |at: usize| text.len() - rest(at).trim_start().len();
    let next = |at: usize| rest(at).chars().next().ok_or(NoValue::End);
    let mut at = 1;
    loop {
        at = blank(at);
        if next(at)? == close {
            return whole(at + 1);
        }
        if close == '}' {
            match string(rest(at), strings)? {
                Some(Value { length, completion: None }) => at += length,
                _ => return cut(*kept, close),
            }
            at = blank(at);
            if next(at)? != ':' {
                return Err(NoValue::Broken);
            }
            at = blank(at + 1);
        }
        match any(rest(at), strings, depth + 1)? {
            None => return cut(*kept, close),
            Some(Value { length, completion: None }) => at += length,
            Some(Value { length, completion: Some(completion) }) => {
                return cut(at + length, format!("{completion}{close}"));
            }
        }
        *kept = at;
        at = blank(at);
        match next(at)? {
            ',' => at += 1,
            c if c == close => return whole(at + 1),
            _ => return Err(NoValue::Broken),
        }
    }
}

fn number(text: &str, depth: usize) -> Value {
    let is_part = |c: u8| c.is_ascii_digit() || matches!(c, b'.' | b'-' | b'+' | b'e' | b'E');
    let end = 1 + text.bytes().skip(1).take_while(|c| is_part(*c)).count();
    let kept = text.get(..end).map_or(0, |number| number.trim_end_matches(['.', '-', '+', 'e', 'E']).len());
    let is_cut = kept != end || (end == text.len() && depth > 0);
    Value { length: kept, completion: is_cut.then(String::new) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_nested_too_deep_is_no_json() {
        let deep = |levels: usize| format!("{{\"a\": {}{}, \"b\"", "[".repeat(levels), "]".repeat(levels));
        assert!(read(&deep(50), OpenStrings::Closed).is_ok());
        assert_eq!(read(&deep(100_000), OpenStrings::Closed), Err(NotJson));
    }
}
