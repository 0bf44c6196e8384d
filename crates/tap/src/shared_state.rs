//! State that all exchanges of a tap share: their recorder, and the content that is kept of them.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::time::Instant;

use super::{
    RecorderReport, Setup, TapError, capabilities::Capabilities, gather::MAX_BODIES, metrics::TapMetrics,
    observed_choice::KeptContent, observed_exchange::ObservedExchange, recorder::TraceRecorder,
};
use base::held_bytes::HeldBytes;
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
    pub(super) captures: Captures,
    /// Bodies that were received whole.
    pub(super) bodies: HeldBytes,
    cutting: AtomicBool,
}

impl SharedState {
    /// Creates the trace of a setup and starts its recorder, unless exchanges `are_in_trace` not; the first line has the facts of `engine`.
    pub(super) fn start(
        setup: &Setup,
        (are_in_trace, engine): (bool, Arc<Capabilities>),
        metrics: Arc<TapMetrics>,
    ) -> Result<Self, TapError> {
        let responses = setup.config.record_tokens && setup.permutation.is_none();
        let keeps = KeptContent { text: setup.content.text, logprobs: setup.content.logprobs, responses };
        let recorder = match are_in_trace {
            true => Some(TraceRecorder::start(setup, engine, Arc::clone(&metrics))?),
            false => None,
        };
        let (captures, bodies) = (Captures::new(COPIES), HeldBytes::new(MAX_BODIES));
        Ok(Self { recorder, metrics, zero: Instant::now(), keeps, captures, bodies, cutting: AtomicBool::new(false) })
    }

    pub(super) fn submit(&self, observed: Box<ObservedExchange>) {
        if let Some(recorder) = &self.recorder {
            recorder.submit(observed);
        }
    }

    /// Begins a new file with the next record.
    pub(super) fn rotate(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.rotate();
        }
    }

    /// Closes the trace; blocks until it is written.
    pub(super) fn finish(&self) -> Result<RecorderReport, TapError> {
        self.recorder.as_ref().map_or_else(|| Ok(RecorderReport::default()), TraceRecorder::finish)
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
