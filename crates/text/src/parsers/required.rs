//! Calls that a request forces, as parsers without a format of their own for them have it: a JSON array of objects with
//! `name` and `parameters`, or the bare arguments of a function that is named.

use super::{
    delta::{CallDelta, CallIds, Delta, ParsedCall},
    json::JsonValue,
};

/// Position of an array's element in the text, in bytes.
#[derive(Debug, Clone, Default)]
struct Span {
    /// The name and where its quote ends.
    name: Option<(String, usize)>,
    start: Option<usize>,
    end: Option<usize>,
}

impl Span {
    /// Name and start, where the first bytes of a text hold both.
    fn ready(&self, length: usize) -> Option<(&str, usize)> {
        let (name, end) = self.name.as_ref()?;
        let start = self.start?;
        (*end <= length && start < length).then_some((name.as_str(), start))
    }
}

/// Returns the delta between two texts; `None` if nothing is new.
pub(super) fn stream(previous: usize, text: &str, ids: &mut CallIds) -> Option<Delta> {
    let mut calls = Vec::new();
    for (index, span) in spans(text).iter().enumerate() {
        let Some((name, start)) = span.ready(usize::MAX) else { break };
        let end = span.end.unwrap_or(text.len());
        if span.ready(previous).is_some() {
            let fresh = text.get(end.min(previous)..end).unwrap_or_default();
            if !fresh.is_empty() {
                calls.push(CallDelta {
                    index,
                    arguments: Some(fresh.to_owned()),
                    is_nameless: true,
                    ..CallDelta::default()
                });
            }
            continue;
        }
        let arguments = Some(text.get(start..end).unwrap_or_default().to_owned());
        let (id, name) = (Some(ids.make()), Some(name.to_owned()));
        calls.push(CallDelta { index, id, name, arguments, ..CallDelta::default() });
    }
    (!calls.is_empty()).then(|| Delta { calls, ..Delta::default() })
}

/// The calls of a whole array; none where it is not one.
pub(super) fn whole(text: &str) -> Vec<ParsedCall> {
    let call = |value: &JsonValue| {
        let Some(JsonValue::Text(name)) = value.get("name") else { return None };
        let arguments = match value.get("parameters") {
            None | Some(JsonValue::Null) => JsonValue::Null,
            Some(object @ JsonValue::Object(_)) => object.clone(),
            Some(_) => return None,
        };
        Some(ParsedCall { name: name.clone(), arguments: arguments.write() })
    };
    match JsonValue::read(text) {
        Ok(JsonValue::List(items)) => items.iter().map(call).collect::<Option<_>>().unwrap_or_default(),
        _ => Vec::new(),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Key,
    Colon,
    Value,
    Text,
    Container,
    Scalar,
    Nothing,
}

/// Scanner of an array that may be incomplete. Elements stand at depth 2 of its brackets.
struct ArrayScan<'a> {
    text: &'a str,
    spans: Vec<Span>,
    is_open: bool,
    expect: Expect,
    key: Option<&'a str>,
    value: usize,
}

fn spans(text: &str) -> Vec<Span> {
    let mut scan = ArrayScan { text, spans: Vec::new(), is_open: false, expect: Expect::Key, key: None, value: 0 };
    let (mut depth, mut string, mut escaped) = (0_usize, None, false);
    for (at, c) in text.char_indices() {
        let in_element = depth == 2 && scan.is_open;
        if let Some(start) = string {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => {
                    string = None;
                    scan.close_string(in_element, start, at);
                }
                _ => {}
            }
            continue;
        }
        match c {
            '"' => {
                string = Some(at);
                scan.begin(in_element, at, Expect::Text);
            }
            '{' | '[' => {
                if (depth == 0 && c != '[') || (depth == 1 && c != '{') {
                    break;
                }
                if depth == 1 {
                    scan.element();
                }
                scan.begin(in_element, at, Expect::Container);
                depth += 1;
            }
            '}' | ']' => {
                if in_element && scan.expect == Expect::Scalar {
                    scan.end(at);
                }
                depth = depth.saturating_sub(1);
                match depth {
                    0 => break,
                    1 => scan.is_open = false,
                    2 if scan.is_open && scan.expect == Expect::Container => scan.end(at + 1),
                    _ => {}
                }
            }
            c if in_element => scan.other(c, at),
            _ => {}
        }
    }
    scan.spans
}

impl<'a> ArrayScan<'a> {
    fn element(&mut self) {
        self.spans.push(Span::default());
        (self.is_open, self.expect, self.key) = (true, Expect::Key, None);
    }

    fn close_string(&mut self, in_element: bool, start: usize, at: usize) {
        if in_element && self.expect == Expect::Key {
            let text: &'a str = self.text;
            self.key = text.get(start + 1..at);
            self.expect = Expect::Colon;
        } else if in_element && self.expect == Expect::Text {
            self.end(at + 1);
        }
    }

    fn begin(&mut self, in_element: bool, at: usize, kind: Expect) {
        if in_element && self.expect == Expect::Value {
            self.value = at;
            if let Some(span) = self.spans.last_mut().filter(|_| self.key == Some("parameters")) {
                span.start = Some(at);
            }
            self.expect = kind;
        }
    }

    fn end(&mut self, at: usize) {
        if let Some(span) = self.spans.last_mut() {
            match self.key {
                Some("parameters") => span.end = Some(at),
                Some("name") if self.expect == Expect::Text => {
                    let value = self.text.get(self.value..at).unwrap_or_default();
                    span.name = match JsonValue::read(value) {
                        Ok(JsonValue::Text(name)) => Some((name, at)),
                        _ => None,
                    };
                }
                _ => {}
            }
        }
        self.expect = Expect::Nothing;
    }

    fn other(&mut self, c: char, at: usize) {
        let is_scalar = self.expect == Expect::Scalar;
        match c {
            ':' if self.expect == Expect::Colon => self.expect = Expect::Value,
            ':' => {}
            ',' => {
                if is_scalar {
                    self.end(at);
                }
                (self.expect, self.key) = (Expect::Key, None);
            }
            c if c.is_whitespace() => {
                if is_scalar {
                    self.end(at);
                }
            }
            _ => self.begin(true, at, Expect::Scalar),
        }
    }
}
