//! Formats that vLLM reads with its one table-driven engine: reasoning, calls or both.
//!
//! A stream's calls are sent as the JSON that its parameters make so far, and only as much of it as more text cannot
//! change; those of a whole response, all at once.

mod arguments;
pub(super) mod grammar;
pub(super) mod grammars;
mod lexer;
mod machine;
mod scanner;
mod schema;
mod slots;

use std::sync::Arc;

pub(super) use grammar::{Grammar, Mark};
pub(super) use grammars::{MIMO, MISTRAL, MISTRAL_PLAIN, QWEN3, SEED_OSS, STEP3P5};
pub(super) use machine::Duty;

use super::{
    delta::{CallIds, Delta, ParsedCall},
    names::Function,
    vocabulary::Vocabulary,
};
use grammar::ParserState;
use machine::{Machine, MachineEvent};
use slots::CallSlots;

/// One reader of an answer.
#[derive(Debug)]
pub(super) struct EngineParser {
    grammar: &'static Grammar,
    machine: Machine,
    slots: CallSlots,
    drops_calls: bool,
    /// White space that only counts if text or no call follows, and text behind calls.
    deferred: String,
    deferred_reasoning: String,
    has_text: bool,
    pub(super) reasoning_ended: bool,
}

impl EngineParser {
    pub(super) fn new(grammar: &'static Grammar, vocabulary: &Vocabulary, duty: Duty) -> Self {
        Self {
            grammar,
            machine: Machine::new(grammar, vocabulary, duty),
            slots: CallSlots::new(grammar, Arc::default()),
            drops_calls: false,
            deferred: String::new(),
            deferred_reasoning: String::new(),
            has_text: false,
            reasoning_ended: !grammar.reasons(),
        }
    }

    pub(super) fn calling(mut self, functions: &Arc<[Function]>, drops_calls: bool) -> Self {
        self.slots = CallSlots::new(self.grammar, Arc::clone(functions));
        self.drops_calls = drops_calls;
        self
    }

    pub(super) fn reasoning_tokens(&self) -> usize {
        self.machine.reasoning_tokens
    }

    pub(super) fn push(&mut self, text: &str, ids: &[u32], made: &mut CallIds) -> Option<Delta> {
        let events = self.machine.push(text, ids);
        let delta = self.delta(events, false, made);
        self.trim(delta)
    }

    pub(super) fn finish(&mut self, made: &mut CallIds) -> Option<Delta> {
        let events = self.machine.finish();
        self.delta(events, true, made)
    }

    fn delta(&mut self, events: Vec<MachineEvent>, is_end: bool, made: &mut CallIds) -> Option<Delta> {
        if events.is_empty() && self.deferred.is_empty() {
            return None;
        }
        let carried = self.deferred.len();
        let (mut content, mut reasoning, mut has_call) = (String::new(), String::new(), false);
        let mut calls = Vec::new();
        for event in events {
            match event {
                MachineEvent::Text(text) if has_call => self.deferred.push_str(&text),
                MachineEvent::Text(text) => content.push_str(&text),
                MachineEvent::Reasoning(text) => reasoning.push_str(&text),
                MachineEvent::ReasoningEnd => self.reasoning_ended = true,
                _ if self.drops_calls => {}
                event => {
                    has_call = true;
                    self.slots.take(event, &mut calls, made);
                }
            }
        }
        let calls = slots::merged(calls);
        if !self.deferred.is_empty() && (!has_call || calls.is_empty()) {
            let after = self.deferred.split_off(carried);
            content = std::mem::take(&mut self.deferred) + &content + &after;
        }
        self.hold_blanks(&mut content, is_end);
        let [reasoning, content] = [reasoning, content].map(|text| Some(text).filter(|text| !text.is_empty()));
        let is_empty = content.is_none() && reasoning.is_none() && calls.is_empty();
        (!is_empty).then(|| Delta { content, reasoning, calls, ..Delta::default() })
    }

    /// White space before any text waits for what follows; calls swallow it.
    fn hold_blanks(&mut self, content: &mut String, is_end: bool) {
        if self.has_text || content.is_empty() {
            return;
        }
        if !content.trim().is_empty() {
            self.has_text = true;
        } else if !self.slots.is_empty() {
            content.clear();
        } else if !is_end {
            self.deferred = std::mem::take(content);
        }
    }

