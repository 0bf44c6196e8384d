//! `/metrics`: the families of the engine's server, with this server's values.
//!
//! Each family is a row of a table ([`engine`], [`drafts`], [`transfers`], [`process`], [`vcr`]) beside the counters that it shows; [`page`] has
//! the tables in the engine's order. Counters are atomic, so that a token costs a few additions and no lock. Every choice counts as a request of
//! its own, as in the engine.
//!
//! With a simulated engine its scheduler sets the gauges and its steps are those that are counted ([`scheduled`]).
//!
//! Limits: without one nothing waits here (what `/pause` holds neither runs nor waits, as in the engine, whose gauges rest meanwhile), so a
//! request runs from its arrival on and queue times are zero; an engine's own figures
//! (the cache's fill, preemptions, floating point operations, Python's garbage) stays zero. Cached tokens are the
//! recorded ones. Answers from cassettes count too.

mod choice;
mod drafts;
mod engine;
mod http_requests;
mod lora;
mod overrides;
mod page;
mod permit;
mod process;
mod response;
mod scheduled;
mod steps;
mod tool_parser;
mod transfers;
mod vcr;
mod watched;

use std::sync::{Arc, atomic::Ordering::Relaxed};

pub(super) use self::{
    choice::{ChoiceMetrics, RequestMetrics},
    lora::RunningAdapter,
    overrides::{MetricOverrides, of_fake_metrics},
    page::{CONTENT_TYPE, MOUNTED_CONTENT_TYPE, page},
    permit::{AdmissionPermit, Queued},
    response::ResponseMetrics,
    scheduled::ShownValues,
    tool_parser::ToolParserCalls,
    transfers::Transferred,
    watched::{NotServed, Watch},
};
use self::{engine::EngineMetrics, http_requests::HttpRequests, lora::LoraRequestsInfo, process::unix_time};
use crate::live::LiveRequests;
use api::ApiError;

/// Everything that is counted.
#[derive(Debug)]
pub(super) struct Metrics {
    /// Of the first rank, or of all that does not pass through an engine.
    engine: Arc<EngineMetrics>,
    /// Of the other ranks of a simulated engine.
    others: Vec<Arc<EngineMetrics>>,
    http: HttpRequests,
    /// Where adapters are enabled.
    lora: Option<Arc<LoraRequestsInfo>>,
    /// Seconds since 1970.
    started: f64,
    /// The latest requests, while the page is viewed.
    pub(super) live: LiveRequests,
}

impl Metrics {
    /// Counters that start now.
    pub(super) fn new(max_model_len: u32) -> Self {
        let engine = EngineMetrics::new(max_model_len).into();
        Self {
            engine,
            others: Vec::new(),
            http: HttpRequests::default(),
            lora: None,
            started: unix_time(),
            live: LiveRequests::default(),
        }
    }

    /// Admits some choices of a prompt where no more than `most` will be in progress, however many come together.
    /// Errors: 503 where there are too many.
    pub(super) fn admit(&self, choices: u32, most: Option<u32>) -> Result<AdmissionPermit, ApiError> {
        AdmissionPermit::take(&self.engine, choices, most).ok_or_else(|| self.busy())
    }

    /// Counts a request that finds no room, and refuses it.
    pub(super) fn busy(&self) -> ApiError {
        self.engine.rejected.fetch_add(1, Relaxed);
        ApiError::busy()
    }

    /// Sets whether the engine sleeps, and how deep.
    pub(super) fn set_sleep(&self, level: Option<u8>) {
        let level = level.map_or(0, |level| u64::from(level) + 1);
        self.each().for_each(|engine| engine.sleep.store(level, Relaxed));
    }

    /// Choices that run now.
    pub(super) fn running(&self) -> u64 {
        self.each().map(|engine| engine.running.load(Relaxed)).sum()
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
        self.http.load.load(Relaxed)
    }
}
