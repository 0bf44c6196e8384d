//! The text of one choice: what is held back for stop strings, and where a stop string ends it.
//!
//! Rules, as the engine has them: while stop strings are asked for and are not to be part of the output, the last
//! characters, one less than the longest stop string has, wait until the choice is finished. Of several stop strings the
//! one that is complete first in the text counts; at a tie the one that was listed first. A stop string counts only in
//! text of tokens after `min_tokens`.

use std::sync::Arc;

use crate::generate::stop::{StopProgress, StopStrings};
use api::StopReason;

/// One step's worth of a choice; used again for the next one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ChoiceStep {
    /// New text; may be empty.
    pub(crate) text: String,
    /// New tokens, one that ended the choice included.
    pub(crate) ids: Vec<u32>,
    /// Its end, on the last step.
    pub(crate) finish: Option<(&'static str, StopReason)>,
}

/// Text that was made and not yet sent.
#[derive(Debug)]
pub(crate) struct OutputText {
    stop: Arc<StopStrings>,
    progress: StopProgress,
    /// True where a stop string stays in the text.
    keeps_stop: bool,
    min_tokens: usize,
    held_chars: usize,
    /// What was not sent, behind what was sent of late.
    text: String,
    /// Bytes of `text` that were sent.
    sent: usize,
    /// Characters of `text` that were not.
    unsent_chars: usize,
    tokens: usize,
}

/// A stop string that was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stopped {
    pub(crate) by: String,
    /// Tokens of this step up to the one that completed it.
    pub(crate) kept: usize,
}

impl OutputText {
    pub(crate) fn new(stop: Arc<StopStrings>, keeps_stop: bool, min_tokens: u32) -> Self {
        let held_chars = if keeps_stop { 0 } else { stop.longest.saturating_sub(1) };
        let min_tokens = usize::try_from(min_tokens).unwrap_or(usize::MAX);
        let (progress, text) = (StopProgress::default(), String::new());
        Self { stop, progress, keeps_stop, min_tokens, held_chars, text, sent: 0, unsent_chars: 0, tokens: 0 }
    }

    /// Checks whether it looks at all: where it does not, text goes out as it comes.
    pub(crate) fn looks(&self) -> bool {
        !self.stop.is_empty()
    }

    /// Takes the texts of one step's tokens, one each, and looks for a stop string that they complete.
    pub(crate) fn push(&mut self, texts: &[String]) -> Option<Stopped> {
        for (at, text) in texts.iter().enumerate() {
            self.tokens += 1;
            let before = self.text.len();
            self.text.push_str(text);
            let Some((by, length)) = self.first_stop(text) else {
                self.unsent_chars += text.chars().count();
                continue;
            };
            let end = before + length;
            self.text.truncate(if self.keeps_stop { end } else { end.saturating_sub(by.len()) });
            return Some(Stopped { by: by.as_ref().to_owned(), kept: at + 1 });
        }
        None
    }

    /// The stop string that a token's text completes first, with the bytes of that text up to its end.
    fn first_stop(&mut self, text: &str) -> Option<(Arc<str>, usize)> {
        let counts = self.tokens > self.min_tokens;
        for (at, byte) in text.bytes().enumerate() {
            let found = self.stop.next(&mut self.progress, byte).filter(|_| counts);
            if let Some(found) = found {
                return Some((Arc::clone(found), at + 1));
            }
        }
        None
    }

    /// The text that may go out now.
    pub(crate) fn release(&mut self) -> String {
        let free = self.unsent_chars.saturating_sub(self.held_chars);
        let unsent = self.text.get(self.sent..).unwrap_or_default();
        let end = unsent.char_indices().nth(free).map_or(unsent.len(), |(at, _)| at);
        let out = unsent.get(..end).unwrap_or_default().to_owned();
        self.unsent_chars -= free;
        self.sent += end;
        // What was sent goes when it is half of all, so that each byte moves once on average.
        if self.sent > self.text.len() / 2 {
            self.text.drain(..self.sent);
            self.sent = 0;
        }
        out
    }

    /// All that is left, at the end of the choice.
    pub(crate) fn finish(&mut self) -> String {
        let out = self.text.get(self.sent..).unwrap_or_default().to_owned();
        (self.text, self.sent, self.unsent_chars) = (String::new(), 0, 0);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(stop: &[&str], keeps_stop: bool, min_tokens: u32) -> OutputText {
        let stop: Vec<String> = stop.iter().map(|stop| (*stop).to_owned()).collect();
        OutputText::new(StopStrings::new(&stop).into(), keeps_stop, min_tokens)
    }

    fn run(stop: &[&str], keeps_stop: bool, min_tokens: u32, tokens: &[&str]) -> (Vec<String>, Option<Stopped>) {
        let mut output = of(stop, keeps_stop, min_tokens);
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
        let mut output = of(&["xyz", "y"], false, 0);
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
