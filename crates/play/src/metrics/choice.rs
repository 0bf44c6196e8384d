//! A request's choices in progress, as the engine's counters see them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    AdmissionPermit, Metrics,
    engine::{EngineMetrics, REASONS},
    steps::StepPosition,
};
use crate::engine::Scheduled;
use api::RequestTimes;
use replay::delivery::AbortedBy;

#[derive(Debug)]
pub(in super::super) struct RequestMetrics {
    engine: Arc<EngineMetrics>,
    arrived: Instant,
    choices: u32,
    /// Room for them, given up one by one as they end.
    permit: AdmissionPermit,
    unfinished: AtomicU32,
    longest: AtomicU32,
}

impl RequestMetrics {
    /// A request for `choices` choices that arrived at that time and was admitted with this permit.
    pub(in super::super) fn new(
        metrics: &Metrics,
        arrived: Instant,
        choices: u32,
        permit: AdmissionPermit,
    ) -> Arc<Self> {
        let engine = Arc::clone(&metrics.engine);
        let unfinished = AtomicU32::new(choices);
        Arc::new(Self { engine, arrived, choices, permit, unfinished, longest: AtomicU32::new(0) })
    }

    /// Starts one of the choices: tokens of its prompt, how many of them were cached, and how many it may produce.
    pub(in super::super) fn start(self: &Arc<Self>, prompt: u32, cached: u32, max_tokens: u32) -> ChoiceMetrics {
        let mut position = StepPosition::default();
        if !self.engine.is_scheduled {
            self.engine.running.fetch_add(1, Relaxed);
            position = self.engine.steps.enter();
        }
        let cached = cached.min(prompt);
        ChoiceMetrics {
            request: Arc::clone(self),
            engine: Arc::clone(&self.engine),
            prompt,
            cached,
            max_tokens,
            first: None,
            last: self.arrived,
            produced: 0,
            position,
            scheduled: None,
            parts: Vec::new(),
            at_once: StepsAtOnce::default(),
        }
    }

    /// Counts the end of a choice; the last one ends the request, at its rank.
    fn finish(&self, produced: u32, engine: &EngineMetrics) {
        let longest = self.longest.fetch_max(produced, Relaxed).max(produced);
        if self.unfinished.fetch_sub(1, Relaxed) == 1 {
            engine.longest_generation.count(longest);
            engine.choices.count(self.choices);
        }
    }
}

/// A choice that runs until this is dropped. One that is dropped before its end, as when the client leaves, is counted
/// under no way to finish.
#[derive(Debug)]
pub(in super::super) struct ChoiceMetrics {
    request: Arc<RequestMetrics>,
    /// Counters of the rank that runs it.
    engine: Arc<EngineMetrics>,
    prompt: u32,
    cached: u32,
    max_tokens: u32,
    first: Option<Instant>,
    last: Instant,
    produced: u32,
    /// The engine's last step that it took part in.
    position: StepPosition,
    /// Its parts in further ones, of tokens at one time.
    parts: Vec<u32>,
    at_once: StepsAtOnce,
    /// What a simulated engine knows of it, from the first token on.
    scheduled: Option<Scheduled>,
}

/// Steps of equally many tokens that came with the one before them, before they are counted.
#[derive(Debug, Default)]
struct StepsAtOnce {
    steps: u64,
    tokens: u32,
}

impl ChoiceMetrics {
    /// Counts it at a rank of a simulated engine, before its first token.
    pub(in super::super) fn run_on(&mut self, metrics: &Metrics, rank: usize) {
        self.engine = Arc::clone(metrics.of_rank(rank));
    }

    /// Takes over what a simulated engine knows of it.
    pub(in super::super) fn schedule(&mut self, scheduled: Scheduled) {
        self.cached = scheduled.cached.min(self.prompt);
        self.scheduled = Some(scheduled);
    }

    /// Checks whether a simulated engine runs it.
    pub(in super::super) fn is_scheduled(&self) -> bool {
        self.scheduled.is_some()
    }

    /// Checks whether it has had a step.
    pub(in super::super) fn has_begun(&self) -> bool {
        self.first.is_some()
    }

    pub(in super::super) fn due(&self, at: Instant) -> Duration {
        at - self.request.arrived
    }

    pub(in super::super) fn at(&self, due: Duration) -> Instant {
        self.request.arrived + due
    }

