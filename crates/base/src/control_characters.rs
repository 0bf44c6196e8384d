//! Control characters in what is shown: recorded text must not command a terminal, nor change the order of the words around it on a page.
//!
//! Limits: line feeds and tabs stay, and so do characters that are only invisible.

use std::borrow::Cow;

/// Returns true for what a terminal obeys or what changes the order of the characters around it: C0 (but for line feed and tab), DEL, C1,
/// line separators and bidi controls.
fn is_control(char: char) -> bool {
    match char {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        _ => char.is_control(),
    }
}

/// Replaces each control character by what `show` makes of it.
fn replace(text: &str, show: impl Fn(&mut String, char)) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 64);
    for char in text.chars() {
        if is_control(char) { show(&mut shown, char) } else { shown.push(char) }
    }
    Cow::Owned(shown)
}

/// Shows control characters as `\u{1b}`.
#[must_use]
pub fn shown(text: &str) -> Cow<'_, str> {
    replace(text, |shown, char| shown.extend(char.escape_unicode()))
}

/// Shows control characters in the strings of JSON as `\u001b`, which stands for the same string.
#[must_use]
pub fn shown_in_json(json: &str) -> Cow<'_, str> {
    replace(json, |shown, char| shown.push_str(&format!("\\u{:04x}", u32::from(char))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\x1b]0;owned\x07\r\u{9b}2J\u{202e}b\u{2066}\u{7f}\u{8}\u{200f}\u{2028}é\n\tz";

    #[test]
    fn what_commands_a_terminal_is_shown() {
        let expected =
            r"a\u{1b}]0;owned\u{7}\u{d}\u{9b}2J\u{202e}b\u{2066}\u{7f}\u{8}\u{200f}\u{2028}é".to_owned() + "\n\tz";
        assert_eq!(shown(HOSTILE), expected);
        assert!(matches!(shown("plain\n\té 你"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_stays_the_same_json() {
        // Within a string of JSON line feeds and other C0 characters are escaped already.
        let printed = "{\"text\":\"a\u{9b}2J\u{202e}b\u{7f}\u{2028}é\"}";
        let expected = r#"{"text":"a\u009b2J\u202eb\u007f\u2028é"}"#;
        assert_eq!(shown_in_json(printed), expected);
    }
}
