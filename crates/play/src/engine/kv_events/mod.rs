//! KV events of a running engine, published over ZeroMQ as vLLM does.
//!
//! The engine's thread encodes the events of a step and puts them into a bounded queue; it never waits. A batch that does not
//! fit is dropped, and its sequence number with it, so that subscribers see the gap. A thread of its own ([`publisher`]) sends what is
//! queued, and keeps the last batches for those who missed some ([`replay`]).
//!
//! Limits: `tcp://` only. `hwm` cannot be set: for each subscriber 64 MiB wait, and for all together 256 MiB; one that is further behind
//! is disconnected ([`guard`]), as is a client of replayed batches that reads none for 10 seconds. Queued and kept batches take at most
//! [`MOST_BYTES`] each.
//!
//! See docs/decisions/0098-kv-events-over-zeromq.md.

mod endpoint;
mod faulted;
mod guard;
mod publisher;
mod replay;

use std::{
    net::IpAddr,
    num::NonZeroUsize,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::SystemTime,
};

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::mpsc;

pub(crate) use self::faulted::PublisherFaults;
use ::engine::{
    kv_cache::HashAlgorithm,
    kv_events::{EventEncoder, EventEncoding, EventHashes},
    scheduler::Scheduler,
};

/// Bytes of batches that wait to be sent, and of those that are kept.
const MOST_BYTES: usize = 256 << 20;

base::with_defaults! {
    /// Configuration of the publisher of KV events, by the names of vLLM's `--kv-events-config`.
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
    /// Batches that wait for a subscriber in vLLM, which cannot be set here.
    pub const HIGH_WATER_MARK: u64 = 100_000;

    /// The same for a later one of a server's ranks.
    #[must_use]
    pub(crate) fn of_rank(self, rank: u32) -> Self {
        Self { data_parallel_rank: self.data_parallel_rank.saturating_add(rank), ..self }
    }
}

/// Source of a rank's KV events, by vLLM's `KVEventsConfig`: the endpoints as they were given, with the rank's ports.
#[derive(Debug, Serialize)]
pub(crate) struct EventSource {
    pub(crate) enable_kv_cache_events: bool,
    pub(crate) publisher: &'static str,
    pub(crate) endpoint: String,
    pub(crate) replay_endpoint: Option<String>,
    pub(crate) buffer_steps: usize,
    pub(crate) hwm: u64,
    pub(crate) max_queue_size: NonZeroUsize,
    pub(crate) topic: String,
}

/// A step's events, encoded.
#[derive(Debug, Clone)]
struct EventBatch {
    seq: u64,
    payload: Bytes,
}

/// State that the engine's thread and the publisher's share.
#[derive(Debug, Default)]
struct PublisherState {
    queued_bytes: AtomicUsize,
    /// Bytes that wait for subscribers.
    waiting_bytes: AtomicUsize,
    published: AtomicU64,
    dropped: AtomicU64,
    disconnected: AtomicU64,
    /// Once the server's address is known.
    topic: OnceLock<Bytes>,
}

/// Errors of the publisher's start.
#[derive(Debug, thiserror::Error)]
pub enum KvEventsError {
    /// An endpoint that is none.
    #[error(
        "{0:?} is no endpoint of KV events (--kv-events-endpoint, or in --kv-events-config): tcp://HOST:PORT is needed, with * as \
         HOST to listen on all addresses"
    )]
    Endpoint(String),
    /// A port that cannot be listened on.
    #[error("cannot listen on {endpoint} for KV events: {error}")]
    Bind {
        /// Where.
        endpoint: String,
        /// Why.
        error: String,
    },
    /// The system starts no thread.
    #[error("cannot start the thread of KV events: {0}")]
    Thread(#[from] std::io::Error),
}

/// The engine's side: encodes events and queues them.
#[derive(Debug)]
pub(super) struct EventSender {
    encoder: EventEncoder,
    queue: mpsc::Sender<EventBatch>,
    shared: Arc<PublisherState>,
    next_seq: u64,
}

/// The server's side: where events are published, and how many.
#[derive(Debug)]
pub(super) struct KvEvents {
    shared: Arc<PublisherState>,
    /// Where they go.
    bound: EventCounts,
    /// That of the rank.
    config: KvEventsConfig,
}

/// Counts of batches, and where they go.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct EventCounts {
    /// Where they are published: the address that is listened on, or the one that is connected to.
    pub(crate) endpoint: String,
    pub(crate) replay_endpoint: Option<String>,
    /// Batches that were queued to be sent.
    pub(crate) published: u64,
    /// Batches that did not fit the queue.
    pub(crate) dropped: u64,
    /// Subscribers and clients of replayed batches that were disconnected because they did not read.
    pub(crate) disconnected: u64,
}

