//! Requests that are served at their recorded times: each has steps of its own, which end when its tokens came.
//!
//! A token is due so long after the request's arrival as it was recorded, and later by what the scheduler lets the request wait:
//! for a place, for blocks, for the tokens of a step. What it waits while no more requests are there than when it was recorded is part of
//! the recorded time; beyond that it is added to all that follows. A prompt in parts takes a part of the time to the first token for
//! each. What was preempted takes that time once more.
//!
//! Pure: times are durations from any zero. Limits: a cached prefix makes no request faster, and a load that was not recorded makes its
//! steps no longer.
//!
//! See docs/decisions/0105-recorded-times-and-only-queueing.md.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use super::scheduler::{Decisions, RequestId, ScheduledAs, ScheduledRequest};

/// Times of a request as they were recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordedTimes {
    /// When each token came, from the request's arrival.
    pub tokens: Vec<Duration>,
    /// The most requests that were there at once while it was, itself too.
    pub concurrency: u32,
}

/// Steps of all requests of an engine.
#[derive(Debug, Default)]
pub struct RecordedTimings {
    live: HashMap<RequestId, TimedRequest>,
    /// Ends of steps in progress.
    ends: BTreeSet<(Duration, RequestId)>,
    /// Requests that were there from a time on: the most of them first, and behind each what came later and was less.
    present: Vec<(Duration, usize)>,
    /// How often steps began.
    rounds: u64,
}

/// A request that has not ended.
#[derive(Debug)]
struct TimedRequest {
    recorded: RecordedTimes,
    arrival: Duration,
    added: Duration,
    /// Tokens that were sampled.
    sampled: usize,
    /// Tokens of its prefill that its steps have computed, the one in progress too.
    prefilled: usize,
    /// End of its step, in progress or the last one; at first its arrival.
    end: Duration,
    /// The first round in which its next step can begin. One that begins then has not waited, however late the caller is.
    round: u64,
}

impl RecordedTimings {
    /// Adds a request.
    pub fn arrive(&mut self, id: RequestId, arrival: Duration, recorded: RecordedTimes) {
        let (added, sampled, prefilled, round) = (Duration::ZERO, 0, 0, self.rounds);
        self.live.insert(id, TimedRequest { recorded, arrival, added, sampled, prefilled, end: arrival, round });
    }

    /// Forgets a request that has ended or is aborted.
    pub fn forget(&mut self, id: RequestId) {
        if let Some(live) = self.live.remove(&id) {
            self.ends.remove(&(live.end, id));
        }
    }

    /// Forgets all requests.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// When the next step ends; `None` where none is in progress.
    #[must_use]
    pub fn next_end(&self) -> Option<Duration> {
        self.ends.first().map(|(end, _)| *end)
    }

    /// Takes the steps that have ended until now, in their order.
    pub fn take_ended(&mut self, now: Duration) -> Vec<(RequestId, Duration)> {
        let mut ended = Vec::new();
        while let Some((end, id)) = self.ends.pop_first() {
            if end > now {
                self.ends.insert((end, id));
                break;
            }
            self.live.get_mut(&id).into_iter().for_each(|live| live.round = self.rounds);
            ended.push((id, end));
        }
        ended
    }

    /// Notes that a request has sampled a token.
    pub fn sampled(&mut self, id: RequestId) {
        self.live.get_mut(&id).into_iter().for_each(|live| live.sampled += 1);
    }

    /// Begins the steps that were scheduled now, with so many requests there; all take so many times as long as recorded.
    pub fn begin(&mut self, now: Duration, decisions: &Decisions, present: usize, slower: f64) {
        for id in &decisions.preempted {
            if let Some(live) = self.live.get_mut(id) {
                self.ends.remove(&(live.end, *id));
                live.end = live.end.min(now);
            }
        }
        while self.present.pop_if(|(_, earlier)| *earlier <= present).is_some() {}
        self.present.push((now, present));
        for scheduled in &decisions.scheduled {
            let id = scheduled.request_id;
            if let Some(live) = self.live.get_mut(&id) {
                let since = self.present.partition_point(|(at, _)| *at < live.end);
                let most = self.present.get(since).map_or(present, |(_, most)| *most);
                let now = if live.round == self.rounds { live.end } else { now };
                live.begin(now, scheduled, most, slower);
                self.ends.insert((live.end, id));
            }
        }
        self.rounds += 1;
    }
}

