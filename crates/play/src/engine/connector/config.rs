//! Configuration of a KV connector.

use std::time::Duration;

use ::engine::step_clock::TransferTimes;

/// Value of `kv_role`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvRole {
    /// It prefills.
    Producer,
    /// It decodes.
    Consumer,
    /// It does both.
    Both,
}

impl KvRole {
    /// Whether it decodes what other engines have prefilled.
    pub(crate) fn is_consumer(self) -> bool {
        self != Self::Producer
    }
}

/// Configuration of an engine's connector, by the names of vLLM's.
#[derive(Debug, Clone)]
pub struct KvTransferConfig {
    /// Name by which other engines know this one.
    pub engine_id: String,
    /// What it does.
    pub role: KvRole,
    /// Where other engines reach it, and it listens for them.
    pub host: String,
    /// The port there; 0 for any.
    pub port: u16,
    /// Hosts, beside this one and the loopback, that requests may name as those of other engines; `*` is any.
    pub peers: Vec<String>,
    /// How long blocks are kept that no engine reads.
    pub lease: Duration,
    /// How long transfers take.
    pub times: TransferTimes,
}

impl KvTransferConfig {
    /// The configuration of one of several servers of so many ranks: each has names and ports of its own.
    #[must_use]
    pub(in super::super::super) fn of_replica(self, replica: u32, ranks: u32) -> Self {
        let port = self.port_after(replica.saturating_mul(ranks));
        let engine_id = if replica == 0 { self.engine_id } else { format!("{}_{replica}", self.engine_id) };
        Self { engine_id, port, ..self }
    }

    /// The configuration of one of a server's ranks.
    #[must_use]
    pub(in super::super) fn of_rank(self, rank: u32) -> Self {
        let port = self.port_after(rank);
        let engine_id = if rank == 0 { self.engine_id } else { format!("{}_dp{rank}", self.engine_id) };
        Self { engine_id, port, ..self }
    }

    /// So many ports on; any stays any.
    fn port_after(&self, offset: u32) -> u16 {
        if self.port == 0 { 0 } else { self.port.saturating_add(u16::try_from(offset).unwrap_or(u16::MAX)) }
    }
}
