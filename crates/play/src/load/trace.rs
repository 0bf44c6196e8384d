//! A trace that was loaded, as requests find their records in it.

use crate::load::{
    account::TraceLedger,
    pace::TracePace,
    recordings::{RecordedErrors, Recordings},
};
use base::one_line::counted;
use recording::{redaction, trace::Store};
use replay::matching::Matcher;
use text::prompt::BlockHasher;

/// Recorded streams, ready to be found.
#[derive(Debug)]
pub(crate) struct LoadedTrace {
    pub(crate) name: String,
    /// In replay order.
    pub(crate) records: Store,
    pub(crate) matcher: Matcher,
    pub(crate) account: TraceLedger,
    /// Responses that no token ids stand for.
    pub(crate) recordings: Recordings,
    /// Errors that are found by their requests.
    pub(crate) errors: RecordedErrors,
    /// Patterns of secrets, which are not shown of requests and names.
    pub(crate) secrets: redaction::RedactionRules,
    pub(crate) hasher: BlockHasher,
    /// The middle of its times; `None` where it has none.
    pub(crate) pace: Option<TracePace>,
    /// How many requests were there with each record, where that counts.
    pub(super) concurrency: Vec<u32>,
}

impl LoadedTrace {
    /// The most requests that were there while a record was answered, itself too; 1 where that is unknown.
    pub(crate) fn concurrency(&self, record: Option<usize>) -> u32 {
        record.and_then(|record| self.concurrency.get(record)).copied().unwrap_or(1)
    }

    /// The trace in a few words.
    pub(crate) fn describe(&self) -> String {
        format!("{}, {}", self.name, counted(self.served_records(), "record"))
    }
}
