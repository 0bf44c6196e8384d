//! What is simulated, and why it cannot be.

use std::time::Duration;

use super::router::RouterPolicy;
use crate::{
    engine::{
        kv_cache::KvCacheConfig,
        scheduler::{SchedulerConfig, SchedulerConfigError},
        step_clock::StepTimes,
    },
    recording::{formats::FormatError, trace::TraceError},
    replay::meter::Slo,
};

/// Engines, a router before them, and what counts as good.
#[derive(Debug, Clone)]
pub struct Simulation {
    /// Number of engines, at least one.
    pub replicas: usize,
    /// The router.
    pub policy: RouterPolicy,
    /// Limits of each engine's steps.
    pub scheduler: SchedulerConfig,
    /// The cache of each.
    pub kv_cache: KvCacheConfig,
    /// How long steps take.
    pub times: StepTimes,
    /// How many times faster than that.
    pub time_scale: f64,
    /// Time of a request outside of the engine.
    pub front_end: Duration,
    /// How many times faster than recorded requests arrive.
    pub speed: f64,
    /// What a request must keep to be good, where that counts.
    pub slo: Option<Slo>,
    /// Seed of the times and of the router.
    pub seed: u64,
}

/// A trace that cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// It cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A file of requests of another tool cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// No request is known by when it arrived.
    #[error("{path}: no record has an arrival, a prompt and an output")]
    NoArrivals {
        /// The file.
        path: String,
    },
    /// The engine's limits contradict each other.
    #[error(transparent)]
    Engine(#[from] SchedulerConfigError),
    /// Blocks of the engine are not made of blocks of the trace, nor the other way round.
    #[error(
        "--block-size {block_size} and the trace's blocks of {theirs} tokens do not go together: one must be a multiple of the other"
    )]
    BlockSize {
        /// Of the engine.
        block_size: usize,
        /// Of the trace.
        theirs: u32,
    },
}
