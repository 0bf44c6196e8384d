//! A trace that was loaded, as requests find their records in it.

use crate::{
    base::one_line::counted,
    play::load::{
        account::TraceLedger,
        pace::TracePace,
        recordings::{RecordedErrors, Recordings},
    },
    recording::{redaction, trace::Store},
    replay::matching::Matcher,
    text::prompt::BlockHasher,
};

/// Recorded streams, ready to be found.
#[derive(Debug)]
pub(in crate::play) struct LoadedTrace {
    pub(in crate::play) name: String,
    /// In replay order.
    pub(in crate::play) records: Store,
    pub(in crate::play) matcher: Matcher,
    pub(in crate::play) account: TraceLedger,
    /// Responses that no token ids stand for.
    pub(in crate::play) recordings: Recordings,
    /// Errors that are found by their requests.
    pub(in crate::play) errors: RecordedErrors,
    /// Patterns of secrets, which are not shown of requests and names.
    pub(in crate::play) secrets: redaction::RedactionRules,
    pub(in crate::play) hasher: BlockHasher,
    /// The middle of its times; `None` where it has none.
    pub(in crate::play) pace: Option<TracePace>,
    /// How many requests were there with each record, where that counts.
    pub(super) concurrency: Vec<u32>,
}

impl LoadedTrace {
    /// The most requests that were there while a record was answered, itself too; 1 where that is unknown.
    pub(in crate::play) fn concurrency(&self, record: Option<usize>) -> u32 {
        record.and_then(|record| self.concurrency.get(record)).copied().unwrap_or(1)
    }

    /// The trace in a few words.
    pub(in crate::play) fn describe(&self) -> String {
        format!("{}, {}", self.name, counted(self.served_records(), "record"))
    }
}
