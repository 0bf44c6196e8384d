//! Runs the requests of a trace through simulated engines behind a router, under a clock that only counts.
//!
//! An [`ArrivalSchedule`] has the requests without their tokens; [`simulate`] gives each to a replica ([`RouterPolicy`]) when it arrives, steps the
//! replicas in the order of their events, and measures what a client would. The same schedule, simulation and seed give
//! the same report.
//!
//! Limits: the router, the front ends and the network take one constant time together, before a request's first step; they are never busy.
//! No request depends on the answer to another one: a turn arrives when it did in the trace.
//!
//! See docs/decisions/0069-simulate-without-tokens.md.

mod answers;
mod fleet;
mod report;
mod router;
mod schedule;

use std::time::Duration;

use crate::{
    engine::{
        kv_cache::KvCacheConfig,
        scheduler::{SchedulerConfig, SchedulerConfigError},
        step_clock::StepTimes,
    },
    recording::{formats::FormatError, trace::TraceError},
    replay::meter::Slo,
};

pub use self::{
    answers::{Answers, AnswersInPrompts},
    report::{Goodput, ReplicaReport, SimulateReport},
    router::{Balance, RouterPolicy},
    schedule::ArrivalSchedule,
};

/// Runs a schedule to its end.
///
/// # Errors
/// When the simulation contradicts itself or the schedule.
pub fn simulate(schedule: &ArrivalSchedule, simulation: &Simulation) -> Result<SimulateReport, SimulateError> {
    let (block_size, theirs) = (simulation.kv_cache.block_size.max(1), schedule.block_size);
    let other = (theirs as usize).max(1);
    if !block_size.is_multiple_of(other) && !other.is_multiple_of(block_size) {
        return Err(SimulateError::BlockSize { block_size, theirs });
    }
    Ok(fleet::SimulatedFleet::new(schedule, simulation)?.run())
}

/// Engines, a router before them, and what counts as good.
#[derive(Debug, Clone)]
pub struct Simulation {
    /// Number of engines, at least one.
    pub replicas: usize,
    /// The router.
    pub policy: RouterPolicy,
    /// Its balance, where it goes by prefixes.
    pub balance: Balance,
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
