//! What all exchanges of a tap share: where they are recorded, and how much of them.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::time::Instant;

use super::{exchange::ObservedExchange, metrics::Metrics, recorder::TraceRecorder};
use crate::recording::capture::{CaptureLimits, Captures};

/// Bounds of copies of responses.
const COPIES: CaptureLimits = CaptureLimits { each: 16 << 20, together: 256 << 20 };

/// What all exchanges of a tap share.
#[derive(Debug)]
pub(super) struct SharedState {
    /// `None` where exchanges are recorded in a cassette.
    pub(super) recorder: Option<TraceRecorder>,
    pub(super) metrics: Arc<Metrics>,
    /// The capture's zero.
    pub(super) zero: Instant,
    /// What is kept of answers.
    pub(super) keeps: KeptContent,
    /// What the copies of responses share.
    pub(super) captures: Arc<Captures>,
    cutting: AtomicBool,
}

impl SharedState {
    pub(super) fn new(recorder: Option<TraceRecorder>, metrics: Arc<Metrics>, keeps: KeptContent) -> Self {
        let (captures, cutting) = (Arc::new(Captures::new(COPIES)), AtomicBool::new(false));
        Self { recorder, metrics, zero: Instant::now(), keeps, captures, cutting }
    }

    /// Submits an exchange to the trace, where one is recorded.
    pub(super) fn submit(&self, observed: Box<ObservedExchange>) {
        if let Some(recorder) = &self.recorder {
            recorder.submit(observed);
        }
    }

    /// From now on an exchange that is dropped was cut by us, not by its client.
    pub(super) fn begin_cutting(&self) {
        self.cutting.store(true, Ordering::Relaxed);
    }

    /// Whether an exchange that is dropped was cut by us.
    pub(super) fn is_cutting(&self) -> bool {
        self.cutting.load(Ordering::Relaxed)
    }
}

/// Content that is kept for the records.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct KeptContent {
    /// Words.
    pub(super) text: bool,
    /// Log probabilities.
    pub(super) logprobs: bool,
    /// Responses that no token ids stand for.
    pub(super) responses: bool,
}
