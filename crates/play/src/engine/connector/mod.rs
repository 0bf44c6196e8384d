//! The engine's KV connector, as vLLM's `NixlConnector` shows itself to routers: blocks of requests that another engine decodes are kept
//! until that one has read them, and prompts that another engine has computed are transferred, which takes time and moves nothing.
//!
//! [`KvConnector`] is the engine's own part: leases of what is kept, and the ends of transfers. An engine that has read blocks, or waits to
//! do so, notifies the one that keeps them over a [`SideChannel`].
//!
//! Limits: `tp_size`, `dcp_size` and `pp_size` are 1. A transfer never fails: an engine that is gone, or has given the blocks to others,
//! is not noticed by the one that reads. Transferred bytes are counted as those of Llama 3.1 8B.
//!
//! See docs/decisions/0102-roles-of-disaggregated-engines.md.

mod config;
mod leases;
mod side_channel;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

pub use self::config::{KvRole, KvTransferConfig};
use self::leases::{Lease, Leases};
pub(in super::super) use self::side_channel::SideChannel;
pub(super) use self::side_channel::{Notice, NoticeKind};
use super::slowdown::Slowdown;
use crate::metrics::{Metrics, Transferred};
use ::engine::{
    scheduler::{EngineCoreOutput, LoadingRequest, RequestId, ScheduledAs, Scheduler},
    step_clock::TransferClock,
};
use api::RemotePrefill;

/// A request's part in transfers, as it is submitted.
#[derive(Debug, Clone)]
pub(super) struct Transfer {
    /// Its id, by which other engines know it.
    pub(super) name: String,
    pub(super) sends: bool,
    /// Where its prompt was computed.
    pub(super) remote: Option<RemotePrefill>,
}

/// Blocks of another engine that this one is to read.
#[derive(Debug)]
struct Remote {
    place: RemotePrefill,
    is_loading: bool,
}

/// A transfer in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Loading {
    end: Instant,
    id: RequestId,
    took: Duration,
    tokens: usize,
}

/// A transfer clock whose times may be set while the engine runs.
#[derive(Debug)]
pub(super) struct PacedTransfers {
    pub(super) clock: TransferClock,
    pub(super) slowdown: Arc<Slowdown>,
}

impl PacedTransfers {
    /// Draws the duration of the next transfer, of so many tokens.
    fn duration(&mut self, tokens: usize) -> Duration {
        self.slowdown.transfer_times().into_iter().for_each(|times| self.clock.set_times(times));
        self.clock.duration(tokens)
    }
}

/// Connector of the engine's thread.
#[derive(Debug)]
pub(super) struct KvConnector {
    engine_id: String,
    clock: PacedTransfers,
    lease: Duration,
    channel: Arc<SideChannel>,
    metrics: Arc<Metrics>,
    block_size: usize,
    /// Names of the requests whose blocks will be kept.
    sends: HashMap<RequestId, String>,
    leases: Leases,
    remotes: HashMap<RequestId, Remote>,
    loading: BinaryHeap<Reverse<Loading>>,
    /// When the other engines are notified next that their blocks will be read.
    heartbeat: Option<Instant>,
}

impl KvConnector {
    /// A connector whose other engines are reached over a channel.
    pub(super) fn new(
        config: &KvTransferConfig,
        clock: PacedTransfers,
        channel: Arc<SideChannel>,
        metrics: Arc<Metrics>,
        block_size: usize,
    ) -> Self {
        Self {
            engine_id: config.engine_id.clone(),
            clock,
            lease: config.lease,
            channel,
            metrics,
            block_size,
            sends: HashMap::new(),
            leases: Leases::default(),
            remotes: HashMap::new(),
            loading: BinaryHeap::new(),
            heartbeat: None,
        }
    }

    /// Takes note of a request that the scheduler has accepted.
    pub(super) fn arrive(&mut self, id: RequestId, transfer: Transfer, now: Instant) {
        let Transfer { name, sends, remote } = transfer;
        if sends {
            self.sends.insert(id, name);
        }
        if let Some(place) = remote {
            self.remotes.insert(id, Remote { place, is_loading: false });
            self.heartbeat.get_or_insert(now + self.lease / HEARTBEATS);
        }
    }

