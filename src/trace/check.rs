//! Every defect of a file, not only the first.

use std::path::Path;

use super::read::Reader;
use super::{Finding, TraceError, Warning};

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checked {
    /// Every defect of every line, in file order; none for a sound file.
    pub findings: Vec<Finding>,
    /// What is worth knowing and no defect, such as that the file was cut.
    pub warnings: Vec<Warning>,
}

/// Reads a whole trace and lists everything that is wrong with it. A cut file is sound, with a warning.
///
/// # Errors
/// When the file cannot be read to its end: it cannot be opened, its name and content disagree, or its gzip is damaged.
pub fn check(path: &Path) -> Result<Checked, TraceError> {
    let mut reader = Reader::open_lenient(path)?;
    let mut findings = Vec::new();
    while reader.advance()?.is_some() || !reader.is_settled() {
        findings.extend(reader.defects.drain(..).map(|(line, defect)| defect.at(line)));
    }
    Ok(Checked { findings, warnings: reader.warnings().to_vec() })
}
