//! What was served, what was not.

pub(crate) mod environment;
pub(crate) mod groups;
pub(crate) mod journal;
pub(crate) mod ledger;
pub(crate) mod tools;

use std::{
    collections::{BTreeMap, HashSet},
    sync::atomic::Ordering::Relaxed,
};

use self::groups::Scope;
use crate::{
    account::{DEFAULT_SESSION, Report, SessionReport, UnusedRecord},
    player::{CassettePlayer, SessionState, kept::RecordUse, miss::explained},
};

/// Records by the paths of their cassettes and their numbers there.
type RecordUses = BTreeMap<(String, u64), RecordUse>;

/// Adds what one player knows of records.
fn add(usage: &mut RecordUses, known: impl IntoIterator<Item = RecordUse>) {
    for (is_used, record) in known {
        usage.entry((record.cassette.clone(), record.record)).or_insert((false, record)).0 |= is_used;
    }
}

impl CassettePlayer {
    /// The report of all sessions, or of one.
    #[must_use]
    pub fn report(&self, session: Option<&str>) -> Report {
        let sessions = self.sessions.lock();
        let wanted = sessions.iter().filter(|(name, _)| session.is_none_or(|session| session == *name));
        let served = self.served_to_any(&sessions);
        // What a test plays from a cassette of its own is judged there, and nothing of what is shared has begun.
        let has_own = self.had_own_cassettes(&sessions);
        let scope = match session {
            Some(_) => Scope::Alone,
            None if has_own && served.is_empty() => Scope::Ended,
            None => Scope::Shared(&served),
        };
        let of_session = |(name, state): (&String, &SessionState)| {
            let scope = if state.has_own_cassette { Scope::Own } else { scope };
            (name.clone(), self.report_of(name, state, scope))
        };
        let mut found: BTreeMap<String, SessionReport> = wanted.map(of_session).collect();
        let is_unnamed = found.is_empty();
        if is_unnamed {
            let name = session.unwrap_or(DEFAULT_SESSION);
            found.insert(name.to_owned(), self.session_report(&SessionState::default(), scope));
        }
        let earlier = if session.is_none() { self.earlier_reports(&sessions, &served) } else { BTreeMap::new() };
        drop(sessions);
        let ended = if session.is_none() { self.earlier.lock().ended } else { 0 };
        let passed = self.passed.load(Relaxed);
        let environment = self.changes().to_vec();
        let records = self.records.iter().enumerate();
        let edited = records.filter(|(_, (_, record))| record.is_edited).map(|(at, _)| self.name_of(at)).collect();
        let not_recorded =
            self.recorder.as_ref().or(self.comparer.as_ref()).map(|recorder| recorder.report().missing());
        let unused = self.unused();
        if is_unnamed && has_own && session.is_none() {
            found.values_mut().for_each(|report| report.unserved = unused.len());
        }
        let blocked = self.config.network_block.as_ref().map(|block| block.refused()).unwrap_or_default();
        let (sessions, behind) = (found, None);
        let report =
            Report { sessions, earlier, ended, environment, edited, unused, passed, not_recorded, blocked, behind };
        self.with_mcp(report, session)
    }

    /// Counts the requests that the upstream did not answer, and that are not recorded.
    #[must_use]
    pub fn unanswered(&self) -> u64 {
        self.recorder.as_ref().map_or(0, |recorder| recorder.report().unanswered)
    }

    /// Returns whether sessions have or had cassettes of their own.
    pub(super) fn had_own_cassettes(&self, sessions: &BTreeMap<String, SessionState>) -> bool {
        self.earlier.lock().had_own || sessions.values().any(|state| state.has_own_cassette)
    }

    /// Keeps what failed in a session that has ended, and what it was served.
    pub(super) fn keep_ended(&self, name: &str, state: &SessionState) {
        let scope = if state.has_own_cassette { Scope::Own } else { Scope::Ended };
        let report = self.report_of(name, state, scope);
        let of_mcp = self.end_mcp(name, state);
        let served = if state.has_own_cassette { HashSet::new() } else { state.served(name) };
        let mut earlier = self.earlier.lock();
        earlier.had_own |= state.has_own_cassette;
        earlier.ended += 1;
        for group in self.groups.begun(&served) {
            earlier.begun.entry(group).or_insert_with(|| name.to_owned());
        }
        served.into_iter().for_each(|record| *earlier.served.entry(record).or_default() += 1);
        earlier.reports.keep(name, report);
        of_mcp.into_iter().for_each(|(name, report)| earlier.reports.keep(&name, report));
    }

    /// Keeps what failed in a session that is reset; what it was not served yet is no failure.
    pub(super) fn keep_reset(&self, name: &str, state: &SessionState) {
        let report = self.report_of(name, state, Scope::Ended);
        self.earlier.lock().reports.keep(name, report.without_unconsumed());
    }

    /// Forgets what ended sessions were served.
    pub(super) fn forget_ended(&self) {
        let mut earlier = self.earlier.lock();
        earlier.served.clear();
        earlier.begun.clear();
        earlier.had_own = false;
    }

