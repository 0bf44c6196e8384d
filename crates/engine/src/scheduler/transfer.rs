//! KV transfers, as vLLM's connectors make them: prompts that another engine has computed, and blocks that are kept for one.
//!
//! A request that receives takes blocks for its whole prompt and waits in them; its last token is recomputed once
//! [`Scheduler::end_transfer`] reports that the others are there. The blocks of a request that sends stay in use after its end, until
//! the same call. When transfers end is the caller's.
//!
//! Limits: a transfer brings the whole prompt, and never fails.
//!
//! See docs/decisions/0102-roles-of-disaggregated-engines.md.

use super::{
    LoadingRequest, RequestId, Scheduler, Slot,
    request::{FetchStage, RequestStatus},
};

impl Scheduler {
    /// Ends the transfer of a request: one that waits for its prompt may run, and the blocks of one that has ended are released.
    /// Gives false where there is no transfer of such a request.
    pub fn end_transfer(&mut self, id: RequestId) -> bool {
        if let Some(slot) = self.requests.let_go(id) {
            self.kv_cache_manager.free(&mut self.requests[slot].sequence);
            return true;
        }
        let Some(slot) = self.requests.slot(id).filter(|slot| self.is_receiving(*slot)) else { return false };
        self.requests[slot].is_received = true;
        self.set_fetch_stage(slot, Some(FetchStage::CompletedWaiting));
        true
    }

    /// The requests that have ended and still have blocks, for a transfer.
    pub fn held(&self) -> impl Iterator<Item = RequestId> {
        self.requests.held()
    }

    /// Returns whether a request runs.
    #[must_use]
    pub fn is_running(&self, id: RequestId) -> bool {
        self.requests.slot(id).is_some_and(|slot| self.requests[slot].status == RequestStatus::Running)
    }

    /// The blocks of the computed tokens of a request that has ended and sends them, and the number of these tokens; `None` where there
    /// is no such request.
    #[must_use]
    pub fn kept_for_transfer(&self, id: RequestId) -> Option<(&[super::BlockId], usize)> {
        let request = &self.requests[self.requests.held_slot(id)?];
        let computed = request.num_computed_tokens;
        let blocks = request.sequence.blocks.as_slice();
        let full = computed.div_ceil(self.kv_cache_manager.config.block_size);
        Some((blocks.get(..full).unwrap_or(blocks), computed))
    }

    /// Whether a waiting request may be admitted: what it receives is there, and its blocks are cached.
    pub(super) fn is_loaded(&mut self, slot: Slot) -> bool {
        let request = &mut self.requests[slot];
        if request.status != RequestStatus::WaitingForRemoteKvs {
            return true;
        }
        if !request.is_received {
            return false;
        }
        self.kv_cache_manager.settle(&mut request.sequence, request.num_computed_tokens);
        // The last token is computed again, to sample the next one.
        request.num_computed_tokens = request.num_computed_tokens.min(request.sequence.num_tokens.saturating_sub(1));
        request.status = RequestStatus::Waiting;
        true
    }

    /// Gives a request blocks for its whole prompt, of which another engine has computed what is not cached here; false when it
    /// must wait on. Blocks that other prompts in progress lack yet stay free.
    pub(super) fn begin_load(&mut self, slot: Slot, num_cached_tokens: usize) -> bool {
        let reserved = self.lacking_blocks() + self.blocks_for(self.draft_reserve());
        let request = &mut self.requests[slot];
        if !self.kv_cache_manager.admit_loaded(&mut request.sequence, reserved) {
            return false;
        }
        request.status = RequestStatus::WaitingForRemoteKvs;
        request.transfer.receives = false;
        request.num_computed_tokens = request.sequence.num_tokens;
        let num_tokens = request.num_computed_tokens - num_cached_tokens;
        self.decisions.loading.push(LoadingRequest { request_id: request.id, num_tokens });
        self.count_lookup(slot, num_cached_tokens, num_tokens);
        self.set_fetch_stage(slot, Some(FetchStage::InProgress));
        true
    }

