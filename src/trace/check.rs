//! Every defect of a file, not only the first.

use std::path::Path;

use super::read::Reader;
use super::{Finding, TraceError};

/// Reads a whole trace and lists every defect of every line, in file order; empty for a sound file. A cut file is sound.
///
/// # Errors
/// When the file cannot be read to its end: it cannot be opened, its name and content disagree, or its gzip is damaged.
pub fn check(path: &Path) -> Result<Vec<Finding>, TraceError> {
    let mut reader = Reader::open_lenient(path)?;
    let mut findings = Vec::new();
    while reader.advance()?.is_some() || !reader.is_settled() {
        findings.extend(reader.defects.drain(..).map(|(line, defect)| defect.at(line)));
    }
    Ok(findings)
}
