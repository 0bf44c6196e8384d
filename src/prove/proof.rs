//! A proof: what is to be proven, what failed, and each sort of failure in its smallest form.

use std::{collections::BTreeSet, time::Duration};

use serde::Serialize;

use super::{checks::ProveCheck, gateway::GatewayError, script::ScriptPlaces};
use crate::{api::Endpoint, faults::FaultSyntaxError};

/// Plan of a proof.
#[derive(Debug, Clone)]
pub struct ProvePlan {
    /// The checks.
    pub only: BTreeSet<ProveCheck>,
    /// Random cuts.
    pub cases: usize,
    /// Goes on with random cuts for so long.
    pub duration: Option<Duration>,
    /// Streams at once.
    pub isolation: usize,
    /// Most failures that are made small.
    pub shrink: usize,
    /// Time in which the gateway has to answer a first request.
    pub wait: Duration,
    /// Where scripts find both sides.
    pub places: ScriptPlaces,
}

/// Result of a check over all cases.
#[derive(Debug, Clone, Serialize)]
pub struct CheckResult {
    /// The check.
    pub check: ProveCheck,
    /// Cases that were checked.
    pub cases: u64,
    /// Those that failed.
    pub failed: u64,
}

/// A sort of failure.
#[derive(Debug, Clone, Serialize)]
pub struct ProvenFailure {
    /// The check.
    pub check: ProveCheck,
    /// The stream of its smallest form.
    pub stream: String,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The faults, as lines, that make it happen.
    pub faults: Vec<String>,
    /// Writes of a stream.
    pub writes: usize,
    /// Streams at once.
    pub streams: usize,
    /// The first difference.
    pub what: String,
    /// Cases that failed in this way.
    pub cases: u64,
    /// The script that shows it; empty where it could not be repeated.
    #[serde(skip)]
    pub script: String,
}

/// Result of a proof.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Proof {
    /// The checks, in their order.
    pub checks: Vec<CheckResult>,
    /// What failed.
    pub failures: Vec<ProvenFailure>,
    /// Sorts of failures that were found beside these, and not made small.
    pub more_failures: usize,
    /// Endpoints that the gateway has.
    pub endpoints: Vec<Endpoint>,
    /// Those that it has not.
    pub absent: Vec<Endpoint>,
    /// Streams in progress at the same time.
    pub together: usize,
    /// Streams that failed and were cut off without an error and without an end.
    pub silent_cuts: u64,
    /// True where it was stopped before its end.
    pub is_stopped: bool,
}

impl Proof {
    /// Returns true if all was checked and no check failed.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.is_stopped && self.checks.iter().all(|check| check.failed == 0)
    }
}

/// A proof that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ProveError {
    /// A case is no fault: a defect of this program.
    #[error("a case cannot be played: {0}")]
    Fault(#[from] FaultSyntaxError),
    /// The gateway passes no request on.
    #[error(transparent)]
    Gateway(#[from] GatewayError),
}
