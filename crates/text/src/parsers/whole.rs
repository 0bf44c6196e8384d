//! A whole answer's parts.

use super::{
    delta::{ParsedCall, ParsedMessage},
    engine::EngineParser,
    names::{Parsing, ToolChoice, ToolFormat},
    reasoning::{ReasoningMarks, ReasoningRules},
    required, tools,
    vocabulary::Vocabulary,
};

/// Takes a whole answer apart. Beside calls that the request forces the content may be empty, but is never absent.
#[must_use]
pub fn whole(parsing: &Parsing, vocabulary: &Vocabulary, text: &str) -> ParsedMessage {
    let (reasoning, content) = match ReasoningRules::of(parsing, vocabulary) {
        Some(rules) => rules.split(vocabulary, text),
        None => (None, Some(text.to_owned())),
    };
    let Some(format) = parsing.formats.tools else { return ParsedMessage { content, reasoning, calls: Vec::new() } };
    let is_forced = matches!(parsing.choice, ToolChoice::Required | ToolChoice::Named(_));
    let (calls, content) = match &parsing.choice {
        ToolChoice::None if parsing.formats.is_engine() => {
            let text = content.unwrap_or_default();
            (Vec::new(), tools::whole(format, parsing, vocabulary, &text).1)
        }
        ToolChoice::None => (Vec::new(), content),
        ToolChoice::Named(name) if format.forces_json() => {
            let arguments = content.filter(|content| !content.trim().is_empty());
            (arguments.map(|arguments| ParsedCall { name: name.clone(), arguments }).into_iter().collect(), None)
        }
        ToolChoice::Required if format.forces_json() => (required::whole(&content.unwrap_or_default()), None),
        ToolChoice::Auto | ToolChoice::Required | ToolChoice::Named(_) => auto(format, parsing, vocabulary, content),
    };
    let content = if is_forced { Some(content.unwrap_or_default()) } else { content };
    ParsedMessage { content, reasoning, calls }
}

/// Returns true if the tools' parser parses a whole response: not if the request names the function or wants no calls.
#[must_use]
pub fn reads_calls(parsing: &Parsing) -> bool {
    parsing.formats.tools.is_some_and(|format| match &parsing.choice {
        ToolChoice::Auto => true,
        ToolChoice::None => parsing.formats.is_engine(),
        ToolChoice::Required | ToolChoice::Named(_) => !format.forces_json(),
    })
}

/// Calls in the format's own way.
fn auto(
    format: ToolFormat,
    parsing: &Parsing,
    vocabulary: &Vocabulary,
    content: Option<String>,
) -> (Vec<ParsedCall>, Option<String>) {
    match tools::whole(format, parsing, vocabulary, content.as_deref().unwrap_or_default()) {
        (Some(calls), text) => (calls, text.filter(|text| !text.trim().is_empty())),
        (None, _) if parsing.choice != ToolChoice::Auto && content.as_deref().unwrap_or_default().trim().is_empty() => {
            (Vec::new(), None)
        }
        (None, text) if parsing.formats.is_engine() => (Vec::new(), text.filter(|text| !text.is_empty())),
        (None, _) => (Vec::new(), content),
    }
}

/// Returns true if a prompt leaves the reasoning closed; `None` if no reasoning is parsed.
#[must_use]
pub fn is_reasoning_closed(parsing: &Parsing, vocabulary: &Vocabulary, prompt: &[u32]) -> Option<bool> {
    Some(ReasoningRules::of(parsing, vocabulary)?.is_closed_by(vocabulary, prompt))
}

/// Returns the marks around the reasoning of a response to a prompt, for generating one; `None` if nothing of it is
/// reasoning. `streams` is how it is parsed: a whole answer is taken apart by its text alone, whatever the prompt is.
#[must_use]
pub fn reasoning_marks(
    parsing: &Parsing,
    vocabulary: &Vocabulary,
    prompt: &[u32],
    streams: bool,
) -> Option<ReasoningMarks> {
    let rules = ReasoningRules::of(parsing, vocabulary)?;
    let marks = rules.marks(vocabulary, prompt)?;
    if !rules.is_closed_by(vocabulary, prompt) {
        return Some(marks);
    }
    (!streams && rules.begins_reasoning()).then_some(ReasoningMarks { open: "", may_reason: false, ..marks })
}

/// Returns whether the tokens of reasoning can be counted by the steps' text only, as a stream's parser does: the vocabulary has no token that
/// ends it.
#[must_use]
pub fn counts_by_text(parsing: &Parsing, vocabulary: &Vocabulary) -> bool {
    let rules = ReasoningRules::of(parsing, vocabulary);
    matches!(rules, Some(ReasoningRules::Engine(grammar)) if EngineParser::ends_in_text(grammar, vocabulary))
}

/// Tokens of reasoning in a whole answer.
#[must_use]
pub fn count_reasoning_tokens(parsing: &Parsing, vocabulary: &Vocabulary, ids: &[u32]) -> usize {
    ReasoningRules::of(parsing, vocabulary).map_or(0, |rules| rules.count(vocabulary, ids))
}
