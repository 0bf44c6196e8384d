//! The scheduler of the simulated engine: which tokens of which requests each step computes.
//!
//! [`Scheduler`] is a state machine without clock and I/O: [`Scheduler::step`] takes the requests that arrive and the ids
//! of those that are aborted, and gives the [`Decisions`] of one step. It makes those of vLLM 0.32.0, step by step:
//! continuous batching with chunked prefill, running requests first; preemption by recomputation when blocks run out; the
//! prefix cache of [`super::kv_cache`]. Source: `vllm/v1/core/sched/{scheduler,request_queue,utils}.py`.
//!
//! A step is [`Scheduler::schedule`], during which nothing is sampled yet, and [`Scheduler::update_from_output`], which
//! samples: between the two lies the time that the step takes. What a request will sample is known when it arrives.
//!
//! Limits: synchronous scheduling with one step in flight; no encoders, grammars that compile or pipeline stages; of KV
//! connectors transfers of whole prompts only ([`KvTransfer`]). The defaults of `--watermark`, `--scheduler-reserve-full-isl` and
//! `--max-num-active-seqs` hold.
//!
//! See docs/decisions/0090-the-scheduler-is-a-state-machine.md.

mod admission;
mod config;
mod decisions;
mod pause;
mod request;
mod request_queue;
mod request_steps;
mod requests;
mod running;
mod speculation;
mod transfer;
mod update;

pub use config::{SchedulerConfig, SchedulerConfigError, SchedulingPolicy};
pub use decisions::{
    Decisions, EngineCoreOutput, LoadingRequest, ScheduledAs, ScheduledRequest, SchedulerFinishReason,
};
pub use engine_core::stats::{KvFetchStats, PrefixCacheStats, SchedulerStats, SpecDecodingStats};
pub use pause::PauseState;
pub use request::{KvTransfer, Rejection, Request, RequestId};
pub use speculation::Speculation;

use std::{collections::BTreeSet, time::Duration};

use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};

use self::{
    request::{FetchStage, RequestStatus, Slot},
    request_queue::RequestQueue,
    requests::Requests,
};
use super::kv_cache::{BlockId, Eviction, KvCacheConfig, KvCacheEvent, KvCacheManager};

/// Scheduler with its requests and KV cache.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    kv_cache_manager: KvCacheManager,
    requests: Requests,
    waiting: RequestQueue,
    kv_fetches: KvFetchStats,
    /// In the order of their admission.
    running: Vec<Slot>,
    /// Number of waiting requests that a scan has skipped since they arrived.
    num_deferred: usize,
    /// Those that the current scan has skipped.
    skipped: Vec<Slot>,
    /// Adapters of what the current step has scheduled.
    scheduled_loras: BTreeSet<u32>,
    /// Whether this step computes a part of a prompt of a running request.
    is_prefill_scheduled: bool,
    /// Draws of how many draft tokens are accepted.
    acceptance: Xoshiro256PlusPlus,
    pause: PauseState,
    /// Requests that lost their blocks to a reset of the cache since the last step.
    preempted_by_reset: Vec<RequestId>,
    /// Tokens of requests' own steps in progress.
    tokens_in_steps: usize,
    decisions: Decisions,
}

impl Scheduler {
    /// A scheduler without requests.
    ///
    /// # Errors
    /// When the configuration contradicts itself.
    pub fn new(config: SchedulerConfig, kv_cache: KvCacheConfig) -> Result<Self, SchedulerConfigError> {
        config.check(&kv_cache)?;
        Ok(Self {
            waiting: RequestQueue::new(config.policy),
            kv_fetches: KvFetchStats::default(),
            acceptance: Xoshiro256PlusPlus::seed_from_u64(
                config.speculation.as_ref().map_or(0, |speculation| speculation.seed),
            ),
            kv_cache_manager: KvCacheManager::new(KvCacheConfig {
                drops_last_hit: config.speculation.as_ref().is_some_and(|speculation| speculation.drops_cached_block),
                ..kv_cache
            }),
            config,
            requests: Requests::default(),
            running: Vec::new(),
            num_deferred: 0,
            skipped: Vec::new(),
            scheduled_loras: BTreeSet::new(),
            is_prefill_scheduled: false,
            pause: PauseState::default(),
            preempted_by_reset: Vec::new(),
            tokens_in_steps: 0,
            decisions: Decisions::default(),
        })
    }

