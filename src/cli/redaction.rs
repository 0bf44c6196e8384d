//! From arguments about secrets to rules and values.
//!
//! See docs/decisions/0075-personal-data-is-redacted-on-demand.md.

use std::{env, path::Path};

use clap::Args;

use crate::{
    base::bounded_read,
    cli::failure::Failure,
    recording::redaction::{RedactionRules, Redactor, shapes},
    replay::player::SuppliedSecrets,
};

/// Meaning of the values of `--redact`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::cli) struct RedactWhat {
    /// Whether the built-in rules count.
    pub(in crate::cli) is_off: bool,
    /// Whether a level was typed.
    has_level: bool,
    /// Shapes of personal data; `all` stands for each of them.
    pub(in crate::cli) shapes: Vec<String>,
    pub(in crate::cli) places: Vec<String>,
}

impl RedactWhat {
    /// Reads what was typed: a level, a shape of personal data or a place.
    pub(in crate::cli) fn of(args: &RedactionArgs) -> Result<Self, Failure> {
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
                        "--redact `{typed}` is not one of off, secrets, all, {}, or a place in a body such as $.metadata.email",
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
pub(in crate::cli) fn rules(args: &RedactionArgs) -> Result<RedactionRules, Failure> {
    rules_of(args, &RedactWhat::of(args)?)
}

/// The rules of what shows what a file reveals: personal data too, where nothing else was typed.
pub(in crate::cli) fn rules_of_audit(args: &RedactionArgs) -> Result<RedactionRules, Failure> {
    let mut what = RedactWhat::of(args)?;
    if !what.has_level && what.shapes.is_empty() {
        what.shapes.push("all".to_owned());
    }
    rules_of(args, &what)
}

fn rules_of(args: &RedactionArgs, what: &RedactWhat) -> Result<RedactionRules, Failure> {
    let mut rules = if what.is_off { RedactionRules::none() } else { RedactionRules::default() };
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
pub(in crate::cli) fn supplied(file: Option<&Path>, args: &RedactionArgs) -> Result<SuppliedSecrets, Failure> {
    let supplied = match file {
        Some(file) => {
            let text = bounded_read::read_text(file)
                .map_err(|error| Failure::input(format!("--secrets {}: {error}", file.display())))?;
            SuppliedSecrets::parse(file, &text).map_err(Failure::input)?
        }
        None => SuppliedSecrets::default(),
    };
    let all = env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let redacted =
        args.redact_env.iter().filter_map(|name| Some((SuppliedSecrets::variable_of(name), env::var(name).ok()?)));
    Ok(supplied.with_variables(redacted.chain(all)))
}

/// What counts as a secret.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Redaction")]
pub(in crate::cli) struct RedactionArgs {
    /// Redacts values under this name, in JSON and headers; /REGEX/ is matched against names as written.
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) redact_key: Vec<String>,
    /// Redacts matches of this pattern, or of its first group.
    #[arg(long, value_name = "NAME=REGEX")]
    pub(in crate::cli) redact_pattern: Vec<String>,
    /// Redacts this environment variable's value wherever it occurs.
    #[arg(long, value_name = "VARIABLE")]
    pub(in crate::cli) redact_env: Vec<String>,
    /// What is redacted: secrets (keys, tokens, passwords, card and account numbers), all (also personal data), or off (only what other
    /// flags name). In addition a kind of personal data (email, phone, ssn), or a place in JSON, such as $.metadata.email. Default:
    /// secrets.
    #[arg(long, value_name = "WHAT")]
    pub(in crate::cli) redact: Vec<String>,
    /// Names and values that are secrets for other reasons.
    #[arg(skip)]
    pub(in crate::cli) literals: Vec<(String, String)>,
}

/// Text from a cassette with its secrets redacted, for people.
pub(in crate::cli) fn shown(text: &str) -> String {
    Redactor::new(&RedactionRules::default()).text(text).unwrap_or_else(|| text.to_owned())
}
