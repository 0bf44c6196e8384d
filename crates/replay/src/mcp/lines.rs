//! Lines of a stream of bytes that comes in parts, each bounded in length.

/// One line, without its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadLine {
    /// A whole line.
    Line(Vec<u8>),
    /// A line that is too long, or was cut; its bytes are gone.
    Lost,
}

/// Cuts bytes into lines. A byte order mark at the beginning, carriage returns before line feeds, and empty lines are left out.
#[derive(Debug)]
pub struct LineSplitter {
    line: Vec<u8>,
    most: usize,
    is_lost: bool,
    is_begun: bool,
}

impl LineSplitter {
    /// Lines of so many bytes at most.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { line: Vec::new(), most, is_lost: false, is_begun: false }
    }

    /// Takes bytes and gives the lines that end in them.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<ReadLine> {
        let mut read_lines = Vec::new();
        let mut rest = bytes;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, after) = rest.split_at(end);
            self.add(line);
            read_lines.extend(self.finish());
            rest = after.get(1..).unwrap_or_default();
        }
        self.add(rest);
        read_lines
    }

    /// Notes that bytes are missing here: the line that they were in is lost.
    pub fn lose(&mut self) {
        self.is_lost = true;
        self.line = Vec::new();
    }

    fn add(&mut self, bytes: &[u8]) {
        if self.is_lost {
            return;
        }
        if self.line.len() + bytes.len() > self.most {
            self.lose();
        } else {
            self.line.extend_from_slice(bytes);
        }
    }

    /// Gives the line that ends here, as the stream does.
    pub fn finish(&mut self) -> Option<ReadLine> {
        let is_first = !std::mem::replace(&mut self.is_begun, true);
        if std::mem::take(&mut self.is_lost) {
            return Some(ReadLine::Lost);
        }
        let mut line = std::mem::take(&mut self.line);
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        if is_first && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        (!line.trim_ascii().is_empty()).then_some(ReadLine::Line(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &[u8], size: usize) -> Vec<ReadLine> {
        let mut lines = LineSplitter::new(8);
        let mut read_lines: Vec<ReadLine> = text.chunks(size).flat_map(|bytes| lines.push(bytes)).collect();
        read_lines.extend(lines.finish());
        read_lines
    }

    #[test]
    fn lines_are_the_same_however_the_bytes_are_cut() {
        let text = b"\xef\xbb\xbf{}\r\n\n \n[1]\n123456789\n12345678\nhalf";
        let line = |text: &str| ReadLine::Line(text.as_bytes().to_vec());
        let expected = [line("{}"), line("[1]"), ReadLine::Lost, line("12345678"), line("half")];
        for size in 1..=text.len() {
            assert_eq!(cut(text, size), expected, "{size}");
        }
    }

    #[test]
    fn a_line_with_missing_bytes_is_lost() {
        let mut lines = LineSplitter::new(100);
        assert_eq!(lines.push(b"a\n{\"b"), [ReadLine::Line(b"a".to_vec())]);
        lines.lose();
        assert_eq!(lines.push(b"c\"}\nd\n"), [ReadLine::Lost, ReadLine::Line(b"d".to_vec())]);
        assert_eq!(lines.finish(), None);
    }
}
