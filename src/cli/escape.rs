//! Control characters in what is printed and logged are [shown](crate::base::control_characters), so that recorded text cannot command a terminal.

use std::io::{self, Write};

pub(in crate::cli) use crate::base::control_characters::{shown as text, shown_in_json as json};

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
pub(in crate::cli) enum LineStyle {
    Plain,
    /// Text whose own escape characters were replaced before colours were added.
    Coloured,
    Json,
}

/// A writer of whole log lines, each in one write.
#[derive(Debug)]
pub(in crate::cli) struct LogWriter<W> {
    pub(in crate::cli) output: W,
    pub(in crate::cli) lines: LineStyle,
}

impl<W: Write> Write for LogWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(bytes);
        match self.lines {
            LineStyle::Plain => self.output.write_all(text(&line).as_bytes())?,
            LineStyle::Coloured => self.output.write_all(coloured(&line).as_bytes())?,
            LineStyle::Json => self.output.write_all(json(&line).as_bytes())?,
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

    #[test]
    fn log_lines_keep_colours_and_nothing_else() {
        let logged = |lines, line: &str| {
            let mut writer = LogWriter { output: Vec::new(), lines };
            writer.write_all(line.as_bytes()).unwrap();
            String::from_utf8(writer.output).unwrap()
        };
        let line = "\x1b[33m WARN\x1b[0m \x1b[2J\x1b[31\u{202e}m\r\x1b\n";
        let shown = "\x1b[33m WARN\x1b[0m \\u{1b}[2J\\u{1b}[31\\u{202e}m\\u{d}\\u{1b}\n";
        assert_eq!(logged(LineStyle::Coloured, line), shown);
        assert_eq!(logged(LineStyle::Plain, "\x1b[33mW\n"), "\\u{1b}[33mW\n");
        assert_eq!(logged(LineStyle::Json, "{\"a\":\"\u{9b}\"}\n"), "{\"a\":\"\\u009b\"}\n");
    }
}
