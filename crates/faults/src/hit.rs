//! Faults that happened, or could not be applied, with the lines that repeat them.

use std::{sync::Arc, time::Duration};

use crate::{
    fault::{Fault, FaultPlace},
    selection::FaultSelection,
    signal::BatchNumber,
};

pub(crate) fn line(fault: &Fault, request: u64, nth: u64) -> String {
    format!("{}{}", fault.what(), alone(fault, request, nth))
}

/// The conditions of a request alone, at the replica that the fault names.
fn alone(fault: &Fault, request: u64, nth: u64) -> FaultSelection {
    let (request, nth, replica) = (Some(request), Some(nth), fault.selection.replica);
    FaultSelection { request, nth, replica, ..FaultSelection::default() }
}

/// To whom a fault happened.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HitOf {
    Request {
        request: u64,
        nth: u64,
        replica: u32,
    },
    /// To a request that was refused for so long.
    Refused {
        request: u64,
        nth: u64,
        replica: u32,
        retry_after: Duration,
    },
    /// To a batch of KV events.
    Batch(BatchNumber),
    Replica(u32),
}

/// A fault that happened.
#[derive(Debug, Clone)]
pub(crate) struct NotedHit {
    pub(crate) fault: Arc<Fault>,
    pub(crate) rule: Option<usize>,
    pub(crate) of: HitOf,
    pub(crate) at: Duration,
}

impl HitOf {
    /// The line that repeats it alone.
    pub(crate) fn line(self, fault: &Fault) -> String {
        match self {
            Self::Request { request, nth, .. } => line(fault, request, nth),
            Self::Refused { request, nth, retry_after, .. } => {
                format!("429:retry-after={}us{}", retry_after.as_micros(), alone(fault, request, nth))
            }
            Self::Batch(BatchNumber { number, replica, rank }) => {
                let place = FaultPlace::Event(number);
                format!("{} at {place} where replica={replica} rank={rank}", fault.written_once())
            }
            Self::Replica(replica) => {
                let selection = FaultSelection { replica: Some(replica), ..fault.selection.clone() };
                format!("{}{selection}", fault.what())
            }
        }
    }

    pub(crate) fn replica(self) -> u32 {
        match self {
            Self::Request { replica, .. } | Self::Refused { replica, .. } | Self::Replica(replica) => replica,
            Self::Batch(batch) => batch.replica,
        }
    }
}

/// A fault that happened, for a list.
#[derive(Debug, Clone, PartialEq)]
pub struct FaultHit {
    /// The line that repeats it alone.
    pub line: String,
    /// Number of its fault in the set; `None` for one that a request named itself.
    pub rule: Option<usize>,
    /// Number of the replica that it happened at.
    pub replica: u32,
    /// When, from the start of the set.
    pub at: Duration,
}

/// A fault that a request did not get although it was chosen, for a list.
#[derive(Debug, Clone, PartialEq)]
pub struct UnappliedFault {
    /// The line that chooses it alone.
    pub line: String,
    /// Number of its fault in the set; `None` for one that a request named itself.
    pub rule: Option<usize>,
    /// When, from the start of the set.
    pub at: Duration,
    /// Why.
    pub reason: String,
}
