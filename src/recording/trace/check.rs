//! Every defect of a file, not only the first.

use std::path::Path;
use std::sync::Arc;

use super::source::Lines;
use super::walk::Walk;
use super::{Finding, Record, TraceError, Warning};

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checked {
    /// Every defect of every line, in file order; none for a sound file.
    pub findings: Vec<Finding>,
    /// Notes that are no defects, such as that the file was cut.
    pub warnings: Vec<Warning>,
}

/// Reads a whole trace and lists everything that is wrong with it. A cut file is sound, with a warning.
///
/// # Errors
/// When the file cannot be read to its end: it cannot be opened, its name and content disagree, or its gzip is damaged.
pub fn check(path: &Path) -> Result<Checked, TraceError> {
    let mut walk = Walk::<Record>::begin(Lines::open(path, Arc::default())?)?;
    let mut findings = Vec::new();
    while walk.advance()?.is_some() || !walk.is_settled() {
        findings.extend(walk.defects.drain(..).map(|(line, defect)| defect.at(line)));
    }
    Ok(Checked { findings, warnings: walk.warnings })
}
