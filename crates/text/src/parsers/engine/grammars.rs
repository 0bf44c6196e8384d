//! The tables of the formats.

use super::grammar::{
    Arguments,
    Emit::{self, Argument, CallEnd, CallStart, ReasoningEnd},
    Grammar, Literal,
    Mark::{self, ThinkEnd, ThinkStart},
    ParserState::{self, Between, Content, Name, Preamble, Reasoning},
};

/// State, mark, next state, and the event.
#[derive(Debug)]
pub(in crate::parsers) struct Transition(
    pub(super) ParserState,
    pub(super) Mark,
    pub(super) ParserState,
    pub(super) &'static [Emit],
);

const fn token(mark: Mark, text: &'static str) -> Literal {
    Literal { mark, text, by_id: true }
}

const fn text(mark: Mark, text: &'static str) -> Literal {
    Literal { mark, text, by_id: false }
}

/// Rules of `<function=…>` in a wrapper, after reasoning that answers begin with.
const FUNCTIONS: &[Transition] = &[
    Transition(Reasoning, ThinkStart, Reasoning, &[]),
    Transition(Reasoning, ThinkEnd, Content, &[ReasoningEnd]),
    Transition(Content, ThinkEnd, Content, &[]),
    Transition(Reasoning, Mark::CallStart, Preamble, &[ReasoningEnd, CallStart]),
    Transition(Content, Mark::CallStart, Preamble, &[ReasoningEnd, CallStart]),
    Transition(Content, Mark::FunctionStart, Name, &[CallStart]),
    Transition(Preamble, Mark::CallEnd, Content, &[CallEnd]),
    Transition(Preamble, Mark::FunctionStart, Name, &[]),
    Transition(Name, Mark::CloseAngle, ParserState::Arguments, &[]),
    Transition(Name, Mark::FunctionEnd, Between, &[CallEnd]),
    Transition(ParserState::Arguments, Mark::FunctionEnd, Between, &[CallEnd]),
    Transition(ParserState::Arguments, Mark::ParameterStart, ParserState::Arguments, &[Argument]),
    Transition(ParserState::Arguments, Mark::ParameterEnd, ParserState::Arguments, &[Argument]),
    Transition(Between, Mark::CallEnd, Content, &[]),
    Transition(Between, Mark::CallStart, Preamble, &[CallStart]),
    Transition(Between, Mark::FunctionStart, Name, &[CallStart]),
];

/// Qwen3: reasoning in `<think>`, calls as XML.
pub(in crate::parsers) static QWEN3: Grammar = Grammar {
    initial: Reasoning,
    literals: &[
        token(ThinkStart, "<think>"),
        token(ThinkEnd, "</think>"),
        token(Mark::CallStart, "<tool_call>"),
        token(Mark::CallEnd, "</tool_call>"),
        text(Mark::FunctionStart, "<function="),
        text(Mark::FunctionEnd, "</function>"),
        text(Mark::ParameterStart, "<parameter="),
        text(Mark::ParameterEnd, "</parameter>"),
        text(Mark::CloseAngle, ">"),
    ],
    rules: FUNCTIONS,
    arguments: Arguments::Parameters,
    turn_bounds: &["<|im_start|>", "<|im_end|>"],
    trims_reasoning: false,
    names_may_be_empty: false,
};

/// Seed-OSS: as Qwen3 with tags of its own.
pub(in crate::parsers) static SEED_OSS: Grammar = Grammar {
    literals: &[
        token(ThinkStart, "<seed:think>"),
        token(ThinkEnd, "</seed:think>"),
        token(Mark::CallStart, "<seed:tool_call>"),
        token(Mark::CallEnd, "</seed:tool_call>"),
        text(Mark::FunctionStart, "<function="),
        text(Mark::FunctionEnd, "</function>"),
        text(Mark::ParameterStart, "<parameter="),
        text(Mark::ParameterEnd, "</parameter>"),
        text(Mark::CloseAngle, ">"),
    ],
    turn_bounds: &["<seed:bos>", "<seed:eos>"],
    ..QWEN3
};

/// `MiMo`: as Qwen3, with values as they are.
pub(in crate::parsers) static MIMO: Grammar = Grammar { arguments: Arguments::VerbatimParameters, ..QWEN3 };

/// Step 3.5: as Qwen3, without white space at the reasoning's end.
pub(in crate::parsers) static STEP3P5: Grammar = Grammar { trims_reasoning: true, ..QWEN3 };

const CALLS_BY_NAME: &[Transition] = &[
    Transition(Content, ThinkStart, Reasoning, &[]),
    Transition(Reasoning, ThinkStart, Reasoning, &[]),
    Transition(Reasoning, ThinkEnd, Content, &[ReasoningEnd]),
    Transition(Content, ThinkEnd, Content, &[]),
    Transition(Reasoning, Mark::CallStart, Name, &[ReasoningEnd, CallStart]),
    Transition(Content, Mark::CallStart, Name, &[ReasoningEnd, CallStart]),
    Transition(Name, Mark::ArgumentsStart, ParserState::Arguments, &[]),
    Transition(Name, Mark::OpenBrace, ParserState::Arguments, &[Argument]),
    Transition(ParserState::Arguments, Mark::CallStart, Name, &[CallEnd, CallStart]),
];

/// Mistral from version 13 of its tokenizers on: `[THINK]`, and `[TOOL_CALLS]name[ARGS]{…}`.
pub(in crate::parsers) static MISTRAL: Grammar = Grammar {
    initial: Content,
    literals: &[
        token(ThinkStart, "[THINK]"),
        token(ThinkEnd, "[/THINK]"),
        token(Mark::CallStart, "[TOOL_CALLS]"),
        token(Mark::ArgumentsStart, "[ARGS]"),
        text(Mark::OpenBrace, "{"),
    ],
    rules: CALLS_BY_NAME,
    arguments: Arguments::Object,
    turn_bounds: &[],
    trims_reasoning: true,
    names_may_be_empty: true,
};

/// Mistral without marks of reasoning.
pub(in crate::parsers) static MISTRAL_PLAIN: Grammar = Grammar {
    literals: &[
        token(Mark::CallStart, "[TOOL_CALLS]"),
        token(Mark::ArgumentsStart, "[ARGS]"),
        text(Mark::OpenBrace, "{"),
    ],
    ..MISTRAL
};

pub(in crate::parsers) static GRAMMARS: [&Grammar; 6] = [&QWEN3, &MIMO, &STEP3P5, &SEED_OSS, &MISTRAL, &MISTRAL_PLAIN];
