//! Issues of a body: where a value is, what is wrong with it, in pydantic's words, and the engine's answer to them.
//!
//! Text is made for an issue that is reported, and for nothing else: not for fields that fit or are not there.

use std::fmt;

use serde_json::{Map, Value};

use super::{error::ApiError, python};

/// Issues that are reported one by one; the rest is counted.
const REPORTED: usize = 10;

/// Characters of a value, and of a whole issue, that are reported.
const INPUT_CHARS: usize = 200;
const ISSUE_CHARS: usize = 1000;

/// Bytes of a value that pydantic shows of it, from either end.
const SHOWN: usize = 50;
const HELP: &str = "For further information visit https://errors.pydantic.dev/2.14/v";

/// Path of a value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Loc<'a> {
    Root(&'a str),
    Field(&'a Self, &'a str),
    Item(&'a Self, usize),
    /// A value whose inside is reported under its own path.
    Opaque(&'a Self),
}

impl<'a> Loc<'a> {
    pub(super) const BODY: Self = Self::Root("body");

    pub(super) fn field(&'a self, name: &'a str) -> Self {
        if let Self::Opaque(_) = self { *self } else { Self::Field(self, name) }
    }

    pub(super) fn item(&'a self, index: usize) -> Self {
        if let Self::Opaque(_) = self { *self } else { Self::Item(self, index) }
    }
}

impl fmt::Display for Loc<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Item(parent, index) => write!(f, "{parent}.{index}"),
            Self::Opaque(of) => of.fmt(f),
        }
    }
}

