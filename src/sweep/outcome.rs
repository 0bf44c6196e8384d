//! What a sweep found.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::matrix::SweepCell;
use crate::{
    api::{Endpoint, answers::Observation},
    base::stats::Durations,
    net::wire::SseSplitter,
    prove::ReceivedStream,
    replay::meter::ChoiceMeter,
};

/// Outcome of a cell.
#[derive(Debug, Clone, Serialize)]
pub struct CellOutcome {
    /// The cell.
    pub cell: SweepCell,
    /// Bytes of the canary that the client received.
    pub leaked: usize,
    /// Bytes of the canary.
    pub of: usize,
    /// Status of the response; 0 where there was none.
    pub status: u16,
    /// Why the answer ended, in the words of the endpoint.
    pub finish: Option<String>,
    /// What is wrong with the response on the wire.
    pub invalid: Option<String>,
    /// The request was not passed on.
    pub is_refused: bool,
}

impl CellOutcome {
    /// Returns true if no more bytes were seen than may be, in a valid response.
    pub(crate) fn holds(&self, allowed: usize) -> bool {
        self.leaked <= allowed && self.invalid.is_none()
    }

    /// What happened, in a few words.
    pub(crate) fn what(&self) -> String {
        let received = match self.leaked {
            0 => "the client saw nothing of it".to_owned(),
            leaked => format!("the client saw {leaked} of {} bytes", self.of),
        };
        let end = match (&self.finish, self.status) {
            (Some(finish), _) => format!("; it ended with `{finish}`"),
            (None, 200) => String::new(),
            (None, status) => format!("; status {status}"),
        };
        let invalid = self.invalid.as_ref().map(|what| format!("; the response is not valid: {what}"));
        format!("{received}{end}{}", invalid.unwrap_or_default())
    }
}

/// Cells of an endpoint and a field, streamed or not.
#[derive(Debug, Clone, Serialize)]
pub struct SweepRow {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Streams, or bodies.
    pub is_stream: bool,
    /// Name of the field.
    pub field: &'static str,
    /// Cells.
    pub cells: usize,
    /// Those that the gateway did not pass on.
    pub refused: usize,
    /// Those of which the client received more than it may.
    pub leaked: usize,
    /// Those that it received in full.
    pub whole: usize,
    /// Most bytes that it received of one.
    pub most: usize,
    /// Responses that are not valid.
    pub invalid: usize,
}

/// Clean answers of an endpoint.
#[derive(Debug, Clone, Serialize)]
pub struct CleanResult {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Streams, or bodies.
    pub is_stream: bool,
    /// Answers.
    pub answers: usize,
    /// Those that came byte for byte.
    pub same_bytes: usize,
    /// Those that were damaged.
    pub damaged: usize,
    /// Streams of several tokens that came in one piece.
    pub bursts: usize,
    /// The first byte that differs in one of them.
    pub first_difference: Option<String>,
    /// A cell whose clean answer was damaged, and how.
    pub damage: Option<(SweepCell, String)>,
}

/// Times of streams.
#[derive(Debug, Clone, Default)]
pub struct StreamLatency {
    /// From the request to the first token.
    pub ttft: Durations,
    /// Between tokens.
    pub itl: Durations,
}

impl StreamLatency {
    /// Adds a stream. Returns true if several tokens came in one read.
    pub(super) fn add(&mut self, received: &ReceivedStream) -> bool {
        let (mut meter, mut splitter) = (ChoiceMeter::default(), SseSplitter::default());
        let mut reads: Vec<Duration> = Vec::new();
        for read in &received.reads {
            splitter.push(read.bytes.clone());
            while let Some(event) = splitter.next_event() {
                let Some(added) = event.data().and_then(|data| Observation::read(&data)) else { continue };
                meter.chunk(read.after, 1, added.size);
                if reads.last() != Some(&read.after) {
                    reads.push(read.after);
                }
            }
        }
        meter.gaps().take(1).for_each(|first| self.ttft.record(first));
        meter.gaps().skip(1).for_each(|gap| self.itl.record(gap));
        meter.len() > 1 && reads.len() == 1
    }
}

