//! Reasoning as Granite 3.2 marks it, by sentences of ordinary words. In streams the engine never takes it for ended, so
//! no calls are looked for behind it.

use super::delta::Delta;

const THINKS: [&str; 2] = ["Here's my thought process:", "Here is my thought process:"];
const ANSWERS: [&str; 2] = ["Here's my response:", "Here is my response:"];
const FIRST: &str = "Here";

/// Marks around reasoning. Streams omit the white space before the second one.
pub(super) const MARKS: (&str, &str) = ("Here is my thought process: ", "\nHere is my response: ");

/// A whole answer's reasoning and the rest.
pub(super) fn split(text: &str) -> (Option<String>, Option<String>) {
    let first = |text: &str, marks: [&'static str; 2]| -> Option<(usize, usize)> {
        marks.iter().filter_map(|mark| Some((text.find(mark)?, mark.len()))).min()
    };
    let found = first(text, THINKS).and_then(|(at, length)| {
        let inside = text.get(at + length..)?;
        let (end, length) = first(inside, ANSWERS)?;
        Some((inside.get(..end)?.to_owned(), inside.get(end + length..)?.to_owned()))
    });
    match found {
        None => (None, Some(text.to_owned())),
        Some((reasoning, content)) => (Some(reasoning), Some(content).filter(|content| !content.is_empty())),
    }
}

/// The reasoning of an answer on its way.
#[derive(Debug, Default)]
pub(super) struct Granite {
    text: Vec<char>,
}

/// Reasoning, and the content after it with the length of the mark between.
type Sections<'a> = (&'a [char], Option<(usize, &'a [char])>);

impl Granite {
    /// Takes more text; returns a delta where there is something to send.
    pub(super) fn push(&mut self, text: &str) -> Option<Delta> {
        let new: Vec<char> = text.chars().collect();
        self.text.extend(&new);
        let (reasoning, content) = match self.sections() {
            Some((reasoning, answer)) if !reasoning.is_empty() => match answer {
                Some((length, content)) if !content.is_empty() => self.both(&new, reasoning, length, content),
                _ => (self.reasoning(&new, reasoning), None),
            },
            _ => (None, self.content(&new)),
        };
        if reasoning.as_ref().is_none_or(String::is_empty) && content.as_ref().is_none_or(String::is_empty) {
            return None;
        }
        let (is_content_null, is_reasoning_null) = (content.is_none(), reasoning.is_none());
        Some(Delta { content, reasoning, is_content_null, is_reasoning_null, calls: Vec::new() })
    }

    fn sections(&self) -> Option<Sections<'_>> {
        let (mut chunk, mut start) = (0, None);
        for (at, _) in self.text.iter().enumerate().filter(|(_, c)| **c == ':') {
            let before = self.text.get(chunk..at).unwrap_or_default();
            match start {
                None if THINKS.iter().any(|mark| same(before, mark.strip_suffix(':').unwrap_or(mark))) => {
                    start = Some(at + 1);
                    chunk = at + 1;
                }
                None => {}
                Some(start) => {
                    let ends = |mark: &&&str| ends_with(before, mark.strip_suffix(':').unwrap_or(mark));
                    if let Some(mark) = ANSWERS.iter().find(ends) {
                        // One character before the sentence goes with it.
                        let end = at.saturating_sub(mark.len());
                        let reasoning = self.text.get(start..end).unwrap_or_default();
                        return Some((reasoning, Some((mark.len(), self.text.get(at + 1..).unwrap_or_default()))));
                    }
                }
            }
        }
        Some((self.text.get(start?..).unwrap_or_default(), None))
    }

    /// Text before any reasoning.
    fn content(&self, new: &[char]) -> Option<String> {
        let begins = |text: &[char]| THINKS.iter().any(|mark| starts_with(mark, text));
        if begins(&self.text) {
            return None;
        }
        let before = self.text.get(..self.text.len() - new.len()).unwrap_or_default();
        Some(if begins(before) { &self.text } else { new }.iter().collect())
    }

    /// Reasoning that may be ending.
    fn reasoning(&self, new: &[char], reasoning: &[char]) -> Option<String> {
        if ANSWERS.iter().any(|mark| ends_with(&self.text, mark)) {
            return None;
        }
        let may_end = |text: &[char]| ANSWERS.iter().any(|mark| starts_with(mark, text));
        let kept = if new.is_empty() { 0 } else { reasoning.len().saturating_sub(new.len()) };
        let before = reasoning.get(..kept).unwrap_or_default();
        let pending = rfind(before, FIRST).and_then(|at| before.get(at..)).filter(|tail| may_end(tail));
        let continued = rfind(before, FIRST).and_then(|at| reasoning.get(at..));
        if continued.is_some_and(may_end) {
            return None;
        }
        let fresh = rfind(new, FIRST).filter(|at| new.get(*at..).is_some_and(may_end));
        let sent = new.get(..fresh.unwrap_or(new.len())).unwrap_or_default();
        Some(pending.unwrap_or_default().iter().chain(sent).collect())
    }

    /// The step in which the answer begins, and those behind it.
    fn both(
        &self,
        new: &[char],
        reasoning: &[char],
        length: usize,
        content: &[char],
    ) -> (Option<String>, Option<String>) {
        let sent = new.get(new.len().saturating_sub(content.len())..).unwrap_or_default().iter().collect();
        let Some(end) = new.len().checked_sub(content.len() + length) else { return (None, Some(sent)) };
        let start = (reasoning.len() + length + content.len()).saturating_sub(1 + self.text.len() - new.len());
        (Some(new.get(start..end).unwrap_or_default().iter().collect()), Some(sent))
    }
}

fn same(text: &[char], mark: &str) -> bool {
    text.iter().copied().eq(mark.chars())
}

fn ends_with(text: &[char], mark: &str) -> bool {
    let from = text.len().saturating_sub(mark.len());
    text.get(from..).is_some_and(|tail| same(tail, mark))
}

/// Returns true if a mark begins with a text.
fn starts_with(mark: &str, text: &[char]) -> bool {
    let start: String = text.iter().collect();
    mark.starts_with(&start)
}

fn rfind(text: &[char], word: &str) -> Option<usize> {
    (0..text.len()).rev().find(|at| text.get(*at..*at + word.len()).is_some_and(|piece| same(piece, word)))
}
