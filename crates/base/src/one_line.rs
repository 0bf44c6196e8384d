//! Text that is shown as one line, and the beginnings of texts: a line feed in what was recorded must not begin another one, which could pass for the program's own.

use std::borrow::Cow;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_several_lines_is_shown_as_one() {
        assert_eq!(one_line("m\r\nno secrets found"), "m\\r\\nno secrets found");
        assert!(matches!(one_line("a\tb"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_longer_text_is_clipped_between_characters() {
        assert_eq!((clipped("día", 3).as_str(), clipped("día", 2).as_str()), ("día", "dí…"));
    }
}