impl Serialize for StreamLatency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::json!({"ttft_ms": self.ttft.summary(), "itl_ms": self.itl.summary()}).serialize(serializer)
    }
}

/// Latency of the gateway: times through it beside those without it, of streams that ran between each other.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LatencyCost {
    /// The server itself.
    pub direct: StreamLatency,
    /// Clean streams through the gateway.
    pub clean: StreamLatency,
    /// Streams with the canary, until it was blocked.
    pub with_canary: StreamLatency,
}

/// Result of a sweep.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SweepReport {
    /// Bytes that a client may see.
    pub allowed: usize,
    /// The table.
    pub rows: Vec<SweepRow>,
    /// Cells that leak or whose response is not valid.
    pub failed: Vec<CellOutcome>,
    /// Clean answers.
    pub clean: Vec<CleanResult>,
    /// The times.
    pub latency: LatencyCost,
    /// Endpoints that the gateway does not have.
    pub absent: Vec<Endpoint>,
    /// True where it was stopped before its end.
    pub is_stopped: bool,
}

impl SweepReport {
    /// A report without cells yet.
    pub(crate) fn new(allowed: usize, absent: Vec<Endpoint>) -> Self {
        Self { allowed, absent, ..Self::default() }
    }

    /// Returns true if all cells ran, nothing leaked, every response is valid and no clean answer is damaged.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.is_stopped && self.failed.is_empty() && self.clean.iter().all(|clean| clean.damaged == 0)
    }

    /// Cells that ran.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.rows.iter().map(|row| row.cells).sum()
    }

    pub(super) fn add(&mut self, outcome: CellOutcome) {
        let SweepCell { endpoint, is_stream, field, .. } = outcome.cell;
        let is_row = |row: &SweepRow| (row.endpoint, row.is_stream, row.field) == (endpoint, is_stream, field.name());
        let place = self.rows.iter().position(is_row).unwrap_or(self.rows.len());
        if place == self.rows.len() {
            let field = field.name();
            let row =
                SweepRow { endpoint, is_stream, field, cells: 0, refused: 0, leaked: 0, whole: 0, most: 0, invalid: 0 };
            self.rows.push(row);
        }
        if let Some(row) = self.rows.get_mut(place) {
            row.cells += 1;
            row.refused += usize::from(outcome.is_refused);
            row.leaked += usize::from(outcome.leaked > self.allowed);
            row.whole += usize::from(outcome.leaked >= outcome.of);
            row.most = row.most.max(outcome.leaked);
            row.invalid += usize::from(outcome.invalid.is_some());
        }
        if !outcome.holds(self.allowed) {
            self.failed.push(outcome);
        }
    }

    pub(super) fn clean_of(&mut self, cell: &SweepCell) -> Option<&mut CleanResult> {
        let is_of = |clean: &CleanResult| (clean.endpoint, clean.is_stream) == (cell.endpoint, cell.is_stream);
        let place = self.clean.iter().position(is_of).unwrap_or(self.clean.len());
        if place == self.clean.len() {
            self.clean.push(CleanResult {
                endpoint: cell.endpoint,
                is_stream: cell.is_stream,
                answers: 0,
                same_bytes: 0,
                damaged: 0,
                bursts: 0,
                first_difference: None,
                damage: None,
            });
        }
        self.clean.get_mut(place)
    }

    /// The cell that stands for a row: the one of which most was seen, or whose response is not valid.
    pub(crate) fn worst(&self, row: &SweepRow) -> Option<&CellOutcome> {
        let is_of = |outcome: &&CellOutcome| {
            let SweepCell { endpoint, is_stream, field, .. } = outcome.cell;
            (row.endpoint, row.is_stream, row.field) == (endpoint, is_stream, field.name())
        };
        // The first of the largest, so that the same cells give the same report.
        self.failed.iter().filter(is_of).rev().max_by_key(|outcome| outcome.leaked)
    }
}

impl SweepRow {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.endpoint, if self.is_stream { "stream" } else { "body" }, self.field)
    }
}