/// Defect of a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum FieldFault<'a> {
    /// pydantic's word for it and its message.
    Plain(&'static str, &'static str),
    /// The same, and the inside of its `ctx` dictionary.
    WithContext(&'static str, &'static str, &'static str),
    /// Beyond a bound, and what follows it in `ctx`: `.0` where it is no whole number.
    AtMost(i128, &'static str),
    AtLeast(i128, &'static str),
    Above(i128),
    /// A list of more items than `most`.
    TooLong {
        most: usize,
        count: usize,
    },
    /// None of these words.
    NoneOf(&'a [&'a str]),
    NotExactly(bool),
    NoInstance(&'a str),
    NoDataclass(&'a str),
    UnknownTag {
        tag: &'a str,
        /// The tags that there are, each in quotes.
        expected: &'a str,
    },
    /// A condition on a value that is of its type.
    Broken(&'a str),
    /// Not JSON: Python's message.
    NoJson(&'static str),
}

impl FieldFault<'static> {
    pub(super) const MISSING: Self = Self::Plain("missing", "Field required");
    pub(super) const EXTRA: Self = Self::Plain("extra_forbidden", "Extra inputs are not permitted");
    pub(super) const NO_DICTIONARY: Self = Self::Plain("dict_type", "Input should be a valid dictionary");
    /// Of an object that is read into a schema of its own.
    pub(super) const NO_ATTRIBUTES: Self =
        Self::Plain("model_attributes_type", "Input should be a valid dictionary or object to extract fields from");
    pub(super) const NO_ITERABLE: Self = Self::Plain("iterable_type", "Input should be iterable");
    pub(super) const NO_BYTES: Self = Self::Plain("bytes_type", "Input should be a valid bytes");
    pub(super) const EMPTY_TEXT: Self =
        Self::WithContext("string_too_short", "String should have at least 1 character", "'min_length': 1");
    pub(super) const EMPTY_LIST: Self = Self::WithContext(
        "too_short",
        "List should have at least 1 item after validation, not 0",
        "'field_type': 'List', 'min_length': 1, 'actual_length': 0",
    );
    pub(super) const NO_TAG: Self = Self::WithContext(
        "union_tag_not_found",
        "Unable to extract tag using discriminator 'type'",
        "'discriminator': \"'type'\"",
    );
}

impl FieldFault<'_> {
    /// pydantic's word for it, its message, and the inside of its `ctx` dictionary.
    pub(super) fn words(self) -> (&'static str, String, Option<String>) {
        let literal = |expected: &str| {
            let context = format!("'expected': {}", python::repr(expected));
            ("literal_error", format!("Input should be {expected}"), Some(context))
        };
        let (kind, message, context) = match self {
            Self::Plain(kind, message) => return (kind, message.to_owned(), None),
            Self::WithContext(kind, message, context) => (kind, message.to_owned(), context.to_owned()),
            Self::NoneOf(words) => return literal(&alternatives(words)),
            Self::NotExactly(flag) => return literal(&python::literal(&Value::Bool(flag))),
            Self::AtMost(bound, fraction) => {
                let message = format!("Input should be less than or equal to {bound}");
                ("less_than_equal", message, format!("'le': {bound}{fraction}"))
            }
            Self::AtLeast(bound, fraction) => {
                let message = format!("Input should be greater than or equal to {bound}");
                ("greater_than_equal", message, format!("'ge': {bound}{fraction}"))
            }
            Self::Above(bound) => {
                ("greater_than", format!("Input should be greater than {bound}"), format!("'gt': {bound}"))
            }
            Self::TooLong { most, count } => {
                let message = format!("List should have at most {most} items after validation, not {count}");
                let context = format!("'field_type': 'List', 'max_length': {most}, 'actual_length': {count}");
                ("too_long", message, context)
            }
            Self::NoInstance(name) => {
                let message = format!("Input should be an instance of {name}");
                ("is_instance_of", message, format!("'class': {}", python::repr(name)))
            }
            Self::NoDataclass(name) => {
                let message = format!("Input should be a dictionary or an instance of {name}");
                ("dataclass_type", message, format!("'class_name': {}", python::repr(name)))
            }
            Self::UnknownTag { tag, expected } => {
                let message =
                    format!("Input tag '{tag}' found using 'type' does not match any of the expected tags: {expected}");
                let [tag, expected] = [tag, expected].map(python::repr);
                let context = format!("'discriminator': \"'type'\", 'tag': {tag}, 'expected_tags': {expected}");
                ("union_tag_invalid", message, context)
            }
            Self::Broken(message) => {
                let context = format!("'error': ValueError({})", python::repr(message));
                ("value_error", format!("Value error, {message}"), context)
            }
            Self::NoJson(message) => {
                ("json_invalid", "JSON decode error".to_owned(), format!("'error': {}", python::repr(message)))
            }
        };
        (kind, message, Some(context))
    }
}

/// Words in quotes, with commas and an `or` before the last.
fn alternatives(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

#[derive(Debug)]
struct Issue {
    loc: String,
    /// Itself as Python prints it.
    shown: String,
}

/// Everything that is wrong with a body: the first issues in full, the rest as a number, so that a long list of faults
/// costs no memory.
#[derive(Debug)]
pub(super) struct Issues {
    first: Vec<Issue>,
    count: usize,
    reported: usize,
    /// The class whose own error is reported; `None` where it is the framework's.
    class: Option<&'static str>,
}

impl Issues {
    pub(super) fn new() -> Self {
        Self { first: Vec::new(), count: 0, reported: REPORTED, class: None }
    }

    /// Issues that the engine finds itself when it makes a chat of another request: in the words of pydantic's own texts, all of them.
    pub(super) fn of_chat() -> Self {
        Self { reported: usize::MAX, class: Some("ChatCompletionRequest"), ..Self::new() }
    }

    /// Returns whether they are not the framework's.
    pub(super) fn are_of_class(&self) -> bool {
        self.class.is_some()
    }

    /// Issues of which only their number is asked for.
    pub(super) fn uncollected() -> Self {
        Self { reported: 0, ..Self::new() }
    }

    /// The engine's answer to one fault.
    pub(super) fn one(loc: &Loc<'_>, fault: FieldFault<'_>, input: &Value) -> ApiError {
        let mut issues = Self::new();
        issues.push(loc, fault, input);
        issues.error()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn push(&mut self, loc: &Loc<'_>, fault: FieldFault<'_>, input: &Value) {
        self.push_as(loc, fault, || summary(input), || input.clone());
    }

    /// Adds a field that is not there, of an object in which the engine counts so many keys.
    pub(super) fn push_missing(&mut self, loc: &Loc<'_>, object: &Map<String, Value>, keys: Option<usize>) {
        let summary = || keys.map_or_else(|| "None".to_owned(), dictionary_summary);
        self.push_as(loc, FieldFault::MISSING, summary, || Value::Object(object.clone()));
    }

    /// Adds a condition on an object that it breaks.
    pub(super) fn push_broken(&mut self, loc: &Loc<'_>, message: &str, object: &Map<String, Value>) {
        let whole = || Value::Object(object.clone());
        self.push_as(loc, FieldFault::Broken(message), || dictionary_summary(object.len()), whole);
    }

    fn push_as(
        &mut self,
        loc: &Loc<'_>,
        defect: FieldFault<'_>,
        input: impl FnOnce() -> String,
        whole: impl FnOnce() -> Value,
    ) {
        self.count += 1;
        if self.first.len() < self.reported {
            let loc = loc.to_string();
            let (kind, message, context) = defect.words();
            if self.class.is_some() {
                let path = loc.strip_prefix("body.").unwrap_or(&loc);
                self.first.push(Issue { shown: fault(path, kind, &message, &whole()), loc });
                return;
            }
            let [kind, at, message, input] = [kind, &loc, &message, &input()].map(python::repr);
            let context = context.map(|context| format!(", 'ctx': {{{context}}}")).unwrap_or_default();
            let shown = format!("{{'type': {kind}, 'loc': {at}, 'msg': {message}, 'input': {input}{context}}}");
            self.first.push(Issue { loc, shown: shortened(&shown, ISSUE_CHARS) });
        }
    }

    /// The value that was read, or `None` and an issue more.
    pub(super) fn take<T>(&mut self, loc: &Loc<'_>, input: &Value, read: Result<T, FieldFault<'_>>) -> Option<T> {
        read.map_err(|fault| self.push(loc, fault, input)).ok()
    }

    /// What was read, where nothing is wrong with it.
    pub(super) fn unless_any<T>(&self, read: T) -> Result<T, ApiError> {
        if self.is_empty() { Ok(read) } else { Err(self.error()) }
    }

    /// The engine's answer to them.
    pub(super) fn error(&self) -> ApiError {
        if let Some(class) = self.class {
            let shown: Vec<String> = self.first.iter().map(|issue| issue.shown.clone()).collect();
            return invalid(class, &shown);
        }
        let label = if self.count == 1 { "error" } else { "errors" };
        let mut message = format!("{} validation {label}:", self.count);
        for issue in &self.first {
            message.push_str("\n  ");
            message.push_str(&issue.shown);
        }
        if self.count > self.first.len() {
            message.push_str(&format!("\n  ...and {} more {label}", self.count - self.first.len()));
        }
        ApiError::framework(message, self.first.first().map(|issue| issue.loc.clone()))
    }
}

/// pydantic's text about an instance of a class.
pub(super) fn invalid(class: &str, faults: &[String]) -> ApiError {
    let label = if faults.len() == 1 { "error" } else { "errors" };
    ApiError::bad_request(format!("{} validation {label} for {class}\n{}", faults.len(), faults.join("\n")))
}

/// One of pydantic's errors as its texts list them.
pub(super) fn fault(path: &str, kind: &str, message: &str, value: &Value) -> String {
    let (shown, class) = (shown(value), python::class(value));
    format!("{path}\n  {message} [type={kind}, input_value={shown}, input_type={class}]\n    {HELP}/{kind}")
}

/// A value as pydantic shows it: cut in the middle, at whole characters.
fn shown(value: &Value) -> String {
    let text = python::literal(value);
    if text.len() <= SHOWN {
        return text;
    }
    let start = text.get(..text.floor_char_boundary(SHOWN / 2)).unwrap_or_default();
    let end = text.get(text.ceil_char_boundary(text.len() - (SHOWN / 2 - 1))..).unwrap_or_default();
    format!("{start}...{end}")
}

fn summary(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("<list of {} items>", items.len()),
        Value::Object(map) => dictionary_summary(map.len()),
        other => shortened(&python::display(other), INPUT_CHARS),
    }
}

fn dictionary_summary(keys: usize) -> String {
    format!("<dict of {keys} items>")
}

fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...[truncated]", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_value_is_cut_in_the_middle() {
        let value = json!({"type": "text", "something": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"});
        assert_eq!(shown(&value), "{'type': 'text', 'somethi...aaaaaaaaaaaaaaaaaaaaaa'}");
        assert_eq!(shown(&json!({"type": "zzz"})), "{'type': 'zzz'}");
    }
}
