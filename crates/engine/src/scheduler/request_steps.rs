//! Steps that requests have of their own: each begins when its request is scheduled and ends when its caller ends it, independent of others.
//!
//! The same rules of admission, blocks and preemption. The tokens of steps in progress count among those of one step of the batch.
//! Limits: a preempted request's step is forgotten.

use super::{Decisions, EngineCoreOutput, RequestId, Scheduler, Slot};

impl Scheduler {
    /// Begins a step of each request that can be scheduled and has none in progress.
    pub fn begin_request_steps(&mut self) -> &Decisions {
        self.schedule();
        for scheduled in &self.decisions.scheduled {
            self.requests[scheduled.slot].tokens_in_step = scheduled.num_tokens;
            self.tokens_in_steps += scheduled.num_tokens;
        }
        self.take_stats();
        &self.decisions
    }

    /// Ends the steps of these requests, in this order, and gives what they sampled; a part of a prompt samples nothing.
    pub fn end_request_steps(&mut self, ids: impl IntoIterator<Item = RequestId>) -> &[EngineCoreOutput] {
        self.decisions.outputs.clear();
        let mut has_finished = false;
        for id in ids {
            let Some(slot) = self.requests.slot(id).filter(|slot| self.requests[*slot].tokens_in_step > 0) else {
                continue;
            };
            self.leave_request_step(slot);
            has_finished |= self.output(slot);
        }
        self.forget_finished(has_finished);
        &self.decisions.outputs
    }

    /// Number of requests that wait and run.
    #[must_use]
    pub fn num_requests(&self) -> usize {
        self.requests.len()
    }

    /// Gives back the tokens of a request's own step, if it has one.
    pub(super) fn leave_request_step(&mut self, slot: Slot) {
        self.tokens_in_steps -= std::mem::take(&mut self.requests[slot].tokens_in_step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kv_cache::KvCacheConfig,
        scheduler::{Request, SchedulerConfig},
    };

    fn scheduler(config: SchedulerConfig, blocks: u32) -> Scheduler {
        Scheduler::new(config, KvCacheConfig { num_gpu_blocks: blocks, ..KvCacheConfig::default() }).unwrap()
    }

    fn request(id: u64, prompt: u32, tokens: usize) -> Request {
        let first = u32::try_from(id).unwrap() * 1000;
        Request { id, prompt: (first..first + prompt).collect(), output: vec![7; tokens], ..Request::default() }
    }

    fn begun(scheduler: &mut Scheduler) -> Vec<(u64, usize)> {
        let scheduled = &scheduler.begin_request_steps().scheduled;
        scheduled.iter().map(|scheduled| (scheduled.request_id, scheduled.num_tokens)).collect()
    }

    fn ended(scheduler: &mut Scheduler, ids: &[u64]) -> Vec<(u64, bool)> {
        let outputs = scheduler.end_request_steps(ids.iter().copied());
        outputs.iter().map(|output| (output.request_id, output.finish_reason.is_some())).collect()
    }

    #[test]
    fn requests_step_each_for_itself() {
        let mut scheduler = scheduler(SchedulerConfig::default(), 100);
        scheduler.add_request(request(1, 40, 3)).unwrap();
        scheduler.add_request(request(2, 20, 2)).unwrap();
        assert_eq!(begun(&mut scheduler), [(1, 40), (2, 20)]);
        assert_eq!(begun(&mut scheduler), [], "both are at it");
        assert_eq!(ended(&mut scheduler, &[2]), [(2, false)]);
        assert_eq!(begun(&mut scheduler), [(2, 1)]);
        assert_eq!(ended(&mut scheduler, &[1, 2]), [(1, false), (2, true)]);
        assert_eq!(begun(&mut scheduler), [(1, 1)]);
        assert_eq!(scheduler.decisions().stats.num_running_reqs, 1);
        assert_eq!(ended(&mut scheduler, &[2, 1]), [(1, false)], "the other one has ended");
        begun(&mut scheduler);
        assert_eq!(ended(&mut scheduler, &[1]), [(1, true)]);
        assert_eq!((scheduler.num_requests(), scheduler.tokens_in_steps), (0, 0));
        begun(&mut scheduler);
        assert_eq!(scheduler.decisions().stats.kv_cache_usage, 0.0);
    }

    #[test]
    fn tokens_in_progress_take_the_budget_and_places_are_counted() {
        let config = SchedulerConfig { max_num_batched_tokens: 50, max_num_seqs: 2, ..SchedulerConfig::default() };
        let mut scheduler = scheduler(config, 100);
        (1..=3).for_each(|id| scheduler.add_request(request(id, 40, 2)).unwrap());
        assert_eq!(begun(&mut scheduler), [(1, 40), (2, 10)]);
        assert_eq!(ended(&mut scheduler, &[2]), [], "a part of its prompt");
        assert_eq!(begun(&mut scheduler), [(2, 10)]);
        assert_eq!(ended(&mut scheduler, &[1, 2]), [(1, false)]);
        assert_eq!(begun(&mut scheduler), [(1, 1), (2, 20)], "there are two places");
        scheduler.abort(1);
        assert_eq!(scheduler.tokens_in_steps, 20);
        assert_eq!(begun(&mut scheduler), [(3, 30)]);
    }

    #[test]
    fn a_preempted_request_is_in_no_step() {
        let mut scheduler = scheduler(SchedulerConfig { max_model_len: 128, ..SchedulerConfig::default() }, 9);
        (1..=2).for_each(|id| scheduler.add_request(request(id, 63, 60)).unwrap());
        begun(&mut scheduler);
        ended(&mut scheduler, &[1, 2]);
        let mut preempted = Vec::new();
        while preempted.is_empty() {
            preempted.extend_from_slice(&scheduler.begin_request_steps().preempted);
            scheduler.end_request_steps([1]);
        }
        assert_eq!(preempted, [2]);
        assert_eq!((ended(&mut scheduler, &[2]), scheduler.tokens_in_steps), (vec![], 0));
    }
}
