//! Separation of reasoning, by the table-driven engine or by the older rules of DeepSeek and Granite.

use super::{
    delta::{CallIds, Delta},
    engine::{Duty, EngineParser, Grammar, MIMO, MISTRAL, MISTRAL_PLAIN, QWEN3, SEED_OSS, STEP3P5},
    granite::{self, Granite},
    names::{Parsing, ReasoningFormat},
    vocabulary::Vocabulary,
};

/// Marks around the reasoning of a response, for generating one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningMarks {
    /// Before it; empty where answers begin with it.
    pub open: &'static str,
    /// Between it and what follows.
    pub close: &'static str,
    /// Reasoning may stand between the two.
    pub may_reason: bool,
}

/// The rules that separate reasoning from content.
#[derive(Debug, Clone, Copy)]
pub(super) enum ReasoningRules {
    Engine(&'static Grammar),
    Tags,
    Granite,
    Nothing,
}

impl ReasoningRules {
    /// The rules of a request; `None` where no reasoning is parsed.
    pub(super) fn of(parsing: &Parsing, vocabulary: &Vocabulary) -> Option<Self> {
        let may_think = |rules: Self| if parsing.thinks { rules } else { Self::Nothing };
        Some(match parsing.formats.reasoning? {
            ReasoningFormat::Qwen3 => may_think(Self::Engine(&QWEN3)),
            ReasoningFormat::Mimo => may_think(Self::Engine(&MIMO)),
            ReasoningFormat::Step3p5 => Self::Engine(&STEP3P5),
            ReasoningFormat::SeedOss => may_think(Self::Engine(&SEED_OSS)),
            ReasoningFormat::Mistral => Self::Engine(mistral(vocabulary)),
            ReasoningFormat::DeepseekR1 => Self::tags(vocabulary),
            ReasoningFormat::DeepseekV3 | ReasoningFormat::Holo2 => may_think(Self::tags(vocabulary)),
            ReasoningFormat::Granite => Self::Granite,
        })
    }

    /// Tags by their tokens. The engine does not start without these; here the tags' text counts then.
    fn tags(vocabulary: &Vocabulary) -> Self {
        if vocabulary.id(Tags::END).is_some() { Self::Tags } else { Self::Engine(&QWEN3) }
    }

    /// Returns the marks around reasoning; `None` if there is none.
    pub(super) fn marks(self, vocabulary: &Vocabulary, prompt: &[u32]) -> Option<ReasoningMarks> {
        let (open, close) = match self {
            Self::Engine(grammar) => grammar.reasoning_marks()?,
            Self::Tags if Tags::is_last(vocabulary, prompt, Tags::START) => ("", Tags::END),
            Self::Tags => (Tags::START, Tags::END),
            Self::Granite => granite::MARKS,
            Self::Nothing => return None,
        };
        Some(ReasoningMarks { open, close, may_reason: true })
    }

    /// Returns true if a response begins with reasoning without a mark before it.
    pub(super) fn begins_reasoning(self) -> bool {
        match self {
            Self::Engine(grammar) => grammar.reasoning_marks().is_some_and(|(open, _)| open.is_empty()),
            Self::Tags => true,
            Self::Granite | Self::Nothing => false,
        }
    }

    /// Returns true if a prompt leaves the reasoning closed.
    pub(super) fn is_closed_by(self, vocabulary: &Vocabulary, prompt: &[u32]) -> bool {
        match self {
            Self::Engine(grammar) => EngineParser::is_closed_by(grammar, vocabulary, prompt),
            Self::Tags => Tags::is_last(vocabulary, prompt, Tags::END),
            Self::Granite => false,
            Self::Nothing => true,
        }
    }

