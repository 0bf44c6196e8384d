//! The second half of a step: waiting requests start to run.

use super::{ScheduledAs, ScheduledRequest, Scheduler, Slot, request::RequestStatus};

impl Scheduler {
    /// Admits waiting requests in the order of the queue until one does not fit; those whose adapter has no place are
    /// skipped.
    pub(super) fn schedule_waiting(&mut self, mut budget: usize, threshold: usize) {
        self.count_loras();
        while budget > 0 && self.running.len() < self.config.max_num_seqs {
            let Some(slot) = self.waiting.peek() else { break };
            if self.lacks_a_place_for_its_lora(slot) {
                self.waiting.pop();
                self.set_deferred(slot, true);
                self.skipped.push(slot);
                continue;
            }
            let Some(num_tokens) = self.admit(slot, budget, threshold) else { break };
            budget -= num_tokens;
        }
        while let Some(slot) = self.skipped.pop() {
            self.waiting.prepend(slot, &self.requests);
        }
    }

    /// Gives a waiting request its blocks and its first tokens; `None` when it must wait on.
    fn admit(&mut self, slot: Slot, budget: usize, threshold: usize) -> Option<usize> {
        let request = &mut self.requests[slot];
        let reads = !request.skips_cache;
        let num_computed_tokens = self.kv_cache_manager.get_computed_blocks(&mut request.sequence, reads);
        if request.reports_cached_blocks {
            self.kv_cache_manager.report_hits(slot);
        }
        if request.num_preemptions == 0 {
            request.num_cached_tokens = Some(num_computed_tokens);
        }
        let wanted = (request.sequence.num_tokens() - num_computed_tokens).min(threshold);
        if wanted > budget && !self.config.enable_chunked_prefill {
            return None;
        }
        let num_tokens = wanted.min(budget);
        if !self.kv_cache_manager.admit(slot, &mut request.sequence, num_tokens) {
            return None;
        }
        let is_preempted = request.status == RequestStatus::Preempted;
        if reads && self.kv_cache_manager.config().enable_prefix_caching {
            let stats = &mut self.decisions.stats.prefix_cache_stats;
            stats.record(request.sequence.num_tokens(), num_computed_tokens, is_preempted);
        }
        request.status = RequestStatus::Running;
        request.num_computed_tokens = num_computed_tokens;
        request.prefill = num_computed_tokens..request.sequence.num_tokens();
        let prefill_tokens = request.prefill.len();
        let request_id = request.id;
        let scheduled_as = if is_preempted { ScheduledAs::Resumed } else { ScheduledAs::New };
        self.decisions.scheduled.push(ScheduledRequest {
            request_id,
            slot,
            num_tokens,
            num_computed_tokens,
            prefill_tokens,
            scheduled_as,
        });
        self.waiting.pop();
        self.set_deferred(slot, false);
        self.running.push(slot);
        self.count_lora(slot);
        Some(num_tokens)
    }

    /// Counts the adapters of the running requests that this step has scheduled.
    fn count_loras(&mut self) {
        self.scheduled_loras.clear();
        if self.config.max_loras > 0 {
            for at in 0..self.decisions.scheduled.len() {
                let Some(scheduled) = self.decisions.scheduled.get(at) else { break };
                self.count_lora(scheduled.slot);
            }
        }
    }

    fn count_lora(&mut self, slot: Slot) {
        if let Some(lora) = self.requests[slot].lora()
            && !self.scheduled_loras.contains(&lora)
        {
            self.scheduled_loras.push(lora);
        }
    }

    fn lacks_a_place_for_its_lora(&self, slot: Slot) -> bool {
        self.config.max_loras > 0
            && self.scheduled_loras.len() >= self.config.max_loras
            && self.requests[slot].lora().is_some_and(|lora| !self.scheduled_loras.contains(&lora))
    }
}
