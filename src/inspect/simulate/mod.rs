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
mod simulation;

pub use self::{
    answers::{Answers, AnswersInPrompts},
    report::{Goodput, ReplicaReport, SimulateReport},
    router::{Balance, RouterPolicy, UnknownPolicy},
    schedule::ArrivalSchedule,
    simulation::{SimulateError, Simulation},
};
/// Runs a schedule to its end.
///
/// # Errors
/// When the simulation contradicts itself or the schedule.
pub fn simulate(schedule: &ArrivalSchedule, simulation: &Simulation) -> Result<SimulateReport, SimulateError> {
    let (block_size, theirs) = (simulation.kv_cache.block_size.max(1), schedule.block_size);
    let other = usize::try_from(theirs).unwrap_or(usize::MAX).max(1);
    if !block_size.is_multiple_of(other) && !other.is_multiple_of(block_size) {
        return Err(SimulateError::BlockSize { block_size, theirs });
    }
    Ok(fleet::SimulatedFleet::new(schedule, simulation)?.run())
}
