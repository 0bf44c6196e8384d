//! The defects of a file, not only the first.

use std::path::Path;
use std::sync::Arc;

use super::source::Lines;
use super::walk::Walk;
use super::{Finding, Record, TraceError, Warning};

/// Defects that are kept; the others are counted.
const NAMED: usize = 1000;

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checked {
    /// Number of defects; none for a sound file.
    pub count: u64,
    /// The first thousand, in file order.
    pub findings: Vec<Finding>,
    /// Notes that are no defects, such as that the file was cut.
    pub warnings: Vec<Warning>,
}

/// Reads a whole trace, lists what is wrong with it and counts the rest. A cut file is sound, with a warning.
///
/// # Errors
/// When the file cannot be read to its end: it cannot be opened, its name and content disagree, or its gzip is damaged.
pub fn check(path: &Path) -> Result<Checked, TraceError> {
    let mut walk = Walk::<Record>::begin(Lines::open(path, Arc::default())?)?;
    let (mut findings, mut count) = (Vec::new(), 0);
    while walk.advance()?.is_some() || !walk.is_settled() {
        for (line, defect) in walk.defects.drain(..) {
            count += 1;
            if findings.len() < NAMED {
                findings.push(defect.at(line));
            }
        }
    }
    Ok(Checked { count, findings, warnings: walk.warnings })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_defects_are_named_and_all_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, "{\n".repeat(5000)).unwrap();
        let checked = check(&path).unwrap();
        assert_eq!((checked.count, checked.findings.len()), (5000, NAMED));
        assert_eq!(checked.findings.last().map(|finding| finding.line), Some(1000));
    }
}
