//! The engine of `play --engine`: a scheduler that steps in real time on a thread of its own.
//!
//! Every choice of an answer is a request of the [`Scheduler`](::engine::scheduler::Scheduler), which knows its tokens before
//! they are due: content comes from a record or is made up as without an engine, and the end of each step is the time of a token.
//! An [`EngineRun`] is the answer's side: it waits for step ends, and aborts what it no longer wants when it is dropped. The
//! [`Inbox`](inbox::Inbox) between the two is bounded; arrivals and aborts take effect between steps, as in vLLM. One state
//! drives times, `usage` and `/metrics`.
//!
//! With a [`connector`] it is one of several engines of disaggregated serving.
//!
//! Responses that are sent as they were recorded (of cassettes, and of a trace without token ids) pass through it too
//! ([`recorded`]): their events come with the last of their tokens. Steps end for all requests together, or for each at its recorded
//! times ([`request_stepping`]).
//!
//! See docs/decisions/0089-the-engine-steps-on-a-thread.md.

mod balancer;
mod check;
mod config;
mod connector;
mod control;
mod inbox;
mod kv_events;
mod recorded;
mod relay;
mod request_stepping;
mod run;
mod slowdown;
mod step_reports;
mod stepping;
mod submit;

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    thread,
};

use self::{
    balancer::Balancer,
    check::Snapshot,
    connector::{KvConnector, PacedTransfers, SideChannel},
    inbox::Inbox,
    kv_events::KvEvents,
    slowdown::PacedClock,
    step_reports::Rank,
    stepping::Stepping,
};
pub use self::{
    config::{EngineConfig, EngineError, EngineTimes},
    connector::{KvRole, KvTransferConfig},
    kv_events::{KvEventsConfig, KvEventsError},
};
pub(super) use self::{
    inbox::Control,
    kv_events::{EventCounts, EventSource, PublisherFaults},
    recorded::{RecordedRun, RecordedTiming},
    run::{EngineRun, Scheduled},
    slowdown::Slowdown,
    step_reports::{StepReport, StepReports},
    submit::{PlannedChoice, RequestParameters, bytes_of},
};
use super::metrics::Metrics;
use ::engine::{
    recorded_timings::RecordedTimings,
    step_clock::{StepClock, StepTimes, TransferClock, TransferTimes},
};

/// The running engines of a server, one for each data parallel rank; they end when this is dropped.
#[derive(Debug)]
pub(super) struct Engine {
    /// That of each rank.
    inboxes: Arc<[Arc<Inbox>]>,
    /// `None` for a single rank.
    balancer: Option<Arc<Balancer>>,
    /// As it was resolved.
    pub(super) config: EngineConfig,
    /// Events about the cache of each rank, where they are published.
    kv_events: Vec<KvEvents>,
    /// Addresses at which the ranks receive notices of other engines, with a KV connector.
    side_channels: Vec<Arc<SideChannel>>,
    /// Figures of the steps of each rank.
    pub(super) reports: Vec<Arc<StepReports>>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) slowdown: Arc<Slowdown>,
}

impl Engine {
    /// Starts an engine for each rank by a configuration that was resolved. Each draws other step times. The faults are those of its KV
    /// events.
    /// Errors: when the configuration contradicts itself, its events cannot be published, or there is no thread to be had.
    pub(super) fn start(
        config: EngineConfig,
        metrics: &Arc<Metrics>,
        model: &str,
        seed: u64,
        (slowdown, faults): (Arc<Slowdown>, &PublisherFaults),
    ) -> Result<Self, EngineError> {
        let ranks = metrics.ranks();
        // The ranks that have started end with it where another one cannot.
        let mut engine = Self {
            inboxes: (0..ranks).map(|_| Arc::default()).collect(),
            balancer: (ranks > 1).then(|| Balancer::new(ranks)),
            config,
            kv_events: Vec::new(),
            side_channels: Vec::new(),
            reports: (0..ranks).map(|_| Arc::default()).collect(),
            metrics: Arc::clone(metrics),
            slowdown,
        };
        for (number, seed) in (0..ranks).zip(seed..) {
            engine.start_rank(number, model, (seed, faults))?;
        }
        Ok(engine)
    }

    /// Adds everything up between two steps of each rank; `None` once an engine has ended.
    pub(super) async fn snapshot(&self) -> Option<Snapshot> {
        let requested: Vec<_> = self.inboxes.iter().map(|inbox| inbox.ask()).collect();
        let mut ranks = Vec::with_capacity(requested.len());
        for (rank, requested) in requested.into_iter().enumerate() {
            let kv_events = self.kv_events.get(rank).map(KvEvents::counts);
            ranks.push(Snapshot { kv_events, ..requested.await.ok()? });
        }
        match <[Snapshot; 1]>::try_from(ranks) {
            Ok([only]) => Some(only),
            Err(ranks) => Some(Snapshot::sum(ranks)),
        }
    }

    /// How long its steps take.
    pub(super) fn times(&self) -> StepTimes {
        self.slowdown.times().unwrap_or_else(|| self.config.step_times())
    }

