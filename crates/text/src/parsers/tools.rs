//! Tool calls in whatever format.

use super::{
    deepseek::{CallFormat, Deepseek},
    delta::{CallIds, Delta, ParsedCall},
    engine::{Duty, EngineParser, Grammar, MIMO, QWEN3, SEED_OSS, STEP3P5},
    hermes::{self, Hermes},
    llama::{self, Llama},
    names::{Parsing, ToolChoice, ToolFormat},
    reasoning,
    vocabulary::Vocabulary,
};

/// The calls of an answer on its way.
#[derive(Debug)]
pub(super) enum ToolCallParser {
    Hermes(Hermes),
    Llama(Llama),
    Deepseek(Deepseek),
    Engine(Box<EngineParser>),
}

impl ToolCallParser {
    pub(super) fn new(format: ToolFormat, parsing: &Parsing, vocabulary: &Vocabulary) -> Self {
        match format {
            ToolFormat::Hermes => Self::Hermes(Hermes::default()),
            ToolFormat::Llama3Json => Self::Llama(Llama::default()),
            ToolFormat::DeepseekV3 => Self::Deepseek(Deepseek::new(CallFormat::Fenced, vocabulary)),
            ToolFormat::DeepseekV31 => Self::Deepseek(Deepseek::new(CallFormat::Bare, vocabulary)),
            ToolFormat::Qwen3Coder
            | ToolFormat::Mimo
            | ToolFormat::Step3p5
            | ToolFormat::SeedOss
            | ToolFormat::Mistral => Self::Engine(Box::new(engine(grammar(format, vocabulary), parsing, vocabulary))),
        }
    }

    /// Takes more text and its ids; returns a delta where there is something to send.
    pub(super) fn push(&mut self, text: &str, ids: &[u32], made: &mut CallIds) -> Option<Delta> {
        match self {
            Self::Hermes(hermes) => hermes.push(text, made),
            Self::Llama(llama) => llama.push(text, made),
            Self::Deepseek(deepseek) => deepseek.push(text, ids, made),
            Self::Engine(engine) => engine.push(text, ids, made),
        }
    }

    /// Arguments that were read and not sent, for the last delta if it has calls.
    pub(super) fn remaining(&self) -> String {
        match self {
            Self::Hermes(hermes) => hermes.remaining(),
            Self::Llama(llama) => llama.remaining(),
            Self::Deepseek(deepseek) => deepseek.remaining(),
            Self::Engine(_) => String::new(),
        }
    }

    /// Returns the text that was held back.
    pub(super) fn finish(&mut self, made: &mut CallIds) -> Option<Delta> {
        match self {
            Self::Engine(engine) => engine.finish(made),
            Self::Hermes(_) | Self::Llama(_) | Self::Deepseek(_) => None,
        }
    }
}

impl ToolFormat {
    /// Returns true if the table-driven engine parses it.
    pub(super) fn is_engine(self) -> bool {
        matches!(self, Self::Qwen3Coder | Self::Mimo | Self::Step3p5 | Self::SeedOss | Self::Mistral)
    }

    /// Returns true if calls that a request forces come as plain JSON; otherwise they have the format of any other call.
    pub(super) fn forces_json(self) -> bool {
        self == Self::SeedOss
    }
}

fn grammar(format: ToolFormat, vocabulary: &Vocabulary) -> &'static Grammar {
    match format {
        ToolFormat::SeedOss => &SEED_OSS,
        ToolFormat::Mimo => &MIMO,
        ToolFormat::Step3p5 => &STEP3P5,
        ToolFormat::Mistral => reasoning::mistral(vocabulary),
        _ => &QWEN3,
    }
}

fn engine(grammar: &'static Grammar, parsing: &Parsing, vocabulary: &Vocabulary) -> EngineParser {
    let duty = if parsing.formats.reasoning.is_some() { Duty::Calls } else { Duty::CallsAlone };
    let drops = parsing.choice == ToolChoice::None && !parsing.functions.is_empty();
    EngineParser::new(grammar, vocabulary, duty).calling(&parsing.functions, drops)
}

/// The calls of a whole answer, and what is left of its text; `None` where the format finds no calls.
pub(super) fn whole(
    format: ToolFormat,
    parsing: &Parsing,
    vocabulary: &Vocabulary,
    text: &str,
) -> (Option<Vec<ParsedCall>>, Option<String>) {
    let kept = || Some(text.to_owned());
    match format {
        ToolFormat::Hermes => hermes::whole(text).map_or_else(|| (None, kept()), |(calls, text)| (Some(calls), text)),
        ToolFormat::Llama3Json => llama::whole(text).map_or_else(|| (None, kept()), |calls| (Some(calls), None)),
        ToolFormat::DeepseekV3 | ToolFormat::DeepseekV31 => {
            let style = if format == ToolFormat::DeepseekV3 { CallFormat::Fenced } else { CallFormat::Bare };
            style.whole(text).map_or_else(|| (None, kept()), |(calls, text)| (Some(calls), text))
        }
        ToolFormat::Qwen3Coder | ToolFormat::Mimo | ToolFormat::Step3p5 | ToolFormat::SeedOss | ToolFormat::Mistral => {
            let (calls, text) = engine(grammar(format, vocabulary), parsing, vocabulary).whole(text);
            (Some(calls).filter(|calls| !calls.is_empty()), text)
        }
    }
}

/// Joins what was held back to a step's delta.
pub(super) fn join(delta: &mut Option<Delta>, held: Option<Delta>) {
    let Some(held) = held else { return };
    let Some(delta) = delta else {
        *delta = Some(held);
        return;
    };
    if let Some(text) = held.content {
        delta.content.get_or_insert_default().push_str(&text);
    }
    if let Some(reasoning) = held.reasoning {
        delta.reasoning.get_or_insert_default().push_str(&reasoning);
    }
    delta.calls.extend(held.calls);
}
