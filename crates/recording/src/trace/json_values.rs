//! Objects of other tools' files, one after the other: a line each, the elements of one array, or spread over lines.
//!
//! Limits: an object is held as text, of at most 256 MiB; nothing else of the file is. It finds where objects end, and leaves to others what
//! is in them.

use std::{path::Path, sync::Arc};

use serde::de::IgnoredAny;

use super::{
    TraceError,
    error::Finding,
    source::{Fetched, LONGEST_LINE, NumberedLines},
};

/// Reader of objects.
pub struct JsonValues {
    lines: NumberedLines,
    /// Objects go on over lines, or share one.
    is_spread: bool,
    scan: Scan,
}

impl JsonValues {
    /// Opens a file that ends in .jsonl, .json or .gz; `-` is standard input.
    pub(crate) fn open(path: &Path) -> Result<Self, TraceError> {
        Self::over(NumberedLines::open(path, Arc::default())?)
    }

    fn over(mut lines: NumberedLines) -> Result<Self, TraceError> {
        let mut is_spread = lines.peek()? == Some(b'[');
        if !is_spread && matches!(lines.fetch(0)?, Fetched::Whole | Fetched::Tail) {
            is_spread = is_begin(lines.line());
            lines.unread_line();
        }
        let scan = Scan { line: lines.number() + 1, ..Scan::default() };
        Ok(Self { lines, is_spread, scan })
    }

    /// The next object as text, with the line on which it begins, from 1; `None` at the end.
    /// Errors: damage, an I/O error, an object of more than 256 MiB, or text between objects that does not belong there.
    pub(crate) fn next_value(&mut self) -> Result<Option<(u64, &[u8])>, TraceError> {
        if self.is_spread {
            return self.next_spread();
        }
        let has_line = matches!(self.lines.fetch(0)?, Fetched::Whole | Fetched::Tail);
        Ok(has_line.then(|| (self.lines.number(), self.lines.line())))
    }

    fn next_spread(&mut self) -> Result<Option<(u64, &[u8])>, TraceError> {
        self.scan.value.clear();
        loop {
            let chunk = self.lines.chunk()?;
            let (is_end, (used, found)) = (chunk.is_empty(), self.scan.take(chunk));
            self.lines.consume(used);
            let (scan, path) = (&self.scan, || self.lines.path().to_owned());
            let wrong = |line, text: &str| TraceError::Line {
                path: path(),
                finding: Finding { line, field: None, text: text.to_owned() },
            };
            match found {
                JsonBoundary::Object => return Ok(Some((self.scan.begin, &self.scan.value))),
                JsonBoundary::Wrong(text) => return Err(wrong(scan.line, text)),
                JsonBoundary::Nothing if is_end && scan.depth == 0 => return Ok(None),
                JsonBoundary::Nothing if is_end => {
                    return Err(wrong(scan.begin, "the file ends within the object that begins here"));
                }
                JsonBoundary::Nothing if scan.value.len() as u64 >= LONGEST_LINE => {
                    return Err(TraceError::LongLine { path: path(), line: scan.begin });
                }
                JsonBoundary::Nothing => {}
            }
        }
    }
}

/// Returns true if a line begins an object that goes on after it.
fn is_begin(line: &[u8]) -> bool {
    line.starts_with(b"{") && serde_json::from_slice::<IgnoredAny>(line).is_err_and(|error| error.is_eof())
}

/// State between two bytes of objects.
#[derive(Default)]
struct Scan {
    /// The object so far.
    value: Vec<u8>,
    /// Brackets that are open in it.
    depth: u64,
    in_string: bool,
    is_escaped: bool,
    /// Objects are the elements of an array.
    in_array: bool,
    line: u64,
    /// Line on which the object begins.
    begin: u64,
}

enum JsonBoundary {
    /// The bytes go on.
    Nothing,
    Object,
    Wrong(&'static str),
}

impl Scan {
    /// Takes bytes up to the end of an object; returns how many.
    fn take(&mut self, chunk: &[u8]) -> (usize, JsonBoundary) {
        let mut from = (self.depth > 0).then_some(0);
        for (at, byte) in chunk.iter().enumerate() {
            let found = if self.depth == 0 { self.between(*byte) } else { self.within(*byte) };
            if !matches!(found, JsonBoundary::Wrong(_)) {
                self.line += u64::from(*byte == b'\n');
            }
            if self.depth == 1 && from.is_none() {
                from = Some(at);
            }
            if let JsonBoundary::Nothing = found {
                continue;
            }
            self.keep(chunk.get(from.unwrap_or(at)..=at));
            return (at + 1, found);
        }
        self.keep(from.and_then(|from| chunk.get(from..)));
        (chunk.len(), JsonBoundary::Nothing)
    }