    /// Sets how long the steps of each rank take, and ends those that are under way.
    pub(super) fn set_times(&self, times: StepTimes) {
        self.slowdown.set_times(times);
        self.inboxes.iter().for_each(|inbox| inbox.look_again());
    }

    /// How long transfers from other engines take; `None` without a KV connector.
    pub(super) fn transfer_times(&self) -> Option<TransferTimes> {
        let at_start = self.config.kv_transfer.as_ref()?.times;
        Some(self.slowdown.transfer_times().unwrap_or(at_start))
    }

    /// Sets how long the transfers of each rank take that begin from now on.
    pub(super) fn set_transfer_times(&self, times: TransferTimes) {
        self.slowdown.set_transfer_times(times);
    }

    /// Gives an order to all ranks; the reply of the first one, once all have carried it out. As in vLLM the others do not show.
    pub(super) async fn order(&self, control: Control) -> bool {
        let replies: Vec<_> = self.inboxes.iter().map(|inbox| inbox.order(control)).collect();
        let mut first = None;
        for reply in replies {
            let reply = reply.await.unwrap_or(false);
            first.get_or_insert(reply);
        }
        first.unwrap_or(false)
    }

    fn start_rank(
        &mut self,
        number: usize,
        model: &str,
        (seed, faults): (u64, &PublisherFaults),
    ) -> Result<(), EngineError> {
        let Some((inbox, reports)) = self.inboxes.get(number).zip(self.reports.get(number)) else { return Ok(()) };
        let EngineConfig { mut scheduler, kv_cache, time_scale, kv_events, kv_transfer, .. } = self.config.clone();
        scheduler.speculation.iter_mut().for_each(|speculation| speculation.seed = seed);
        let clock = StepClock::new(self.config.step_times(), time_scale, seed);
        let clock = PacedClock { clock, slowdown: Arc::clone(&self.slowdown), changes: 0 };
        let (algorithm, block_size) = (kv_cache.prefix_caching_hash_algo, kv_cache.block_size);
        let (metrics, reports) = (Arc::clone(&self.metrics), Arc::clone(reports));
        let rank = Rank { number, metrics, balancer: self.balancer.clone(), reports };
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let mut stepping = Stepping::new(scheduler, kv_cache, clock, Arc::clone(inbox), rank)?;
        stepping.recorded_timings = self.config.has_recorded_times().then(RecordedTimings::default);
        if let Some(config) = kv_events {
            let faults = PublisherFaults { rank: number, ..faults.clone() };
            let (sender, kv_events) = kv_events::start(config.of_rank(number), model, algorithm, faults)?;
            stepping.kv_events = Some(sender);
            self.kv_events.push(kv_events);
        }
        if let Some(config) = kv_transfer.map(|config| config.of_rank(number)) {
            let open = SideChannel::open(&config, inbox, &self.metrics);
            let (host, port) = (config.host.clone(), config.port);
            let channel = Arc::new(open.map_err(|source| EngineError::SideChannel { host, port, source })?);
            let clock = TransferClock::new(config.times, time_scale, seed ^ TransferClock::SEED);
            let clock = PacedTransfers { clock, slowdown: Arc::clone(&self.slowdown) };
            let (of_engine, metrics) = (Arc::clone(&channel), Arc::clone(&self.metrics));
            stepping.connector = Some(KvConnector::new(&config, clock, of_engine, metrics, block_size));
            self.side_channels.push(channel);
        }
        let spawned = thread::Builder::new().name("engine".to_owned()).spawn(move || stepping.run());
        spawned.map(drop).map_err(EngineError::Thread)
    }

    /// Number of its ranks.
    pub(super) fn ranks(&self) -> usize {
        self.inboxes.len()
    }

    /// Ends its threads, and the answers that wait for them, while others still hold it.
    pub(super) fn end(&self) {
        self.side_channels.iter().for_each(|channel| channel.close());
        self.inboxes.iter().for_each(|inbox| inbox.close());
    }

    /// Takes note of the server's address, which KV events may name; `None` where it has none.
    pub(super) fn serves_at(&self, address: Option<SocketAddr>) {
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let address = address.unwrap_or(nowhere);
        self.kv_events.iter().for_each(|kv_events| kv_events.serves_at(address.ip(), address.port()));
    }

    /// What each rank publishes, by its number; empty where nothing is published.
    pub(super) fn event_sources(&self) -> BTreeMap<u32, EventSource> {
        self.kv_events.iter().map(KvEvents::source).collect()
    }

    /// Counts of the KV events of all ranks, where they are published, with the endpoints of the first one.
    pub(super) fn event_counts(&self) -> Option<EventCounts> {
        let sum = |all: EventCounts, rank: EventCounts| EventCounts {
            published: all.published + rank.published,
            dropped: all.dropped + rank.dropped,
            disconnected: all.disconnected + rank.disconnected,
            ..all
        };
        self.kv_events.iter().map(KvEvents::counts).reduce(sum)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.end();
    }
}
