//! MCP servers beside the models: their records are taken out of the cassettes, and their sessions belong to the account's.

use std::{sync::Arc, thread};

use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;

use crate::{
    account::{DEFAULT_SESSION, JournalEntry, Report, SessionReport, http::plain},
    mcp::{McpPolicy, OnNovel, ParamRules, RecordIndex, Servers, account_session, is_of_mcp, journal_entry, servers},
    player::miss::advice::recording,
    player::record::compare::AnswerDifferences,
    player::secrets::{self, Leak},
    player::{CassettePlayer, CassettePlayerError, Mode, PlayerConfig, RecordPlace, SessionState, kept::HandOver},
    values::ValuePlans,
};
use net::server::ResponseBody;
use recording::{
    cassette::{CassetteRecord, RecordedExchange},
    mcp::{Broken, McpRecord},
    redaction::Redactor,
};

/// Takes the records of MCP out of the cassettes: their servers, and the secrets in them.
pub(super) fn take(
    config: &mut PlayerConfig,
    put_back: &Arc<ValuePlans>,
) -> Result<(Servers, Vec<Leak>), CassettePlayerError> {
    let (ignored, scrubs) = (config.rules.ignored.clone(), config.rules.scrubs.clone());
    let rules = ParamRules { ignored, scrubs, counts_meta: config.mcp_match_meta };
    let policy = policy(config);
    let played: &PlayerConfig = config;
    let command = command(played);
    let (servers, found) = thread::scope(|scope| {
        let searching = (!played.allows_secrets).then(|| scope.spawn(|| leaks(played)));
        let new = |name: &str| {
            let index = RecordIndex::new(name, rules.clone(), played.secrets.clone());
            index.putting_back(Arc::clone(put_back)).recorded_by(command.clone())
        };
        let servers = Servers::new((&played.cassettes, &played.mcp_names), new, policy);
        // A thread that ended badly has its work done here.
        let found = searching.map(|searching| searching.join().unwrap_or_else(|_| leaks(played)));
        (servers, found.unwrap_or_default())
    });
    config.cassettes.iter_mut().for_each(|cassette| cassette.records.retain(|record| !is_of_mcp(record)));
    Ok((servers?, found))
}

/// The command that records what is missing beside the models' records; `None` where there are none, and the servers are alone.
fn command(config: &PlayerConfig) -> Option<Arc<str>> {
    let mut all = config.cassettes.iter().flat_map(|cassette| &cassette.records);
    if all.all(is_of_mcp) && config.session_folder.is_none() {
        return None;
    }
    let mut names: Vec<String> = config.cassettes.iter().flat_map(|cassette| servers(&cassette.records)).collect();
    names.sort();
    names.dedup();
    let path = match config.cassettes.as_slice() {
        [one] => Some(one.path.as_path()),
        _ => None,
    };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Some(recording(config, path, &names).into())
}

/// What requests without a record get in this mode.
fn policy(config: &PlayerConfig) -> McpPolicy {
    let requested = config.mcp.on_novel;
    let on_novel = match config.mode {
        _ if config.mcp_upstreams.is_empty() && config.mcp_started.is_empty() => requested,
        Mode::Replay if requested == OnNovel::Record && config.output.is_none() => OnNovel::Upstream,
        Mode::Replay => requested,
        Mode::NewEpisodes | Mode::Record => OnNovel::Record,
        Mode::Live | Mode::Compare => OnNovel::Upstream,
    };
    McpPolicy { on_novel, counts_forwarded: config.mode == Mode::Replay, ..config.mcp }
}

fn leaks(config: &PlayerConfig) -> Vec<Leak> {
    let mut redactor = Redactor::new(&config.secrets);
    let mut found = Vec::new();
    for cassette in config.cassettes.iter().filter(|cassette| config.refuses_secrets_of(cassette)) {
        let records = cassette.records.iter().filter(|record| is_of_mcp(record));
        found.extend(records.flat_map(|record| secrets::leaks_of(&mut redactor, record, None, &cassette.path).1));
    }
    found
}

fn entry(message: &McpRecord, outcome: &'static str) -> JournalEntry {
    let canonical = json!({"method": message.method, "params": message.params});
    journal_entry(&message.server, &canonical, outcome, Map::new())
}

impl CassettePlayer {
    /// The servers of MCP, those of sessions with cassettes of their own left out.
    #[must_use]
    pub fn mcp(&self) -> &Servers {
        &self.mcp
    }

    /// Returns whether messages of a session to MCP servers are answered from records; others go to the real servers.
    #[must_use]
    pub fn plays_mcp(&self, session: &str) -> bool {
        let own = self.own_of(session);
        let (mode, servers) = own.as_ref().map_or((self.config.mode, &self.mcp), |own| (own.config.mode, &own.mcp));
        matches!(mode, Mode::Replay | Mode::NewEpisodes) && !(servers.is_empty() && self.mcp.is_empty())
    }

    /// Returns whether messages of a session to MCP servers are recorded, or compared.
    pub(crate) fn observes_mcp(&self, session: &str) -> bool {
        self.own_of(session).map_or_else(|| self.is_recording() || self.is_comparing(), |own| own.is_recording())
    }

