//! The engine without a server: requests with their arrivals, under a clock that only counts.

use std::time::Duration;

use super::{
    scheduler::{Request, Scheduler},
    step_clock::{StepClock, StepWork},
};

/// A request and its arrival.
#[derive(Debug, Clone)]
pub struct Job {
    /// From the zero of the run.
    pub arrival: Duration,
    /// The request; its id is set by its place.
    pub request: Request,
}

/// What became of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timeline {
    /// When each of its tokens came, from its arrival; none of a request that was refused.
    pub tokens: Vec<Duration>,
    /// Tokens of its prompt that were found in the cache.
    pub cached_tokens: usize,
}

/// Runs requests to their ends; a timeline for each, in their order.
///
/// Limits: a request that the cache never has room for has no tokens.
#[must_use]
pub fn run(jobs: Vec<Job>, mut scheduler: Scheduler, mut clock: StepClock) -> Vec<Timeline> {
    let arrivals: Vec<Duration> = jobs.iter().map(|job| job.arrival).collect();
    let mut timelines = vec![Timeline::default(); jobs.len()];
    let mut waiting: Vec<(Duration, Request)> = Vec::with_capacity(jobs.len());
    for (Job { arrival, request }, id) in jobs.into_iter().zip(0..) {
        waiting.push((arrival + clock.before_steps(), Request { id, ..request }));
    }
    waiting.sort_by_key(|(due, _)| *due);
    let (mut waiting, mut now) = (waiting.into_iter().peekable(), Duration::ZERO);
    loop {
        while let Some((_, request)) = waiting.next_if(|(due, _)| *due <= now) {
            if let Err((id, rejection)) = scheduler.add_request(request) {
                tracing::debug!(id, %rejection, "a request is not run");
            }
        }
        let work = StepWork::of(scheduler.schedule());
        if work.requests() > 0 {
            now += clock.duration(&work);
        }
        for output in &scheduler.update_from_output().outputs {
            let at = usize::try_from(output.request_id).unwrap_or(usize::MAX);
            let (Some(timeline), Some(arrival)) = (timelines.get_mut(at), arrivals.get(at)) else { continue };
            timeline.tokens.push(now.saturating_sub(*arrival));
            timeline.cached_tokens = output.num_cached_tokens.unwrap_or(timeline.cached_tokens);
        }
        if work.requests() == 0 {
            let Some((due, _)) = waiting.peek() else { return timelines };
            now = now.max(*due);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{
        kv_cache::KvCacheConfig,
        scheduler::SchedulerConfig,
        step_clock::{Knobs, StepTimes},
    };

    const MS: Duration = Duration::from_millis(1);

    fn job(arrival: u32, prompt: std::ops::Range<u32>, tokens: usize) -> Job {
        let request = Request { prompt: prompt.collect(), output: vec![7; tokens], ..Request::default() };
        Job { arrival: MS * arrival, request }
    }

    fn runs(jobs: Vec<Job>, max_num_seqs: usize) -> Vec<Timeline> {
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
