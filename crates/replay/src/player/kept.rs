//! What a player keeps over its sessions.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::account::{EarlierReports, UnusedRecord};
use base::lock::Lock;

/// Account of sessions that were ended, reopened or reset.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    pub(super) reports: EarlierReports,
    /// To how many ended sessions each record was served of the cassettes that all share.
    pub(super) served: BTreeMap<usize, usize>,
    /// The groups that they began, each with the first session that did.
    pub(super) begun: BTreeMap<usize, String>,
    pub(super) had_own: bool,
    /// How many sessions were ended or reopened.
    pub(super) ended: u64,
}

/// Whether any player served a record, and the record as it is reported where none did.
pub(super) type RecordUse = (bool, UnusedRecord);

/// Numbers of misses, and the address of `/vcr/…`, shared by a player and those of its sessions.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    last: AtomicU64,
    /// URL of the server that answers `/vcr/…`.
    pub(super) root: OnceLock<String>,
}

impl Pages {
    /// Returns the number of the next miss, and its page's URL where one is known.
    pub(crate) fn next(&self) -> (u64, Option<String>) {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        (number, self.root.get().map(|root| format!("{root}/vcr/misses/{number}")))
    }
}

/// Called before a session ends, with its name: recorders of MCP servers hand over what they recorded for it.
#[derive(Default)]
pub(super) struct HandOvers(pub(super) Lock<Vec<HandOver>>);

pub(crate) type HandOver = Box<dyn Fn(&str) + Send + Sync>;

impl fmt::Debug for HandOvers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandOvers")
    }
}