    /// Holds back white space at the end of the reasoning.
    fn trim(&mut self, mut delta: Option<Delta>) -> Option<Delta> {
        if !self.grammar.trims_reasoning {
            return delta;
        }
        let Some(reasoning) = delta.as_mut().and_then(|delta| delta.reasoning.take()) else {
            if self.reasoning_ended {
                self.deferred_reasoning.clear();
            }
            return delta;
        };
        let all = std::mem::take(&mut self.deferred_reasoning) + &reasoning;
        let kept = all.trim_end().len();
        self.deferred_reasoning = all.get(kept..).unwrap_or_default().to_owned();
        let reasoning = all.get(..kept).filter(|kept| !kept.is_empty()).map(str::to_owned);
        let delta = Delta { is_reasoning_null: reasoning.is_none(), reasoning, ..delta? };
        let is_empty = delta.reasoning.is_none() && delta.content.is_none() && delta.calls.is_empty();
        (!is_empty).then_some(delta)
    }

    /// A whole answer's reasoning and the rest, by its text alone.
    pub(super) fn split(mut self, text: &str) -> (Option<String>, Option<String>) {
        let mut events = self.machine.push(text, &[]);
        events.extend(self.machine.finish());
        let (mut reasoning, mut content) = (String::new(), String::new());
        for event in events {
            match event {
                MachineEvent::Reasoning(text) => reasoning.push_str(&text),
                MachineEvent::Text(text) => content.push_str(&text),
                _ => {}
            }
        }
        if self.grammar.trims_reasoning {
            reasoning.truncate(reasoning.trim_end().len());
        }
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        (some(reasoning), some(content))
    }

    /// The calls of a whole answer, and its text; `None` for the calls where it has none.
    pub(super) fn whole(mut self, text: &str) -> (Vec<ParsedCall>, Option<String>) {
        let mut events = self.machine.push(text, &[]);
        events.extend(self.machine.finish());
        let delta = self.delta(events, true, &mut CallIds::new(0));
        let calls = self.slots.calls();
        let mut content = delta.and_then(|delta| delta.content);
        if !calls.is_empty() {
            content = content.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        }
        (calls, content)
    }

    /// The ids behind the reasoning of the step that ended it.
    pub(super) fn content_ids(&self, vocabulary: &Vocabulary, ids: &[u32]) -> Vec<u32> {
        let end = self.grammar.text(Mark::ThinkEnd).and_then(|text| vocabulary.id(text));
        if let Some(at) = ids.iter().rposition(|id| Some(*id) == end) {
            return ids.get(at + 1..).unwrap_or_default().to_vec();
        }
        let (ends, bounds) = (ends(self.grammar, vocabulary), bounds(self.grammar, vocabulary));
        let turn = ids.iter().rposition(|id| bounds.contains(id)).map_or(0, |at| at + 1);
        let turn = ids.get(turn..).unwrap_or_default();
        turn.iter().position(|id| ends.contains(id)).and_then(|at| turn.get(at..)).unwrap_or(ids).to_vec()
    }

    /// Returns true if a prompt leaves the reasoning closed.
    pub(super) fn is_closed_by(grammar: &Grammar, vocabulary: &Vocabulary, prompt: &[u32]) -> bool {
        let (ends, bounds) = (ends(grammar, vocabulary), bounds(grammar, vocabulary));
        let start = grammar.text(Mark::ThinkStart).and_then(|text| vocabulary.id(text));
        // Where nothing marks reasoning, there is none to wait for.
        if !grammar.reasons() {
            return true;
        }
        let last = prompt.iter().rev().find(|id| ends.contains(id) || Some(**id) == start || bounds.contains(id));
        last.is_some_and(|id| ends.contains(id))
    }

    /// Returns whether the end of reasoning is no token of the vocabulary, so that only text shows it.
    pub(super) fn ends_in_text(grammar: &Grammar, vocabulary: &Vocabulary) -> bool {
        grammar.reasons() && !vocabulary.marks(grammar).0.iter().any(|(_, mark, _)| *mark == Mark::ThinkEnd)
    }

    /// Tokens of reasoning in a whole answer.
    pub(super) fn count(grammar: &'static Grammar, vocabulary: &Vocabulary, ids: &[u32]) -> usize {
        let mut machine = Machine::new(grammar, vocabulary, Duty::Counting);
        machine.push(&vocabulary.texts.of(ids).unwrap_or_default(), ids);
        machine.finish();
        machine.reasoning_tokens
    }
}

/// The tokens between turns.
fn bounds(grammar: &Grammar, vocabulary: &Vocabulary) -> Vec<u32> {
    grammar.turn_bounds.iter().filter_map(|token| vocabulary.id(token)).collect()
}

/// The tokens that end reasoning.
fn ends(grammar: &Grammar, vocabulary: &Vocabulary) -> Vec<u32> {
    let is_end =
        |mark: Mark| grammar.rule(ParserState::Reasoning, mark).is_some_and(|(next, _)| next != ParserState::Reasoning);
    let ends = grammar.literals.iter().filter(|literal| is_end(literal.mark));
    ends.filter_map(|literal| vocabulary.id(literal.text)).collect()
}
