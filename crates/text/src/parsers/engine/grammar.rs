//! Formats as tables: which literals mean something, and what each does in each state.

use super::grammars::Transition;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::parsers) enum ParserState {
    Content,
    Reasoning,
    /// In a call, before the function's name.
    Preamble,
    Name,
    Arguments,
    /// Behind a call, before the end of its wrapper.
    Between,
}

/// Meaning of a literal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::parsers) enum Mark {
    ThinkStart,
    ThinkEnd,
    CallStart,
    CallEnd,
    FunctionStart,
    FunctionEnd,
    ParameterStart,
    ParameterEnd,
    CloseAngle,
    ArgumentsStart,
    OpenBrace,
    /// A special token that means nothing, and whose text is dropped.
    Drop,
}

/// An event that a transition emits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::parsers) enum Emit {
    ReasoningEnd,
    CallStart,
    CallEnd,
    /// The literal is part of the arguments.
    Argument,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::parsers) enum Arguments {
    /// `<parameter=name>value</parameter>`
    Parameters,
    /// The same, with the line breaks around the value.
    VerbatimParameters,
    /// An object, sent as it is written.
    Object,
}

/// A literal; `by_id` if its token counts and its text in other tokens does not.
#[derive(Debug, Clone, Copy)]
pub(in crate::parsers) struct Literal {
    pub(in crate::parsers) mark: Mark,
    pub(in crate::parsers) text: &'static str,
    pub(in crate::parsers) by_id: bool,
}

#[derive(Debug)]
pub(in crate::parsers) struct Grammar {
    pub(in crate::parsers) initial: ParserState,
    pub(in crate::parsers) literals: &'static [Literal],
    pub(in crate::parsers) rules: &'static [Transition],
    pub(in crate::parsers) arguments: Arguments,
    /// Tokens between turns: marks of reasoning before them are another turn's.
    pub(in crate::parsers) turn_bounds: &'static [&'static str],
    /// White space at the end of the reasoning is removed.
    pub(in crate::parsers) trims_reasoning: bool,
    pub(in crate::parsers) names_may_be_empty: bool,
}

impl Grammar {
    pub(super) fn rule(&self, state: ParserState, mark: Mark) -> Option<(ParserState, &'static [Emit])> {
        self.rules.iter().find(|rule| rule.0 == state && rule.1 == mark).map(|rule| (rule.2, rule.3))
    }

    /// Returns the marks before and after reasoning; the first is empty if responses begin with reasoning.
    pub(in crate::parsers) fn reasoning_marks(&self) -> Option<(&'static str, &'static str)> {
        let open = if self.initial == ParserState::Reasoning { "" } else { self.text(Mark::ThinkStart)? };
        Some((open, self.text(Mark::ThinkEnd)?))
    }

    /// Returns the text of a mark.
    pub(super) fn text(&self, mark: Mark) -> Option<&'static str> {
        self.literals.iter().find(|literal| literal.mark == mark).map(|literal| literal.text)
    }

    /// Returns whether the format marks reasoning.
    pub(in crate::parsers) fn reasons(&self) -> bool {
        self.literals.iter().any(|literal| matches!(literal.mark, Mark::ThinkStart | Mark::ThinkEnd))
    }
}

impl ParserState {
    pub(super) fn is_in_call(self) -> bool {
        matches!(self, Self::Preamble | Self::Name | Self::Arguments | Self::Between)
    }
}
