//! Speculative decoding: each step that decodes checks some draft tokens too, and gives the request those that are accepted and one more.
//!
//! What is drafted is not known here, only how much of it is accepted: drawn from a seed, or so that the tokens of a request come in the
//! bursts in which they were recorded.
//!
//! Limits: as many tokens are drafted for each step, whatever the method would find; budgets for drafts by batch size, grammars
//! that refuse drafts and the modules of multi-module MTP are not modelled.
//!
//! See docs/decisions/0103-speculation-is-a-number-per-step.md.

use rand::{Rng, RngExt};

use super::{
    ScheduledAs, ScheduledRequest, Scheduler, Slot,
    request::{Drafts, RequestState},
};

/// Configuration of speculative decoding.
#[derive(Debug, Clone, PartialEq)]
pub struct Speculation {
    /// Tokens that are drafted for a step.
    pub num_speculative_tokens: usize,
    /// Places in blocks that the drafter needs behind the tokens of a step.
    pub num_lookahead_tokens: usize,
    /// Tokens of the step's budget that drafting takes for each request.
    pub draft_slots: usize,
    /// Whether the last cached block of a prefix is computed again, for the drafter.
    pub drops_cached_block: bool,
    /// Share of accepted draft tokens by place, of those before which all were accepted; the last one counts for all further places.
    pub acceptance_rates: Vec<f64>,
    /// Of the draws.
    pub seed: u64,
}

/// Places and budget for a number of draft tokens.
type Needs = fn(usize) -> (usize, usize);

/// Methods of vLLM: places behind the tokens of a step and tokens of its budget that they need for `k` draft tokens, and whether the last
/// cached block is computed again.
const METHODS: [(&str, Needs, bool); 12] = [
    ("ngram", |_| (0, 0), false),
    ("ngram_gpu", |_| (0, 0), false),
    ("suffix", |_| (0, 0), false),
    ("medusa", |_| (0, 0), false),
    ("mlp_speculator", |_| (0, 0), false),
    ("draft_model", |k| (k, 1), false),
    ("eagle", |k| (k, 0), true),
    ("eagle3", |k| (k, 0), true),
    ("mtp", |k| (k, 0), true),
    ("deepseek_mtp", |k| (k, 0), true),
    ("dflash", |k| (k + 1, k), true),
    ("dspark", |k| (k, k.saturating_sub(1)), true),
];

impl Speculation {
    /// That of a method of vLLM, which drafts so many tokens and of which nothing is accepted; `None` where there is no such method.
    #[must_use]
    pub fn of_method(method: &str, num_speculative_tokens: usize) -> Option<Self> {
        let (_, needs, drops_cached_block) = METHODS.iter().find(|(name, ..)| *name == method)?;
        let (num_lookahead_tokens, draft_slots) = needs(num_speculative_tokens);
        Some(Self {
            num_speculative_tokens,
            num_lookahead_tokens,
            draft_slots,
            drops_cached_block: *drops_cached_block,
            acceptance_rates: Vec::new(),
            seed: 0,
        })
    }

    /// The methods, by name.
    pub fn methods() -> impl Iterator<Item = &'static str> {
        METHODS.iter().map(|(name, ..)| *name)
    }

    /// Draws how many of some draft tokens are accepted, each if those before it are.
    fn accepted(&self, drafted: usize, generator: &mut impl Rng) -> usize {
        let rates = &self.acceptance_rates;
        let rate = |at: usize| rates.get(at).or(rates.last()).copied().unwrap_or_default();
        (0..drafted).take_while(|at| generator.random::<f64>() < rate(*at)).count()
    }
}

impl RequestState {
    /// Draft tokens that are accepted where the tokens come in recorded bursts; `None` where they do not.
    fn recorded_acceptance(&self, drafted: usize) -> Option<usize> {
        let sampled = self.sequence.num_tokens - self.sequence.num_prompt_tokens;
        let next = self.burst_ends.partition_point(|end| *end <= sampled);
        let end = if self.burst_ends.is_empty() { None } else { Some(self.burst_ends.get(next)) }?;
        // Behind the last burst, and in longer ones, everything is.
        Some(end.map_or(drafted, |end| (end - sampled - 1).min(drafted)))
    }
}

impl Scheduler {
    /// Places that a request needs in its blocks for some tokens and what is drafted behind them.
    pub(super) fn num_slots(&self, num_tokens: usize) -> usize {
        let lookahead = self.config.speculation.as_ref().map_or(0, |speculation| speculation.num_lookahead_tokens);
        (num_tokens + lookahead).min(self.config.max_model_len.max(num_tokens))
    }

    /// Tokens of a step's budget that drafting takes for each request.
    pub(super) fn draft_slots(&self) -> usize {
        self.config.speculation.as_ref().map_or(0, |speculation| speculation.draft_slots)
    }

    /// Places that a transfer leaves free for each prompt in progress, beside its tokens.
    pub(super) fn draft_reserve(&self) -> usize {
        let of = |speculation: &Speculation| 1 + speculation.num_speculative_tokens + speculation.num_lookahead_tokens;
        self.config.speculation.as_ref().map_or(0, of)
    }

    /// Notes which of the waiting drafts of a request a step checks, of which it computes tokens up to a place.
    pub(super) fn schedule_drafts(&mut self, slot: Slot, end: usize) {
        let request = &mut self.requests[slot];
        let drafted = end.saturating_sub(request.sequence.num_tokens);
        request.drafts = Drafts { waiting: 0, scheduled: drafted.min(request.drafts.waiting), is_padding: false };
    }

