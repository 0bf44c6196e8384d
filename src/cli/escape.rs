//! Control characters in what is printed: they are shown (`\u{1b}`), so that recorded text cannot command a terminal.
//!
//! Limits: line feeds and tabs stay, and so do characters that are only invisible.

use std::{
    borrow::Cow,
    io::{self, Write},
};

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
pub(in crate::cli) fn text(text: &str) -> Cow<'_, str> {
    replace(text, |shown, char| shown.extend(char.escape_unicode()))
}

/// Shows control characters in the strings of JSON as `\u001b`, which stands for the same string.
pub(in crate::cli) fn json(json: &str) -> Cow<'_, str> {
    replace(json, |shown, char| shown.push_str(&format!("\\u{:04x}", u32::from(char))))
}

/// Shows control characters, but keeps the colours that are between `\x1b[` and `m`.
fn coloured(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut pieces = text.split('\x1b');
    shown.push_str(&self::text(pieces.next().unwrap_or_default()));
    for piece in pieces {
        let code = piece.strip_prefix('[').and_then(|rest| rest.split_once('m'));
        let is_colour = code.is_some_and(|(code, _)| code.bytes().all(|byte| byte.is_ascii_digit() || byte == b';'));
        shown.push_str(if is_colour { "\x1b" } else { "\\u{1b}" });
        shown.push_str(&self::text(piece));
    }
    shown
}

#[derive(Debug, Clone, Copy)]
pub(in crate::cli) enum Lines {
    Plain,
    /// Text whose own escape characters were replaced before colours were added.
    Coloured,
    Json,
}

/// A writer of whole log lines, each in one write.
#[derive(Debug)]
pub(in crate::cli) struct LogWriter<W> {
    pub(in crate::cli) output: W,
    pub(in crate::cli) lines: Lines,
}

impl<W: Write> Write for LogWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(bytes);
        match self.lines {
            Lines::Plain => self.output.write_all(text(&line).as_bytes())?,
            Lines::Coloured => self.output.write_all(coloured(&line).as_bytes())?,
            Lines::Json => self.output.write_all(json(&line).as_bytes())?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\x1b]0;owned\x07\r\u{9b}2J\u{202e}b\u{2066}\u{7f}\u{8}\u{200f}\u{2028}é\n\tz";

    #[test]
    fn what_commands_a_terminal_is_shown() {
        let shown =
            r"a\u{1b}]0;owned\u{7}\u{d}\u{9b}2J\u{202e}b\u{2066}\u{7f}\u{8}\u{200f}\u{2028}é".to_owned() + "\n\tz";
        assert_eq!(text(HOSTILE), shown);
        assert!(matches!(text("plain\n\té 你"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_stays_the_same_json() {
        let value = serde_json::json!({"text": HOSTILE});
        let printed = serde_json::to_string_pretty(&value).unwrap();
        let shown = json(&printed);
        assert!(printed.contains(is_control) && !shown.contains(is_control), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }

    #[test]
    fn log_lines_keep_colours_and_nothing_else() {
        let logged = |lines, line: &str| {
            let mut writer = LogWriter { output: Vec::new(), lines };
            writer.write_all(line.as_bytes()).unwrap();
            String::from_utf8(writer.output).unwrap()
        };
        let line = "\x1b[33m WARN\x1b[0m \x1b[2J\x1b[31\u{202e}m\r\x1b\n";
        let shown = "\x1b[33m WARN\x1b[0m \\u{1b}[2J\\u{1b}[31\\u{202e}m\\u{d}\\u{1b}\n";
        assert_eq!(logged(Lines::Coloured, line), shown);
        assert_eq!(logged(Lines::Plain, "\x1b[33mW\n"), "\\u{1b}[33mW\n");
        assert_eq!(logged(Lines::Json, "{\"a\":\"\u{9b}\"}\n"), "{\"a\":\"\\u009b\"}\n");
    }
}
