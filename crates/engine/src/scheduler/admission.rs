//! The second half of a step: waiting requests start to run.

use super::{
    ScheduledAs, Scheduler, Slot,
    pause::PauseState,
    request::{FetchStage, RequestStatus},
};

enum AdmissionOutcome {
    /// It runs, with so many tokens in this step.
    Runs(usize),
    /// It has its blocks, and waits for their contents.
    Loads,
    /// It does not fit.
    Waits,
}

impl Scheduler {
    /// Admits waiting requests in the order of the queue until one does not fit; those whose adapter has no place, or whose
    /// blocks are on their way, are skipped.
    pub(super) fn schedule_waiting(&mut self, mut budget: usize, threshold: usize) {
        self.count_loras();
        let draft_slots = self.draft_slots();
        while budget > draft_slots && self.running.len() < self.config.max_num_seqs {
            let Some(slot) = self.next_waiting() else { break };
            if !self.is_loaded(slot) || self.lacks_a_place_for_its_lora(slot) {
                self.skip(slot);
                continue;
            }
            match self.admit(slot, budget - draft_slots, threshold) {
                AdmissionOutcome::Runs(num_tokens) => budget -= num_tokens + draft_slots,
                AdmissionOutcome::Loads => self.skip(slot),
                AdmissionOutcome::Waits => break,
            }
        }
        while let Some(slot) = self.skipped.pop() {
            self.waiting.prepend(slot, &self.requests);
        }
    }

    /// The request whose turn it is. Those that have blocks come first, and in a pause they alone do.
    fn next_waiting(&self) -> Option<Slot> {
        if self.pause == PauseState::None { self.waiting.peek() } else { self.waiting.holding().next() }
    }

    /// Lets a request wait until the next step, before those that it was before.
    fn skip(&mut self, slot: Slot) {
        self.waiting.pop();
        self.set_deferred(slot, true);
        self.skipped.push(slot);
    }

    /// Gives a waiting request its blocks and its first tokens.
    fn admit(&mut self, slot: Slot, budget: usize, threshold: usize) -> AdmissionOutcome {
        // One that has received its prompt has its blocks.
        let is_new = self.requests[slot].sequence.blocks.is_empty();
        let num_computed_tokens = if is_new { self.look_up(slot) } else { self.requests[slot].num_computed_tokens };
        if self.requests[slot].is_to_receive() {
            return if self.begin_load(slot, num_computed_tokens) {
                AdmissionOutcome::Loads
            } else {
                AdmissionOutcome::Waits
            };
        }
        let wanted = self.requests[slot].sequence.num_tokens - num_computed_tokens;
        let padded = if wanted == 1 { self.padded(num_computed_tokens, budget) } else { None };
        if padded == Some(0) {
            return AdmissionOutcome::Waits;
        }
        let wanted = padded.unwrap_or(wanted).min(threshold);
        if wanted > budget && !self.config.enable_chunked_prefill {
            return AdmissionOutcome::Waits;
        }
        let num_tokens = wanted.min(budget);
        let end = num_computed_tokens + num_tokens;
        let (slots, request) = (self.num_slots(end), &mut self.requests[slot]);
        let fits = if is_new {
            self.kv_cache_manager.admit(&mut request.sequence, end, slots)
        } else {
            self.kv_cache_manager.allocate_slots(&mut request.sequence, end, slots)
        };
        if !fits {
            return AdmissionOutcome::Waits;
        }
        if is_new {
            self.count_lookup(slot, num_computed_tokens, 0);
            // What a step computes of a prompt that was received is a decode.
            self.requests[slot].prefill = num_computed_tokens..self.requests[slot].sequence.num_tokens;
        }
        self.run(slot, num_computed_tokens, num_tokens);
        let request = &mut self.requests[slot];
        request.is_prefill_chunk = end < request.sequence.num_tokens;
        request.drafts.scheduled = if padded.is_some() { num_tokens - 1 } else { 0 };
        request.drafts.is_padding = padded.is_some();
        AdmissionOutcome::Runs(num_tokens)
    }

    /// Finds the cached prefix of a request; gives its tokens.
    fn look_up(&mut self, slot: Slot) -> usize {
        let request = &mut self.requests[slot];
        let num_tokens = self.kv_cache_manager.get_computed_blocks(&mut request.sequence, !request.skips_cache);
        if request.reports_cached_blocks {
            self.kv_cache_manager.report_hits(&request.sequence);
        }
        let receives = request.is_to_receive();
        if request.num_preemptions == 0 {
            let external = if receives { request.sequence.num_tokens - num_tokens } else { 0 };
            request.num_cached_tokens = Some(num_tokens + external);
            request.num_external_tokens = external;
        }
        self.set_fetch_stage(slot, receives.then_some(FetchStage::WaitingToStart));
        num_tokens
    }

    /// Counts the lookup of a request that has its blocks: tokens that were cached here, and those that another engine has.
    pub(super) fn count_lookup(&mut self, slot: Slot, num_cached_tokens: usize, num_external_tokens: usize) {
        let request = &self.requests[slot];
        let is_preempted = request.status == RequestStatus::Preempted;
        let num_tokens = request.sequence.num_tokens;
        let stats = &mut self.decisions.stats;
        if !request.skips_cache && self.kv_cache_manager.config.enable_prefix_caching {
            stats.prefix_cache_stats.record(num_tokens, num_cached_tokens, is_preempted);
        }
        if self.config.kv_connector {
            let stats = &mut stats.connector_prefix_cache_stats;
            stats.record(num_tokens - num_cached_tokens, num_external_tokens, is_preempted);
        }
    }

    /// Moves a request that has its blocks to the running ones.
    fn run(&mut self, slot: Slot, num_computed_tokens: usize, num_tokens: usize) {
        let request = &mut self.requests[slot];
        let is_preempted = request.status == RequestStatus::Preempted;
        request.status = RequestStatus::Running;
        request.transfer.receives = false;
        request.num_computed_tokens = num_computed_tokens;
        let scheduled_as = if is_preempted { ScheduledAs::Resumed } else { ScheduledAs::New };
        self.give_tokens(slot, num_computed_tokens, num_tokens, scheduled_as);
        self.waiting.pop();
        self.set_deferred(slot, false);
        self.set_fetch_stage(slot, None);
        self.running.push(slot);
        self.scheduled_loras.extend(self.requests[slot].lora());
    }

    /// Counts the adapters of the running requests that this step has scheduled.
    fn count_loras(&mut self) {
        self.scheduled_loras.clear();
        if self.config.max_loras > 0 {
            let loras = self.decisions.scheduled.iter().filter_map(|scheduled| self.requests[scheduled.slot].lora());
            self.scheduled_loras.extend(loras);
        }
    }

    fn lacks_a_place_for_its_lora(&self, slot: Slot) -> bool {
        self.config.max_loras > 0
            && self.scheduled_loras.len() >= self.config.max_loras
            && self.requests[slot].lora().is_some_and(|lora| !self.scheduled_loras.contains(&lora))
    }
}
