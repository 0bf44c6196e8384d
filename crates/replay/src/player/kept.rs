//! What a player keeps over its sessions.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::account::EarlierReports;
use base::lock::Lock;

/// Account of sessions that were ended, reopened or reset.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    pub(crate) reports: EarlierReports,
    /// Records that ended sessions were served of the cassettes that all share.
    pub(crate) served: HashSet<usize>,
    /// The groups that they began, each with the first session that did.
    pub(crate) begun: BTreeMap<usize, String>,
    pub(crate) had_own: bool,
    /// How many sessions were ended or reopened.
    pub(crate) ended: u64,
}

/// The path of a cassette, and the number of a record there.
pub(crate) type RecordAddress = (String, u64);

#[derive(Debug, Clone)]
pub(crate) struct Use {
    pub(crate) is_used: bool,
    pub(crate) line: usize,
    pub(crate) request: String,
}

/// Numbers of misses, and the address of `/vcr/…`, shared by a player and those of its sessions.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    last: AtomicU64,
    root: OnceLock<String>,
}

impl Pages {
    /// Sets the URL of the server that answers `/vcr/…`.
    pub(crate) fn are_at(&self, root: &str) {
        // A player is served at one address; the first one stays.
        let _set = self.root.set(root.to_owned());
    }

    /// Returns the number of the next miss, and its page's URL where one is known.
    pub(crate) fn next(&self) -> (u64, Option<String>) {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        (number, self.root.get().map(|root| format!("{root}/vcr/misses/{number}")))
    }
}

/// What hands over what was recorded for a session.
pub(crate) type HandOver = Box<dyn Fn(&str) + Send + Sync>;

/// Those of all recorders of MCP servers.
#[derive(Default)]
pub(crate) struct HandOvers(pub(in crate::player) Lock<Vec<HandOver>>);

impl fmt::Debug for HandOvers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandOvers")
    }
}