    /// A whole answer's reasoning and the rest, by its text alone.
    pub(super) fn split(self, vocabulary: &Vocabulary, text: &str) -> (Option<String>, Option<String>) {
        match self {
            Self::Engine(grammar) if grammar.reasons() => {
                EngineParser::new(grammar, vocabulary, Duty::Reasoning).split(text)
            }
            Self::Tags => {
                let text = text.split_once(Tags::START).map_or(text, |(_, inside)| inside);
                let Some((reasoning, content)) = text.split_once(Tags::END) else {
                    return (Some(text.to_owned()), None);
                };
                (Some(reasoning.to_owned()), Some(content.to_owned()).filter(|content| !content.is_empty()))
            }
            Self::Granite => granite::split(text),
            Self::Engine(_) | Self::Nothing => (None, Some(text.to_owned())),
        }
    }

    /// Tokens of reasoning in a whole answer.
    pub(super) fn count(self, vocabulary: &Vocabulary, ids: &[u32]) -> usize {
        match self {
            Self::Engine(grammar) => EngineParser::count(grammar, vocabulary, ids),
            Self::Tags => {
                let mut tags = Tags::new(vocabulary);
                tags.count(ids);
                tags.tokens
            }
            Self::Granite | Self::Nothing => 0,
        }
    }
}

/// Mistral's table for this tokenizer.
pub(super) fn mistral(vocabulary: &Vocabulary) -> &'static Grammar {
    if vocabulary.id("[THINK]").is_some() { &MISTRAL } else { &MISTRAL_PLAIN }
}

/// The reasoning of an answer on its way.
#[derive(Debug)]
pub(super) enum ReasoningParser {
    Engine(Box<EngineParser>),
    /// Ids of an answer without reasoning, of which the engine counts those that were some behind another prompt.
    Closed(&'static Grammar, Vec<u32>),
    Tags(Tags),
    Granite(Granite),
}

#[derive(Debug, Default)]
pub(super) struct ReasoningStep {
    pub(super) delta: Option<Delta>,
    /// The step's ids behind the reasoning, where it ended it.
    pub(super) rest: Option<Vec<u32>>,
    /// Text behind the reasoning that the delta has not.
    pub(super) held: String,
}

impl ReasoningParser {
    /// The parser of reasoning that a prompt leaves open, or not.
    pub(super) fn new(rules: ReasoningRules, vocabulary: &Vocabulary, is_open: bool) -> Option<Self> {
        match rules {
            ReasoningRules::Engine(grammar) if is_open => {
                Some(Self::Engine(Box::new(EngineParser::new(grammar, vocabulary, Duty::Reasoning))))
            }
            ReasoningRules::Engine(grammar) => Some(Self::Closed(grammar, Vec::new())),
            ReasoningRules::Tags => Some(Self::Tags(Tags::new(vocabulary))),
            ReasoningRules::Granite => Some(Self::Granite(Granite::default())),
            ReasoningRules::Nothing => None,
        }
    }

    /// Takes one step's text and ids; they begin where the reasoning has not ended yet.
    pub(super) fn push(
        &mut self,
        text: &str,
        ids: &[u32],
        vocabulary: &Vocabulary,
        made: &mut CallIds,
    ) -> ReasoningStep {
        match self {
            Self::Engine(engine) => {
                let delta = engine.push(text, ids, made);
                if !engine.reasoning_ended {
                    return ReasoningStep { delta, ..ReasoningStep::default() };
                }
                let held = engine.finish(made).and_then(|delta| delta.content).unwrap_or_default();
                ReasoningStep { delta, rest: Some(engine.content_ids(vocabulary, ids)), held }
            }
            Self::Tags(tags) => tags.push(text, ids),
            Self::Granite(granite) => ReasoningStep { delta: granite.push(text), ..ReasoningStep::default() },
            Self::Closed(..) => ReasoningStep::default(),
        }
    }

    /// Returns the text that was held back, at the end of a response that never ended its reasoning.
    pub(super) fn finish(&mut self, made: &mut CallIds) -> Option<Delta> {
        match self {
            Self::Engine(engine) => engine.finish(made),
            Self::Closed(..) | Self::Tags(_) | Self::Granite(_) => None,
        }
    }

