//! A stream's parser: reasoning first, then tool calls, as the engine hands one to the other.

use super::{
    delta::{CallDelta, CallIds, Delta},
    names::{Parsing, ToolChoice},
    reasoning::{ReasoningParser, ReasoningRules, ReasoningStep},
    required,
    tools::{self, ToolCallParser},
    vocabulary::Vocabulary,
    whole::reads_calls,
};

/// The parser of one choice of a stream.
#[derive(Debug)]
pub struct StreamParser {
    vocabulary: Vocabulary,
    reasoning: Option<ReasoningParser>,
    is_reasoning: bool,
    tools: Option<ToolCallParser>,
    /// Calls come in the format of the tools' parser.
    reads_calls: bool,
    /// The table-driven engine parses all of it.
    is_engine: bool,
    choice: ToolChoice,
    /// Text behind the reasoning, where calls are JSON of no format.
    text: String,
    named: bool,
    /// The tools' parser found calls in the last step; `None` if it had nothing to parse.
    found_calls: Option<bool>,
    ids: CallIds,
}

impl StreamParser {
    /// A parser for the answer to a prompt.
    #[must_use]
    pub fn new(parsing: Parsing, vocabulary: &Vocabulary, prompt: &[u32], ids: CallIds) -> Self {
        let formats = parsing.formats;
        let rules = ReasoningRules::of(&parsing, vocabulary);
        let is_open = |rules: ReasoningRules| !rules.is_closed_by(vocabulary, prompt);
        let tools = formats.tools.map(|format| ToolCallParser::new(format, &parsing, vocabulary));
        Self {
            vocabulary: vocabulary.clone(),
            reasoning: rules.and_then(|rules| ReasoningParser::new(rules, vocabulary, is_open(rules))),
            is_reasoning: rules.is_some_and(is_open),
            is_engine: formats.is_engine(),
            ids: formats.tools.map_or(ids, |format| ids.of(format)),
            tools,
            reads_calls: reads_calls(&parsing),
            choice: parsing.choice,
            text: String::new(),
            named: false,
            found_calls: None,
        }
    }

    /// Returns true if the tools' parser found calls in the last step; `None` if it had nothing to parse, as in reasoning.
    #[must_use]
    pub fn found_calls(&self) -> Option<bool> {
        self.found_calls
    }

    /// Tokens of reasoning up to here.
    #[must_use]
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning.as_ref().map_or(0, |reasoning| reasoning.tokens(&self.vocabulary))
    }

    /// The delta of one step, where there is one. The last step ends what is open.
    pub fn push(&mut self, text: &str, ids: &[u32], is_last: bool) -> Option<Delta> {
        self.found_calls = None;
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.note(ids);
        }
        let mut delta = if self.is_reasoning { self.reason(text, ids) } else { self.answer(text, ids) };
        if is_last {
            if let (Some(tools), Some(last)) = (&self.tools, delta.as_mut().and_then(|delta| delta.calls.last_mut())) {
                last.arguments.get_or_insert_default().push_str(&tools.remaining());
            }
            if let Some(reasoning) = self.reasoning.as_mut().filter(|_| self.is_reasoning) {
                tools::join(&mut delta, reasoning.finish(&mut self.ids));
            }
            if let Some(tools) = &mut self.tools {
                tools::join(&mut delta, tools.finish(&mut self.ids));
            }
        }
        delta
    }

    fn reason(&mut self, text: &str, ids: &[u32]) -> Option<Delta> {
        let step = self.reasoning.as_mut().map(|reasoning| reasoning.push(text, ids, &self.vocabulary, &mut self.ids));
        let ReasoningStep { mut delta, rest, held } = step.unwrap_or_default();
        let Some(rest) = rest else { return delta };
        self.is_reasoning = false;
        let mut content = delta.as_ref().and_then(|delta| delta.content.clone()).unwrap_or_default();
        content.push_str(&held);
        if self.tools.is_none() {
            if self.is_engine && !content.is_empty() {
                delta.get_or_insert_default().content = Some(content);
            }
            return delta;
        }
        let reasoning = delta.and_then(|delta| delta.reasoning).filter(|reasoning| !reasoning.is_empty());
        match (self.answer(&content, &rest), reasoning) {
            (None, None) => None,
            (answer, None) => answer,
            (answer, reasoning) => Some(Delta { reasoning, ..answer.unwrap_or_default() }),
        }
    }

    fn answer(&mut self, text: &str, ids: &[u32]) -> Option<Delta> {
        let Some(tools) = &mut self.tools else { return Some(Delta::text(text)) };
        if self.reads_calls {
            let delta = tools.push(text, ids, &mut self.ids);
            self.found_calls = Some(delta.as_ref().is_some_and(|delta| !delta.calls.is_empty()));
            return if self.choice == ToolChoice::None { Some(Delta { calls: Vec::new(), ..delta? }) } else { delta };
        }
        match &self.choice {
            ToolChoice::None | ToolChoice::Auto => Some(text).filter(|text| !text.is_empty()).map(Delta::text),
            ToolChoice::Required => {
                // What the table-driven engine reads is not kept, so steps are looked at one by one.
                if self.is_engine {
                    self.text.clear();
                }
                let before = self.text.len();
                self.text.push_str(text);
                required::stream(before, &self.text, &mut self.ids)
            }
            ToolChoice::Named(name) => {
                let arguments = Some(text.to_owned());
                let known = std::mem::replace(&mut self.named, true);
                let call = if known {
                    CallDelta { arguments, ..CallDelta::default() }
                } else {
                    CallDelta { id: Some(self.ids.make()), name: Some(name.clone()), arguments, ..CallDelta::default() }
                };
                Some(Delta { calls: vec![call], ..Delta::default() })
            }
        }
    }
}
