//! Faults that happened, or could not be applied, with the lines that repeat them.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use base::{lock::Lock, units::duration_text};
use tokio::time::Instant;

use crate::{
    fault::{Fault, FaultPlace},
    selection::FaultSelection,
    signal::BatchNumber,
};

/// Maximum number of hits that are listed.
const MOST_LISTED: usize = 200_000;

/// Maximum number of unapplied faults that are listed.
const MOST_UNAPPLIED: usize = 10_000;

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
                format!("429:retry-after={}{}", duration_text(retry_after), alone(fault, request, nth))
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
    /// When, from the start of the server.
    pub at: Duration,
}

/// A fault that a request did not get although it was chosen, for a list.
#[derive(Debug, Clone, PartialEq)]
pub struct UnappliedFault {
    /// The line that chooses it alone.
    pub line: String,
    /// Number of its fault in the set; `None` for one that a request named itself.
    pub rule: Option<usize>,
    /// When, from the start of the server.
    pub at: Duration,
    /// Why.
    pub reason: String,
}

/// Faults that happened on a server, with those before the current ones.
#[derive(Debug)]
pub(crate) struct FaultHistory {
    start: Instant,
    hits: Lock<VecDeque<NotedHit>>,
    unapplied: Lock<VecDeque<(Arc<Fault>, UnappliedFault)>>,
}

impl Default for FaultHistory {
    fn default() -> Self {
        Self { start: Instant::now(), hits: Lock::default(), unapplied: Lock::default() }
    }
}

impl FaultHistory {
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn add_hit(&self, hit: NotedHit) {
        add(&self.hits, hit, MOST_LISTED);
    }

    pub(crate) fn add_unapplied(&self, fault: Arc<Fault>, unapplied: UnappliedFault) {
        add(&self.unapplied, (fault, unapplied), MOST_UNAPPLIED);
    }

    pub(crate) fn hits(&self, most: usize) -> Vec<NotedHit> {
        latest(&self.hits, most)
    }

    pub(crate) fn unapplied(&self, most: usize) -> Vec<(Arc<Fault>, UnappliedFault)> {
        latest(&self.unapplied, most)
    }
}

/// Adds to a list, whose oldest entry makes room.
fn add<T>(list: &Lock<VecDeque<T>>, entry: T, most: usize) {
    let mut list = list.lock();
    if list.len() == most {
        list.pop_front();
    }
    list.push_back(entry);
}

/// The latest entries of a list, oldest first.
fn latest<T: Clone>(list: &Lock<VecDeque<T>>, most: usize) -> Vec<T> {
    let list = list.lock();
    list.iter().skip(list.len().saturating_sub(most)).cloned().collect()
}
