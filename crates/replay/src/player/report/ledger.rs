//! The account of a cassette player for `/vcr/…`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    account::{DEFAULT_SESSION, Ledger, Report, SessionRecording},
    player::{CassettePlayer, SessionState, miss::brief},
};
use recording::redaction::Redactor;

impl Ledger for CassettePlayer {
    fn report(&self, session: Option<&str>) -> Report {
        Self::report(self, session)
    }

    fn misses(&self, session: Option<&str>) -> Vec<Value> {
        let sessions = self.sessions.lock();
        let wanted = sessions.iter().filter(|(name, _)| session.is_none_or(|session| session == *name));
        let of_session = |(name, state): (&String, &SessionState)| state.played(name, |it| it.misses.list().to_vec());
        let mut misses: Vec<Value> = wanted.flat_map(of_session).map(brief).collect();
        drop(sessions);
        misses.extend(self.mcp_misses(session));
        misses
    }

    fn miss(&self, number: u64) -> Option<Value> {
        let is_it = |miss: &&Value| miss.pointer("/error/vcr/miss").and_then(Value::as_u64) == Some(number);
        let found_in = |state: &SessionState| state.misses.list().iter().find(is_it).cloned();
        let sessions = self.sessions.lock();
        let here = sessions.values().find_map(found_in);
        here.or_else(|| sessions.values().filter_map(|state| state.own.as_ref()).find_map(|own| own.miss(number)))
    }

    fn requests(&self, session: Option<&str>) -> Vec<Value> {
        self.shared.journal.list(session)
    }

    fn clock(&self, session: Option<&str>) -> Option<String> {
        self.of_session(session, Self::base_time)
    }

    fn reset(&self, session: Option<&str>) {
        self.shared.journal.forget(session);
        self.mcp.reset(session);
        let mut sessions = self.sessions.lock();
        let reset = |(name, state): (&String, &mut SessionState)| {
            self.keep_reset(name, state);
            self.comparisons.lock().remove(name);
            rewind(state);
        };
        match session {
            None => {
                sessions.iter_mut().for_each(reset);
                self.forget_ended();
            }
            Some(name) => sessions.iter_mut().filter(|(known, _)| *known == name).for_each(reset),
        }
    }

    fn records(&self, session: Option<&str>) -> Vec<Value> {
        self.of_session(session, |cassette_player| {
            let own = 0..cassette_player.records.len();
            let shown = own.map(|at| cassette_player.shown_record(at, session));
            let name = session.unwrap_or(DEFAULT_SESSION);
            shown.chain(cassette_player.mcp.shown(cassette_player.records.len(), name)).collect()
        })
    }

    fn record(&self, at: usize, session: Option<&str>) -> Option<Value> {
        self.of_session(session, |cassette_player| cassette_player.one_record(at, session))
    }

    fn upstreams(&self, session: &str) -> BTreeSet<String> {
        self.of_session(Some(session), CassettePlayer::upstreams)
    }

    fn sessions(&self) -> Vec<String> {
        self.sessions.lock().keys().cloned().collect()
    }

    fn open(&self, requested: &Value) -> Result<String, String> {
        self.open_session(requested).map_err(|error| error.to_string())
    }

    fn end(&self, name: &str, recorded: SessionRecording) -> Result<bool, String> {
        self.end_session(name, Some(recorded)).map_err(|error| error.to_string())
    }

    fn shown(&self, text: &str) -> String {
        Redactor::new(&self.config.secrets).text(text).unwrap_or_else(|| text.to_owned())
    }
}

impl CassettePlayer {
    fn of_session<T>(&self, session: Option<&str>, read: impl FnOnce(&Self) -> T) -> T {
        let own = session.and_then(|name| self.own_of(name));
        read(own.as_deref().unwrap_or(self))
    }

    /// A record without its bodies.
    fn shown_record(&self, at: usize, session: Option<&str>) -> Value {
        let name = session.unwrap_or(DEFAULT_SESSION);
        let times = self.sessions.lock().get(name).map_or(0, |state| state.session.times(at));
        let identity = self.index.identity(at);
        let line = self.records.get(at).map(|(_, record)| record.line);
        json!({"index": at, "record": self.name_of(at), "line": line, "at": identity.map(|it| it.boundary.clone()),
            "route": identity.map(|it| it.route.clone()), "served": times})
    }

    fn one_record(&self, at: usize, session: Option<&str>) -> Option<Value> {
        let of_models = self.records.len();
        if at >= of_models {
            return self.mcp.shown_record(at - of_models, of_models, session.unwrap_or(DEFAULT_SESSION));
        }
        let (_, record) = self.records.get(at)?;
        let mut shown = self.shown_record(at, session);
        if let Some(fields) = shown.as_object_mut() {
            fields.insert("body".to_owned(), crate::player::secrets::shown_record(&self.config.secrets, record));
            fields.insert("status".to_owned(), record.answer.status.into());
        }
        Some(shown)
    }
}

/// Forgets what was served; the cassettes of a session stay its own.
fn rewind(state: &mut SessionState) {
    let (own, has_own_cassette) = (state.own.take(), state.has_own_cassette);
    own.iter().for_each(|own| own.reset(None));
    *state = SessionState { own, has_own_cassette, ..SessionState::default() };
}
