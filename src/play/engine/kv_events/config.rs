//! Configuration of the publisher, by the names of vLLM's `--kv-events-config`.

use std::num::NonZeroUsize;

use crate::engine::kv_events::{EventEncoding, EventHashes};

base::with_defaults! {
    /// Configuration of the publisher of KV events.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct KvEventsConfig {
        /// Where they go: listened on where it has a `*` or `::`, else connected to.
        pub endpoint: String = "tcp://*:5557".to_owned(),
        /// Where missed batches are requested; always listened on.
        pub replay_endpoint: Option<String>,
        /// Batches that are kept for it.
        pub buffer_steps: usize = 10_000,
        /// Batches that wait to be sent.
        pub max_queue_size: NonZeroUsize = NonZeroUsize::MIN.saturating_add(99_999),
        /// The first frame of each message. `{ip}` and `{port}` are the server's, `{model}` its first model's name.
        pub topic: String,
        /// Form of events.
        pub encoding: EventEncoding,
        /// Form of hashes.
        pub hashes: EventHashes,
        /// The engine's data parallel rank, which is in each batch and added to the ports.
        pub data_parallel_rank: u32,
        /// Ports of the replicas before this one, which are added too.
        pub port_offset: u32,
    }
}

impl KvEventsConfig {
    /// The same for a later one of a server's ranks.
    #[must_use]
    pub(in crate::play) fn of_rank(self, rank: u32) -> Self {
        Self { data_parallel_rank: self.data_parallel_rank.saturating_add(rank), ..self }
    }
}
