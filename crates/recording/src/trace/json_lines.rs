//! Lines of other tools' JSON Lines files, packed or not.

use std::{path::Path, sync::Arc};

use super::{
    TraceError,
    source::{Fetched, Lines},
};

/// Reader of lines that are not blank.
pub struct JsonLines(Lines);

impl JsonLines {
    /// Opens a file that ends in .jsonl, .json or .gz.
    ///
    /// # Errors
    /// When it cannot be opened, or its name and content disagree.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        Lines::open(path, Arc::default()).map(Self)
    }

    /// The next line with its number, from 1; `None` at the end.
    ///
    /// # Errors
    /// Damage, or an I/O error.
    pub fn next_line(&mut self) -> Result<Option<(u64, &[u8])>, TraceError> {
        Ok(match self.0.fetch(0)? {
            Fetched::Whole | Fetched::Tail => Some((self.0.number(), self.0.line())),
            Fetched::CutHere | Fetched::Over => None,
        })
    }
}
