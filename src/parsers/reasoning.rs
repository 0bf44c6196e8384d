//! Reasoning as Qwen3 marks it, told by token ids in a stream and by text in a whole answer.

use super::{
    lexer::{Lexeme, Lexer},
    names::ReasoningFormat,
};
use crate::prompt::Tokenizer;

const THINK: &str = "<think>";
const END: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";

/// Other tags whose beginnings are held back too.
const FURTHER: [&str; 4] = ["<function=", "</function>", "<parameter=", "</parameter>"];

/// Whether the chat template lets the model think (`enable_thinking`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Thinking {
    /// It does.
    #[default]
    On,
    /// It does not, and nothing is reasoning.
    Off,
}

/// What a token or a tag means for reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Start,
    End,
    Call,
    CallEnd,
    /// A special token, which leaves no text.
    Special,
}

/// The tokens that mean something to a parser.
#[derive(Debug, Clone, Default)]
pub struct Vocabulary {
    tokens: Vec<(u32, String, Role)>,
    turn_bounds: Vec<u32>,
}

impl Vocabulary {
    /// The tokens of a tokenizer that mark reasoning in a format, and its special ones.
    #[must_use]
    pub fn of(tokenizer: &Tokenizer, format: ReasoningFormat) -> Self {
        let ReasoningFormat::Qwen3 = format;
        Self::new(|token| tokenizer.token_id(token), &tokenizer.special_tokens())
    }

    /// A vocabulary of which only the id of a token is known, and the special tokens.
    pub fn new(id_of: impl Fn(&str) -> Option<u32>, special: &[(u32, String)]) -> Self {
        let marks = [(THINK, Role::Start), (END, Role::End), (CALL, Role::Call), (CALL_END, Role::CallEnd)];
        let mut tokens: Vec<_> =
            marks.iter().filter_map(|(text, role)| Some((id_of(text)?, (*text).to_owned(), *role))).collect();
        let is_mark = |text: &str| marks.iter().any(|(mark, _)| *mark == text);
        let special = special.iter().filter(|(_, text)| !is_mark(text));
        tokens.extend(special.map(|(id, text)| (*id, text.clone(), Role::Special)));
        let turn_bounds = ["<|im_start|>", "<|im_end|>"].iter().filter_map(|token| id_of(token)).collect();
        Self { tokens, turn_bounds }
    }

    fn by_id(&self, id: u32) -> Option<(&str, Role)> {
        self.tokens.iter().find(|(known, _, _)| *known == id).map(|(_, text, role)| (text.as_str(), *role))
    }

    fn literals(&self) -> Vec<String> {
        let special = self.tokens.iter().filter(|(_, _, role)| *role == Role::Special).map(|(_, text, _)| text.clone());
        [THINK, END, CALL, CALL_END].into_iter().chain(FURTHER).map(str::to_owned).chain(special).collect()
    }

    /// Whether a prompt leaves the reasoning closed.
    #[must_use]
    pub(super) fn is_closed_by(&self, prompt: &[u32]) -> bool {
        for id in prompt.iter().rev() {
            match self.by_id(*id) {
                Some((_, Role::End | Role::Call)) => return true,
                Some((_, Role::Start)) => return false,
                _ if self.turn_bounds.contains(id) => return false,
                _ => {}
            }
        }
        false
    }

    /// Tokens of reasoning in a whole answer.
    pub(super) fn count(&self, ids: &[u32]) -> usize {
        let is_end = |id: &&u32| matches!(self.by_id(**id), Some((_, Role::End | Role::Call)));
        let end = ids.iter().position(|id| is_end(&id)).unwrap_or(ids.len());
        ids.iter().take(end).filter(|id| self.by_id(**id).is_none()).count()
    }

