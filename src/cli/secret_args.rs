//! From arguments about secrets to rules and values.
//!
//! See docs/decisions/0075-personal-data-is-redacted-on-demand.md.

use std::{env, fs, path::Path};

use super::{
    args::RedactionArgs,
    failure::{Exit, Failure},
};
use crate::{
    recording::redaction::{Rules, shapes},
    replay::player::SuppliedSecrets,
};

/// Meaning of the values of `--redact`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct RedactWhat {
    /// Whether the built-in rules count.
    pub(super) is_off: bool,
    /// Whether a level was typed.
    has_level: bool,
    /// Shapes of personal data; `all` stands for each of them.
    pub(super) shapes: Vec<String>,
    /// Places in JSON.
    pub(super) places: Vec<String>,
}

impl RedactWhat {
    /// Reads what was typed: a level, a shape of personal data or a place.
    ///
    /// # Errors
    /// When it is none of them, or levels contradict each other.
    pub(super) fn of(args: &RedactionArgs) -> Result<Self, Failure> {
        let (mut what, mut levels) = (Self::default(), Vec::new());
        for typed in &args.redact {
            let is_shape = || shapes().any(|shape| shape.is_personal && shape.kind == typed);
            match typed.as_str() {
                "off" | "secrets" | "all" => levels.push(typed.as_str()),
                place if place.starts_with('$') || place.starts_with("**") => what.places.push(typed.clone()),
                _ if is_shape() => what.shapes.push(typed.clone()),
                _ => {
                    let shapes: Vec<&str> = shapes().filter(|it| it.is_personal).map(|it| it.kind).collect();
                    let message = format!(
                        "--redact `{typed}` is none of off, secrets, all, {}, and names no place in a body, such as $.metadata.email",
                        shapes.join(", ")
                    );
                    return Err(Failure::usage(message));
                }
            }
        }
        levels.dedup();
        what.has_level = !levels.is_empty();
        match levels.as_slice() {
            [] | ["secrets"] => {}
            ["off"] => what.is_off = true,
            ["all"] => what.shapes = vec!["all".to_owned()],
            _ => {
                return Err(Failure::usage(format!(
                    "--redact takes one of off, secrets and all, not {}",
                    levels.join(" and ")
                )));
            }
        }
        Ok(what)
    }
}

/// The built-in rules and those that were typed.
///
/// # Errors
/// When one cannot be used, or a variable is not set.
pub(super) fn rules(args: &RedactionArgs) -> Result<Rules, Failure> {
    rules_of(args, &RedactWhat::of(args)?)
}

/// The rules of what shows what a file reveals: personal data too, where nothing else was typed.
///
/// # Errors
/// As [`rules`].
pub(super) fn rules_of_audit(args: &RedactionArgs) -> Result<Rules, Failure> {
    let mut what = RedactWhat::of(args)?;
    if !what.has_level && what.shapes.is_empty() {
        what.shapes.push("all".to_owned());
    }
    rules_of(args, &what)
}

fn rules_of(args: &RedactionArgs, what: &RedactWhat) -> Result<Rules, Failure> {
    let mut rules = if what.is_off { Rules::none() } else { Rules::default() };
    for shape in &what.shapes {
        rules = rules.shape(shape)?;
    }
    for key in &args.redact_key {
        rules = rules.key(key)?;
    }
    for place in &what.places {
        rules = rules.place(place)?;
    }
    for typed in &args.redact_pattern {
        let named = typed.split_once('=');
        let (name, pattern) =
            named.ok_or_else(|| Failure::usage(format!("--redact-pattern `{typed}` is not NAME=REGEX")))?;
        rules = rules.pattern(name, pattern)?;
    }
    for variable in &args.redact_env {
        let value = env::var(variable)
            .map_err(|_| Failure::usage(format!("--redact-env {variable}: that variable is not set")))?;
        rules = rules.literal(variable, &value)?;
    }
    for (name, value) in &args.literals {
        rules = rules.literal(name, value)?;
    }
    Ok(rules)
}

/// The values of placeholders: those of a file, and those of variables that are named after placeholders or by `--redact-env`.
///
/// # Errors
/// When the file cannot be read, or a line of it cannot be used.
pub(super) fn supplied(file: Option<&Path>, args: &RedactionArgs) -> Result<SuppliedSecrets, Failure> {
    let supplied = match file {
        Some(file) => {
            let text = fs::read_to_string(file)
                .map_err(|error| Failure::new(Exit::BadInput, format!("--secrets {}: {error}", file.display())))?;
            SuppliedSecrets::parse(file, &text).map_err(|error| Failure::new(Exit::BadInput, error))?
        }
        None => SuppliedSecrets::default(),
    };
    let all = env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let redacted =
        args.redact_env.iter().filter_map(|name| Some((SuppliedSecrets::variable_of(name), env::var(name).ok()?)));
    Ok(supplied.with_variables(redacted.chain(all)))
}
