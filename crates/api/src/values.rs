//! One JSON value judged by one type, in pydantic's lax mode and with its words.

use serde_json::Value;

use super::{error::ApiError, python};

/// Issues that are reported one by one; the rest is counted.
const REPORTED: usize = 10;

/// Characters of a value, and of a whole issue, that are reported.
const INPUT_CHARS: usize = 200;
const ISSUE_CHARS: usize = 1000;

/// Whole numbers are smaller: 2^127.
const LARGEST_WHOLE: f64 = 170_141_183_460_469_231_731_687_303_715_884_105_728.0;

/// One thing that is wrong with a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Issue {
    /// pydantic's word for it.
    pub(super) kind: &'static str,
    /// Its path, from `body` on.
    pub(super) loc: String,
    /// The expected type or value.
    pub(super) message: String,
    /// The value that was there, shortened.
    pub(super) input: String,
    /// The inside of the `ctx` dictionary.
    pub(super) context: Option<String>,
}

impl Issue {
    pub(super) fn new(kind: &'static str, loc: &str, message: impl Into<String>, input: &Value) -> Self {
        Self { kind, loc: loc.to_owned(), message: message.into(), input: summary(input), context: None }
    }

    /// A key that is not in an object of so many keys.
    pub(super) fn missing(loc: String, keys: usize) -> Self {
        let input = format!("<dict of {keys} items>");
        Self { kind: "missing", loc, message: "Field required".to_owned(), input, context: None }
    }

    /// A list of more than `most` items.
    pub(super) fn too_long(loc: &str, most: usize, input: &Value) -> Option<Self> {
        let count = input.as_array().map(Vec::len).filter(|count| *count > most)?;
        let message = format!("List should have at most {most} items after validation, not {count}");
        let context = Some(format!("'field_type': 'List', 'max_length': {most}, 'actual_length': {count}"));
        Some(Self { context, ..Self::new("too_long", loc, message, input) })
    }

    fn render(&self) -> String {
        let mut text = format!(
            "{{'type': {}, 'loc': {}, 'msg': {}, 'input': {}",
            python::repr(self.kind),
            python::repr(&self.loc),
            python::repr(&self.message),
            python::repr(&self.input),
        );
        if let Some(context) = &self.context {
            text.push_str(", 'ctx': {");
            text.push_str(context);
            text.push('}');
        }
        text.push('}');
        shortened(&text, ISSUE_CHARS)
    }
}

/// Everything that is wrong with a body: the first issues in full, the rest as a number, so that a long list of faults
/// costs no memory.
#[derive(Debug, Default)]
pub(super) struct Issues {
    first: Vec<Issue>,
    count: usize,
}

impl Issues {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn push(&mut self, issue: Issue) {
        self.count += 1;
        if self.first.len() < REPORTED {
            self.first.push(issue);
        }
    }

    /// Adds an issue of a part, found without saying where.
    pub(super) fn push_at(&mut self, loc: impl FnOnce() -> String, mut issue: Issue) {
        if self.first.len() < REPORTED {
            issue.loc = loc();
        }
        self.push(issue);
    }

    pub(super) fn extend(&mut self, issues: impl IntoIterator<Item = Issue>) {
        issues.into_iter().for_each(|issue| self.push(issue));
    }

    pub(super) fn append(&mut self, other: Self) {
        let uncounted = other.count - other.first.len();
        self.extend(other.first);
        self.count += uncounted;
    }

    /// The first issues, as those of a part of the body.
    pub(super) fn under(self, part: &str) -> Vec<Issue> {
        let moved = |issue: Issue| Issue { loc: issue.loc.replacen("body", part, 1), ..issue };
        self.first.into_iter().map(moved).collect()
    }

    /// These issues as those of a part of the body.
    pub(super) fn of_part(self, part: &str) -> Self {
        let count = self.count;
        Self { first: self.under(part), count }
    }

    /// The engine's answer to them.
    pub(super) fn error(&self) -> ApiError {
        let label = if self.count == 1 { "error" } else { "errors" };
        let mut message = format!("{} validation {label}:", self.count);
        for issue in &self.first {
            message.push_str("\n  ");
            message.push_str(&issue.render());
        }
        if self.count > self.first.len() {
            message.push_str(&format!("\n  ...and {} more {label}", self.count - self.first.len()));
        }
        ApiError::framework(message, self.first.first().map(|issue| issue.loc.clone()))
    }
}

/// The error for these issues.
pub(super) fn issues_error(list: impl IntoIterator<Item = Issue>) -> ApiError {
    let mut issues = Issues::default();
    issues.extend(list);
    issues.error()
}

