//! What was served, what was not.

use std::{collections::BTreeMap, sync::atomic::Ordering::Relaxed};

use super::{CassettePlayer, SessionState};
use crate::replay::account::{DEFAULT_SESSION, Report, SessionReport};

impl CassettePlayer {
    /// The report of all sessions, or of one.
    #[must_use]
    pub fn report(&self, session: Option<&str>) -> Report {
        let sessions = self.lock();
        let wanted = sessions.iter().filter(|(name, _)| session.is_none_or(|session| session == *name));
        let of_session = |(name, state): (&String, &SessionState)| match &state.own {
            Some(own) => (name.clone(), own.own_report(name)),
            None => (name.clone(), self.session_report(state)),
        };
        let mut found: BTreeMap<String, SessionReport> = wanted.map(of_session).collect();
        drop(sessions);
        if found.is_empty() {
            let name = session.unwrap_or(DEFAULT_SESSION);
            found.insert(name.to_owned(), self.session_report(&SessionState::default()));
        }
        let passed = self.passed.load(Relaxed);
        let (environment, edited) = (self.changes().to_vec(), self.edited.clone());
        let not_recorded = self.recorder.as_ref().map(|recorder| recorder.report().missing());
        Report { sessions: found, environment, edited, passed, not_recorded, behind: None }
    }

    /// The report of a session whose cassette this is.
    fn own_report(&self, name: &str) -> SessionReport {
        self.session_report(self.lock().get(name).unwrap_or(&SessionState::default()))
    }

    fn session_report(&self, state: &SessionState) -> SessionReport {
        let servable = || (0..self.index.len()).filter(|at| self.index.is_servable(*at));
        let unconsumed = servable().filter(|at| state.session.times(*at) == 0);
        SessionReport {
            records: servable().count(),
            requests: state.session.requests(),
            served: state.session.consumed(),
            unconsumed: unconsumed.map(|at| self.line_of(at)).collect(),
            misses: state.missed.clone(),
            loose: state.session.loose().clone(),
            again: state.session.again().clone(),
            forwarded: state.forwarded,
            tools: state.tools.shown(),
            matching: None,
        }
    }

    /// A record in one line.
    pub(super) fn line_of(&self, at: usize) -> String {
        let Some((cassette, record)) = self.records.get(at) else { return String::new() };
        let file = self.config.cassettes.get(*cassette).map(|it| it.path.display().to_string()).unwrap_or_default();
        format!("{} ({file}:{}) {}", self.name_of(at), record.line, record.summary())
    }
}