    /// Begins the transfers of a step that began then. What runs without a transfer needs the other engine's blocks no more.
    pub(super) fn begin(&mut self, scheduler: &Scheduler, start: Instant) {
        let decisions = scheduler.decisions();
        for LoadingRequest { request_id: id, num_tokens: tokens } in decisions.loading.iter().copied() {
            let took = self.clock.duration(tokens);
            self.loading.push(Reverse(Loading { end: start + took, id, took, tokens }));
            self.remotes.entry(id).and_modify(|remote| remote.is_loading = true);
        }
        if self.remotes.is_empty() {
            return;
        }
        for scheduled in decisions.scheduled.iter().filter(|scheduled| scheduled.scheduled_as == ScheduledAs::New) {
            self.give_up(scheduled.request_id);
        }
    }

    /// Ends what is due: transfers and leases. Gives false where nothing was.
    pub(super) fn end_due(&mut self, scheduler: &mut Scheduler, now: Instant) {
        while let Some(Reverse(ended)) = self.loading.peek().copied().filter(|Reverse(loading)| loading.end <= now) {
            self.loading.pop();
            scheduler.end_transfer(ended.id);
            let blocks = ended.tokens.div_ceil(self.block_size.max(1));
            self.metrics.transferred(Transferred { took: ended.took, tokens: ended.tokens, blocks });
            self.notify_read(ended.id);
        }
        while let Some(id) = self.leases.expired(now) {
            tracing::warn!(id, "the blocks of a request are released: no engine has read them in time");
            scheduler.end_transfer(id);
            self.metrics.lease_expired();
        }
        if self.heartbeat.is_some_and(|due| due <= now) {
            let remotes = self.remotes.values();
            remotes.for_each(|remote| self.channel.send(&remote.place, NoticeKind::Alive));
            self.heartbeat = (!self.remotes.is_empty()).then(|| now + self.lease / HEARTBEATS);
        }
    }

    /// Takes the notices of other engines.
    pub(super) fn receive(&mut self, notices: &mut Vec<Notice>, scheduler: &mut Scheduler, now: Instant) {
        for Notice { kind, digest } in notices.drain(..) {
            match kind {
                NoticeKind::Alive => self.leases.extend(digest, now + self.lease * 2 / 3),
                NoticeKind::Read => match self.leases.end(digest) {
                    Some(id) => {
                        scheduler.end_transfer(id);
                    }
                    None => self.metrics.notice_after_expiry(),
                },
            }
        }
    }

    /// The next time at which something is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let loaded = self.loading.peek().map(|Reverse(loading)| loading.end);
        [loaded, self.leases.next(), self.heartbeat].into_iter().flatten().min()
    }

    /// The parameters for the engine that decodes a request that has ended by itself, as JSON, where its blocks are kept.
    pub(super) fn keep(&mut self, output: &EngineCoreOutput, scheduler: &Scheduler, now: Instant) -> Option<String> {
        let id = output.request_id;
        let name = self.sends.remove(&id)?;
        let (blocks, computed) = scheduler.kept_for_transfer(id)?;
        let expires = now + self.lease;
        self.leases.begin(side_channel::digest(&self.engine_id, &name), Lease { id, expires });
        let (host, port) = (self.channel.host(), self.channel.port());
        let cached = output.num_cached_tokens.map(|tokens| format!(",\"remote_prefill_cached_tokens\":{tokens}"));
        let text = |text: &str| serde_json::Value::from(text).to_string();
        Some(format!(
            "{{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_block_ids\":[{blocks:?}],\
             \"remote_engine_id\":{},\"remote_request_id\":{},\"remote_host\":{},\"remote_port\":{port},\"tp_size\":1,\
             \"dcp_size\":1,\"pp_size\":1,\"remote_num_tokens\":{computed},\"remote_blocks_expiry_time\":null,\
             \"transfer_mode\":\"pull\"{}}}",
            text(&self.engine_id),
            text(&name),
            text(host),
            cached.unwrap_or_default()
        ))
    }

    /// Forgets a request that was aborted. A transfer in progress goes on to its end.
    pub(super) fn abort(&mut self, id: RequestId) {
        self.sends.remove(&id);
        self.give_up(id);
    }

    /// Notifies that blocks will not be read, unless they are being read.
    fn give_up(&mut self, id: RequestId) {
        if self.remotes.get(&id).is_some_and(|remote| !remote.is_loading) {
            self.notify_read(id);
        }
    }

    fn notify_read(&mut self, id: RequestId) {
        if let Some(remote) = self.remotes.remove(&id) {
            self.channel.send(&remote.place, NoticeKind::Read);
        }
    }
}

/// Number of notices that an engine that waits sends during a lease.
const HEARTBEATS: u32 = 6;