    /// Records of the shared cassettes that any session was served. Sessions that recorded one request left a record each, and each
    /// is served the first of them: of a request's records as many count as were served in all sessions.
    fn served_to_any(&self, sessions: &BTreeMap<String, SessionState>) -> HashSet<usize> {
        let mut times = self.earlier.lock().served.clone();
        for (name, state) in sessions.iter().filter(|(_, state)| !state.has_own_cassette) {
            state.served(name).into_iter().for_each(|record| *times.entry(record).or_default() += 1);
        }
        let mut all: HashSet<usize> = times.keys().copied().collect();
        for (record, times) in times.into_iter().filter(|(record, _)| self.index.is_servable(*record)) {
            let Some(identity) = self.index.identity(record) else { continue };
            let equal = self.index.of_key(identity.key).iter().copied();
            let left: Vec<usize> = equal.filter(|record| !all.contains(record)).take(times - 1).collect();
            all.extend(left);
        }
        all
    }

    /// The reports of earlier sessions, with the unconsumed records of what they began and no session that goes on has.
    fn earlier_reports(
        &self,
        sessions: &BTreeMap<String, SessionState>,
        all: &HashSet<usize>,
    ) -> BTreeMap<String, SessionReport> {
        let mut begun_now = HashSet::new();
        for (name, state) in sessions.iter().filter(|(_, state)| !state.has_own_cassette) {
            begun_now.extend(self.groups.begun(&state.served(name)));
        }
        let earlier = self.earlier.lock();
        let mut reports = earlier.reports.reports();
        let begun = earlier.begun.keys().copied().filter(|group| !begun_now.contains(group)).collect();
        let is_left = |at: &usize| {
            self.index.is_servable(*at)
                && !all.contains(at)
                && self.groups.counts(*at, &begun, Scope::Shared(all))
                && !self.groups.counts(*at, &begun, Scope::Ended)
        };
        for at in (0..self.index.len()).filter(|_| !begun.is_empty()).filter(is_left) {
            let Some(name) = self.groups.of(at).and_then(|group| earlier.begun.get(&group)) else { continue };
            let report = reports.entry(name.clone()).or_default();
            report.records = self.index.len();
            report.unserved += 1;
            report.unconsumed.push(self.line_of(at));
            report.begun_unconsumed.push(self.line_of(at));
        }
        reports
    }

    fn report_of(&self, name: &str, state: &SessionState, scope: Scope<'_>) -> SessionReport {
        let player = state.own.as_deref().unwrap_or(self);
        let report = state.played(name, |state| player.session_report(state, scope));
        SessionReport { compared: player.comparisons.lock().get(name).cloned(), ..report }
    }

    fn session_report(&self, state: &SessionState, scope: Scope<'_>) -> SessionReport {
        let servable = || (0..self.index.len()).filter(|at| self.index.is_servable(*at));
        let unconsumed: Vec<usize> = servable().filter(|at| state.session.times(*at) == 0).collect();
        let begun = self.groups.begun(&state.session.served());
        let begun_unconsumed = unconsumed.iter().filter(|at| self.groups.counts(**at, &begun, scope));
        let unserved = match scope {
            Scope::Shared(served) => unconsumed.iter().filter(|at| !served.contains(at)).count(),
            Scope::Own | Scope::Alone => unconsumed.len(),
            Scope::Ended => 0,
        };
        SessionReport {
            records: servable().count(),
            requests: state.session.requests + state.counts.requests,
            served: state.session.consumed(),
            begun_unconsumed: begun_unconsumed.map(|at| self.line_of(*at)).collect(),
            unconsumed: unconsumed.iter().map(|at| self.line_of(*at)).collect(),
            unserved,
            loose: state.session.loose.clone(),
            again: state.session.again.clone(),
            by_hand: state.session.by_hand(),
            novel: state.misses.list().iter().cloned().filter_map(explained).collect(),
            ..state.counts.clone()
        }
    }

    /// The records that were served in no session.
    fn unused(&self) -> Vec<UnusedRecord> {
        self.usage().into_values().filter(|(is_used, _)| !is_used).map(|(_, record)| record).collect()
    }

    /// Whether each record was ever served, here and by the players of sessions.
    fn usage(&self) -> RecordUses {
        let mut usage = self.ended.lock().clone();
        let all = self.records.iter().zip(&self.used).enumerate().filter(|(at, _)| self.index.is_servable(*at));
        let own = all.map(|(_, ((cassette, record), used))| {
            let cassette = self.config.cassette(*cassette).display().to_string();
            let request = record.summary();
            (used.load(Relaxed), UnusedRecord { cassette, record: record.id, line: record.line, request })
        });
        add(&mut usage, own);
        self.own_players().iter().for_each(|own| add(&mut usage, own.usage().into_values()));
        usage
    }

    /// Keeps what a session's player served, when the session ends.
    pub(super) fn keep_usage(&self, own: &Self) {
        let usage = own.usage();
        add(&mut self.ended.lock(), usage.into_values());
    }

    pub(super) fn line_of(&self, at: usize) -> String {
        let Some((cassette, record)) = self.records.get(at) else { return String::new() };
        let file = self.config.cassette(*cassette).display();
        format!("{} ({file}:{}) {}", self.name_of(at), record.line, record.summary())
    }
}

impl SessionState {
    /// Reads what was played in the session of this name: its state, or that in the player which it has of its own.
    fn played<T>(&self, name: &str, read: impl FnOnce(&Self) -> T) -> T {
        match &self.own {
            Some(own) => read(own.sessions.lock().get(name).unwrap_or(&Self::default())),
            None => read(self),
        }
    }

    fn served(&self, name: &str) -> HashSet<usize> {
        self.played(name, |state| state.session.served())
    }
}
