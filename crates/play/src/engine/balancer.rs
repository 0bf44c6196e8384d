//! Which rank a request goes to, as vLLM's frontend chooses among its engines.
//!
//! The rank with the lowest score gets it: the greater of the requests that were sent to it and have not ended, and of those that
//! waited and ran there when figures came last; more where requests wait and its cache is more than half full. Equal ranks take turns.
//! Figures come from the engines' steps, and at most every 100 ms. Source: `DPLBAsyncMPClient` and the coordinator of vLLM 0.32.0, with one
//! API server.
//!
//! See docs/decisions/0101-ranks-behind-one-server.md.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use ::engine::scheduler::SchedulerStats;
use base::lock::Lock;

/// Least time between two figures of the engines.
const INTERVAL: Duration = Duration::from_millis(100);

/// Chooser of ranks.
#[derive(Debug)]
pub(super) struct Balancer(Lock<BalancerState>);

#[derive(Debug)]
struct BalancerState {
    /// The rank that is looked at first.
    start: usize,
    /// Requests of each rank that have not ended.
    in_flight: Vec<u32>,
    /// Figures of the ranks' last steps.
    stepped: Vec<RankLoad>,
    /// Those that came last, with the requests sent since.
    known: Vec<RankLoad>,
    /// Whether steps have ended since.
    is_changed: bool,
    came: Option<Instant>,
}

#[derive(Debug, Clone, Copy, Default)]
struct RankLoad {
    waiting: f64,
    running: f64,
    kv_cache_usage: f64,
}

/// A request of a rank, which counts until this is dropped.
#[derive(Debug)]
pub(super) struct InFlight {
    balancer: Arc<Balancer>,
    rank: usize,
}

impl BalancerState {
    /// Takes over the figures of the last steps when it is time.
    fn update(&mut self, now: Instant) {
        let is_due = self.came.is_none_or(|came| now.saturating_duration_since(came) >= INTERVAL);
        if self.is_changed && is_due {
            self.known.clone_from(&self.stepped);
            self.is_changed = false;
            self.came = Some(now);
        }
    }

    fn score(&self, rank: usize) -> f64 {
        let RankLoad { waiting, running, kv_cache_usage } = self.known.get(rank).copied().unwrap_or_default();
        let in_flight = self.in_flight.get(rank).copied().map_or(0.0, f64::from);
        in_flight.max(waiting + running) + waiting * 6.0 * (kv_cache_usage - 0.5).max(0.0)
    }

    fn chosen(&mut self) -> usize {
        let ranks = self.known.len().max(1);
        let by_score = |one: &usize, other: &usize| self.score(*one).total_cmp(&self.score(*other));
        let best = (0..ranks).map(|at| (self.start + at) % ranks).min_by(by_score).unwrap_or(0);
        if let Some(known) = self.known.get_mut(best) {
            known.waiting += 1.0;
        }
        self.start = (self.start + 1) % ranks;
        best
    }
}

impl Balancer {
    pub(super) fn new(ranks: usize) -> Arc<Self> {
        let loads = || vec![RankLoad::default(); ranks];
        let (stepped, known) = (loads(), loads());
        Arc::new(Self(Lock::new(BalancerState {
            start: 0,
            in_flight: vec![0; ranks],
            stepped,
            known,
            is_changed: false,
            came: None,
        })))
    }

    /// Chooses the rank of a request; the given one where its client names it.
    pub(super) fn choose(self: &Arc<Self>, given: Option<usize>, now: Instant) -> (usize, InFlight) {
        let mut state = self.0.lock();
        state.update(now);
        let rank = given.unwrap_or_else(|| state.chosen());
        if let Some(count) = state.in_flight.get_mut(rank) {
            *count += 1;
        }
        (rank, InFlight { balancer: Arc::clone(self), rank })
    }

    /// Takes the figures of a step.
    pub(super) fn step(&self, rank: usize, stats: &SchedulerStats, now: Instant) {
        let mut state = self.0.lock();
        // Those of the steps before, if they were due meanwhile.
        state.update(now);
        let load = RankLoad {
            waiting: stats.num_waiting_reqs as f64,
            running: stats.num_running_reqs as f64,
            kv_cache_usage: stats.kv_cache_usage,
        };
        if let Some(stepped) = state.stepped.get_mut(rank) {
            *stepped = load;
            state.is_changed = true;
        }
        state.update(now);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(count) = self.balancer.0.lock().in_flight.get_mut(self.rank) {
            *count = count.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEQS: fn(usize, usize, f64) -> SchedulerStats = |num_waiting_reqs, num_running_reqs, kv_cache_usage| {
        SchedulerStats { num_waiting_reqs, num_running_reqs, kv_cache_usage, ..SchedulerStats::default() }
    };

    fn next(balancer: &Arc<Balancer>, now: Instant) -> usize {
        balancer.choose(None, now).0
    }

    #[test]
    fn a_burst_goes_round_and_a_rank_that_was_named_counts() {
        let (balancer, now) = (Balancer::new(3), Instant::now());
        let held: Vec<(usize, InFlight)> = (0..6).map(|_| balancer.choose(None, now)).collect();
        assert_eq!(held.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
        let named = balancer.choose(Some(0), now);
        assert_eq!((named.0, next(&balancer, now), next(&balancer, now)), (0, 1, 2));
    }

    #[test]
    fn figures_of_steps_come_every_100_ms() {
        let (balancer, now) = (Balancer::new(2), Instant::now());
        balancer.step(0, &SEQS(0, 5, 0.1), now);
        // Each choice counts as a waiting request until figures come.
        assert_eq!([0; 7].map(|_| next(&balancer, now)), [1, 1, 1, 1, 1, 1, 0]);
        balancer.step(1, &SEQS(0, 9, 0.1), now + INTERVAL / 2);
        assert_eq!(next(&balancer, now + INTERVAL / 2), 1);
        assert_eq!(next(&balancer, now + INTERVAL), 0);
    }

    #[test]
    fn waiting_requests_weigh_more_where_the_cache_is_full() {
        let (balancer, now) = (Balancer::new(2), Instant::now());
        balancer.step(0, &SEQS(2, 2, 1.0), now);
        balancer.step(1, &SEQS(0, 9, 1.0), now + INTERVAL);
        // 4 + 2 * 3 against 9.
        assert_eq!(next(&balancer, now + 2 * INTERVAL), 1);
    }

    #[test]
    fn what_has_ended_does_not_count() {
        let (balancer, now) = (Balancer::new(2), Instant::now());
        let mut held: Vec<(usize, InFlight)> = (0..4).map(|_| balancer.choose(None, now)).collect();
        held.retain(|(rank, _)| *rank == 0);
        for rank in [0, 1] {
            balancer.step(rank, &SEQS(0, 0, 0.0), now + INTERVAL);
        }
        assert_eq!(next(&balancer, now + 3 * INTERVAL), 1);
    }
}
