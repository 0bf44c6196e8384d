//! The engine without a server: requests with their arrivals, under a clock that only counts.
//!
//! [`OfflineEngine`] is one engine, stepped by its caller from event to event, so that several of them share a clock; [`run`] is
//! a list of requests through one engine.

use std::{collections::VecDeque, time::Duration};

use super::{
    scheduler::{Decisions, Rejection, Request, RequestId, Scheduler},
    step_clock::{StepClock, StepWork},
};

/// An engine whose time is what its caller has reached.
#[derive(Debug)]
pub struct OfflineEngine {
    scheduler: Scheduler,
    clock: StepClock,
    /// Requests before their first step, in the order of their arrival.
    delayed: VecDeque<(Duration, Request)>,
    /// End of the step in progress.
    end: Option<Duration>,
    /// Requests that the last step's beginning refused.
    refused: Vec<(RequestId, Rejection)>,
}

/// A step that began.
#[derive(Debug, Clone, Copy)]
pub struct BegunStep {
    /// What it computes.
    pub work: StepWork,
    /// How long it takes.
    pub duration: Duration,
}

impl OfflineEngine {
    /// An engine without requests.
    #[must_use]
    pub fn new(scheduler: Scheduler, clock: StepClock) -> Self {
        let (delayed, refused) = (VecDeque::new(), Vec::new());
        Self { scheduler, clock, delayed, end: None, refused }
    }

    /// Adds a request that arrives now, after all that were added before.
    pub fn submit(&mut self, now: Duration, request: Request) {
        self.delayed.push_back((now + self.clock.before_steps(), request));
    }

    /// When a step ends, or one can begin; `None` where nothing is left to do.
    #[must_use]
    pub fn next_event(&self) -> Option<Duration> {
        self.end.or_else(|| self.delayed.front().map(|(due, _)| *due))
    }

    /// Ends the step in progress, where there is one; what it sampled is among the decisions.
    pub fn end_step(&mut self) -> Option<&Decisions> {
        self.end.take()?;
        Some(self.scheduler.update_from_output())
    }

    /// Begins the next step with what has arrived until now; `None` where there is nothing to compute.
    pub fn begin_step(&mut self, now: Duration) -> Option<BegunStep> {
        self.refused.clear();
        while let Some((_, request)) = self.delayed.pop_front_if(|(due, _)| *due <= now) {
            if let Err(refused) = self.scheduler.add_request(request) {
                self.refused.push(refused);
            }
        }
        let work = StepWork::of(self.scheduler.schedule());
        if work.requests() == 0 {
            // Samples nothing, and takes the figures of an idle engine.
            self.scheduler.update_from_output();
            return None;
        }
        let duration = self.clock.duration(&work);
        self.end = Some(now + duration);
        Some(BegunStep { work, duration })
    }

    /// The decisions of the last step that began or ended.
    #[must_use]
    pub fn decisions(&self) -> &Decisions {
        self.scheduler.decisions()
    }

    /// Requests that [`OfflineEngine::begin_step`] could not accept.
    #[must_use]
    pub fn refused(&self) -> &[(RequestId, Rejection)] {
        &self.refused
    }
}

/// A request and its arrival.
#[derive(Debug, Clone)]
pub struct Job {
    /// From the zero of the run.
    pub arrival: Duration,
    /// The request; its id is set by its place.
    pub request: Request,
}

/// Timeline of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestTimeline {
    /// When each of its tokens came, from its arrival; none of a request that was refused.
    pub tokens: Vec<Duration>,
    /// Tokens of its prompt that were found in the cache.
    pub cached_tokens: usize,
}

/// Runs requests to their ends; a timeline for each, in their order.
///
/// Limits: a request that the cache never has room for has no tokens.
#[must_use]
pub fn run(jobs: Vec<Job>, scheduler: Scheduler, clock: StepClock) -> Vec<RequestTimeline> {
    let arrivals: Vec<Duration> = jobs.iter().map(|job| job.arrival).collect();
    let mut timelines = vec![RequestTimeline::default(); jobs.len()];
    let numbered = |(job, id): (Job, RequestId)| Job { request: Request { id, ..job.request }, ..job };
    let mut jobs: Vec<Job> = jobs.into_iter().zip(0..).map(numbered).collect();
    jobs.sort_by_key(|job| job.arrival);
    let mut engine = OfflineEngine::new(scheduler, clock);
    jobs.into_iter().for_each(|Job { arrival, request }| engine.submit(arrival, request));
    while let Some(now) = engine.next_event() {
        for output in engine.end_step().map(|decisions| decisions.outputs.as_slice()).unwrap_or_default() {
            let at = usize::try_from(output.request_id).unwrap_or(usize::MAX);
            let (Some(timeline), Some(arrival)) = (timelines.get_mut(at), arrivals.get(at)) else { continue };
            timeline.tokens.push(now.saturating_sub(*arrival));
            timeline.cached_tokens = output.num_cached_tokens.unwrap_or(timeline.cached_tokens);
        }
        engine.begin_step(now);
        for (id, rejection) in engine.refused() {
            tracing::debug!(id, %rejection, "a request is not run");
        }
    }
    timelines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kv_cache::KvCacheConfig,
        scheduler::SchedulerConfig,
        step_clock::{Knobs, StepTimes},
    };

    const MS: Duration = Duration::from_millis(1);

    fn job(arrival: u32, prompt: std::ops::Range<u32>, tokens: usize) -> Job {
        let request = Request { prompt: prompt.collect(), output: vec![7; tokens], ..Request::default() };
        Job { arrival: MS * arrival, request }
    }

    fn runs(jobs: Vec<Job>, max_num_seqs: usize) -> Vec<RequestTimeline> {
        let config = SchedulerConfig { max_num_seqs, ..SchedulerConfig::default() };
        let scheduler = Scheduler::new(config, KvCacheConfig::default()).unwrap();
        run(jobs, scheduler, StepClock::new(StepTimes::Knobs(Knobs::constant(50 * MS, 10 * MS)), 1.0, 0))
    }

    #[test]
    fn requests_share_steps_and_their_prompts_are_cached() {
        let timelines = runs(vec![job(0, 0..40, 3), job(55, 0..40, 2)], 4);
        let millis = |at: usize| timelines[at].tokens.iter().map(Duration::as_millis).collect::<Vec<_>>();
        // The second one comes in the middle of the first one's second step, and its prefill then delays the third.
        assert_eq!(millis(0), [50, 60, 110]);
        assert_eq!(millis(1), [55, 65]);
        assert_eq!([timelines[0].cached_tokens, timelines[1].cached_tokens], [0, 32]);
    }

    #[test]
    fn a_full_batch_makes_the_next_one_wait_and_time_jumps_to_arrivals() {
        let timelines = runs(vec![job(0, 0..40, 3), job(1, 50..90, 1), job(9000, 90..99, 1)], 1);
        let firsts: Vec<u128> = timelines.iter().map(|timeline| timeline.tokens[0].as_millis()).collect();
        assert_eq!(firsts, [50, 119, 50]);
    }
}
