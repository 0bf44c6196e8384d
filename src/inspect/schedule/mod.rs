//! The decisions of the simulated engine's scheduler on a workload, step by step.
//!
//! Workloads and steps have the form of those that vLLM's own scheduler is run on, so that the two can be compared line by
//! line: [`ScheduleWorkload::read`] reads a file, [`ScheduleWorkload::write_steps`] writes a line of JSON for each step.

mod steps;
mod workload;

pub use workload::{ScheduleWorkload, ScheduleWorkloadError};
