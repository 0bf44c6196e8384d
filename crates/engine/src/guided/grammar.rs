//! From a constraint to the grammar that text is drawn from, with the engine's words for what is none.
//!
//! Deviation: a schema that the engine takes though no value fits it is refused here.

use llguidance::{
    api::{GrammarInit, ParserLimits, TopLevelGrammar},
    earley::ValidationResult,
};
use serde_json::{Value, json};

use super::{
    bounds::{apart, check_size},
    ebnf,
    patterns::{check_embedded, check_patterns},
    schema::{self, has_negative_length},
    tag,
};
use api::Constraint;
use base::cancellation::is_cancelled;

/// Error of a constraint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuideError {
    /// The engine refuses it, with these words.
    #[error("{0}")]
    Refused(String),
    /// The structural tag is none.
    #[error("not a structural tag: {0}")]
    Tag(String),
    /// The engine takes it, but no text can be drawn from it here.
    #[error("no text can be made up for this constraint: {0}")]
    Unsupported(String),
}

impl GuideError {
    pub(super) fn unsupported(reason: &impl ToString) -> Self {
        Self::Unsupported(reason.to_string())
    }

    fn of_grammar(reason: &(impl AsRef<str> + ?Sized)) -> Self {
        let reason = reason.as_ref();
        // The wording of the engine's older library.
        let target = reason.strip_prefix("Reference segment ").and_then(|rest| rest.split_once("not found in '#"));
        let missing =
            target.map(|(_, target)| format!("Pointer '{}' does not exist", target.trim_end_matches(['.', '\''])));
        Self::Refused(format!("Grammar error: {}", missing.as_deref().unwrap_or(reason)))
    }
}

/// Checks that a constraint is one that the engine takes.
///
/// # Errors
/// [`GuideError::Refused`] with the engine's words, [`GuideError::Tag`] for a structural tag that is none.
pub fn check(constraint: &Constraint) -> Result<(), GuideError> {
    match apart(|| grammar(constraint).map(drop)) {
        Ok(()) | Err(GuideError::Unsupported(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

pub(super) fn grammar(constraint: &Constraint) -> Result<TopLevelGrammar, GuideError> {
    check_size(constraint)?;
    match constraint {
        Constraint::Json(schema) => of_schema(schema),
        Constraint::JsonObject => of_schema(&json!({"type": "object"})),
        Constraint::Regex(regex) => of_regex(regex),
        Constraint::Choice(choices) => {
            let choices: Vec<String> = choices.iter().map(|choice| literal(choice)).collect();
            of_lark(format!("start: {}", choices.join(" | ")))
        }
        Constraint::Grammar(text) if is_lark(text) => {
            check_embedded(text)?;
            of_lark(text.clone())
        }
        Constraint::Grammar(text) => {
            let failed = "Invalid grammar specification: Failed to convert the grammar from GBNF to Lark";
            of_lark(ebnf::lark(text).map_err(|error| GuideError::Refused(format!("{failed}: {error}")))?)
        }
        Constraint::StructuralTag(tag) => {
            let lark = tag::lark(tag)?;
            checked(TopLevelGrammar::from_lark(lark)).map_err(GuideError::Tag)
        }
    }
}

/// Gives a grammar back that is one.
fn checked(grammar: TopLevelGrammar) -> Result<TopLevelGrammar, String> {
    if is_cancelled() {
        return Err("its client has left".to_owned());
    }
    match GrammarInit::Serialized(grammar.clone()).validate(None, ParserLimits::default()) {
        ValidationResult::Error(reason) => Err(reason),
        ValidationResult::Valid | ValidationResult::Warnings(_) => Ok(grammar),
    }
}

fn of_lark(lark: String) -> Result<TopLevelGrammar, GuideError> {
    checked(TopLevelGrammar::from_lark(lark)).map_err(|reason| GuideError::of_grammar(&reason))
}

fn of_schema(schema: &Value) -> Result<TopLevelGrammar, GuideError> {
    readable_schema(schema).and_then(|schema| {
        checked(TopLevelGrammar::from_json_schema(schema)).map_err(|reason| GuideError::of_grammar(&reason))
    })
}

/// The schema with the options under which it can be read.
pub(super) fn readable_schema(schema: &Value) -> Result<Value, GuideError> {
    if !schema.is_object() {
        let message = "Invalid grammar specification: Expecting object schema to apply options";
        return Err(GuideError::Refused(message.to_owned()));
    }
    check_patterns(schema)?;
    let read = |schema: &Value, is_lenient| {
        let schema = schema::with_options(schema, is_lenient);
        checked(TopLevelGrammar::from_json_schema(schema.clone())).map(|_| schema)
    };
    let strict = match read(schema, false) {
        // A part of what fits is enough, and the part that its patterns span is found sooner.
        Ok(whole) => return Ok(read(&schema::spanned(schema), false).unwrap_or(whole)),
        Err(reason) => reason,
    };
    // The engine leaves these to a third library, which takes nearly everything.
    let has_patterns = schema::mentions(schema, "patternProperties");
    if schema::is_left_to_guidance(schema) && !has_patterns {
        return Err(GuideError::of_grammar(&strict));
    }
    let lenient = read(schema, true).or_else(|_| read(&schema::relaxed(schema), true));
    // The first one takes these, and fails later.
    let is_taken = has_patterns || has_negative_length(schema);
    lenient.map_err(|_| if is_taken { GuideError::Unsupported(strict) } else { GuideError::of_grammar(&strict) })
}

fn of_regex(regex: &str) -> Result<TopLevelGrammar, GuideError> {
    if regex.is_empty() {
        return of_lark("start: \"\"".to_owned());
    }
    checked(TopLevelGrammar::from_regex(regex)).or_else(|reason| {
        // An expression spans the whole text, so anchors at its ends have no effect; the engine takes them.
        let bare = unanchored(regex).ok_or_else(|| GuideError::of_grammar(&reason))?;
        checked(TopLevelGrammar::from_regex(bare)).map_err(|_| GuideError::of_grammar(&reason))
    })
}

fn unanchored(regex: &str) -> Option<&str> {
    let start = regex.strip_prefix('^').or_else(|| regex.strip_prefix(r"\A")).unwrap_or(regex);
    let is_escaped = start.strip_suffix('$').is_some_and(|rest| rest.ends_with('\\'));
    let end = if is_escaped { None } else { start.strip_suffix('$').or_else(|| start.strip_suffix(r"\z")) };
    Some(end.unwrap_or(start)).filter(|bare| bare.len() < regex.len())
}

/// Returns true for a grammar in Lark's notation, which has a rule `start`.
pub(super) fn is_lark(text: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim_start();
        let after = line.strip_prefix("start").map(str::trim_start);
        after.is_some_and(|rest| rest.starts_with(':')) || line.starts_with("%llguidance")
    })
}

/// A text as Lark writes it.
pub(super) fn literal(text: &str) -> String {
    Value::from(text).to_string()
}
