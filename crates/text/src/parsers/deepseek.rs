//! Tool calls as DeepSeek V3 and V3.1 write them, between tokens of their own.
//!
//! The engine counts the tokens and looks for the parts in the text; arguments of more than one line are cut at the
//! first one's end, and what it makes of a call's last step depends on how the step is cut. That is kept.

use super::{
    delta::{CallDelta, CallIds, Delta, ParsedCall},
    vocabulary::{CALLS_END, CALLS_START, END, START, Vocabulary},
};

const SEPARATOR: &str = "<｜tool▁sep｜>";
const FENCE: &str = "```json\n";

/// Format of the calls: the older or the newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum CallFormat {
    /// Type, name and a fenced block.
    #[default]
    Fenced,
    /// Name and arguments.
    Bare,
}

/// A call as far as its text goes.
#[derive(Debug, Clone, Default)]
struct CallText {
    name: String,
    arguments: Option<String>,
}

/// The calls of an answer on its way.
#[derive(Debug, Default)]
pub(super) struct Deepseek {
    style: CallFormat,
    calls_start: Option<u32>,
    start: Option<u32>,
    end: Option<u32>,
    text: String,
    is_calling: bool,
    starts: usize,
    ends: usize,
    /// Calls that were begun.
    begun: usize,
    named: bool,
    known: Vec<CallText>,
    sent: Vec<String>,
}

impl Deepseek {
    pub(super) fn new(style: CallFormat, vocabulary: &Vocabulary) -> Self {
        Self {
            style,
            calls_start: vocabulary.id(CALLS_START),
            start: vocabulary.id(START),
            end: vocabulary.id(END),
            ..Self::default()
        }
    }

    /// Takes a step; returns a delta where there is something to send.
    pub(super) fn push(&mut self, text: &str, ids: &[u32], made: &mut CallIds) -> Option<Delta> {
        self.text.push_str(text);
        let count = |token: Option<u32>| ids.iter().filter(|id| Some(**id) == token).count();
        let (starts, ends) = (self.starts, self.ends);
        (self.starts, self.ends) = (starts + count(self.start), ends + count(self.end));
        self.is_calling |= count(self.calls_start) > 0;
        if !self.is_calling {
            return Some(Delta::text(text));
        }
        let text = text.replace(CALLS_START, "").replace(CALLS_END, "");
        let closes = text.contains(END);
        if self.starts == self.ends && ends == self.ends && !closes {
            return Some(Delta::text(text));
        }
        let full = if closes { format!("{}{text}", self.text) } else { String::new() };
        let text = if closes { text.split(END).next().unwrap_or_default().trim_end() } else { text.as_str() };
        let last = || self.text.rsplit(START).next().unwrap_or_default().to_owned();
        let portion = if self.starts > self.ends && self.starts > starts {
            let portion = (ids.len() > 1).then(last);
            self.begun += 1;
            self.named = false;
            self.sent.push(String::new());
            portion
        } else if self.starts > self.ends && self.starts == starts {
            Some(last())
        } else if self.starts == self.ends {
            match self.close(text) {
                Some(delta) => return delta,
                // The engine puts the step behind the text that has it already.
                None if closes => full
                    .rsplit(START)
                    .next()
                    .and_then(|call| call.split(END).next())
                    .map(|call| call.trim_end().to_owned()),
                None => None,
            }
        } else {
            return Some(Delta::text(text.replace(START, "")));
        };
        self.emit(portion.as_deref(), closes.then_some(text), made)
    }

    /// A call's last step, where its arguments have begun.
    fn close(&mut self, text: &str) -> Option<Option<Delta>> {
        let at = self.begun.checked_sub(1).or(self.known.len().checked_sub(1));
        let Some(known) = at.and_then(|at| self.known.get(at)) else { return Some(None) };
        if known.arguments.as_deref().unwrap_or_default().is_empty() {
            return None;
        }
        let Some(end) = text.rfind("\"}") else { return Some(None) };
        let rest = format!("{}\"}}", text.get(..end).unwrap_or_default());
        let index = self.begun.checked_sub(1)?;
        if let Some(sent) = self.sent.get_mut(index) {
            sent.push_str(&rest);
        }
        Some(Some(arguments(index, rest)))
    }

