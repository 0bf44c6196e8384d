//! A stream's parser: reasoning first, then tool calls, as the engine hands one to the other.

use super::{
    delta::{CallDelta, CallIds, Content, Delta},
    hermes::Hermes,
    names::{Parsing, ToolFormat},
    reasoning::{Reasoning, Thinking, Told, Vocabulary},
};

/// Whether tools are called, as the request says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// Not at all: the text stays as it is.
    #[default]
    None,
    /// As the model likes.
    Auto,
    /// This function, and all text is its arguments.
    Named(String),
}

/// Whether a step is the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finished {
    /// There is more to come.
    No,
    /// It is the last.
    Yes,
}

/// The parser of one choice of a stream.
#[derive(Debug)]
pub struct StreamParser {
    reasoning: Option<Reasoning>,
    is_reasoning: bool,
    tools: Option<Hermes>,
    choice: ToolChoice,
    named: bool,
    ids: CallIds,
}

impl StreamParser {
    /// A parser for the answer to a prompt.
    #[must_use]
    pub fn new(parsing: Parsing, vocabulary: &Vocabulary, prompt: &[u32], ids: CallIds) -> Self {
        let Parsing { formats, thinking, choice } = parsing;
        let reasoning = formats.reasoning.map(|_| Reasoning::new(vocabulary.clone()));
        let is_reasoning = reasoning.is_some() && thinking == Thinking::On && !vocabulary.is_closed_by(prompt);
        let tools = formats.tools.map(|ToolFormat::Hermes| Hermes::default());
        Self { reasoning, is_reasoning, tools, choice, named: false, ids }
    }

    /// Tokens of reasoning up to here.
    #[must_use]
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning.as_ref().map_or(0, Reasoning::tokens)
    }

    /// The delta of one step, where there is one.
    pub fn push(&mut self, text: &str, ids: &[u32], finished: Finished) -> Option<Delta> {
        let mut delta = if self.is_reasoning { self.reason(text, ids) } else { self.answer(text) };
        if finished == Finished::Yes {
            if let Some(last) = delta.as_mut().and_then(|delta| delta.calls.last_mut()) {
                last.arguments.get_or_insert_default();
            }
            if self.is_reasoning {
                self.flush(&mut delta);
            }
        }
        delta
    }

    fn reason(&mut self, text: &str, ids: &[u32]) -> Option<Delta> {
        let told = self.reasoning.as_mut().map(|reasoning| reasoning.push(text, ids)).unwrap_or_default();
        let Told { reasoning, content, ended } = told;
        let reasoning = Some(reasoning).filter(|reasoning| !reasoning.is_empty());
        self.is_reasoning = !ended;
        let answer = if !ended {
            None
        } else if self.tools.is_some() {
            self.answer(&content)
        } else {
            Some(Delta::text(content)).filter(|delta| delta.content != Content::Text(String::new()))
        };
        match (answer, reasoning) {
            (None, None) => None,
            (answer, reasoning) => Some(Delta { reasoning, ..answer.unwrap_or_default() }),
        }
    }

    fn answer(&mut self, text: &str) -> Option<Delta> {
        let Some(tools) = &mut self.tools else { return Some(Delta::text(text)) };
        match &self.choice {
            ToolChoice::None => Some(text).filter(|text| !text.is_empty()).map(Delta::text),
            ToolChoice::Auto => tools.push(text, &mut self.ids),
            ToolChoice::Named(name) => {
                let arguments = Some(text.to_owned());
                let known = std::mem::replace(&mut self.named, true);
                let call = if known {
                    CallDelta { arguments, ..CallDelta::default() }
                } else {
                    CallDelta { index: 0, id: Some(self.ids.make()), name: Some(name.clone()), arguments }
                };
                Some(Delta { calls: vec![call], ..Delta::default() })
            }
        }
    }

    fn flush(&mut self, delta: &mut Option<Delta>) {
        let held = self.reasoning.as_mut().map(Reasoning::flush).unwrap_or_default();
        if !held.is_empty() {
            delta.get_or_insert_default().reasoning.get_or_insert_default().push_str(&held);
        }
    }
}
