//! What a session does about requests without a record.

use std::time::Duration;

/// Treatment of a request that was not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnNovel {
    /// An error with the closest record.
    #[default]
    Error,
    /// A made-up text, of calls of tools; else an error.
    Stub,
    /// A result that is null, of calls of tools; else an error.
    Null,
    /// The answer of a record of the same tool whose arguments have at least half of their names in common; else an error.
    Closest,
    /// The real server's answer.
    Upstream,
    /// The same, and it is recorded.
    Record,
}

impl OnNovel {
    /// Returns whether requests without a record go to the real server.
    #[must_use]
    pub fn forwards(self) -> bool {
        matches!(self, Self::Upstream | Self::Record)
    }
}

/// Treatment of a request whose records are exhausted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnUsedUp {
    /// An error.
    #[default]
    Error,
    /// The last one again.
    Last,
}

/// Policy of a session.
#[derive(Debug, Clone, Copy, Default)]
pub struct McpPolicy {
    /// What a request gets that was not recorded.
    pub on_novel: OnNovel,
    /// What a request gets that was recorded less often.
    pub on_used_up: OnUsedUp,
    /// Whether lists, such as that of the tools, are answered however often they are asked for.
    pub repeats_lists: bool,
    /// Longest wait for a reply of the client.
    pub reply_within: Duration,
    /// Whether a request that is forwarded is a miss all the same, as where a cassette is replayed and not added to.
    pub counts_forwarded: bool,
    /// Whether clients are served over HTTP, where a real server can be asked too.
    pub over_http: bool,
}
