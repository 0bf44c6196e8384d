//! From text to nodes.

use std::{borrow::Cow, collections::HashSet};

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput, Tag};
use serde_json::{Map, Number, Value};

/// Maximum depth of nodes.
const DEEPEST: usize = 200;

/// Entries of a map that are looked through one by one.
const SHORT: usize = 32;

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct YamlNode {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 0.
    pub column: usize,
    /// The value.
    pub kind: YamlKind,
}

/// Kind of a node, with its content.
#[derive(Debug, Clone, PartialEq)]
pub enum YamlKind {
    /// null, a boolean, a number or a text.
    Scalar(Value),
    /// A list.
    List(Vec<YamlNode>),
    /// A map in its order; no key occurs twice. Bytes, which are tagged `!!binary`, are a map of `base64`.
    Map(Vec<YamlEntry>),
}

/// A key and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct YamlEntry {
    /// The key.
    pub key: String,
    /// The key's line, from 1.
    pub line: usize,
    /// The value.
    pub value: YamlNode,
}

/// A text that is no YAML of the kind that is read here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct YamlError {
    /// Where, from 1.
    pub line: usize,
    /// Problem.
    pub message: String,
}

/// Reads a document; an empty one is null. JSON is read too, with pairs of escapes for one character, which YAML does not have.
///
/// # Errors
/// For the first thing that is wrong.
pub fn parse(text: &str) -> Result<YamlNode, YamlError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let read = document(text).or_else(|error| match with_whole_characters(text) {
        Cow::Owned(text) => document(&text),
        Cow::Borrowed(_) => Err(error),
    });
    read.map_err(|error| in_conflict(text).unwrap_or(error))
}

/// The error of a text with both sides of a merge in it.
fn in_conflict(text: &str) -> Option<YamlError> {
    let line = text.lines().position(|line| line.starts_with("<<<<<<< "))? + 1;
    Some(YamlError { line, message: "a merge left a conflict here (<<<<<<<): resolve it first".to_owned() })
}

/// A text without pairs of escapes for one character.
pub(super) fn with_whole_characters(json: &str) -> Cow<'_, str> {
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

fn document(text: &str) -> Result<YamlNode, YamlError> {
    let mut reader = YamlReader { events: Parser::new_from_str(text) };
    loop {
        match reader.next()? {
            (Event::StreamStart | Event::DocumentStart(_), _) => {}
            (Event::StreamEnd, span) => return Ok(at(span, YamlKind::Scalar(Value::Null))),
            (event, span) => {
                let node = reader.node(event, span, 0)?;
                return reader.end().map(|()| node);
            }
        }
    }
}

impl YamlNode {
    /// The value without its place.
    #[must_use]
    pub fn value(&self) -> Value {
        match &self.kind {
            YamlKind::Scalar(value) => value.clone(),
            YamlKind::List(items) => items.iter().map(Self::value).collect(),
            YamlKind::Map(entries) => {
                let pairs = entries.iter().map(|entry| (entry.key.clone(), entry.value.value()));
                Value::Object(pairs.collect::<Map<_, _>>())
            }
        }
    }

    /// The value under a key, where this is a map that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&YamlNode> {
        self.entries()?.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// The entries of a map.
    #[must_use]
    pub fn entries(&self) -> Option<&[YamlEntry]> {
        if let YamlKind::Map(entries) = &self.kind { Some(entries) } else { None }
    }

    /// The items of a list.
    #[must_use]
    pub fn items(&self) -> Option<&[YamlNode]> {
        if let YamlKind::List(items) = &self.kind { Some(items) } else { None }
    }

    /// The text of a scalar that is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        if let YamlKind::Scalar(value) = &self.kind { value.as_str() } else { None }
    }

    /// An unsigned number.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        if let YamlKind::Scalar(value) = &self.kind { value.as_u64() } else { None }
    }
}

fn at(span: Span, kind: YamlKind) -> YamlNode {
    YamlNode { line: span.start.line(), column: span.start.col(), kind }
}

struct YamlReader<'a> {
    events: Parser<'a, StrInput<'a>>,
}

