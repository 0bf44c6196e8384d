//! Records in the order in which their requests came, whatever order their answers end in.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{Output, Timeline, secrets};
use crate::{
    recording::cassette::{CassetteError, Episode, Keep, Record, Scribe},
    recording::redaction::Rules,
};

/// Which failed answers are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RecordErrors {
    /// Those that would be the same the next time: 4xx, but no refused key, no time limit, no conflict and no busy server.
    #[default]
    Lasting,
    /// All of them.
    All,
}

/// What was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecordReport {
    /// New records.
    pub recorded: usize,
    /// Answers that were not recorded because of their status.
    pub skipped: u64,
}

/// Writes one cassette.
#[derive(Debug)]
pub(super) struct Recorder {
    state: Mutex<State>,
    errors: RecordErrors,
    timeline: Timeline,
    secrets: Rules,
}

#[derive(Debug)]
struct State {
    /// `None` once it is closed.
    scribe: Option<Scribe>,
    /// The next ticket, and the next one that is written.
    next: u64,
    due: u64,
    /// What waits for earlier ones; `None` for nothing to write.
    waiting: BTreeMap<u64, Option<Episode>>,
    report: RecordReport,
}

/// The right to write one record, at the place of its request.
#[derive(Debug)]
pub(super) struct Ticket {
    recorder: Arc<Recorder>,
    number: u64,
    used: bool,
}

impl Recorder {
    pub(super) fn new(
        output: &Output,
        keep: Keep,
        errors: RecordErrors,
        secrets: Rules,
    ) -> Result<Self, CassetteError> {
        let scribe = Some(Scribe::create(&output.path, &output.header, output.mode)?.keeping(keep));
        let state = State { scribe, next: 0, due: 0, waiting: BTreeMap::new(), report: RecordReport::default() };
        Ok(Self { state: Mutex::new(state), errors, timeline: output.timeline, secrets })
    }

    /// A place among the records.
    pub(super) fn ticket(self: &Arc<Self>) -> Ticket {
        let mut state = self.lock();
        state.next += 1;
        Ticket { recorder: Arc::clone(self), number: state.next - 1, used: false }
    }

    /// Writes a record that was played, where everything is written that is served.
    pub(super) fn copy(self: &Arc<Self>, record: &Record) {
        if self.timeline == Timeline::Full {
            let side = record.side.clone().filter(|_| record.is_as_recorded()).unwrap_or_default();
            self.ticket().put(Episode {
                record: Record { like: None, side: None, ..record.clone() },
                side,
                is_retry: false,
            });
        }
    }

    pub(super) fn flush(&self) -> Result<(), CassetteError> {
        self.lock().scribe.as_mut().map_or(Ok(()), Scribe::flush)
    }

    /// Writes everything, also what waits for answers that never ended.
    pub(super) fn finish(&self) -> Result<RecordReport, CassetteError> {
        let mut state = self.lock();
        let waiting = std::mem::take(&mut state.waiting);
        waiting.into_values().flatten().for_each(|episode| state.add(episode));
        let report = state.report.clone();
        state.scribe.take().map_or(Ok(()), |scribe| scribe.finish().map(drop))?;
        Ok(report)
    }

    fn wants(&self, status: u16) -> bool {
        let passing = [401, 403, 408, 409, 425, 429].contains(&status) || status >= 500;
        self.errors == RecordErrors::All || !passing
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, number: u64, episode: Option<Episode>) {
        let mut state = self.lock();
        state.waiting.insert(number, episode);
        loop {
            let due = state.due;
            let Some(next) = state.waiting.remove(&due) else { return };
            state.due += 1;
            next.into_iter().for_each(|episode| state.add(episode));
        }
    }
}

impl State {
    fn add(&mut self, episode: Episode) {
        if let Some(scribe) = &mut self.scribe {
            scribe.add(episode);
            self.report.recorded += 1;
        }
    }
}

impl Ticket {
    /// Writes the record, unless its status says that it is not worth it.
    pub(super) fn finish(self, episode: Episode) {
        let status = episode.record.answer.status;
        if self.recorder.wants(status) {
            return self.put(episode);
        }
        tracing::warn!("an answer with status {status} is not recorded (--record-errors all records it)");
        self.recorder.lock().report.skipped += 1;
    }

    fn put(mut self, mut episode: Episode) {
        secrets::redact(&self.recorder.secrets, &mut episode.record, &mut episode.side);
        self.used = true;
        self.recorder.put(self.number, Some(episode));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.used {
            self.recorder.put(self.number, None);
        }
    }
}