    /// Takes note of ids, be they reasoning or not: old rules count on.
    pub(super) fn note(&mut self, ids: &[u32]) {
        match self {
            Self::Tags(tags) => tags.count(ids),
            Self::Closed(_, noted) => noted.extend(ids),
            Self::Engine(_) | Self::Granite(_) => {}
        }
    }

    pub(super) fn tokens(&self, vocabulary: &Vocabulary) -> usize {
        match self {
            Self::Engine(engine) => engine.reasoning_tokens(),
            Self::Closed(grammar, ids) => EngineParser::count(grammar, vocabulary, ids),
            Self::Tags(tags) => tags.tokens,
            Self::Granite(_) => 0,
        }
    }
}

/// `<think>…</think>` by the tokens' ids; what comes first is reasoning.
#[derive(Debug)]
pub(super) struct Tags {
    start: Option<u32>,
    end: Option<u32>,
    has_started: bool,
    tokens: usize,
    depth: usize,
}

impl Tags {
    const START: &'static str = "<think>";
    const END: &'static str = "</think>";

    /// Returns true if the last tag of a prompt is this one.
    fn is_last(vocabulary: &Vocabulary, prompt: &[u32], tag: &str) -> bool {
        let tags = [Self::START, Self::END].map(|tag| vocabulary.id(tag));
        let last = prompt.iter().copied().map(Some).rfind(|id| tags.contains(id));
        last.is_some_and(|id| id == vocabulary.id(tag))
    }

    fn new(vocabulary: &Vocabulary) -> Self {
        let [start, end] = [Self::START, Self::END].map(|tag| vocabulary.id(tag));
        Self { start, end, has_started: false, tokens: 0, depth: 0 }
    }

    /// Counts what stands between the tags.
    fn count(&mut self, ids: &[u32]) {
        for id in ids {
            if Some(*id) == self.start {
                self.depth += 1;
            } else if Some(*id) == self.end {
                self.depth = self.depth.saturating_sub(1);
            } else {
                self.tokens += usize::from(self.depth > 0);
            }
        }
    }

    fn push(&mut self, text: &str, ids: &[u32]) -> ReasoningStep {
        let has = |token: Option<u32>| token.is_some_and(|token| ids.contains(&token));
        let (starts, ends) = (has(self.start), has(self.end));
        let delta = if ids.len() == 1 && (starts || ends) {
            None
        } else if ends {
            let from = if starts && !self.has_started { text.find(Self::START).map_or(6, |at| at + 7) } else { 0 };
            Some(Self::ended(text, from))
        } else {
            Some(Delta { reasoning: Some(text.to_owned()), ..Delta::default() })
        };
        self.has_started |= starts;
        let behind = |at: usize| ids.get(at + 1..).filter(|rest| !rest.is_empty()).unwrap_or_default().to_vec();
        let rest = ids.iter().position(|id| Some(*id) == self.end).map(behind);
        ReasoningStep { delta, rest, held: String::new() }
    }

    /// The step that the end stands in. Where its text is missing, the engine cuts at the last character.
    fn ended(text: &str, from: usize) -> Delta {
        let chars = |range: std::ops::Range<usize>| -> String {
            text.chars().skip(range.start).take(range.end.saturating_sub(range.start)).collect()
        };
        let (reasoning, content) = match text.find(Self::END) {
            Some(at) => (
                text.get(from..at).unwrap_or_default().to_owned(),
                text.get(at + Self::END.len()..).unwrap_or_default().to_owned(),
            ),
            None => {
                let length = text.chars().count();
                (chars(from..length.saturating_sub(1)), chars(Self::END.len() - 1..length))
            }
        };
        let content = Some(content).filter(|content| !content.is_empty());
        Delta { is_content_null: content.is_none(), content, reasoning: Some(reasoning), ..Delta::default() }
    }
}
