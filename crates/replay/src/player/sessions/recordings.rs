//! What sessions recorded in cassettes of their own, as a part of the report at the end.

use std::sync::PoisonError;

use crate::player::{CassettePlayer, RecordReport};

impl CassettePlayer {
    /// Keeps what a session recorded that has ended.
    pub(in crate::player) fn keep_recorded(&self, report: Option<RecordReport>) {
        let mut kept = self.recorded_by_sessions.lock().unwrap_or_else(PoisonError::into_inner);
        report.into_iter().for_each(|report| kept.add_session(report));
    }

    /// Adds what sessions recorded to what this player did; `None` where neither records.
    pub(in crate::player) fn with_sessions(&self, own: Option<RecordReport>) -> Option<RecordReport> {
        let sessions = self.recorded_by_sessions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Where sessions have cassettes of their own, requests without one are rare.
        let is_expected = |own: &&RecordReport| own.lost_all() || !self.has_own_cassettes();
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
}

impl RecordReport {
    /// Warns of a recording without a record.
    fn warn_of_none(&self) {
        let Some(path) = &self.not_written else { return };
        let becomes = if path.exists() { "stays as it was" } else { "is not written" };
        tracing::warn!("nothing was recorded: {} {becomes}", path.display());
    }

    /// Adds a session with a cassette of its own.
    fn add_session(&mut self, session: Self) {
        let not_written = session.not_written.clone().filter(|_| session.lost_all());
        self.add(Self { sessions: 1, not_written, ..session });
    }

    fn add(&mut self, other: Self) {
        self.recorded += other.recorded;
        self.sessions += other.sessions;
        self.skipped += other.skipped;
        self.queue_full += other.queue_full;
        self.queue_bytes += other.queue_bytes;
        self.unreadable += other.unreadable;
        self.unsearched += other.unsearched;
        self.broken += other.broken;
        self.partial += other.partial;
        other.redacted.into_iter().for_each(|(kind, count)| *self.redacted.entry(kind).or_default() += count);
        self.unredacted = self.unredacted.take().or(other.unredacted);
        self.unanswered += other.unanswered;
        self.unanswered_why = self.unanswered_why.take().or(other.unanswered_why);
        self.not_written = self.not_written.take().or(other.not_written);
    }
}