    /// Runs one step: adds what arrives, aborts, schedules and samples. Requests that are not accepted are among the
    /// decisions.
    pub fn step(&mut self, arrivals: impl IntoIterator<Item = Request>, aborts: &[RequestId]) -> &Decisions {
        self.decisions.rejected.clear();
        for request in arrivals {
            if let Err((id, rejection)) = self.add_request(request) {
                self.decisions.rejected.push((id, rejection));
            }
        }
        self.abort_requests(aborts.iter().copied());
        self.schedule();
        self.update_from_output()
    }

    /// Puts a request into the queue.
    ///
    /// # Errors
    /// When the queue is full, or the request can never be served; with the request's id.
    pub fn add_request(&mut self, request: Request) -> Result<(), (RequestId, Rejection)> {
        let id = request.id;
        let full = self.config.max_num_queued_reqs.is_some_and(|most| self.requests.len() >= most);
        if full {
            return Err((id, Rejection::QueueFull));
        }
        request.check(self.config.max_model_len).map_err(|rejection| (id, rejection))?;
        let slot = self.requests.add(request).ok_or((id, Rejection::DuplicateId))?;
        self.waiting.add(slot, &self.requests);
        if self.requests[slot].transfer.receives {
            self.set_fetch_stage(slot, Some(FetchStage::WaitingToStart));
        }
        Ok(())
    }

    /// Ends a request as [`Scheduler::abort_requests`] does. Gives false where there is no such request.
    pub fn abort(&mut self, id: RequestId) -> bool {
        self.abort_requests([id]) > 0
    }

    /// Ends requests, wherever they are, and releases their blocks in this order; those of one that receives at the end of its transfer.
    /// Gives the number of those that there were. Each queue is gone through once, however many leave it.
    pub fn abort_requests(&mut self, ids: impl IntoIterator<Item = RequestId>) -> usize {
        let (mut of_running, mut of_waiting) = (0, 0);
        for id in ids {
            let Some(slot) = self.requests.slot(id) else { continue };
            self.leave_request_step(slot);
            if self.requests[slot].status == RequestStatus::Running {
                of_running += 1;
            } else {
                of_waiting += 1;
                self.set_deferred(slot, false);
            }
            self.finish(slot, self.is_receiving(slot));
        }
        self.forget_finished(of_running > 0);
        if of_waiting > 0 {
            self.waiting.forget_finished(&self.requests);
        }
        of_running + of_waiting
    }

    /// Decides which tokens this step computes, and allocates their blocks.
    pub fn schedule(&mut self) -> &Decisions {
        self.requests.release_finished();
        self.kv_cache_manager.begin_step(self.has_work());
        self.decisions.begin_step();
        let threshold = match self.config.long_prefill_token_threshold {
            // A long prompt may take the whole budget where no other request wants it.
            limit if limit > 0 && self.running.len() + self.waiting.len() > 1 => limit,
            _ => usize::MAX,
        };
        if self.pause != PauseState::All {
            let budget = self.schedule_running(threshold);
            if self.decisions.preempted.is_empty() {
                self.schedule_waiting(budget, threshold);
            }
        }
        self.decisions.preempted.append(&mut self.preempted_by_reset);
        for scheduled in &self.decisions.scheduled {
            let request = &mut self.requests[scheduled.slot];
            request.num_computed_tokens += scheduled.num_tokens;
            request.is_prefill_chunk = request.num_computed_tokens < request.sequence.num_tokens;
        }
        &self.decisions
    }