/// A value as an issue shows it.
pub(super) fn summary(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() && is_beyond_64_bits(number) => {
            int(value, "").map_or_else(|_| number.to_string(), |whole| whole.to_string())
        }
        Value::Array(items) => format!("<list of {} items>", items.len()),
        Value::Object(map) => format!("<dict of {} items>", map.len()),
        other => shortened(&python::display(other), INPUT_CHARS),
    }
}

/// Returns whether a number was a whole one that no 64 bits hold.
fn is_beyond_64_bits(number: &serde_json::Number) -> bool {
    number.as_f64().is_some_and(|float| (9.2e18..1.7e38).contains(&float.abs()))
}

fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...[truncated]", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// A value as a whole number: numbers without a fraction, texts that spell one, true and false.
///
/// Deviation: beyond 64 bits the digits are those of the nearest double.
pub(super) fn int(value: &Value, loc: &str) -> Result<i128, Issue> {
    match value {
        Value::Bool(flag) => Ok(i128::from(*flag)),
        Value::Number(number) => match (number.as_i128(), number.as_f64()) {
            (Some(whole), _) => Ok(whole),
            // A whole number of many digits is read as a float too, so only one that is not written in digits counts as such.
            (None, Some(float)) if float.abs() >= LARGEST_WHOLE => {
                let message = "Unable to parse input string as an integer, exceeded maximum size";
                Err(Issue::new("int_parsing_size", loc, message, value))
            }
            (None, Some(float)) if float.fract() == 0.0 => {
                #[allow(clippy::cast_possible_truncation)] // whole, and within 128 bits
                Ok(float as i128)
            }
            _ => Err(Issue::new(
                "int_from_float",
                loc,
                "Input should be a valid integer, got a number with a fractional part",
                value,
            )),
        },
        Value::String(text) => whole(text).ok_or_else(|| {
            let message = "Input should be a valid integer, unable to parse string as an integer";
            Issue::new("int_parsing", loc, message, value)
        }),
        _ => Err(Issue::new("int_type", loc, "Input should be a valid integer", value)),
    }
}

/// The whole number that a text spells, where need be with a fraction of zeros.
fn whole(text: &str) -> Option<i128> {
    let text = text.trim();
    let digits =
        text.split_once('.').filter(|(_, rest)| rest.bytes().all(|byte| byte == b'0')).map(|(digits, _)| digits);
    python::int(digits.unwrap_or(text))
}

/// A value as a number.
pub(super) fn float(value: &Value, loc: &str) -> Result<f64, Issue> {
    match value {
        Value::Bool(flag) => Ok(f64::from(u8::from(*flag))),
        Value::Number(number) => Ok(number.as_f64().unwrap_or(f64::INFINITY)),
        Value::String(text) => text.trim().parse().map_err(|_| {
            let message = "Input should be a valid number, unable to parse string as a number";
            Issue::new("float_parsing", loc, message, value)
        }),
        _ => Err(Issue::new("float_type", loc, "Input should be a valid number", value)),
    }
}

/// A value as true or false.
pub(super) fn flag(value: &Value, loc: &str) -> Result<bool, Issue> {
    let read = match value {
        Value::Bool(flag) => Some(*flag),
        Value::Number(number) => match number.as_f64() {
            Some(0.0) => Some(false),
            Some(1.0) => Some(true),
            Some(other) if other.fract() == 0.0 && other.abs() < 9.2e18 => None,
            _ => return Err(Issue::new("bool_type", loc, "Input should be a valid boolean", value)),
        },
        Value::String(text) => match text.to_ascii_lowercase().as_str() {
            "0" | "off" | "f" | "false" | "n" | "no" => Some(false),
            "1" | "on" | "t" | "true" | "y" | "yes" => Some(true),
            _ => None,
        },
        _ => return Err(Issue::new("bool_type", loc, "Input should be a valid boolean", value)),
    };
    read.ok_or_else(|| {
        Issue::new("bool_parsing", loc, "Input should be a valid boolean, unable to interpret input", value)
    })
}

/// A value as text.
pub(super) fn text<'a>(value: &'a Value, loc: &str) -> Result<&'a str, Issue> {
    value.as_str().ok_or_else(|| Issue::new("string_type", loc, "Input should be a valid string", value))
}

/// A value as a list.
pub(super) fn list<'a>(value: &'a Value, loc: &str) -> Result<&'a [Value], Issue> {
    match value {
        Value::Array(items) => Ok(items),
        _ => Err(Issue::new("list_type", loc, "Input should be a valid list", value)),
    }
}
