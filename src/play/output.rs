//! The text of one choice: what is held back for stop strings, and where a stop string ends it.
//!
//! Rules, as the engine has them: while stop strings are asked for and are not to be part of the output, the last
//! characters, one less than the longest stop string has, wait until the choice is finished. Of several stop strings the
//! one that is complete first in the text counts; at a tie the one that was listed first. A stop string counts only in
//! text of tokens after `min_tokens`.

/// Text that was made and not yet sent.
#[derive(Debug)]
pub(super) struct OutputText {
    stop: Vec<String>,
    /// True where a stop string stays in the text.
    keeps_stop: bool,
    min_tokens: usize,
    held_chars: usize,
    text: String,
    /// Bytes of `text` that were sent.
    sent: usize,
    tokens: usize,
}

/// A stop string that was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stopped {
    /// The stop string.
    pub(super) by: String,
    /// Tokens of this step up to the one that completed it.
    pub(super) kept: usize,
}

impl OutputText {
    pub(super) fn new(stop: Vec<String>, keeps_stop: bool, min_tokens: u32) -> Self {
        let longest = stop.iter().map(|stop| stop.chars().count()).max().unwrap_or(0);
        let held_chars = if keeps_stop { 0 } else { longest.saturating_sub(1) };
        let min_tokens = usize::try_from(min_tokens).unwrap_or(usize::MAX);
        Self { stop, keeps_stop, min_tokens, held_chars, text: String::new(), sent: 0, tokens: 0 }
    }

    /// Checks whether it looks at all: where it does not, text goes out as it comes.
    pub(super) fn looks(&self) -> bool {
        !self.stop.is_empty()
    }

    /// Takes the texts of one step's tokens, one each, and looks for a stop string that they complete.
    pub(super) fn push(&mut self, texts: &[String]) -> Option<Stopped> {
        let before = self.tokens;
        let mut bounds = vec![self.text.len()];
        for text in texts {
            self.text.push_str(text);
            bounds.push(self.text.len());
        }
        self.tokens += texts.len();
        if self.stop.is_empty() || self.tokens <= self.min_tokens {
            return None;
        }
        let checked_from = bounds.get(self.min_tokens.saturating_sub(before)).copied().unwrap_or(self.text.len());
        let (by, start) = self.first_stop(checked_from)?;
        let end = start + by.len();
        let kept = bounds.iter().skip(1).take_while(|bound| **bound < end).count() + 1;
        self.text.truncate(if self.keeps_stop { end } else { start });
        Some(Stopped { by, kept: kept.min(texts.len()) })
    }

    /// The stop string that is complete first, looked for where text from byte `from` on takes part, with its start.
    fn first_stop(&self, from: usize) -> Option<(String, usize)> {
        let fresh = self.text.get(from..)?.chars().count();
        if fresh == 0 {
            return None;
        }
        let mut first: Option<(&String, usize)> = None;
        for stop in &self.stop {
            let back = fresh + stop.chars().count() - 1;
            let begin = self.text.char_indices().rev().take(back).last().map_or(self.text.len(), |(at, _)| at);
            let Some(found) = self.text.get(begin..).and_then(|tail| tail.find(stop.as_str())) else { continue };
            let start = begin + found;
            if first.is_none_or(|(other, at)| start + stop.len() < at + other.len()) {
                first = Some((stop, start));
            }
        }
        first.map(|(stop, start)| (stop.clone(), start))
    }

    /// The text that may go out now.
    pub(super) fn release(&mut self) -> String {
        if self.held_chars == 0 {
            return self.finish();
        }
        let end = self.text.char_indices().rev().nth(self.held_chars - 1).map_or(0, |(at, _)| at);
        if end <= self.sent {
            return String::new();
        }
        let out = self.text.get(self.sent..end).unwrap_or_default().to_owned();
        self.sent = end;
        out
    }

    /// All that is left, at the end of the choice.
    pub(super) fn finish(&mut self) -> String {
        if self.stop.is_empty() {
            return std::mem::take(&mut self.text);
        }
        let out = self.text.get(self.sent..).unwrap_or_default().to_owned();
        self.sent = self.text.len();
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stop: &[&str], keeps_stop: bool, min_tokens: u32, tokens: &[&str]) -> (Vec<String>, Option<Stopped>) {
        let mut output = OutputText::new(stop.iter().map(|stop| (*stop).to_owned()).collect(), keeps_stop, min_tokens);
        let mut deltas = Vec::new();
        for (at, token) in tokens.iter().enumerate() {
            let stopped = output.push(&[(*token).to_owned()]);
            let last = stopped.is_some() || at + 1 == tokens.len();
            deltas.push(if last { output.finish() } else { output.release() });
            if stopped.is_some() {
                return (deltas, stopped);
            }
        }
        (deltas, None)
    }

    #[test]
    fn text_lags_by_the_stop_strings_length() {
        let (deltas, stopped) = run(&["friend"], false, 0, &["Hi", " there", " friend", "."]);
        assert_eq!(deltas, ["", "Hi ", "there "]);
        assert_eq!(stopped.unwrap(), Stopped { by: "friend".to_owned(), kept: 1 });
    }

    #[test]
    fn an_included_stop_string_holds_nothing_back() {
        let (deltas, stopped) = run(&["ta"], true, 0, &["a", " postage", "x"]);
        assert_eq!(deltas, ["a", " posta"]);
        assert!(stopped.is_some());
    }

    #[test]
    fn a_stop_string_may_straddle_tokens_and_waits_for_min_tokens() {
        let (deltas, stopped) = run(&["bc"], false, 0, &["ab", "cd"]);
        assert_eq!((deltas.concat().as_str(), stopped.is_some()), ("a", true));
        let (deltas, stopped) = run(&["b"], false, 2, &["b", "b", "b", "c"]);
        assert_eq!((deltas.concat().as_str(), stopped.is_some()), ("bb", true));
    }

    #[test]
    fn the_stop_string_that_is_complete_first_counts_and_later_tokens_are_dropped() {
        let mut output = OutputText::new(vec!["xyz".to_owned(), "y".to_owned()], false, 0);
        let stopped = output.push(&["wx".to_owned(), "y".to_owned(), "z".to_owned()]);
        assert_eq!(stopped, Some(Stopped { by: "y".to_owned(), kept: 2 }));
        assert_eq!(output.finish(), "wx");
    }

    #[test]
    fn characters_are_counted_not_bytes() {
        let (deltas, stopped) = run(&["日本"], false, 0, &["é日", "é", "日", "本"]);
        assert_eq!(deltas, ["é", "日", "é", ""]);
        assert!(stopped.is_some());
    }
}