    fn emit(&mut self, portion: Option<&str>, after: Option<&str>, made: &mut CallIds) -> Option<Delta> {
        let parts = match portion.filter(|portion| !portion.is_empty()) {
            Some(portion) => Some(self.style.parts(portion)?),
            None => None,
        };
        let index = self.begun.checked_sub(1)?;
        if !self.named {
            let name = parts.map(|parts| parts.name).filter(|name| !name.is_empty())?;
            self.named = true;
            let call = CallDelta { index, id: Some(made.make()), name: Some(name), ..CallDelta::default() };
            return Some(Delta { calls: vec![call], ..Delta::default() });
        }
        if portion.is_none() {
            return after.map(Delta::text);
        }
        if self.known.len() <= index {
            self.known.push(CallText::default());
        }
        let new = parts.clone().and_then(|parts| parts.arguments).unwrap_or_default();
        let old = self.known.get(index)?.arguments.clone().unwrap_or_default();
        let fresh = new.strip_prefix(old.as_str()).filter(|fresh| !fresh.is_empty()).map(str::to_owned);
        if let (Some(_), Some(sent)) = (&fresh, self.sent.get_mut(index)) {
            *sent = new;
        }
        let parts = parts.unwrap_or_default();
        if index + 1 == self.known.len() {
            self.known.pop();
        }
        self.known.push(parts);
        fresh.map(|fresh| arguments(index, fresh))
    }

    /// Returns the arguments of the last call that were read and not sent.
    pub(super) fn remaining(&self) -> String {
        let Some(last) = self.known.last() else { return String::new() };
        let expected = last.arguments.as_deref().unwrap_or("{}");
        let sent = self.sent.get(self.known.len() - 1).map_or("", String::as_str);
        expected.strip_prefix(sent).unwrap_or_default().to_owned()
    }
}

fn arguments(index: usize, arguments: String) -> Delta {
    let call = CallDelta { index, arguments: Some(arguments), ..CallDelta::default() };
    Delta { calls: vec![call], ..Delta::default() }
}

impl CallFormat {
    /// The parts of a call that may not be all there; `None` before its name is.
    fn parts(self, call: &str) -> Option<CallText> {
        let (line, rest) = call.split_once('\n').map_or((call, None), |(line, rest)| (line, Some(rest)));
        let (before, after) = line.rsplit_once(SEPARATOR)?;
        match self {
            Self::Bare => Some(CallText { name: before.to_owned(), arguments: Some(after.to_owned()) }),
            Self::Fenced => {
                let body = rest?.strip_prefix(FENCE).and_then(|body| body.split('\n').next());
                let arguments = body.map(|body| body.trim_end_matches('`')).unwrap_or_default();
                Some(CallText { name: after.to_owned(), arguments: Some(arguments.to_owned()) })
            }
        }
    }

    /// The first complete call of a text: its type, name and arguments, and the text behind it.
    fn first(self, text: &str) -> Option<(&str, ParsedCall, &str)> {
        text.match_indices(START).find_map(|(at, _)| {
            let inside = text.get(at + START.len()..)?;
            let (line, rest) = inside.split_once('\n').map_or((inside, ""), |(line, rest)| (line, rest));
            match self {
                Self::Bare => {
                    let (name, after) = line.split_once(SEPARATOR)?;
                    let (arguments, _) = after.split_once(END)?;
                    let call = ParsedCall { name: name.to_owned(), arguments: arguments.to_owned() };
                    let end = name.len() + SEPARATOR.len() + arguments.len() + END.len();
                    Some(("function", call, inside.get(end..)?))
                }
                Self::Fenced => {
                    let (kind, name) = line.rsplit_once(SEPARATOR)?;
                    let (arguments, after) = rest.strip_prefix(FENCE)?.split_once('\n')?;
                    let after = after.strip_prefix("```")?.strip_prefix(END)?;
                    Some((kind, ParsedCall { name: name.to_owned(), arguments: arguments.to_owned() }, after))
                }
            }
        })
    }

    /// The calls of a whole answer, and its text before them; `None` where it has none. A call of another type than
    /// `function` makes all of it text.
    pub(super) fn whole(self, text: &str) -> Option<(Vec<ParsedCall>, Option<String>)> {
        let (content, _) = text.split_once(CALLS_START)?;
        let mut calls = Vec::new();
        let mut rest = text;
        while let Some((kind, call, after)) = self.first(rest) {
            if kind != "function" {
                return None;
            }
            calls.push(call);
            rest = after;
        }
        Some((calls, Some(content.to_owned()).filter(|content| !content.is_empty())))
    }
}
