//! Errors and warnings of trace files.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use base::one_line::{clipped, counted};
use serde::{Serialize, Serializer};

/// Error of reading or writing a trace. The message names the file and, if there is one, the line.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be opened, read or written.
    #[error("{path}: cannot {doing}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Operation: `open`, `create`, `read`, `unpack`, `write`.
        doing: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A line that no record is as long as.
    #[error("{path}:{line}: is longer than 256 MiB; this is not a trace", path = path.display())]
    LongLine {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
    },
    /// The file's name does not show which format it holds.
    #[error("{}: {}", .0.display(), of_suffix(.0))]
    Suffix(PathBuf),
    /// The name is that of gzip, the content is not.
    #[error("{}: the name ends in .gz, but the content is not gzip; rename it to end in .jsonl, or compress it", .0.display())]
    NotGzip(PathBuf),
    /// The content is gzip, the name is not.
    #[error("{}: the content is gzip, but the name does not show it; rename it to end in .jsonl.gz, or unpack it", .0.display())]
    UnexpectedGzip(PathBuf),
    /// The gzip data is damaged (not merely cut short).
    #[error("{path}:{line}: the gzip data is damaged here ({source}); {readable} before it can be read: unpack what is left with `gunzip -c` into a .jsonl file", path = path.display(), readable = counted(*records, "record"))]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The line that could not be read.
        line: u64,
        /// Complete records before it.
        records: u64,
        /// The decompressor's answer.
        source: io::Error,
    },
    /// A line breaks a rule of the format.
    #[error("{path}:{finding}", path = path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The first defect of the line.
        finding: Finding,
    },
    /// So many lines break a rule that it is hardly a trace.
    #[error("{path}: more than {most} lines hold no sound record; the first is line {finding}; `inspect check` lists them", path = path.display())]
    TooManyBadLines {
        /// The file.
        path: PathBuf,
        /// As many are read over.
        most: u64,
        /// The first defect.
        finding: Finding,
    },
    /// A pipe or a device, which may never end.
    #[error("{}: is not a regular file; copy it to one, or pipe it in as `-`", .0.display())]
    NoFile(PathBuf),
    /// The file to be created exists.
    #[error("{}: exists already; choose another name", .0.display())]
    Exists(PathBuf),
    /// Another program writes the file.
    #[error("{}: another program is writing to it; choose another file", .0.display())]
    InUse(PathBuf),
    /// A directory without traces.
    #[error("{}: no file in this directory ends in .jsonl or .jsonl.gz; name a trace, or a directory of traces", .0.display())]
    NoTraces(PathBuf),
    /// Two files that cannot be one trace.
    #[error(
        "{first} and {second} do not belong to one trace: their {field} differs ({was} and {is}); read them separately",
        first = first.display(), second = second.display(), was = values[0], is = values[1]
    )]
    Conflict {
        /// A file.
        first: PathBuf,
        /// One that does not fit to it.
        second: PathBuf,
        /// The meta field that differs.
        field: &'static str,
        /// Its values in both.
        values: [String; 2],
    },
    /// The file to be appended to was recorded with other block hashes.
    #[error("{path}: cannot append: its {field} differs from that of the new capture; write to a new file", path = path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The meta field that differs.
        field: &'static str,
    },
}

/// What is wrong with a name that is none of a trace.
fn of_suffix(path: &Path) -> &'static str {
    if path.extension().is_some_and(|suffix| suffix.eq_ignore_ascii_case("csv")) {
        return "CSV is neither read nor written; the name of a trace ends in .jsonl, .json or .gz";
    }
    "the name of a trace ends in .jsonl, .json or .gz; rename the file, or pipe it in as `-`"
}

/// Characters of a defect that are kept: the library repeats what it did not expect, of any length.
const MOST_SHOWN: usize = 2000;

/// One defect of one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Line number, from 1.
    pub line: u64,
    /// The field that is wrong; `None` when the line as a whole is.
    pub field: Option<String>,
    /// Problem and remedy.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) => write!(f, "{}: {field}: {}", self.line, self.text),
            None => write!(f, "{}: {}", self.line, self.text),
        }
    }
}

/// Bad lines that are kept; the others are counted.
const NAMED_BAD_LINES: usize = 10;

/// Lines that break a rule of the format, where the others are read all the same: how many, and the first defect of the first ones.
///
/// See docs/decisions/0010-one-bad-record-does-not-cost-a-trace.md.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct BadLines {
    /// Number of bad lines.
    pub count: u64,
    /// The first ten.
    pub first: Vec<Finding>,
}

impl BadLines {
    /// Returns true if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds the defect of one more line.
    pub fn note(&mut self, finding: Finding) {
        self.count += 1;
        if self.first.len() < NAMED_BAD_LINES {
            self.first.push(finding);
        }
    }
}

/// A defect before its line is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Defect {
    pub(super) field: Option<&'static str>,
    pub(super) text: String,
}

impl Defect {
    pub(super) fn line(text: impl Into<String>) -> Self {
        Self { field: None, text: text.into() }
    }

    pub(super) fn field(field: &'static str, text: impl Into<String>) -> Self {
        Self { field: Some(field), text: text.into() }
    }

    pub(super) fn at(self, line: u64) -> Finding {
        Finding { line, field: self.field.map(str::to_owned), text: clipped(&self.text, MOST_SHOWN) }
    }
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field {
            Some(field) => write!(f, "{field}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

/// Something a reader should know about a trace that was read all the same. It is serialized as its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// The file ends in the middle of a line or of the gzip data.
    Cut {
        /// Complete records that were kept.
        records: u64,
        /// The line that is incomplete.
        line: u64,
    },
    /// A packed capture of ours without its end marker: its recorder was killed, or is still at it.
    NoEnd {
        /// Records that were kept.
        records: u64,
    },
    /// Written by a newer version of this program.
    NewerFormat {
        /// The file's format.
        format: u32,
    },
    /// Prompts that held a secret have no hashes, by which requests would find their records.
    Unhashed {
        /// Number of such records.
        records: u64,
    },
    /// A capture went on in several files, and some between this one and the one before are not there.
    MissingParts {
        /// The first that is missing, counted from 1.
        first: u64,
        /// The last one.
        last: u64,
    },
}

impl Warning {
    /// Returns true if records of the capture are certainly missing.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Cut { .. } | Self::MissingParts { .. })
    }
}

impl Serialize for Warning {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut { records, line } => {
                write!(f, "the file was cut at line {line}; kept {} before it", counted(*records, "complete record"))
            }
            Self::NoEnd { records } => {
                write!(
                    f,
                    "the capture was not closed: its recorder was killed or still writes; kept {}",
                    counted(*records, "complete record")
                )
            }
            Self::Unhashed { records } => {
                write!(
                    f,
                    "no prompt hashes of {}, whose prompts held a secret: no request is found by its prompt there",
                    counted(*records, "record")
                )
            }
            Self::MissingParts { first, last } if first == last => {
                write!(f, "part {first} of the capture is missing before it")
            }
            Self::MissingParts { first, last } => {
                write!(f, "parts {first} to {last} of the capture are missing before it")
            }
            Self::NewerFormat { format } => {
                write!(f, "the file has format {format}, newer than {}; keys unknown here are ignored", super::FORMAT)
            }
        }
    }
}