/// Starts a publisher for an engine that hashes with an algorithm; `faults` are those of its batches.
/// Errors: an endpoint that is wrong or in use.
pub(super) fn start(
    config: KvEventsConfig,
    model: &str,
    algorithm: HashAlgorithm,
    faults: PublisherFaults,
) -> Result<(EventSender, KvEvents), KvEventsError> {
    let shared = Arc::<PublisherState>::default();
    let (queue, batches) = mpsc::channel(config.max_queue_size.get());
    let bound = publisher::start(&config, Arc::clone(&shared), batches, faults)?;
    let encoder =
        EventEncoder { encoding: config.encoding, hashes: config.hashes, algorithm, rank: config.data_parallel_rank };
    let config = KvEventsConfig { topic: config.topic.replace("{model}", model), ..config };
    let events = KvEvents { shared: Arc::clone(&shared), bound, config };
    Ok((EventSender { encoder, queue, shared, next_seq: 0 }, events))
}

impl EventSender {
    /// Queues the events of the scheduler's last step, if there are any.
    pub(super) fn publish(&mut self, scheduler: &Scheduler) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let Some(payload) = self.encoder.encode(now.as_secs_f64(), scheduler.events()) else { return };
        let seq = self.next_seq;
        self.next_seq += 1;
        let size = payload.len();
        let is_room = self.shared.queued_bytes.load(Relaxed).saturating_add(size) <= MOST_BYTES;
        // Counted before it is there to be taken.
        self.shared.queued_bytes.fetch_add(size, Relaxed);
        if is_room && self.queue.try_send(EventBatch { seq, payload: payload.into() }).is_ok() {
            self.shared.published.fetch_add(1, Relaxed);
            return;
        }
        self.shared.queued_bytes.fetch_sub(size, Relaxed);
        if self.shared.dropped.fetch_add(1, Relaxed) == 0 {
            tracing::warn!(seq, "KV events are dropped: their queue is full; /vcr/engine counts them");
        }
    }
}

impl KvEvents {
    /// Sets the topic, now that the server's address is known; the first one counts.
    pub(super) fn serves_at(&self, ip: IpAddr, port: u16) {
        let ip = endpoint::reachable(ip).to_string();
        let topic = self.config.topic.replace("{ip}", &ip).replace("{port}", &port.to_string());
        let _known = self.shared.topic.set(topic.into());
    }

    /// The data parallel rank, and what it publishes.
    pub(super) fn source(&self) -> (u32, EventSource) {
        let KvEventsConfig { endpoint, replay_endpoint, buffer_steps, max_queue_size, .. } = &self.config;
        let rank = self.config.data_parallel_rank.saturating_add(self.config.port_offset);
        let topic = self.shared.topic.get().map(|topic| String::from_utf8_lossy(topic).into_owned());
        let replay = replay_endpoint.as_deref().zip(self.bound.replay_endpoint.as_deref());
        let source = EventSource {
            enable_kv_cache_events: true,
            publisher: "zmq",
            endpoint: endpoint::shown(endpoint, rank, &self.bound.endpoint),
            replay_endpoint: replay.map(|(given, bound)| endpoint::shown(given, rank, bound)),
            buffer_steps: *buffer_steps,
            hwm: KvEventsConfig::HIGH_WATER_MARK,
            max_queue_size: *max_queue_size,
            topic: topic.unwrap_or_default(),
        };
        (self.config.data_parallel_rank, source)
    }

    pub(super) fn counts(&self) -> EventCounts {
        EventCounts {
            published: self.shared.published.load(Relaxed),
            dropped: self.shared.dropped.load(Relaxed),
            disconnected: self.shared.disconnected.load(Relaxed),
            ..self.bound.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::engine::{
        kv_cache::KvCacheConfig,
        scheduler::{Request, SchedulerConfig},
    };

    #[test]
    fn what_does_not_fit_the_queue_leaves_a_gap_in_the_numbers() {
        let cache = KvCacheConfig { enable_kv_cache_events: true, ..KvCacheConfig::default() };
        let mut scheduler = Scheduler::new(SchedulerConfig::default(), cache).unwrap();
        let encoder = EventEncoder {
            encoding: EventEncoding::Map,
            hashes: EventHashes::Int,
            algorithm: HashAlgorithm::Sha256,
            rank: 0,
        };
        let (queue, mut batches) = mpsc::channel(2);
        let shared = Arc::<PublisherState>::default();
        let mut sender = EventSender { encoder, queue, shared: Arc::clone(&shared), next_seq: 0 };
        let mut step = |id: u32| {
            let prompt = vec![id; 40];
            scheduler.step([Request { id: id.into(), prompt, output: vec![1], ..Request::default() }], &[]);
            sender.publish(&scheduler);
        };
        (0..4).for_each(&mut step);
        assert_eq!((shared.published.load(Relaxed), shared.dropped.load(Relaxed)), (2, 2));
        let queued = batches.try_recv().unwrap();
        shared.queued_bytes.fetch_sub(queued.payload.len(), Relaxed);
        step(4);
        let rest: Vec<u64> = std::iter::from_fn(|| batches.try_recv().ok()).map(|batch| batch.seq).collect();
        assert_eq!((queued.seq, rest), (0, vec![1, 4]));
        shared.queued_bytes.store(MOST_BYTES, Relaxed);
        step(5);
        assert_eq!((shared.dropped.load(Relaxed), shared.queued_bytes.load(Relaxed)), (3, MOST_BYTES));
    }
}
