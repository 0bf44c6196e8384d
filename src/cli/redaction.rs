//! From arguments to the rules of redaction.

use std::env;

use super::{args::RedactionArgs, failure::Failure};
use crate::redaction::{Rules, RulesError};

/// The built-in rules and those that were typed.
///
/// # Errors
/// When one cannot be used, or a variable is not set.
pub(super) fn rules(args: &RedactionArgs) -> Result<Rules, Failure> {
    let mut rules = Rules::default();
    for key in &args.redact_key {
        rules = rules.key(key)?;
    }
    for place in &args.redact {
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
    Ok(rules)
}

impl From<RulesError> for Failure {
    fn from(error: RulesError) -> Self {
        Self::usage(error)
    }
}