    /// The decisions of the last step.
    #[must_use]
    pub fn decisions(&self) -> &Decisions {
        &self.decisions
    }

    /// Returns whether requests wait or run.
    #[must_use]
    pub fn has_requests(&self) -> bool {
        self.requests.len() > 0
    }

    /// The blocks of a request in the order of its tokens, and of one that has ended those that it keeps for a transfer; none where
    /// there is no such request.
    #[must_use]
    pub fn block_ids(&self, id: RequestId) -> &[BlockId] {
        self.requests
            .slot(id)
            .or_else(|| self.requests.held_slot(id))
            .map_or(&[], |slot| &self.requests[slot].sequence.blocks)
    }

    /// What the last step changed in the prefix cache, where events are enabled.
    pub fn events(&self) -> impl Iterator<Item = KvCacheEvent<'_>> {
        let requests = &self.requests;
        self.kv_cache_manager.events(move |slot| &requests[slot].sequence)
    }

    /// Sets the time that evictions from the cache are measured by, from any zero; nothing else depends on it.
    pub fn set_now(&mut self, now: Duration) {
        self.kv_cache_manager.set_now(now);
    }

    /// The evictions from the cache since the last call, of the blocks that are sampled.
    pub fn drain_evictions(&mut self) -> Vec<Eviction> {
        self.kv_cache_manager.drain_evictions()
    }

    /// Marks a waiting request as skipped, or no longer so.
    fn set_deferred(&mut self, slot: Slot, is_deferred: bool) {
        let request = &mut self.requests[slot];
        match (std::mem::replace(&mut request.is_deferred, is_deferred), is_deferred) {
            (false, true) => self.num_deferred += 1,
            (true, false) => self.num_deferred -= 1,
            _ => {}
        }
    }

    /// Ends a request that is in no queue any more. It keeps its blocks until its transfer ends, or releases them; its tokens stay until the
    /// next step, for its events.
    fn finish(&mut self, slot: Slot, keeps_blocks: bool) {
        self.set_fetch_stage(slot, None);
        if !keeps_blocks {
            self.kv_cache_manager.free(&mut self.requests[slot].sequence);
        }
        self.requests.finish(slot, keeps_blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two requests run, six wait and one receives; some of each are aborted, by `abort`, and the next steps shown.
    fn after_aborts(policy: SchedulingPolicy, abort: impl Fn(&mut Scheduler, &[RequestId])) -> Vec<String> {
        let config = SchedulerConfig { max_num_seqs: 3, policy, kv_connector: true, ..SchedulerConfig::default() };
        let kv_cache = KvCacheConfig { num_gpu_blocks: 30, enable_kv_cache_events: true, ..KvCacheConfig::default() };
        let mut scheduler = Scheduler::new(config, kv_cache).unwrap();
        let request = |id: u32| Request {
            id: id.into(),
            prompt: (id * 100..id * 100 + 40).collect(),
            output: vec![7; 5],
            priority: i64::from(id % 3),
            kv_transfer: KvTransfer { sends: false, receives: id == 1 },
            ..Request::default()
        };
        scheduler.step((1..=9).map(request), &[]);
        abort(&mut scheduler, &[9, 2, 1, 4, 77, 5, 4]);
        let step = |_| {
            let decisions = format!("{:?}", scheduler.step([], &[]));
            decisions + &format!("{:?}", scheduler.events().collect::<Vec<_>>())
        };
        (0..12).map(step).collect()
    }

    #[test]
    fn requests_that_are_aborted_together_leave_as_one_after_the_other() {
        for policy in [SchedulingPolicy::Fcfs, SchedulingPolicy::Priority] {
            let together = after_aborts(policy, |scheduler, ids| {
                assert_eq!(scheduler.abort_requests(ids.iter().copied()), 5);
            });
            let single = after_aborts(policy, |scheduler, ids| {
                ids.iter().for_each(|id| {
                    scheduler.abort(*id);
                });
            });
            assert_eq!(together, single);
        }
    }
}
