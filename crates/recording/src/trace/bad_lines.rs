//! The lines of a trace that break a rule, where the others are read all the same.
//!
//! See docs/decisions/0010-one-bad-record-does-not-cost-a-trace.md.

use serde::Serialize;

use super::Finding;

/// Bad lines that are kept; the others are counted.
const NAMED: usize = 10;

/// Lines that break a rule of the format: how many, and the first defect of the first ones.
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

    /// One more line is bad.
    pub fn note(&mut self, finding: Finding) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push(finding);
        }
    }
}