impl TimedRequest {
    /// Begins a step; `present` is the most requests that were there since its last one.
    fn begin(&mut self, now: Duration, scheduled: &ScheduledRequest, present: usize, slower: f64) {
        let waited = now.saturating_sub(self.end);
        let is_recorded = u32::try_from(present).is_ok_and(|present| present <= self.recorded.concurrency);
        if scheduled.scheduled_as != ScheduledAs::Running {
            self.prefilled = 0;
        }
        if scheduled.scheduled_as == ScheduledAs::Resumed {
            // Nothing of it was recorded.
            self.added += waited + self.due(0);
        } else if !is_recorded {
            self.added += waited;
        }
        self.prefilled += scheduled.num_tokens;
        let before = self.sampled.checked_sub(1).map_or(Duration::ZERO, |last| self.due(last));
        let gap = self.due(self.sampled).saturating_sub(before);
        let share = share(self.prefilled, scheduled.prefill_tokens);
        let gap = if share < 1.0 { gap.mul_f64(share) } else { gap };
        let end = (self.arrival + self.added + before + gap).max(now);
        let longer = (end - now).mul_f64(slower.max(1.0) - 1.0);
        self.added += longer;
        self.end = end + longer;
    }

    /// When a token came; one behind the last came with that.
    fn due(&self, token: usize) -> Duration {
        let tokens = &self.recorded.tokens;
        tokens.get(token).or(tokens.last()).copied().unwrap_or_default()
    }
}