    fn keep(&mut self, bytes: Option<&[u8]>) {
        self.value.extend_from_slice(bytes.unwrap_or_default());
    }

    fn between(&mut self, byte: u8) -> JsonBoundary {
        match byte {
            b'{' => {
                (self.depth, self.begin) = (1, self.line);
                JsonBoundary::Nothing
            }
            b'[' if !self.in_array => {
                self.in_array = true;
                JsonBoundary::Nothing
            }
            b']' if self.in_array => {
                self.in_array = false;
                JsonBoundary::Nothing
            }
            b',' | b' ' | b'\t' | b'\r' | b'\n' => JsonBoundary::Nothing,
            _ => JsonBoundary::Wrong("is no JSON object; the file has to hold objects, a line each or in one array"),
        }
    }

    fn within(&mut self, byte: u8) -> JsonBoundary {
        match byte {
            b'\n' if self.in_string => {
                return JsonBoundary::Wrong("a text goes on over the end of the line; a quote is missing");
            }
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' if self.in_string => self.is_escaped = true,
            b'"' => self.in_string = !self.in_string,
            _ if self.in_string => {}
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth -= 1,
            _ => {}
        }
        if self.depth == 0 { JsonBoundary::Object } else { JsonBoundary::Nothing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<(u64, String)> {
        let lines = NumberedLines::of_bytes("a.json", text.as_bytes().to_vec()).unwrap();
        let (mut values, mut found) = (JsonValues::over(lines).unwrap(), Vec::new());
        loop {
            match values.next_value() {
                Ok(Some((line, value))) => found.push((line, String::from_utf8(value.to_vec()).unwrap())),
                Ok(None) => return found,
                Err(error) => {
                    found.push((0, error.to_string()));
                    return found;
                }
            }
        }
    }

    fn is(text: &str, expected: &[(u64, &str)]) {
        let expected: Vec<_> = expected.iter().map(|(line, value)| (*line, (*value).to_owned())).collect();
        assert_eq!(values(text), expected, "{text}");
    }

    #[test]
    fn objects_are_found_in_lines_in_arrays_and_over_lines() {
        let two = [(1, "{\"a\":1}"), (3, "{\"b\":\"}\"}")];
        is("{\"a\":1}\n\n{\"b\":\"}\"}", &two);
        is("\n{\"a\":1}\n{\n", &[(2, "{\"a\":1}"), (3, "{")]);
        is("[{\"a\":1},\n\n{\"b\":\"}\"}\n]\n", &two);
        is("\u{feff}\n [{\"a\":[{}]} , {\"b\":2}]", &[(2, "{\"a\":[{}]}"), (2, "{\"b\":2}")]);
        is("{\n \"a\": \"\\\"}\"\n}\n{\"b\":\n2}", &[(1, "{\n \"a\": \"\\\"}\"\n}"), (4, "{\"b\":\n2}")]);
        is("", &[]);
        is("[]", &[]);
    }

    #[test]
    fn what_is_no_object_is_named_with_its_line() {
        is("[1]", &[(0, "a.json:1: is no JSON object; the file has to hold objects, a line each or in one array")]);
        is("[{},\n{\"a\":\n", &[(1, "{}"), (0, "a.json:2: the file ends within the object that begins here")]);
        is("[\n{\"a\":\"b\n\"}]", &[(0, "a.json:2: a text goes on over the end of the line; a quote is missing")]);
        // A line that is wrong in itself is handed out: its reader reports what is wrong with it.
        is("{\"a\" 1}\n{}", &[(1, "{\"a\" 1}"), (2, "{}")]);
    }

    #[test]
    fn an_object_is_the_same_however_the_bytes_come() {
        let text = "[{\"a\":\"x\\\\\",\"b\":[1,{\"c\":2}]},\n{\"d\":3}]";
        for size in 1..text.len() {
            let (mut scan, mut found) = (Scan { line: 1, ..Scan::default() }, Vec::new());
            for piece in text.as_bytes().chunks(size) {
                let mut rest = piece;
                while !rest.is_empty() {
                    let (used, what) = scan.take(rest);
                    rest = &rest[used..];
                    if let JsonBoundary::Object = what {
                        found.push((scan.begin, String::from_utf8(std::mem::take(&mut scan.value)).unwrap()));
                    }
                }
            }
            assert_eq!(
                found,
                [(1, "{\"a\":\"x\\\\\",\"b\":[1,{\"c\":2}]}".to_owned()), (2, "{\"d\":3}".to_owned())],
                "{size}"
            );
        }
    }
}
