//! Text that is shown as one line, the beginnings of texts, and counts with their nouns: a line feed in what was recorded must not begin another one, which could pass for the program's own.

use std::{borrow::Cow, fmt::Display};

/// Shows line feeds and carriage returns as `\n` and `\r`.
#[must_use]
pub fn one_line(text: &str) -> Cow<'_, str> {
    if text.contains(['\n', '\r']) {
        Cow::Owned(text.replace('\n', "\\n").replace('\r', "\\r"))
    } else {
        Cow::Borrowed(text)
    }
}

/// The first characters of a text, at most so many, with `…` where there are more.
#[must_use]
pub fn clipped(text: &str, most: usize) -> String {
    let short: String = text.chars().take(most).collect();
    if short.len() < text.len() { short + "…" } else { short }
}

/// A count with its noun, which takes an `s` in the plural: `1 record`, `2 records`.
#[must_use]
pub fn counted<N: Copy + Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_several_lines_is_shown_as_one() {
        assert_eq!(one_line("m\r\nno secrets found"), "m\\r\\nno secrets found");
        assert!(matches!(one_line("a\tb"), Cow::Borrowed(_)));
    }

    #[test]
    fn one_is_singular() {
        assert_eq!((counted(1_u64, "record").as_str(), counted(0_usize, "record").as_str()), ("1 record", "0 records"));
    }

    #[test]
    fn a_longer_text_is_clipped_between_characters() {
        assert_eq!((clipped("día", 3).as_str(), clipped("día", 2).as_str()), ("día", "dí…"));
    }
}
