//! The state machine: text and ids of a step in, events out.

use super::{
    grammar::{Emit, Grammar, Mark, ParserState},
    lexer::Lexer,
    scanner::{Piece, Scanner},
};
use crate::parsers::vocabulary::Vocabulary;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MachineEvent {
    Text(String),
    Reasoning(String),
    ReasoningEnd,
    CallStart,
    /// More of the last call's name.
    Name(String),
    Argument(String),
    CallEnd,
}

/// Part of a format that is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::parsers) enum Duty {
    /// Reasoning; marks of calls stay text, though they end it.
    Reasoning,
    Calls,
    /// Calls where nothing reads reasoning: its marks stay text.
    CallsAlone,
    /// Both, for the number of tokens of reasoning.
    Counting,
}

#[derive(Debug)]
pub(super) struct Machine {
    grammar: &'static Grammar,
    duty: Duty,
    scanner: Scanner,
    lexer: Lexer,
    pub(super) state: ParserState,
    /// A step had ids: then text does not stand for tokens.
    knows_ids: bool,
    pub(super) reasoning_tokens: usize,
    object: HeldObject,
}

/// An object on its way; braces that may be its last are held back.
#[derive(Debug, Default)]
struct HeldObject {
    held: String,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Machine {
    pub(super) fn new(grammar: &'static Grammar, vocabulary: &Vocabulary, duty: Duty) -> Self {
        let (ids, literals) = vocabulary.marks(grammar);
        let state = match duty {
            Duty::Reasoning | Duty::Counting => grammar.initial,
            Duty::Calls | Duty::CallsAlone => ParserState::Content,
        };
        Self {
            grammar,
            duty,
            scanner: Scanner::new(ids, vocabulary.texts.clone()),
            lexer: Lexer::new(literals),
            state,
            knows_ids: false,
            reasoning_tokens: 0,
            object: HeldObject::default(),
        }
    }

    pub(super) fn push(&mut self, text: &str, ids: &[u32]) -> Vec<MachineEvent> {
        self.knows_ids |= !ids.is_empty();
        let pieces = self.scanner.scan(text, ids);
        let mut events = Vec::new();
        self.pieces(pieces, &mut events);
        events
    }

    pub(super) fn finish(&mut self) -> Vec<MachineEvent> {
        let mut events = Vec::new();
        let pieces = self.scanner.flush();
        self.pieces(pieces, &mut events);
        let held = self.lexer.flush();
        self.lexemes(held, &mut events);
        self.flush_object(&mut events);
        if self.state.is_in_call() {
            events.push(MachineEvent::CallEnd);
        } else if self.state == ParserState::Reasoning {
            events.push(MachineEvent::ReasoningEnd);
        }
        self.state = ParserState::Content;
        events
    }

    fn pieces(&mut self, pieces: Vec<Piece>, events: &mut Vec<MachineEvent>) {
        for piece in pieces {
            match piece {
                Piece::Text(text, tokens) => {
                    self.reasoning_tokens += if self.state == ParserState::Reasoning { tokens } else { 0 };
                    let lexemes = self.lexer.push(&text);
                    self.lexemes(lexemes, events);
                }
                Piece::Mark(mark, spelled) => {
                    let held = self.lexer.flush();
                    self.lexemes(held, events);
                    self.mark(mark, &spelled, events);
                }
            }
        }
    }

    fn lexemes(&mut self, lexemes: Vec<Piece>, events: &mut Vec<MachineEvent>) {
        for lexeme in lexemes {
            match lexeme {
                Piece::Text(text, _) => self.put(&text, events),
                Piece::Mark(mark, text) if self.knows_ids && self.scanner.has_token(mark) => {
                    self.put(&text, events);
                }
                Piece::Mark(mark, text) => self.mark(mark, &text, events),
            }
        }
    }

    fn mark(&mut self, mark: Mark, text: &str, events: &mut Vec<MachineEvent>) {
        let Some((next, emits)) = self.grammar.rule(self.state, mark) else {
            if mark != Mark::Drop {
                self.put(text, events);
            }
            return;
        };
        let is_reasoning = matches!(mark, Mark::ThinkStart | Mark::ThinkEnd);
        if self.duty == Duty::CallsAlone && is_reasoning {
            return self.put(text, events);
        }
        if self.duty == Duty::Reasoning && next.is_in_call() {
            if emits.contains(&Emit::ReasoningEnd) {
                self.state = ParserState::Content;
                events.push(MachineEvent::ReasoningEnd);
            }
            return self.put(text, events);
        }
        self.go(next, emits, text, events);
    }

    fn go(&mut self, next: ParserState, emits: &[Emit], text: &str, events: &mut Vec<MachineEvent>) {
        if self.state == ParserState::Arguments && next != ParserState::Arguments {
            self.flush_object(events);
        }
        self.state = next;
        events.extend(emits.iter().map(|emit| match emit {
            Emit::ReasoningEnd => MachineEvent::ReasoningEnd,
            Emit::CallStart => MachineEvent::CallStart,
            Emit::CallEnd => MachineEvent::CallEnd,
            Emit::Argument => MachineEvent::Argument(text.to_owned()),
        }));
        if next == ParserState::Arguments {
            self.object = HeldObject { held: std::mem::take(&mut self.object.held), ..HeldObject::default() };
        }
    }

    /// Text that is no mark, where the answer is.
    fn put(&mut self, text: &str, events: &mut Vec<MachineEvent>) {
        let text = text.to_owned();
        match self.state {
            ParserState::Content => events.push(MachineEvent::Text(text)),
            ParserState::Reasoning => events.push(MachineEvent::Reasoning(text)),
            ParserState::Name => events.push(MachineEvent::Name(text)),
            ParserState::Arguments => match self.grammar.arguments {
                super::grammar::Arguments::Parameters | super::grammar::Arguments::VerbatimParameters => {
                    events.push(MachineEvent::Argument(text))
                }
                super::grammar::Arguments::Object => {
                    let pieces = text.chars().filter_map(|c| self.object.push(c));
                    events.extend(pieces.map(MachineEvent::Argument));
                }
            },
            ParserState::Preamble | ParserState::Between => {}
        }
    }

    fn flush_object(&mut self, events: &mut Vec<MachineEvent>) {
        let held = std::mem::take(&mut self.object.held);
        if !held.is_empty() {
            events.push(MachineEvent::Argument(held));
        }
    }
}

impl HeldObject {
    /// Takes a character; returns the text to send with it.
    fn push(&mut self, c: char) -> Option<String> {
        self.held.push(c);
        if std::mem::take(&mut self.escaped) {
        } else if self.in_string {
            self.escaped = c == '\\';
            self.in_string = c != '"';
        } else {
            match c {
                '"' => self.in_string = true,
                '{' | '[' => self.depth += 1,
                '}' | ']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return None;
                    }
                }
                _ => {}
            }
        }
        Some(std::mem::take(&mut self.held))
    }
}
