//! The environment that chat templates run in, and the limits of a client's.
//!
//! See docs/decisions/0062-variables-of-templates-are-not-bounded.md.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Value as Jinja};
use minijinja::{Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;
use time::OffsetDateTime;
use time::format_description::parse_strftime_owned;

use super::{
    PromptError,
    to_json::{as_float, to_json},
};
use crate::python::json_float;
use base::causes::causes;

/// Instructions of a client's template: some hundred for each of ten thousand messages.
const FUEL: u64 = 5_000_000;

/// Bytes that a client's template makes.
pub(super) const LONGEST: usize = 64 << 20;

/// Digits of a width or a precision, in a format of a client's template.
const WIDTH_DIGITS: usize = 4;

/// The filter `format` without limits, under a name that no template can write.
const ANY_FORMAT: &str = "format without limits";

/// Builds an environment in which templates run as in transformers.
pub(super) fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(pycompat::unknown_method_callback);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_formatter(|out, state, value| match as_float(value) {
        Some(float) => minijinja::escape_formatter(out, state, &Jinja::from(json_float(float))),
        None => minijinja::escape_formatter(out, state, value),
    });
    environment.add_filter("tojson", |value: &Jinja, options: Kwargs| to_json(value, &options));
    environment.add_function("raise_exception", |reason: String| -> Result<Jinja, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "").with_source(Raised(reason)))
    });
    environment.add_function("strftime_now", |format: String| strftime_now(&format));
    Ok(environment)
}

/// The words of a template's `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// Builds the error for a request whose conversation a template refuses or cannot render.
pub(super) fn rejected(error: &Error) -> PromptError {
    for cause in causes(error) {
        if let Some(Raised(reason)) = cause.downcast_ref() {
            return PromptError::Rejected(reason.clone());
        }
        if let Some(too_long) = cause.downcast_ref::<io::Error>() {
            return PromptError::Rejected(too_long.to_string());
        }
    }
    PromptError::Rejected(error.to_string())
}

fn strftime_now(format: &str) -> Result<String, Error> {
    let bad = |reason: String| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {reason}"));
    let items = parse_strftime_owned(format).map_err(|error| bad(error.to_string()))?;
    let now = OffsetDateTime::now_local().unwrap_or_else(|_| OffsetDateTime::now_utc());
    now.format(&items).map_err(|error| bad(error.to_string()))
}

/// Sets the limits of a template that a client sent: its instructions, and the widths of its formats.
pub(super) fn limit(environment: &mut Environment<'static>) {
    environment.set_fuel(Some(FUEL));
    environment.add_filter(ANY_FORMAT, minijinja::filters::format);
    environment.add_filter("format", |state: &mut State, format: &Jinja, args: Rest<Jinja>| {
        check_widths(format, &args)?;
        let all: Vec<Jinja> = std::iter::once(format.clone()).chain(args.0).collect();
        state.apply_filter(ANY_FORMAT, &all)
    });
    environment.set_unknown_method_callback(|state, value, method, args| {
        if method == "format" {
            check_widths(value, args)?;
        }
        pycompat::unknown_method_callback(state, value, method, args)
    });
}

/// Text as long as a template may make it.
pub(super) struct BoundedText {
    pub(super) text: Vec<u8>,
    pub(super) longest: usize,
}

impl io::Write for BoundedText {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if self.text.len().saturating_add(more.len()) > self.longest {
            return Err(io::Error::other("the chat template makes more text than is taken"));
        }
        self.text.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Refuses formats of text that is wider than its values.
fn check_widths(format: &Jinja, args: &[Jinja]) -> Result<(), Error> {
    let format = format.to_string();
    let digits = format.split(|letter: char| !letter.is_ascii_digit()).map(str::len).max().unwrap_or(0);
    let starred = format.contains('*') && args.iter().any(|arg| arg.as_i64().is_some_and(|arg| arg.abs() > 9999));
    if digits > WIDTH_DIGITS || starred {
        return Err(Error::new(ErrorKind::InvalidOperation, "format: a width has at most four digits"));
    }
    Ok(())
}