impl<'a> YamlReader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), YamlError> {
        match self.events.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(YamlError { line: error.marker().line(), message: error.info().to_owned() }),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// Nothing follows the first document.
    fn end(&mut self) -> Result<(), YamlError> {
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(()),
                (Event::DocumentStart(_), span) => return Err(wrong(span, "a second document is not read")),
                _ => {}
            }
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<YamlNode, YamlError> {
        if depth > DEEPEST {
            return Err(wrong(span, "this is nested too deeply"));
        }
        match event {
            Event::Scalar(text, style, _, tag) => scalar(text, style, tag.as_deref(), span),
            Event::SequenceStart(_, tag) => {
                no_tag(tag.as_deref(), span)?;
                self.list(span, depth)
            }
            Event::MappingStart(_, tag) => {
                no_tag(tag.as_deref(), span)?;
                self.map(span, depth)
            }
            Event::Alias(_) => Err(wrong(span, "aliases are not read here; write the value out")),
            _ => Err(wrong(span, "a value is missing")),
        }
    }

    fn list(&mut self, span: Span, depth: usize) -> Result<YamlNode, YamlError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(at(span, YamlKind::List(items))),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, span: Span, depth: usize) -> Result<YamlNode, YamlError> {
        let mut entries: Vec<YamlEntry> = Vec::new();
        // Of the maps that are longer than is quickly searched.
        let mut known = HashSet::new();
        loop {
            let (key, line) = match self.next()? {
                (Event::MappingEnd, _) => return Ok(at(span, YamlKind::Map(entries))),
                (Event::Scalar(text, ..), span) => (text.into_owned(), span.start.line()),
                (_, span) => return Err(wrong(span, "a key has to be text")),
            };
            if entries.len() == SHORT {
                known.extend(entries.iter().map(|entry| entry.key.clone()));
            }
            let is_known = match entries.len() {
                ..SHORT => entries.iter().any(|entry| entry.key == key),
                _ => !known.insert(key.clone()),
            };
            if is_known {
                return Err(YamlError { line, message: format!("the key `{key}` is there twice") });
            }
            let (event, span) = self.next()?;
            let value = self.node(event, span, depth + 1)?;
            entries.push(YamlEntry { key, line, value });
        }
    }
}

fn wrong(span: Span, message: &str) -> YamlError {
    YamlError { line: span.start.line(), message: message.to_owned() }
}

fn no_tag(tag: Option<&Tag>, span: Span) -> Result<(), YamlError> {
    tag.map_or(Ok(()), |tag| Err(wrong(span, &format!("the tag {}{} is not read here", tag.handle, tag.suffix))))
}

fn scalar(text: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>, span: Span) -> Result<YamlNode, YamlError> {
    let value = match tag {
        Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => Value::String(text.into_owned()),
        Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "binary" => {
            let digits = at(span, YamlKind::Scalar(Value::String(text.into_owned())));
            let entry = YamlEntry { key: "base64".to_owned(), line: span.start.line(), value: digits };
            return Ok(at(span, YamlKind::Map(vec![entry])));
        }
        Some(_) => return no_tag(tag, span).map(|()| at(span, YamlKind::Scalar(Value::Null))),
        None if style == ScalarStyle::Plain => resolved(&text),
        None => Value::String(text.into_owned()),
    };
    Ok(at(span, YamlKind::Scalar(value)))
}

/// A plain scalar by the core schema.
fn resolved(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        plain => number(plain).map_or_else(|| Value::String(plain.to_owned()), Value::Number),
    }
}

fn number(plain: &str) -> Option<Number> {
    let digits = plain.strip_prefix(['-', '+']).unwrap_or(plain);
    if !digits.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return None;
    }
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let unsigned = plain.strip_prefix('+').unwrap_or(plain);
        let signed = || unsigned.parse::<i64>().ok().map(Number::from);
        return unsigned.parse::<u64>().ok().map(Number::from).or_else(signed);
    }
    if let Some(hex) = plain.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok().map(Number::from);
    }
    if let Some(octal) = plain.strip_prefix("0o") {
        return u64::from_str_radix(octal, 8).ok().map(Number::from);
    }
    let is_float = digits.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'-' | b'+'));
    if is_float && digits.bytes().any(|byte| byte.is_ascii_digit()) { float(plain) } else { None }
}

fn float(text: &str) -> Option<Number> {
    text.parse::<f64>().ok().and_then(Number::from_f64)
}
