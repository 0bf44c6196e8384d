//! Errors of reading and writing cassettes.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::yaml::YamlError;

/// Error of reading or writing a cassette.
#[derive(Debug, thiserror::Error)]
pub enum CassetteError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Somebody else records it.
    #[error("{} is being recorded by another program", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// A recording that was not finished is in the way.
    #[error(
        "{} holds the {records} records of a recording that was not finished: move it to {} to keep it, or delete it",
        partial.display(), path.display()
    )]
    Unfinished {
        /// The cassette.
        path: PathBuf,
        /// Path of the partial file.
        partial: PathBuf,
        /// Number of records in it.
        records: usize,
    },
    /// Somebody else changed it while it was recorded.
    #[error(
        "{} was changed while it was recorded: the recording is in {}, with what was there at the start; compare the two and keep one",
        path.display(), partial.display()
    )]
    Changed {
        /// The cassette.
        path: PathBuf,
        /// Path of the partial file.
        partial: PathBuf,
    },
    /// It is an object of a store, and would be written.
    #[error(
        "{}: cassettes are written to files only; write a file, and copy it and its sidecar (NAME.vcr) to the store",
        path.display()
    )]
    Object {
        /// Its URL, without secrets.
        path: PathBuf,
    },
    /// Something in it is wrong.
    #[error("{}:{line}: {message}{}", path.display(), listed(path, further))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What, and what to do.
        message: String,
        /// What else is wrong, with its lines.
        further: Vec<(usize, String)>,
    },
}

impl CassetteError {
    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Io { path, .. }
            | Self::Busy { path }
            | Self::Unfinished { path, .. }
            | Self::Changed { path, .. }
            | Self::Object { path }
            | Self::Wrong { path, .. } => path,
        }
    }

    pub(super) fn of(path: &Path, error: Wrong) -> Self {
        Self::of_all(path, vec![error])
    }

    /// One error of everything that is wrong.
    pub(super) fn of_all(path: &Path, errors: Vec<Wrong>) -> Self {
        let mut all = errors.into_iter().map(|Wrong { line, message }| (line, message));
        let (line, message) = all.next().unwrap_or_default();
        Self::Wrong { path: path.to_owned(), line, message, further: all.collect() }
    }
}

/// Formats further mistakes, each on a line of its own.
fn listed(path: &Path, further: &[(usize, String)]) -> String {
    further.iter().map(|(line, message)| format!("\n{}:{line}: {message}", path.display())).collect()
}

/// Something that is wrong in a file whose name is known further up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) line: usize,
    pub(super) message: String,
}

impl Wrong {
    pub(super) fn at(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

impl From<Wrong> for Vec<Wrong> {
    fn from(wrong: Wrong) -> Self {
        vec![wrong]
    }
}

impl From<YamlError> for Wrong {
    fn from(error: YamlError) -> Self {
        Self { line: error.line, message: error.message }
    }
}