    /// Tokens of a decode that is admitted, filled up with drafts so that all decodes of a step have as many; `None` where it may not
    /// be. Gives 0 where the budget has no room for them.
    pub(super) fn padded(&self, num_computed_tokens: usize, budget: usize) -> Option<usize> {
        let of = |speculation: &Speculation| speculation.num_speculative_tokens;
        let padded = 1 + self.config.speculation.as_ref().map_or(0, of);
        let is_running = |first: &ScheduledRequest| first.scheduled_as == ScheduledAs::Running;
        let has_decodes = self.decisions.scheduled.first().is_some_and(is_running) || num_computed_tokens > 0;
        let fits = num_computed_tokens + padded < self.config.max_model_len;
        let is_padded = padded > 1 && !self.is_prefill_scheduled && has_decodes && fits;
        is_padded.then_some(if padded > budget { 0 } else { padded })
    }

    /// Ends the drafts of a step of a request; gives how many tokens it samples.
    pub(super) fn verify(&mut self, slot: Slot) -> usize {
        let Some(speculation) = &self.config.speculation else { return 1 };
        let request = &mut self.requests[slot];
        let Drafts { scheduled, is_padding, .. } = std::mem::take(&mut request.drafts);
        // The next step's are drafted now.
        request.drafts.waiting = speculation.num_speculative_tokens;
        if scheduled == 0 {
            return 1;
        }
        let accepted = match request.recorded_acceptance(scheduled) {
            _ if is_padding => 0,
            Some(accepted) => accepted,
            None => speculation.accepted(scheduled, &mut self.acceptance),
        };
        request.num_computed_tokens -= scheduled - accepted;
        self.decisions.spec_decoding.observe(scheduled, accepted);
        1 + accepted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kv_cache::KvCacheConfig,
        scheduler::{Request, SchedulerConfig},
    };

    fn scheduler(rate: f64, seed: u64, blocks: u32) -> Scheduler {
        let speculation = Speculation::of_method("eagle", 3).unwrap();
        let speculation = Speculation { acceptance_rates: vec![rate], seed, ..speculation };
        let config = SchedulerConfig { speculation: Some(speculation), ..SchedulerConfig::default() };
        Scheduler::new(config, KvCacheConfig { num_gpu_blocks: blocks, ..KvCacheConfig::default() }).unwrap()
    }

    fn request(tokens: usize) -> Request {
        Request { id: 1, prompt: (0..40).collect(), output: (0..).take(tokens).collect(), ..Request::default() }
    }

    /// Tokens of each step until the request has ended.
    fn bursts(scheduler: &mut Scheduler, request: Request) -> Vec<usize> {
        let mut bursts = vec![scheduler.step([request], &[]).outputs.len()];
        while scheduler.has_requests() {
            bursts.push(scheduler.step([], &[]).outputs.len());
        }
        bursts
    }

    #[test]
    fn all_or_nothing_is_accepted_and_the_last_burst_ends_with_the_output() {
        assert_eq!(bursts(&mut scheduler(1.0, 1, 40), request(10)), [1, 4, 4, 1]);
        assert_eq!(bursts(&mut scheduler(0.0, 1, 40), request(4)), [1; 4]);
        let mut scheduler = scheduler(1.0, 1, 40);
        scheduler.step([request(6)], &[]);
        let decisions = scheduler.step([], &[]);
        let scheduled = decisions.scheduled[0];
        assert_eq!((scheduled.num_tokens, scheduled.num_computed_tokens), (4, 40));
        let stats = &decisions.spec_decoding;
        assert_eq!((stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens), (1, 3, 3));
        assert_eq!(stats.num_accepted_tokens_per_pos, [1, 1, 1]);
        let more: Vec<bool> = decisions.outputs.iter().map(|output| output.has_more).collect();
        assert_eq!(more, [true, true, true, false]);
        assert_eq!(scheduler.block_ids(1).len(), 3, "40 and 4 tokens, and 3 behind them");
    }

    #[test]
    fn what_is_accepted_is_drawn_from_the_seed_at_its_rate() {
        let drawn = |seed| bursts(&mut scheduler(0.5, seed, 600), request(4000));
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
        let bursts = drawn(1);
        assert_eq!(bursts.iter().sum::<usize>(), 4000);
        // 1 + 1/2 + 1/4 + 1/8 tokens per step.
        let steps = u32::try_from(bursts.len()).unwrap();
        assert!((4000.0 / f64::from(steps) - 1.875).abs() < 0.1, "{steps}");
    }

    #[test]
    fn recorded_bursts_come_again() {
        let recorded = Request { burst_ends: vec![1, 3, 4, 10], ..request(12) };
        assert_eq!(bursts(&mut scheduler(0.0, 1, 40), recorded), [1, 2, 1, 4, 2, 2]);
    }

    #[test]
    fn a_budget_leaves_some_drafts_out() {
        let mut scheduler = scheduler(1.0, 1, 40);
        scheduler.config.max_num_batched_tokens = 42;
        scheduler.step([request(20)], &[]);
        let second = Request { id: 2, prompt: (100..139).collect(), output: vec![1; 9], ..Request::default() };
        let decisions = scheduler.step([second], &[]);
        let tokens: Vec<usize> = decisions.scheduled.iter().map(|scheduled| scheduled.num_tokens).collect();
        assert_eq!(tokens, [4, 38]);
    }
}
