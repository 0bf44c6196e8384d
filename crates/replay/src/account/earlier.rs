//! Reports of sessions that were ended, opened anew or reset: what failed in them stays a failure.
//!
//! Limits: the first names only; what comes after them is one report. Of each, the first unconsumed records.

use std::collections::BTreeMap;

use super::SessionReport;

/// Maximum number of names.
const MOST: usize = 1000;

/// Maximum number of unconsumed records of each.
const MOST_LINES: usize = 100;

/// The name of what comes after them, which no session can have.
const OTHERS: &str = "other sessions";

/// Reports of earlier sessions, by their names.
#[derive(Debug, Default)]
pub struct EarlierReports(BTreeMap<String, SessionReport>);

impl EarlierReports {
    /// Keeps what failed in a session. One in which nothing did leaves nothing.
    pub fn keep(&mut self, name: &str, mut report: SessionReport) {
        if !report.has_failures() {
            return;
        }
        report.unconsumed.clone_from(&report.begun_unconsumed);
        let has_room = self.0.len() < MOST || self.0.contains_key(name);
        let kept = self.0.entry(if has_room { name } else { OTHERS }.to_owned()).or_default();
        kept.add(report);
        kept.unconsumed.truncate(MOST_LINES);
        kept.begun_unconsumed.truncate(MOST_LINES);
        kept.novel.truncate(MOST_LINES);
    }

    /// The reports so far.
    #[must_use]
    pub fn reports(&self) -> BTreeMap<String, SessionReport> {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missed() -> SessionReport {
        SessionReport { misses: BTreeMap::from([("no_match", 1)]), ..SessionReport::default() }
    }

    #[test]
    fn reports_are_added_up_and_bounded() {
        let mut earlier = EarlierReports::default();
        earlier.keep("fine", SessionReport { requests: 7, ..SessionReport::default() });
        assert!(earlier.reports().is_empty());
        (0..MOST).for_each(|number| earlier.keep(&number.to_string(), missed()));
        let many = vec!["record".to_owned(); 2 * MOST_LINES];
        for name in ["7", "7", "beyond", "further"] {
            earlier.keep(name, SessionReport { begun_unconsumed: many.clone(), ..missed() });
        }
        let reports = earlier.reports();
        assert_eq!(
            (reports.len(), reports["7"].misses["no_match"], reports[OTHERS].misses["no_match"]),
            (MOST + 1, 3, 2)
        );
        assert_eq!(reports["7"].begun_unconsumed.len(), MOST_LINES);
    }
}
