//! Differences of prompts from their recorded lengths, by the server's count.

use serde::Serialize;

/// A prompt is off if more than one in so many of its tokens are missing or too many.
const ONE_IN: u64 = 100;

/// Differences so far.
#[derive(Debug, Default)]
pub struct Drifts {
    tokens: Vec<i64>,
    off: u64,
    unknown: u64,
}

/// The differences in numbers, in tokens: the server's count less the recorded one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DriftReport {
    /// Prompts that both the server and the recording count.
    pub prompts: u64,
    /// Prompts that one of them does not.
    pub unknown: u64,
    /// Prompts of which more than 1 % is missing or too much.
    pub off: u64,
    /// The middle of all differences.
    pub median: i64,
    /// 99 % are at most so large, in either direction.
    pub p99: u64,
    /// The largest one in either direction.
    pub largest: i64,
}

impl Drifts {
    /// Adds a prompt, or an output; a recorded 0 is no count.
    pub fn add(&mut self, counted: Option<u32>, recorded: u32) {
        let Some(counted) = counted.filter(|_| recorded > 0) else {
            self.unknown += 1;
            return;
        };
        let drift = i64::from(counted) - i64::from(recorded);
        self.off += u64::from(drift.unsigned_abs() * ONE_IN > u64::from(recorded));
        self.tokens.push(drift);
    }

    /// The report; `None` without a prompt of which both counts are known.
    pub(crate) fn report(&self) -> Option<DriftReport> {
        let (mut sorted, mut sizes) = (self.tokens.clone(), Vec::new());
        sorted.sort_unstable();
        sizes.extend(sorted.iter().map(|drift| drift.unsigned_abs()));
        sizes.sort_unstable();
        Some(DriftReport {
            prompts: u64::try_from(sorted.len()).unwrap_or(u64::MAX),
            unknown: self.unknown,
            off: self.off,
            median: *sorted.get(sorted.len() / 2)?,
            p99: *sizes.get((sizes.len() * 99).div_ceil(100).saturating_sub(1))?,
            largest: *sorted.iter().max_by_key(|drift| drift.unsigned_abs())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_ordered_and_counted() {
        let mut drifts = Drifts::default();
        assert_eq!(drifts.report(), None);
        (0..98).for_each(|_| drifts.add(Some(1001), 1000));
        drifts.add(Some(980), 1000);
        drifts.add(Some(1040), 1000);
        drifts.add(None, 1000);
        drifts.add(Some(7), 0);
        let report = DriftReport { prompts: 100, unknown: 2, off: 2, median: 1, p99: 20, largest: 40 };
        assert_eq!(drifts.report(), Some(report));
    }
}
