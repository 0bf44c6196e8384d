//! Faults of what routers look at: the page of metrics, KV events, and whether the server is there at all.
//!
//! See docs/decisions/0131-signals-quotas-and-servers-are-faults-too.md.

use std::time::Duration;

/// Fault of a page of metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsFault {
    /// It is that of so long ago.
    Stale(Duration),
    /// It stays that of the first request that gets the fault.
    Stuck,
    /// Samples are no numbers: of a family, or of the engine's families.
    Nan(Option<String>),
    /// A family is missing.
    Absent(String),
}

/// Fault of published KV events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventsFault {
    /// Batches are kept for replay, and not sent.
    Drop,
    /// Batches are sent twice, under their numbers.
    Double,
    /// Batches are sent so much later, and those behind them after them.
    Late(Duration),
    /// A batch is sent after the next one.
    Reorder,
    /// Numbers begin at 0 again.
    Reset,
    /// No more than so many batches are kept for replay.
    ReplayCut(usize),
    /// The socket is closed and opened again after so long; numbers begin at 0 again.
    Restart(Duration),
}

impl EventsFault {
    /// Returns true if it happens at one batch, whatever its count.
    pub(crate) fn is_point(self) -> bool {
        matches!(self, Self::Reset | Self::Restart(_))
    }
}

/// A batch of KV events: how many its publisher made before it, whatever their sequence numbers, and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchNumber {
    /// Batches before it.
    pub number: u64,
    /// The replica.
    pub replica: u32,
    /// The data parallel rank of its engine.
    pub rank: u32,
}

/// Fault of a whole server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ServerFault {
    /// It is dead; later it starts cold.
    Die,
    /// Its port refuses connections, and open ones are cut; engine and cache live on.
    Refuse,
    /// Steps take so many times as long.
    Slower(f64),
    /// The cache has no free block.
    KvExhausted,
}

/// A server as its faults have it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServerCondition {
    /// Whether it is dead.
    pub is_dead: bool,
    /// Whether its port refuses.
    pub refuses: bool,
    /// How many times as long its steps take.
    pub slower: f64,
    /// Whether its cache has no free block.
    pub is_exhausted: bool,
}

impl Default for ServerCondition {
    fn default() -> Self {
        Self { is_dead: false, refuses: false, slower: 1.0, is_exhausted: false }
    }
}

impl ServerCondition {
    /// The same with one more fault.
    #[must_use]
    pub(crate) fn with(self, fault: ServerFault) -> Self {
        match fault {
            ServerFault::Die => Self { is_dead: true, ..self },
            ServerFault::Refuse => Self { refuses: true, ..self },
            ServerFault::Slower(factor) => Self { slower: self.slower * factor, ..self },
            ServerFault::KvExhausted => Self { is_exhausted: true, ..self },
        }
    }
}
