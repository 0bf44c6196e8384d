//! Whether files fit together as one trace.

use std::path::{Path, PathBuf};

use super::TraceError;

/// Values that all files of one trace have to share, each with the first file that has it.
#[derive(Debug, Default)]
pub(super) struct Agreement(Vec<(&'static str, PathBuf, String)>);

impl Agreement {
    /// Adds the value of a file; refuses it where an earlier file has another one.
    pub(super) fn add(&mut self, path: &Path, field: &'static str, value: String) -> Result<(), TraceError> {
        match self.0.iter().find(|(known, ..)| *known == field) {
            Some((_, first, expected)) if *expected != value => Err(TraceError::Conflict {
                first: first.clone(),
                second: path.to_owned(),
                field,
                values: [expected.clone(), value],
            }),
            Some(_) => Ok(()),
            None => {
                self.0.push((field, path.to_owned(), value));
                Ok(())
            }
        }
    }
}
