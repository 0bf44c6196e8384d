//! The end of a step: every request whose tokens are all computed samples one more, and with speculative decoding some more.

use super::{Decisions, EngineCoreOutput, Scheduler, SchedulerFinishReason, SchedulerStats, Slot};

impl Scheduler {
    /// Samples, ends requests, and takes the figures of the step.
    pub fn update_from_output(&mut self) -> &Decisions {
        let mut has_finished = false;
        for at in 0..self.decisions.scheduled.len() {
            let Some(slot) = self.decisions.scheduled.get(at).map(|scheduled| scheduled.slot) else { break };
            has_finished |= self.output(slot);
        }
        self.forget_finished(has_finished);
        self.take_stats();
        &self.decisions
    }

    /// Samples for a request; true where that was its last token. One that was aborted during the step gets none.
    pub(super) fn output(&mut self, slot: Slot) -> bool {
        if self.requests[slot].is_finished() {
            return false;
        }
        let has_finished = self.samples(slot) && self.sample_burst(slot);
        if has_finished {
            self.finish(slot, self.requests[slot].transfer.sends);
        }
        has_finished
    }

    pub(super) fn forget_finished(&mut self, has_finished: bool) {
        if has_finished {
            self.running.retain(|slot| !self.requests[*slot].is_finished());
        }
    }

    pub(super) fn take_stats(&mut self) {
        self.decisions.stats = SchedulerStats {
            num_running_reqs: self.running.len(),
            num_waiting_reqs: self.waiting.len() - self.num_deferred,
            num_skipped_waiting_reqs: self.num_deferred,
            kv_cache_usage: self.kv_cache_manager.usage(),
            kv_fetches: self.kv_fetches,
            ..self.decisions.stats
        };
    }

    /// Whether a request samples: not after a part of a prompt that is not its last.
    fn samples(&self, slot: Slot) -> bool {
        let request = &self.requests[slot];
        request.num_computed_tokens >= request.sequence.num_tokens
    }

    /// Samples the tokens of a step, of which the first one that ends the request is the last; whether there was one.
    fn sample_burst(&mut self, slot: Slot) -> bool {
        let mut left = self.verify(slot);
        let mut has_finished = false;
        while left > 0 && !has_finished {
            left -= 1;
            let Some(output) = self.sample(slot) else { break };
            has_finished = output.finish_reason.is_some();
            let has_more = left > 0 && !has_finished;
            self.decisions.outputs.push(EngineCoreOutput { has_more, ..output });
        }
        has_finished
    }

    /// Samples a token; `None` where none is left.
    fn sample(&mut self, slot: Slot) -> Option<EngineCoreOutput> {
        let request = &mut self.requests[slot];
        let sequence = &mut request.sequence;
        let new_token_id = sequence.sample()?;
        let finish_reason = if request.stop_token_ids.contains(&new_token_id) {
            Some(SchedulerFinishReason::Stop)
        } else if sequence.num_tokens >= self.config.max_model_len {
            Some(SchedulerFinishReason::Length)
        } else if sequence.num_tokens == sequence.planned_tokens {
            Some(request.ends_with.unwrap_or(SchedulerFinishReason::Length))
        } else {
            None
        };
        let num_cached_tokens = request.num_cached_tokens.take();
        let (request_id, num_external_tokens) = (request.id, request.num_external_tokens);
        let has_more = false;
        Some(EngineCoreOutput {
            request_id,
            new_token_id,
            has_more,
            finish_reason,
            num_cached_tokens,
            num_external_tokens,
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        kv_cache::KvCacheConfig,
        scheduler::{Request, Scheduler, SchedulerConfig},
    };

    fn request(id: u64, tokens: usize) -> Request {
        Request { id, prompt: vec![7; 20], output: vec![9; tokens], ..Request::default() }
    }

    #[test]
    fn a_request_that_is_aborted_in_its_last_step_ends_once() {
        for aborts_all in [false, true] {
            let mut scheduler = Scheduler::new(SchedulerConfig::default(), KvCacheConfig::default()).unwrap();
            scheduler.add_request(request(1, 1)).unwrap();
            scheduler.schedule();
            if aborts_all {
                assert_eq!(scheduler.abort_all(), [1]);
            } else {
                assert!(scheduler.abort(1));
            }
            assert_eq!(scheduler.update_from_output().outputs, []);
            // Its place in the table is given to one other request, not to two.
            let mut ended = Vec::new();
            let mut arrivals = vec![request(2, 5), request(3, 8)];
            for _ in 0..8 {
                let decisions = scheduler.step(arrivals.drain(..), &[]);
                ended.extend(decisions.outputs.iter().map(|output| output.request_id));
            }
            let tokens = |id| ended.iter().filter(|ended| **ended == id).count();
            assert_eq!((tokens(2), tokens(3), scheduler.has_requests()), (5, 8, false));
        }
    }
}