    /// Has this called before a session ends, so that what was recorded for it is in its cassette.
    pub(crate) fn before_sessions_end(&self, hand_over: HandOver) {
        self.hand_over.0.lock().push(hand_over);
    }

    /// Has what was recorded of MCP servers handed over to the cassette of a session.
    pub(super) fn hand_over_mcp(&self, session: &str) {
        let hand_over = self.hand_over.0.lock();
        hand_over.iter().for_each(|hand_over| hand_over(session));
    }

    /// Returns whether answers are compared with recorded ones.
    pub fn is_comparing(&self) -> bool {
        self.comparer.is_some()
    }

    /// Takes the next place in the cassette that is written for a session; `None` where none is.
    pub fn place_in(&self, session: &str) -> Option<RecordPlace> {
        self.own_of(session).map_or_else(|| self.place(), |own| own.place())
    }

    /// Compares what a real server answered in one of its sessions with the record.
    pub(crate) fn compare_mcp(&self, session: &str, mut now: RecordedExchange) {
        // Reports show what differs, and records hold no secrets.
        secrets::redact(&self.config.secrets, &mut now.record, &mut now.side);
        let Some(Ok(message)) = McpRecord::read(&now.record) else { return };
        if message.broken == Some(Broken::Cancelled) {
            return;
        }
        let Some(endpoint) = self.mcp.get(&message.server) else {
            return self.note_mcp(DEFAULT_SESSION, vec![entry(&message, "forwarded")]);
        };
        let entries = endpoint.compare(session, &message, |name, recorded| {
            AnswerDifferences::between(&recorded.clone().record().answer, &now.record.answer).comparison(name)
        });
        self.note_mcp(DEFAULT_SESSION, entries);
    }

    /// Notes a message that is recorded in the journal.
    pub(crate) fn note_recorded_mcp(&self, recorded: &RecordedExchange) {
        let mut body = recorded.record.body.value();
        Redactor::new(&self.config.secrets).json(&mut body);
        let Some(Ok(message)) = McpRecord::read(&recorded.record) else { return };
        let params = body.get("params").cloned().unwrap_or_default();
        self.note_mcp(DEFAULT_SESSION, vec![entry(&McpRecord { params, ..message }, "recorded")]);
    }

    /// Notes in the journal the outcome of messages of a session.
    pub fn note_mcp(&self, session: &str, entries: Vec<JournalEntry>) {
        for entry in entries {
            let entry = JournalEntry { at: Some(OffsetDateTime::now_utc()), session: session.to_owned(), ..entry };
            self.shared.journal.keep(self.shared.journal.begin(), entry);
        }
    }

    /// Copies records of MCP servers that answered, where everything is written that is served.
    pub fn copy_mcp(&self, records: impl IntoIterator<Item = CassetteRecord>) {
        let Some(recorder) = &self.recorder else { return };
        records.into_iter().for_each(|record| recorder.copy(&record));
    }

    /// The session of the account that a request to an MCP server belongs to, and the servers there.
    ///
    /// # Errors
    /// With the response, where no session can have the name.
    pub fn enter_mcp(
        &self,
        extensions: &http::Extensions,
        headers: &HeaderMap,
    ) -> Result<(String, Arc<Servers>), Box<http::Response<ResponseBody>>> {
        let refused = |why: String| Box::new(plain(StatusCode::BAD_REQUEST, &why));
        let session = self.session_in(extensions, headers).map_err(refused)?;
        if session == DEFAULT_SESSION {
            return Ok((session, Arc::clone(&self.mcp)));
        }
        let own = self.sessions.lock().entry(session.clone()).or_default().own.clone();
        let own = own.filter(|own| !own.mcp.is_empty());
        Ok((session, Arc::clone(own.as_ref().map_or(&self.mcp, |own| &own.mcp))))
    }

    /// The servers of sessions with cassettes of their own, by the names of the sessions.
    fn own_servers(&self, session: Option<&str>) -> Vec<(String, Arc<Servers>)> {
        let sessions = self.sessions.lock();
        let wanted = sessions.iter().filter(|(name, _)| session.is_none_or(|session| session == *name));
        wanted.filter_map(|(name, state)| Some((name.clone(), Arc::clone(&state.own.as_ref()?.mcp)))).collect()
    }

    /// A report with what the servers of MCP were asked.
    pub(super) fn with_mcp(&self, mut report: Report, session: Option<&str>) -> Report {
        for (name, own) in self.own_servers(session) {
            own.add_to(&mut report, Some(&name));
        }
        self.mcp.add_to(&mut report, session);
        report.note_misses_beside(account_session);
        report
    }

    /// Requests to servers of MCP that were not recorded.
    pub(super) fn mcp_misses(&self, session: Option<&str>) -> Vec<Value> {
        let own = self.own_servers(session);
        let own = own.into_iter().flat_map(|(name, own)| own.misses(Some(&name)));
        self.mcp.misses(session).into_iter().chain(own).collect()
    }

    /// Ends the MCP sessions of a session; what failed in those of its own cassette.
    pub(super) fn end_mcp(&self, name: &str, state: &SessionState) -> Vec<(String, SessionReport)> {
        self.mcp.end_session(name);
        state.own.iter().flat_map(|own| own.mcp.ended(name)).collect()
    }
}
