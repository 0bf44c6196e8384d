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
    #[error("{}:{line}: {message}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What, and what to do.
        message: String,
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
        Self::Wrong { path: path.to_owned(), line: error.line, message: error.message }
    }
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

impl From<YamlError> for Wrong {
    fn from(error: YamlError) -> Self {
        Self { line: error.line, message: error.message }
    }
}