    /// A step of some tokens. Those at one time are counted together, at the latest by [`settle`](Self::settle).
    pub(in super::super) fn step(&mut self, tokens: u32, now: Instant) {
        self.produced = self.produced.saturating_add(tokens);
        if self.first.is_some() && now == self.last {
            if self.at_once.tokens != tokens {
                self.settle();
                self.at_once.tokens = tokens;
            }
            self.at_once.steps += 1;
            self.parts.push(tokens);
            return;
        }
        self.settle_parts();
        let engine = &self.engine;
        if self.first.is_none() {
            self.first = Some(now);
            if engine.is_scheduled && self.scheduled.is_none() {
                engine.others.fetch_add(1, Relaxed);
            }
            engine.first_token.time(now - self.request.arrived);
            engine.prompt_tokens.fetch_add(u64::from(self.prompt), Relaxed);
            engine.cached_tokens.fetch_add(u64::from(self.cached), Relaxed);
            let external = self.scheduled.map_or(0, |scheduled| scheduled.external.min(self.cached));
            engine.external_tokens.fetch_add(u64::from(external), Relaxed);
            self.parts.push((self.prompt - self.cached).saturating_add(tokens));
        } else {
            engine.inter_token.time(now - self.last);
            self.parts.push(tokens);
        }
        engine.generation_tokens.fetch_add(u64::from(tokens), Relaxed);
        self.last = now;
    }

    /// An end before the first token that a simulated engine owed it: nothing of its prompt was computed.
    pub(in super::super) fn end_before_first(&mut self, now: Instant) {
        if self.first.is_some() || self.scheduled.is_some() || !self.engine.is_scheduled {
            return self.step(0, now);
        }
        (self.first, self.last) = (Some(now), now);
        self.engine.first_token.time(now - self.request.arrived);
    }

    /// Takes part in the engine's steps with the tokens that were sent at one time.
    fn settle_parts(&mut self) {
        let engine = &self.engine;
        // A simulated engine has counted its steps.
        if !self.parts.is_empty() && !engine.is_scheduled {
            engine.steps.take(&mut self.position, &self.parts, &engine.step_tokens);
        }
        self.parts.clear();
    }

    /// Counts the steps that are not counted yet.
    pub(in super::super) fn settle(&mut self) {
        self.settle_parts();
        let StepsAtOnce { steps, tokens } = self.at_once;
        if steps == 0 {
            return;
        }
        let engine = &self.engine;
        engine.inter_token.time_all(Duration::ZERO, steps);
        engine.generation_tokens.fetch_add(u64::from(tokens) * steps, Relaxed);
        self.at_once.steps = 0;
    }

    /// Its times so far.
    pub(in super::super) fn times(&self) -> RequestTimes {
        let first = self.first.unwrap_or(self.last);
        let generation = self.last - first;
        match self.scheduled {
            Some(Scheduled { queued, prefill, .. }) => RequestTimes { queued, first_token: prefill, generation },
            None => RequestTimes { queued: Duration::ZERO, first_token: first - self.request.arrived, generation },
        }
    }

    /// Counts the end. As in vLLM, of those that were aborted only what the engine ended: a client that left, as where a record has
    /// no reason because its client did, is none that finished.
    pub(in super::super) fn finish(&mut self, reason: &str, aborted: Option<AbortedBy>) {
        self.settle();
        if reason == "abort" && aborted != Some(AbortedBy::Engine) {
            return;
        }
        let engine = &self.engine;
        let counter = REASONS.iter().position(|known| *known == reason).and_then(|at| engine.finished.get(at));
        if let Some(counter) = counter {
            counter.fetch_add(1, Relaxed);
        }
        let RequestTimes { queued, first_token, generation } = self.times();
        engine.e2e.time(self.last - self.request.arrived);
        engine.queue.time(queued);
        engine.inference.time(first_token + generation);
        engine.prefill.time(first_token);
        engine.decode.time(generation);
        engine.per_token.time(generation.checked_div(self.produced.saturating_sub(1)).unwrap_or_default());
        engine.request_prompt.count(self.prompt);
        engine.request_generation.count(self.produced);
        engine.max_tokens.count(self.max_tokens);
        engine.computed.count(self.prompt - self.cached);
        engine.request_preemptions.count(self.scheduled.map_or(0, |scheduled| scheduled.preemptions));
        self.request.finish(self.produced, engine);
    }
}

impl Drop for ChoiceMetrics {
    fn drop(&mut self) {
        self.settle();
        if !self.engine.is_scheduled {
            self.engine.steps.leave(&self.engine.step_tokens);
            self.engine.running.fetch_sub(1, Relaxed);
        }
        self.request.permit.give_up_one();
    }
}
