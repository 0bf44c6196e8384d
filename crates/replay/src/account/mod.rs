//! The account of a run: what each session consumed, what was missed and what is left, for people, programs and tests.
//!
//! Cassettes and traces keep one each ([`Ledger`]). Its [`Report`] is shown at the end and at `/vcr/report`; `/vcr/…` answers for
//! tests in any language. Sessions are named in a path, `/vcr/s/NAME/…`, or by `x-vcr-session`.

mod access;
mod admin;
pub mod http;
mod journal;
mod misses;
mod network_block;
mod report;
mod session;
mod tool_drift;

use std::{collections::BTreeSet, sync::Arc};

pub use axum::Router;

use serde_json::Value;

pub use self::{
    access::{Access, AdminToken},
    admin::{Admin, client_urls, router, serve, serve_router},
    journal::{Journal, JournalEntry, LARGEST_BODY},
    misses::KeptMisses,
    network_block::NetworkBlock,
    report::{
        Concern, EarlierReports, EnvironmentChange, Matching, Report, SessionReport, UnknownConcern, UnusedRecord,
    },
    session::{
        DEFAULT_SESSION, SessionNameError, SessionRecording, UpstreamName, UpstreamNameError, enter, is_upstream_name,
        session_name, session_of, upstream_of,
    },
    tool_drift::{AnswerComparison, ToolDrift},
};

/// Something that keeps an account of its sessions.
pub trait Ledger: Send + Sync {
    /// The report of all sessions, or of one.
    fn report(&self, session: Option<&str>) -> Report;

    /// The misses of all sessions, or of one, each with its explanation.
    fn misses(&self, session: Option<&str>) -> Vec<Value>;

    /// The miss of this number with all that is known of it; `None` where there is no such one.
    fn miss(&self, _number: u64) -> Option<Value> {
        None
    }

    /// The latest requests of all sessions, or of one, each with its outcome.
    fn requests(&self, _session: Option<&str>) -> Vec<Value> {
        Vec::new()
    }

    /// When what is played was recorded, RFC 3339; `None` where that is not known.
    fn clock(&self, _session: Option<&str>) -> Option<String> {
        None
    }

    /// Forgets what all sessions consumed, or one.
    fn reset(&self, session: Option<&str>);

    /// The records, each with how often it was served.
    fn records(&self, session: Option<&str>) -> Vec<Value>;

    /// One record in full; `None` where there is no such one.
    fn record(&self, at: usize, session: Option<&str>) -> Option<Value>;

    /// The names of upstreams that a session's requests can name, each of which has a URL of its own.
    fn upstreams(&self, _session: &str) -> BTreeSet<String> {
        BTreeSet::new()
    }

    /// The names of the sessions that were opened or used.
    fn sessions(&self) -> Vec<String>;

    /// Returns whether a session was opened or used.
    fn knows(&self, session: &str) -> bool {
        session == DEFAULT_SESSION || self.sessions().iter().any(|known| known == session)
    }

    /// Opens a session: `name`, and whatever else this kind takes. One of that name starts again. May read files.
    ///
    /// # Errors
    /// Why it cannot be opened.
    fn open(&self, requested: &Value) -> Result<String, String>;

    /// Ends a session, with this of what it recorded; false where there is none of that name. May write files.
    ///
    /// # Errors
    /// Why it cannot be ended.
    fn end(&self, name: &str, recorded: SessionRecording) -> Result<bool, String>;

    /// A text without the secrets in it.
    fn shown(&self, text: &str) -> String;
}

/// The account of cassettes, and that of the trace that answers what they do not.
#[derive(Clone)]
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

    fn upstreams(&self, session: &str) -> BTreeSet<String> {
        self.first.upstreams(session)
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

    fn open(&self, requested: &Value) -> Result<String, String> {
        let name = self.first.open(requested)?;
        self.behind.reset(Some(&name));
        Ok(name)
    }

    fn end(&self, name: &str, recorded: SessionRecording) -> Result<bool, String> {
        let was_behind = self.behind.end(name, recorded)?;
        Ok(self.first.end(name, recorded)? || was_behind)
    }

    fn shown(&self, text: &str) -> String {
        self.first.shown(text)
    }
}
