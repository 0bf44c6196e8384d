//! The pages of misses: their numbers, and the address at which people find them.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Numbers of misses, and the address of `/vcr/…`, shared by a player and those of its sessions.
#[derive(Debug, Default)]
pub(in super::super) struct Pages {
    last: AtomicU64,
    root: OnceLock<String>,
}

impl Pages {
    /// Sets the URL of the server that answers `/vcr/…`.
    pub(in super::super) fn are_at(&self, root: &str) {
        // A player is served at one address; the first one stays.
        let _set = self.root.set(root.to_owned());
    }

    /// Returns the number of the next miss, and its page's URL where one is known.
    pub(in super::super) fn next(&self) -> (u64, Option<String>) {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        (number, self.root.get().map(|root| format!("{root}/vcr/misses/{number}")))
    }
}
