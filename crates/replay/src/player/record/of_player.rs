//! A player's recording, and those of its sessions; a player's comparison.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use tokio::time::Instant;

use crate::{
    matching::requests::Lookup,
    player::{
        CassettePlayer, PendingExchange, RecordPlace, RecordReport, forward::request_of, incoming::IncomingRequest,
        miss::NoRecordReason, record::compare::ComparedWith,
    },
};
use recording::{cassette::CassetteError, recorder::NOTE_EVERY};

impl CassettePlayer {
    pub(crate) fn is_recording(&self) -> bool {
        self.recorder.is_some()
    }

    /// Takes the next place in the cassette that is written; `None` where none is.
    pub fn place(&self) -> Option<RecordPlace> {
        self.recorder.as_ref().map(|recorder| recorder.place())
    }

    /// Closes the recordings of sessions that have not ended; returns what failed.
    pub(crate) fn close_sessions(&self) -> Vec<CassetteError> {
        let (players, mut noted, mut failed) = (self.own_players(), Instant::now(), Vec::new());
        for (at, own) in players.iter().enumerate() {
            if noted.elapsed() >= NOTE_EVERY {
                noted = Instant::now();
                tracing::warn!(
                    "cassettes of {} of {} sessions are still to be closed",
                    players.len() - at,
                    players.len()
                );
            }
            match own.close(None) {
                Ok(report) => self.keep_recorded(report),
                Err(error) => failed.push(error),
            }
        }
        failed
    }

    /// Keeps what a session recorded that has ended.
    pub(crate) fn keep_recorded(&self, report: Option<RecordReport>) {
        let mut kept = self.recorded_by_sessions.lock();
        report.into_iter().for_each(|report| kept.add_session(report));
    }

    /// Adds what sessions recorded to what this player did; `None` where neither records.
    pub(crate) fn with_sessions(&self, own: Option<RecordReport>) -> Option<RecordReport> {
        let sessions = self.recorded_by_sessions.lock().clone();
        // Where sessions have cassettes of their own, requests without one are rare; one that may lack its cassette may need none.
        let may_be_empty = self.config.opens_missing || self.had_own_cassettes(&self.sessions.lock());
        let is_expected = |own: &&RecordReport| own.lost_all() || !may_be_empty;
        own.iter().filter(is_expected).for_each(RecordReport::warn_of_none);
        if sessions.sessions == 0 {
            return own;
        }
        let own = own.unwrap_or_default();
        // Where only sessions were asked, there was nothing that it could have recorded.
        let not_written = own.not_written.clone().filter(|_| own.lost_all());
        let mut all = RecordReport { not_written, ..own };
        all.add(sessions);
        Some(all)
    }

    /// Finds the record of a request whose answer comes from upstream, and begins the comparison. A request without a record is a miss.
    pub(crate) fn begin_comparison(&self, request: &IncomingRequest) -> Option<PendingExchange> {
        let comparer = self.comparer.as_ref()?;
        let found = match self.select(request) {
            Lookup::Found(found) => found,
            missed => {
                let is_exhausted = matches!(missed, Lookup::Exhausted { .. });
                let reason = if is_exhausted { NoRecordReason::Exhausted } else { NoRecordReason::NoMatch };
                self.count_miss(request, reason);
                return None;
            }
        };
        let (_, record) = self.records.get(found.record)?;
        self.used.get(found.record).into_iter().for_each(|used| used.store(true, Relaxed));
        let with = ComparedWith {
            session: request.session.clone(),
            record: format!("{} (line {})", self.name_of(found.record), record.line),
            answer: record.answer.clone(),
            comparisons: Arc::clone(&self.comparisons),
        };
        let mut pending = comparer.begin(request_of(request), request.at);
        pending.with = Some(Box::new(with));
        Some(pending)
    }

    /// Waits until everything is compared, so that the report has it.
    pub fn finish_comparing(&self) {
        self.own_players().iter().for_each(|own| own.finish_comparing());
        if let Some(Err(error)) = self.comparer.as_ref().map(|comparer| comparer.finish()) {
            tracing::warn!("{error}");
        }
    }
}