    /// A whole answer's reasoning and the rest, by its text alone.
    pub(super) fn split(&self, text: &str) -> (Option<String>, Option<String>) {
        let mut lexer = Lexer::new(self.literals());
        let mut lexemes = lexer.push(text);
        lexemes.push(Lexeme::Text(lexer.flush()));
        let (mut reasoning, mut content) = (String::new(), String::new());
        let mut is_open = true;
        for lexeme in lexemes {
            let text = match lexeme {
                Lexeme::Text(text) => text,
                Lexeme::Literal(tag) => match tag.as_str() {
                    THINK if is_open => continue,
                    END => {
                        is_open = false;
                        continue;
                    }
                    CALL => {
                        is_open = false;
                        tag
                    }
                    _ if self.tokens.iter().any(|(_, text, role)| *role == Role::Special && *text == tag) => continue,
                    _ => tag,
                },
            };
            if is_open { reasoning.push_str(&text) } else { content.push_str(&text) }
        }
        (some(reasoning), some(content))
    }
}

fn some(text: String) -> Option<String> {
    if text.is_empty() { None } else { Some(text) }
}

/// The reasoning of an answer on its way.
#[derive(Debug)]
pub(super) struct Reasoning {
    vocabulary: Vocabulary,
    lexer: Lexer,
    /// Text whose marks have not come yet, and the marks.
    pending: String,
    awaited: Vec<u32>,
    is_open: bool,
    tokens: usize,
}

/// What a step adds.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) reasoning: String,
    /// Text after the reasoning's end.
    pub(super) content: String,
    pub(super) ended: bool,
}

impl Reasoning {
    pub(super) fn new(vocabulary: Vocabulary) -> Self {
        let lexer = Lexer::new(vocabulary.literals());
        Self { vocabulary, lexer, pending: String::new(), awaited: Vec::new(), is_open: true, tokens: 0 }
    }

    /// Tokens of reasoning up to here.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Takes one step's text and ids; they begin where the reasoning has not ended yet.
    pub(super) fn push(&mut self, text: &str, ids: &[u32]) -> Told {
        let mut told = Told::default();
        let text = std::mem::take(&mut self.pending) + text;
        let mut rest = text.as_str();
        let mut plain = 0;
        let marks: Vec<u32> = std::mem::take(&mut self.awaited).into_iter().chain(ids.iter().copied()).collect();
        for (at, id) in marks.iter().enumerate() {
            let Some((mark, role)) = self.vocabulary.by_id(*id).map(|(mark, role)| (mark.to_owned(), role)) else {
                plain += 1;
                continue;
            };
            let Some((before, after)) = rest.split_once(&mark) else {
                if role != Role::Special {
                    self.pending = rest.to_owned();
                    self.awaited = marks.get(at..).unwrap_or_default().to_vec();
                    return told;
                }
                plain = 0;
                continue;
            };
            self.text(before, plain, &mut told);
            self.mark(&mark, role, &mut told);
            (rest, plain) = (after, 0);
        }
        self.text(rest, plain, &mut told);
        if told.ended {
            told.content.push_str(&self.lexer.flush());
        }
        told
    }

    /// What was held back, at the end of an answer that never ended its reasoning.
    pub(super) fn flush(&mut self) -> String {
        self.lexer.flush()
    }

    fn text(&mut self, text: &str, tokens: usize, told: &mut Told) {
        if text.is_empty() {
            return;
        }
        self.tokens += if self.is_open { tokens } else { 0 };
        for lexeme in self.lexer.push(text) {
            let (Lexeme::Text(text) | Lexeme::Literal(text)) = lexeme;
            self.put(&text, told);
        }
    }

    fn mark(&mut self, mark: &str, role: Role, told: &mut Told) {
        let held = self.lexer.flush();
        self.put(&held, told);
        match role {
            Role::Special => {}
            Role::Start if self.is_open => {}
            Role::End => {
                self.is_open = false;
                told.ended = true;
            }
            Role::Call => {
                self.is_open = false;
                told.ended = true;
                self.put(mark, told);
            }
            Role::Start | Role::CallEnd => self.put(mark, told),
        }
    }

    fn put(&self, text: &str, told: &mut Told) {
        if self.is_open { told.reasoning.push_str(text) } else { told.content.push_str(text) }
    }
}