/// Share of a prefill that is computed, from 0 to 1; all of it for a step that is none.
fn share(computed: usize, all: usize) -> f64 {
    if computed >= all { 1.0 } else { computed as f64 / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kv_cache::KvCacheConfig,
        scheduler::{Request, Scheduler, SchedulerConfig},
    };

    const MS: Duration = Duration::from_millis(1);

    /// A request: its arrival, prompt, recorded times of tokens and concurrency.
    type Recorded<'a> = (u32, u32, &'a [u32], u32);

    /// When each token of each request comes, from its arrival.
    fn served(config: SchedulerConfig, blocks: u32, requests: &[Recorded<'_>]) -> Vec<Vec<u128>> {
        let kv_cache = KvCacheConfig { num_gpu_blocks: blocks, ..KvCacheConfig::default() };
        let mut scheduler = Scheduler::new(config, kv_cache).unwrap();
        let mut times = RecordedTimings::default();
        let mut arrivals = requests.iter().zip(0_u64..).peekable();
        let mut tokens = vec![Vec::new(); requests.len()];
        loop {
            let arrival = arrivals.peek().map(|((at, ..), _)| *at * MS);
            let Some(now) = arrival.into_iter().chain(times.next_end()).min() else { break tokens };
            let ended = times.take_ended(now);
            for output in scheduler.end_request_steps(ended.iter().map(|(id, _)| *id)) {
                let id = output.request_id;
                let (_, end) = ended.iter().find(|(ended, _)| *ended == id).unwrap();
                let number = usize::try_from(id).unwrap();
                tokens[number].push((*end - requests[number].0 * MS).as_millis());
                times.sampled(id);
                if output.finish_reason.is_some() {
                    times.forget(id);
                }
            }
            while let Some(((at, prompt, dues, concurrency), id)) = arrivals.next_if(|((at, ..), _)| *at * MS <= now) {
                let first = u32::try_from(id).unwrap() * 1000;
                let prompt = (first..first + prompt).collect();
                scheduler
                    .add_request(Request { id, prompt, output: vec![7; dues.len()], ..Request::default() })
                    .unwrap();
                let dues = dues.iter().map(|due| *due * MS).collect();
                times.arrive(id, *at * MS, RecordedTimes { tokens: dues, concurrency: *concurrency });
            }
            let present = scheduler.num_requests();
            times.begin(now, scheduler.begin_request_steps(), present, 1.0);
        }
    }

    fn places(max_num_seqs: usize) -> SchedulerConfig {
        SchedulerConfig { max_num_seqs, ..SchedulerConfig::default() }
    }

    #[test]
    fn with_places_for_all_the_times_are_the_recorded_ones() {
        let requests: &[Recorded<'_>] =
            &[(0, 40, &[50, 50, 50, 61, 75], 1), (10, 5000, &[700, 701], 1), (11, 16, &[3], 1), (60, 10, &[0, 0], 9)];
        let config = SchedulerConfig { max_num_batched_tokens: 8000, max_model_len: 8000, ..places(8) };
        let found = served(config, 1000, requests);
        assert_eq!(found, [vec![50, 50, 50, 61, 75], vec![700, 701], vec![3], vec![0, 0]]);
    }

    #[test]
    fn a_caller_that_is_late_adds_nothing() {
        let mut scheduler = Scheduler::new(places(4), KvCacheConfig::default()).unwrap();
        let mut times = RecordedTimings::default();
        for id in 0..2 {
            let request = Request { id, prompt: vec![1; 20], output: vec![7; 2], ..Request::default() };
            scheduler.add_request(request).unwrap();
            times.arrive(id, Duration::ZERO, RecordedTimes { tokens: vec![5 * MS, 9 * MS], concurrency: 1 });
        }
        for (late, expected) in [(3, 5), (8, 9)] {
            times.begin(late * MS, scheduler.begin_request_steps(), 2, 1.0);
            assert_eq!(times.next_end(), Some(expected * MS));
            let ended = times.take_ended((expected + 3) * MS);
            assert_eq!(ended, [(0, expected * MS), (1, expected * MS)]);
            scheduler.end_request_steps([0, 1]);
            (0..2).for_each(|id| times.sampled(id));
        }
    }

    #[test]
    fn a_prompt_in_parts_alone_takes_its_recorded_time() {
        let config = SchedulerConfig { max_num_batched_tokens: 100, ..places(8) };
        assert_eq!(served(config, 1000, &[(0, 250, &[40, 45], 1)]), [[40, 45]]);
    }

    #[test]
    fn waiting_for_a_place_is_added_beyond_the_recorded_concurrency_only() {
        let first: Recorded<'_> = (0, 20, &[50, 100], 2);
        assert_eq!(served(places(1), 100, &[first, (10, 20, &[20, 30], 1)])[1], [110, 120]);
        // It had waited as long when it was recorded: its turn comes at 100, 90 after its arrival.
        assert_eq!(served(places(1), 100, &[first, (10, 20, &[120, 130], 2)])[1], [120, 130]);
        assert_eq!(served(places(1), 100, &[first, (10, 20, &[20, 130], 2)])[1], [90, 130]);
    }

    #[test]
    fn prompts_wait_for_the_tokens_of_a_step() {
        let config = SchedulerConfig { max_num_batched_tokens: 50, max_num_seqs: 8, ..SchedulerConfig::default() };
        let found = served(config, 100, &[(0, 50, &[40, 44], 1), (0, 30, &[10, 12], 1)]);
        assert_eq!(found, [[40, 44], [50, 52]]);
    }

    #[test]
    fn a_preempted_request_waits_and_is_computed_again() {
        let config = SchedulerConfig { max_model_len: 128, ..places(4) };
        let dues: Vec<u32> = (1..=60).map(|token| token * 10).collect();
        let found = served(config, 9, &[(0, 63, &dues, 2), (0, 63, &dues, 2)]);
        let recorded: Vec<u128> = dues.iter().map(|due| u128::from(*due)).collect();
        assert_eq!(found[0], recorded);
        assert_eq!(found[1].len(), 60);
        let late: Vec<u128> = found[1].iter().zip(&recorded).map(|(found, recorded)| found - recorded).collect();
        assert!(late.is_sorted() && late[0] == 0 && late[59] >= 10, "{late:?}");
        // The gaps but for the one of the preemption are the recorded ones.
        assert_eq!(late.windows(2).filter(|pair| pair[0] != pair[1]).count(), 1, "{late:?}");
    }
}
