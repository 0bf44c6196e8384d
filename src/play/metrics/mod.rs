//! `/metrics`: the families of the engine's server, with this server's values.
//!
//! The families, their helps, labels and order are data (`families.txt`, as the engine shows them); counters are atomic, so
//! that a token costs a few additions and no lock. Every choice counts as a request of its own, as in the engine.
//!
//! With a simulated engine its scheduler sets the gauges and its steps are those that are counted ([`scheduled`]).
//!
//! Limits: without one nothing waits here (what `/pause` holds neither runs nor waits, as in the engine, whose gauges rest meanwhile), so a
//! request runs from its arrival on and queue times are zero; an engine's own figures
//! (the cache's fill, preemptions, floating point operations, Python's garbage) stays zero. Cached tokens are the
//! recorded ones. Answers from cassettes count too.

mod drafts;
mod engine;
mod flight;
mod flights;
mod http_requests;
mod legacy;
mod lora;
mod page;
mod places;
mod process;
mod queued;
mod scheduled;
mod steps;
mod tool_parser;
mod transfers;
mod vcr;
mod watched;

use std::sync::{Arc, atomic::Ordering::Relaxed};

use self::{engine::EngineMetrics, http_requests::HttpRequests, lora::LoraRequestsInfo, scheduled::Scheduled};
pub(super) use self::{
    flight::{Flight, Group},
    flights::Flights,
    legacy::append_legacy,
    lora::RunningAdapter,
    page::{About, CONTENT_TYPE, MOUNTED_CONTENT_TYPE, page},
    places::Places,
    queued::Queued,
    scheduled::{Shown, StepCounts},
    tool_parser::ToolParserCalls,
    transfers::Transferred,
    vcr::append as append_own,
    watched::{NotServed, Watch},
};
use crate::{api::ApiError, base::stats::histogram};

/// Everything that is counted.
#[derive(Debug)]
pub(super) struct Metrics {
    /// Of the first rank, or of all that does not pass through an engine.
    engine: Arc<EngineMetrics>,
    /// Of the other ranks of a simulated engine.
    others: Vec<Arc<EngineMetrics>>,
    visits: HttpRequests,
    /// Where adapters are enabled.
    lora: Option<Arc<LoraRequestsInfo>>,
    /// Seconds since 1970.
    started: f64,
}

impl Metrics {
    /// Admits some choices of a prompt where no more than `most` will be in progress, however many come together.
    ///
    /// # Errors
    /// 503 where there are too many.
    pub(super) fn admit(&self, choices: u32, most: Option<u32>) -> Result<Places, ApiError> {
        Places::take(&self.engine, choices, most).ok_or_else(|| self.busy())
    }

    /// Counts a request that finds no room, and refuses it.
    pub(super) fn busy(&self) -> ApiError {
        self.engine.rejected.fetch_add(1, Relaxed);
        ApiError::busy()
    }

    /// Checks whether the engine sleeps, and how deep.
    pub(super) fn set_sleep(&self, level: Option<u8>) {
        let level = level.map_or(0, |level| u64::from(level) + 1);
        self.each().for_each(|engine| engine.sleep.store(level, Relaxed));
    }

    /// Choices that run now.
    pub(super) fn running(&self) -> u64 {
        let running = |engine: &EngineMetrics| {
            engine.scheduled.as_ref().map_or_else(|| engine.running.load(Relaxed), Scheduled::running)
        };
        self.each().map(|engine| running(engine)).sum()
    }

    /// Number of ranks.
    pub(super) fn ranks(&self) -> usize {
        self.others.len() + 1
    }

    /// Counters of each rank.
    fn each(&self) -> impl Iterator<Item = &Arc<EngineMetrics>> {
        std::iter::once(&self.engine).chain(&self.others)
    }

    /// Counters of a rank; of the first one where there is no such rank.
    fn of_rank(&self, rank: usize) -> &Arc<EngineMetrics> {
        self.each().nth(rank).unwrap_or(&self.engine)
    }

    /// Requests in progress on the paths that the engine's `/load` looks at.
    pub(super) fn load(&self) -> u64 {
        self.visits.load()
    }
}