    /// Blocks that prompts in progress and transfers lack to hold all tokens that they have, and the first drafts behind them.
    fn lacking_blocks(&self) -> usize {
        let lacks = |slot: Slot| {
            let sequence = &self.requests[slot].sequence;
            self.blocks_for(sequence.num_tokens + self.draft_reserve()).saturating_sub(sequence.blocks.len())
        };
        let prefills = self.running.iter().copied().filter(|slot| self.requests[*slot].is_prefill_chunk);
        let skipped = self.skipped.iter().copied().filter(|slot| self.requests[*slot].holds_blocks());
        prefills.chain(skipped).chain(self.waiting.holding()).map(lacks).sum()
    }

    fn blocks_for(&self, num_tokens: usize) -> usize {
        num_tokens.div_ceil(self.kv_cache_manager.config.block_size)
    }

    pub(super) fn is_receiving(&self, slot: Slot) -> bool {
        let request = &self.requests[slot];
        request.status == RequestStatus::WaitingForRemoteKvs && !request.is_received
    }

    pub(super) fn set_fetch_stage(&mut self, slot: Slot, stage: Option<FetchStage>) {
        let before = std::mem::replace(&mut self.requests[slot].fetch_stage, stage);
        if let Some(before) = before {
            *before.count(&mut self.kv_fetches) -= 1;
        }
        if let Some(stage) = stage {
            *stage.count(&mut self.kv_fetches) += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kv_cache::KvCacheConfig,
        scheduler::{KvFetchStats, KvTransfer, Request, ScheduledAs, SchedulerConfig},
    };

    fn scheduler(blocks: u32) -> Scheduler {
        let config = SchedulerConfig { max_num_seqs: 4, kv_connector: true, ..SchedulerConfig::default() };
        let kv_cache =
            KvCacheConfig { num_gpu_blocks: blocks, enable_kv_cache_events: true, ..KvCacheConfig::default() };
        Scheduler::new(config, kv_cache).unwrap()
    }

    fn request(id: RequestId, prompt: std::ops::Range<u32>, transfer: KvTransfer) -> Request {
        Request { id, prompt: prompt.collect(), output: vec![7; 2], kv_transfer: transfer, ..Request::default() }
    }

    const RECEIVES: KvTransfer = KvTransfer { sends: false, receives: true };
    const SENDS: KvTransfer = KvTransfer { sends: true, receives: false };

    #[test]
    fn a_prompt_that_is_received_waits_in_its_blocks_and_then_computes_its_last_token() {
        let mut scheduler = scheduler(40);
        let decisions = scheduler.step([request(1, 0..48, RECEIVES)], &[]);
        assert!(decisions.scheduled.is_empty());
        assert_eq!(decisions.loading, [LoadingRequest { request_id: 1, num_tokens: 48 }]);
        let stats = decisions.stats;
        assert_eq!((stats.num_waiting_reqs, stats.num_skipped_waiting_reqs, stats.num_running_reqs), (0, 1, 0));
        assert_eq!((stats.connector_prefix_cache_stats.queries, stats.connector_prefix_cache_stats.hits), (48, 48));
        assert_eq!(stats.kv_fetches.in_progress, 1);
        assert_eq!((scheduler.block_ids(1).len(), scheduler.events().count()), (3, 0));
        assert!(scheduler.step([], &[]).scheduled.is_empty());
        assert!(scheduler.end_transfer(1) && !scheduler.end_transfer(1), "it ends once");
        let scheduled = scheduler.schedule().scheduled[0];
        assert_eq!((scheduled.num_tokens, scheduled.num_computed_tokens), (1, 47));
        assert_eq!((scheduled.scheduled_as, scheduled.prefill_tokens), (ScheduledAs::New, 0));
        assert_eq!(scheduler.events().count(), 1, "its blocks are cached now");
        let output = scheduler.update_from_output().outputs[0];
        assert_eq!((output.num_cached_tokens, output.finish_reason), (Some(48), None));
        assert!(scheduler.step([], &[]).outputs[0].finish_reason.is_some());
        assert_eq!(scheduler.step([], &[]).stats.kv_cache_usage, 0.0);
    }

    #[test]
    fn only_what_is_not_cached_is_transferred() {
        let mut scheduler = scheduler(40);
        scheduler.step([request(1, 0..40, KvTransfer::default())], &[]);
        let decisions = scheduler.step([request(2, 0..48, RECEIVES)], &[]);
        assert_eq!(decisions.loading[0].num_tokens, 16);
        assert_eq!(decisions.stats.prefix_cache_stats.hits, 32);
        assert_eq!(decisions.stats.connector_prefix_cache_stats.queries, 16);
    }

    #[test]
    fn blocks_that_are_sent_stay_in_use_until_they_were_read() {
        let mut scheduler = scheduler(40);
        scheduler.step([request(1, 0..40, SENDS)], &[]);
        let decisions = scheduler.step([], &[]);
        assert!(decisions.outputs[0].finish_reason.is_some() && decisions.stats.kv_cache_usage > 0.0);
        let (blocks, computed) = scheduler.kept_for_transfer(1).unwrap();
        assert_eq!((blocks.len(), computed), (3, 41));
        assert_eq!(scheduler.held().collect::<Vec<_>>(), [1]);
        assert!(!scheduler.has_requests() && scheduler.end_transfer(1) && !scheduler.end_transfer(1));
        assert_eq!(scheduler.step([], &[]).stats.kv_cache_usage, 0.0);
    }

    #[test]
    fn an_abort_releases_what_is_sent_at_once_and_what_is_received_with_its_transfer() {
        let mut scheduler = scheduler(40);
        scheduler.step([request(1, 0..40, SENDS), request(2, 50..90, RECEIVES)], &[]);
        let stats = scheduler.step([], &[1, 2]).stats;
        assert_eq!((stats.num_running_reqs, stats.num_skipped_waiting_reqs), (0, 0));
        assert!(stats.kv_cache_usage > 0.0 && stats.kv_fetches == KvFetchStats::default());
        assert!(!scheduler.end_transfer(1) && scheduler.end_transfer(2));
        assert_eq!(scheduler.step([], &[]).stats.kv_cache_usage, 0.0);
    }

    #[test]
    fn a_transfer_leaves_free_what_prompts_in_progress_lack() {
        let config = SchedulerConfig { max_num_batched_tokens: 32, max_num_seqs: 4, ..SchedulerConfig::default() };
        let kv_cache = KvCacheConfig { num_gpu_blocks: 11, ..KvCacheConfig::default() };
        let mut scheduler = Scheduler::new(config, kv_cache).unwrap();
        scheduler.step([request(1, 0..96, KvTransfer::default()), request(2, 100..180, RECEIVES)], &[]);
        for _ in 0..2 {
            assert!(scheduler.step([], &[]).loading.is_empty());
        }
        for _ in 0..3 {
            scheduler.step([], &[]);
        }
        assert_eq!(scheduler.block_ids(2).len(), 5);
    }

    #[test]
    fn who_holds_blocks_is_admitted_in_a_pause_too() {
        let mut scheduler = scheduler(40);
        scheduler.step([request(1, 0..40, RECEIVES)], &[]);
        scheduler.set_pause_state(crate::scheduler::PauseState::New);
        scheduler.add_request(request(2, 60..80, KvTransfer::default())).unwrap();
        scheduler.end_transfer(1);
        assert!(scheduler.has_work());
        let scheduled: Vec<RequestId> = scheduler.step([], &[]).scheduled.iter().map(|one| one.request_id).collect();
        assert_eq!(scheduled, [1]);
    }
}
