//! State that all exchanges of a tap share: their recorder, and the content that is kept of them.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::time::Instant;

use super::{
    gather::{Bodies, MAX_BODIES},
    metrics::TapMetrics,
    observed_choice::KeptContent,
    observed_exchange::ObservedExchange,
    recorder::TraceRecorder,
};
use recording::capture::{CaptureLimits, Captures};

/// Bounds of copies of responses.
const COPIES: CaptureLimits = CaptureLimits { each: 16 << 20, together: 256 << 20 };

/// State that all exchanges of a tap share.
#[derive(Debug)]
pub(super) struct SharedState {
    /// `None` where exchanges are recorded in a cassette.
    pub(super) recorder: Option<TraceRecorder>,
    pub(super) metrics: Arc<TapMetrics>,
    /// Zero of the trace's arrival times.
    pub(super) zero: Instant,
    /// Content of responses that is kept.
    pub(super) keeps: KeptContent,
    /// Size limits that all copies of responses share.
    pub(super) captures: Arc<Captures>,
    /// Bodies that were received whole.
    pub(super) bodies: Arc<Bodies>,
    cutting: AtomicBool,
}

impl SharedState {
    pub(super) fn new(recorder: Option<TraceRecorder>, metrics: Arc<TapMetrics>, keeps: KeptContent) -> Self {
        let (captures, cutting) = (Arc::new(Captures::new(COPIES)), AtomicBool::new(false));
        let bodies = Arc::new(Bodies::new(MAX_BODIES));
        Self { recorder, metrics, zero: Instant::now(), keeps, captures, bodies, cutting }
    }

    /// Submits an exchange to the trace, if one is recorded.
    pub(super) fn submit(&self, observed: Box<ObservedExchange>) {
        if let Some(recorder) = &self.recorder {
            recorder.submit(observed);
        }
    }

    /// Marks exchanges dropped from now on as cut by the tap, not by their clients.
    pub(super) fn begin_cutting(&self) {
        self.cutting.store(true, Ordering::Relaxed);
    }

    /// Returns true once dropped exchanges are cut by the tap.
    pub(super) fn is_cutting(&self) -> bool {
        self.cutting.load(Ordering::Relaxed)
    }
}
