//! What a step computes, in sums.

use crate::scheduler::{Decisions, ScheduledRequest};

/// Work of one step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepWork {
    /// Requests that compute one more token of their output.
    pub decodes: u32,
    /// Draft tokens that decodes compute besides.
    pub draft_tokens: u32,
    /// Requests that compute tokens of their prompt, or again what they had when they were preempted.
    pub prefills: u32,
    /// Tokens that prefills compute in this step.
    pub prefill_tokens: u32,
    /// The largest share that the step computes of one request's prefill, from 0 to 1.
    pub prefill_share: f64,
    /// Tokens that were computed, or found in the cache, before the step, over all of its requests.
    pub context_tokens: u64,
}

impl StepWork {
    /// The work of a step that was scheduled.
    #[must_use]
    pub fn of(decisions: &Decisions) -> Self {
        let mut work = Self::default();
        decisions.scheduled.iter().for_each(|scheduled| work.add(scheduled));
        work
    }

    fn add(&mut self, scheduled: &ScheduledRequest) {
        let tokens = u32::try_from(scheduled.num_tokens).unwrap_or(u32::MAX);
        if scheduled.prefill_tokens > 0 {
            self.prefills += 1;
            self.prefill_tokens = self.prefill_tokens.saturating_add(tokens);
            let share = scheduled.num_tokens as f64 / scheduled.prefill_tokens as f64;
            self.prefill_share = self.prefill_share.max(share.min(1.0));
        } else {
            self.decodes += 1;
            self.draft_tokens = self.draft_tokens.saturating_add(tokens.saturating_sub(1));
        }
        self.context_tokens += u64::try_from(scheduled.num_computed_tokens).unwrap_or(u64::MAX);
    }

    /// Requests in the step.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.decodes + self.prefills
    }

    pub(crate) fn tokens(&self) -> u32 {
        self.decodes.saturating_add(self.draft_tokens).saturating_add(self.prefill_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kv_cache::KvCacheConfig,
        scheduler::{Request, Scheduler, SchedulerConfig},
    };

    #[test]
    fn a_long_prompt_is_a_prefill_over_several_steps_and_then_decodes() {
        let config = SchedulerConfig { max_num_seqs: 4, max_num_batched_tokens: 40, ..SchedulerConfig::default() };
        let mut scheduler = Scheduler::new(config, KvCacheConfig::default()).unwrap();
        let request = Request { id: 1, prompt: (0..100).collect(), output: vec![7; 3], ..Request::default() };
        let mut arrivals = vec![request];
        let mut works = Vec::new();
        for _ in 0..5 {
            works.push(StepWork::of(scheduler.step(arrivals.drain(..), &[])));
        }
        let prefills: Vec<_> = works.iter().map(|work| (work.prefills, work.prefill_tokens, work.decodes)).collect();
        assert_eq!(prefills, [(1, 40, 0), (1, 40, 0), (1, 20, 0), (0, 0, 1), (0, 0, 1)]);
        let shares: Vec<f64> = works.iter().map(|work| work.prefill_share).collect();
        assert_eq!(shares, [0.4, 0.4, 0.2, 0.0, 0.0]);
        let contexts: Vec<u64> = works.iter().map(|work| work.context_tokens).collect();
        assert_eq!(contexts, [0, 40, 80, 100, 101]);
    }
}
