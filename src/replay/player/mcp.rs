//! MCP servers beside the models: their records are taken out of the cassettes, and their sessions belong to the account's.

use std::{sync::Arc, thread};

use http::{HeaderMap, StatusCode};
use serde_json::Value;

use super::{
    CassettePlayer, CassettePlayerError, Config, Secrets, SessionState,
    receive::MOST_SESSIONS,
    secrets::{self, Leak},
};
use crate::{
    net::server::ResponseBody,
    recording::cassette::Record,
    recording::redaction::Redactor,
    replay::account::{DEFAULT_SESSION, Report, SessionReport, http::plain, session_of, upstream_of},
    replay::mcp::{ParamRules, Servers, is_of_mcp},
};

/// Takes the records of MCP out of the cassettes: their servers, and the secrets in them.
pub(super) fn take(config: &mut Config) -> Result<(Servers, Vec<Leak>), CassettePlayerError> {
    let (ignored, scrubs) = (config.rules.ignored.clone(), config.rules.scrubs.clone());
    let rules = ParamRules { ignored, scrubs, counts_meta: config.mcp_match_meta };
    let played: &Config = config;
    let (servers, found) = thread::scope(|scope| {
        let searching = (played.leaks == Secrets::Refused).then(|| scope.spawn(|| leaks(played)));
        let servers = Servers::new(&played.cassettes, &rules, &played.secrets, played.mcp);
        // A thread that ended badly has its work done here.
        let found = searching.map(|searching| searching.join().unwrap_or_else(|_| leaks(played)));
        (servers, found.unwrap_or_default())
    });
    config.cassettes.iter_mut().for_each(|cassette| cassette.records.retain(|record| !is_of_mcp(record)));
    Ok((servers?, found))
}

fn leaks(config: &Config) -> Vec<Leak> {
    let mut redactor = Redactor::new(&config.secrets);
    let mut found = Vec::new();
    for cassette in &config.cassettes {
        let mut of_record = |record: &Record| {
            redactor.begin_another();
            secrets::learn_rest(&mut redactor, record);
            drop(secrets::shown_body(&mut redactor, &record.body, None));
            secrets::found_in(&mut redactor, record, &cassette.path)
        };
        found.extend(cassette.records.iter().filter(|record| is_of_mcp(record)).flat_map(&mut of_record));
    }
    found
}

impl CassettePlayer {
    /// The servers of MCP, those of sessions with cassettes of their own left out.
    #[must_use]
    pub fn mcp(&self) -> &Servers {
        &self.mcp
    }

    /// The session of the account that a request to an MCP server belongs to, and the servers there.
    ///
    /// # Errors
    /// With the response, where no session can have the name.
    pub(crate) fn enter_mcp(
        &self,
        extensions: &http::Extensions,
        headers: &HeaderMap,
    ) -> Result<(String, Arc<Servers>), Box<http::Response<ResponseBody>>> {
        let refused = |why: &str| Box::new(plain(StatusCode::BAD_REQUEST, why));
        let session =
            session_of(extensions, headers, &self.config.secrets).map_err(|wrong| refused(&wrong.to_string()))?;
        upstream_of(extensions).map_err(|wrong| refused(&wrong.to_string()))?;
        let session = session.unwrap_or_else(|| DEFAULT_SESSION.to_owned());
        if !self.has_room_for(&session) {
            return Err(refused(&format!("there are {MOST_SESSIONS} sessions, which is the most")));
        }
        if session == DEFAULT_SESSION {
            return Ok((session, Arc::clone(&self.mcp)));
        }
        let own = self.lock().entry(session.clone()).or_default().own.clone();
        let own = own.filter(|own| !own.mcp.is_empty());
        Ok((session, Arc::clone(own.as_ref().map_or(&self.mcp, |own| &own.mcp))))
    }

    /// The servers of sessions with cassettes of their own, by the names of the sessions.
    fn own_servers(&self, session: Option<&str>) -> Vec<(String, Arc<Servers>)> {
        let sessions = self.lock();
        let wanted = sessions.iter().filter(|(name, _)| session.is_none_or(|session| session == *name));
        wanted.filter_map(|(name, state)| Some((name.clone(), Arc::clone(&state.own.as_ref()?.mcp)))).collect()
    }

    /// A report with what the servers of MCP were asked.
    pub(super) fn with_mcp(&self, mut report: Report, session: Option<&str>) -> Report {
        for (name, own) in self.own_servers(session) {
            own.add_to(&mut report, Some(&name));
        }
        self.mcp.add_to(&mut report, session);
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
