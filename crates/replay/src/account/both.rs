//! The accounts of a cassette and of the trace behind it as one.

use std::sync::Arc;

use serde_json::Value;

use super::{Ledger, Report};

/// The account of cassettes, and that of the trace that answers what they do not.
#[derive(Clone)]
#[allow(missing_debug_implementations)] // of accounts of any kind
pub struct Both {
    /// The cassettes', which opens sessions and shows records.
    pub first: Arc<dyn Ledger>,
    /// The trace's.
    pub behind: Arc<dyn Ledger>,
}

impl Ledger for Both {
    fn report(&self, session: Option<&str>) -> Report {
        let behind = session.is_none_or(|name| self.behind.knows(name)).then(|| Box::new(self.behind.report(session)));
        Report { behind, ..self.first.report(session) }
    }

    fn misses(&self, session: Option<&str>) -> Vec<Value> {
        let mut misses = self.first.misses(session);
        misses.extend(self.behind.misses(session));
        misses
    }

    fn miss(&self, number: u64) -> Option<Value> {
        self.first.miss(number)
    }

    fn requests(&self, session: Option<&str>) -> Vec<Value> {
        self.first.requests(session)
    }

    fn clock(&self, session: Option<&str>) -> Option<String> {
        self.first.clock(session)
    }

    fn reset(&self, session: Option<&str>) {
        self.first.reset(session);
        self.behind.reset(session);
    }

    fn records(&self, session: Option<&str>) -> Vec<Value> {
        self.first.records(session)
    }

    fn record(&self, at: usize, session: Option<&str>) -> Option<Value> {
        self.first.record(at, session)
    }

    fn sessions(&self) -> Vec<String> {
        let mut names = self.first.sessions();
        names.extend(self.behind.sessions());
        names.sort_unstable();
        names.dedup();
        names
    }

    fn open(&self, asked: &Value) -> Result<String, String> {
        let name = self.first.open(asked)?;
        self.behind.reset(Some(&name));
        Ok(name)
    }

    fn end(&self, name: &str) -> Result<bool, String> {
        let was_behind = self.behind.end(name)?;
        Ok(self.first.end(name)? || was_behind)
    }

    fn shown(&self, text: &str) -> String {
        self.first.shown(text)
    }
}
