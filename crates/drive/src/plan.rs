//! When each request is sent.
//!
//! Requests of one session depend on each other: one that arrived after others of its session had ended waits for all of these, and then its recorded
//! think time. One that arrived while others were on their way (a sub-agent beside its parent) is sent as long after the session's begin as
//! it was recorded. So branches fork, overlap and join as they did. The turns of a sub-agent that the recording names wait for its own
//! only, the first one for the root agent's, and the root's turns for all. Where a recording does not have the ends of turns, but how long their client waited, these pauses count; where it has neither, each
//! is sent when it arrived.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::workload::{Workload, WorkloadRequest};

/// Arrival schedule of sessions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// When they arrived in the recording.
    Recorded,
    /// So many a second, in equal distances.
    Constant(f64),
    /// So many a second, in distances of a gamma distribution of this shape: 1 is a Poisson process, less is burstier.
    Gamma(f64, f64),
    /// All at once.
    Burst,
}

/// Condition for the start of the next session.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// Time: sessions begin when they arrive, so many times faster than they would, however slow the server is.
    Open(Arrivals, f64),
    /// The server: so many sessions are on their way at once.
    Closed(usize),
}

/// Which requests are sent.
#[derive(Debug, Clone)]
pub struct Selection {
    /// The first so many requests.
    pub limit: Option<usize>,
    /// Share of the sessions, drawn by the seed.
    pub sample: f64,
    /// This part of so many, counted from 0: sessions are dealt in turn.
    pub shard: (usize, usize),
    /// Sessions that begin within this time.
    pub duration: Option<Duration>,
    /// Longest think time.
    pub max_think: Option<Duration>,
    /// Seed of all that is drawn.
    pub seed: u64,
}

impl Default for Selection {
    fn default() -> Self {
        Self { limit: None, sample: 1.0, shard: (0, 1), duration: None, max_think: None, seed: 0 }
    }
}

/// Start of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// So long after the begin of its session.
    Since(Duration),
    /// So long after the end of the turns that it waits for.
    After(Duration),
}

/// A request of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// Its index in the workload.
    pub request: usize,
    /// When it is sent.
    pub start: Start,
    /// The turns that it waits for, by their places in the session.
    pub waits: Vec<usize>,
}

/// Requests that depend on each other.
#[derive(Debug)]
pub struct Session {
    /// When it begins, from the start of the run; `None` for when a place is free.
    pub begin: Option<Duration>,
    /// Its requests in the order of their arrival.
    pub turns: Vec<Turn>,
}

/// The requests of a run.
#[derive(Debug)]
pub struct Plan {
    /// In the order of their begins.
    pub sessions: Vec<Session>,
    /// Sessions that run at once; `None` for no limit.
    pub at_once: Option<usize>,
    /// A closed loop begins with the first session again after the last one, until its time is over or it is stopped.
    pub repeats: bool,
}

impl Plan {
    /// Plans the selected requests of a workload. The same seed draws the same.
    #[must_use]
    pub fn of(workload: &Workload, load: Load, selection: &Selection) -> Self {
        let mut members: Vec<Vec<usize>> = Vec::new();
        for (index, request) in workload.requests.iter().enumerate().take(selection.limit.unwrap_or(usize::MAX)) {
            if request.session >= members.len() {
                members.resize(request.session + 1, Vec::new());
            }
            if let Some(own) = members.get_mut(request.session) {
                own.push(index);
            }
        }
        members.retain(|members| !members.is_empty());
        let mut clock = ArrivalClock::new(load, selection.seed);
        let mut drawn = StdRng::seed_from_u64(selection.seed ^ 1);
        let mut sessions = Vec::new();
        for (number, members) in members.iter().enumerate() {
            let requests: Vec<&WorkloadRequest> = members.iter().filter_map(|at| workload.requests.get(*at)).collect();
            let Some(first) = requests.first() else { continue };
            let begin = clock.next(first.at);
            let is_drawn = drawn.random::<f64>() < selection.sample;
            let is_in_time = begin.is_none_or(|at| selection.duration.is_none_or(|limit| at < limit));
            let (part, parts) = selection.shard;
            if is_drawn && is_in_time && number % parts.max(1) == part {
                let turns = turns(members, &requests, load, selection.max_think);
                sessions.push(Session { begin, turns });
            }
        }
        sessions.sort_by_key(|session| session.begin);
        let at_once = match load {
            Load::Closed(places) => Some(places),
            Load::Open(..) => None,
        };
        Self { sessions, at_once, repeats: false }
    }

    /// Returns the place of the session that is begun after `number` others; `None` after the last one.
    pub(crate) fn place(&self, number: usize) -> Option<usize> {
        let place = if self.repeats { number.checked_rem(self.sessions.len())? } else { number };
        (place < self.sessions.len()).then_some(place)
    }

    /// Number of requests.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.sessions.iter().map(|session| session.turns.len()).sum()
    }
}

fn turns(members: &[usize], requests: &[&WorkloadRequest], load: Load, max_think: Option<Duration>) -> Vec<Turn> {
    let begin = requests.first().map_or(Duration::ZERO, |first| first.at);
    let speed = match load {
        Load::Open(Arrivals::Recorded, speed) => speed,
        Load::Open(..) | Load::Closed(_) => 1.0,
    };
    let mut ended = EndedTurns::default();
    let mut turns: Vec<Turn> = Vec::with_capacity(members.len());
    for (place, (own, request)) in members.iter().zip(requests).enumerate() {
        let (agent, think) = (request.record.agent(), request.record.think());
        ended.advance(request.at, think.is_some());
        let (last_end, waits) = ended.before(agent);
        let start = match (last_end, think) {
            (Some(_), Some(think)) => Some(think),
            (Some(end), None) => Some(request.at.saturating_sub(end)),
            (None, _) => None,
        };
        let start = match start {
            Some(think) => {
                let think = think.div_f64(speed);
                Start::After(max_think.map_or(think, |most| think.min(most)))
            }
            None => Start::Since((request.at - begin).div_f64(speed)),
        };
        turns.push(Turn { request: *own, start, waits });
        ended.running.push(Reverse(Running { end: request.at + request.took(), start: request.at, place, agent }));
    }
    turns
}

/// A turn that was sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Running<'a> {
    /// When it ended; its start where that is not known.
    end: Duration,
    start: Duration,
    place: usize,
    agent: Option<&'a str>,
}

/// Maximum number of turns that another one waits for by itself: those that ended last.
const MOST_WAITS: usize = 256;

/// The turns that had ended, without those that one need not wait for by itself: what an awaited turn has waited for has ended too.
#[derive(Default)]
struct EndedTurns<'a> {
    running: BinaryHeap<Reverse<Running<'a>>>,
    /// Of each agent, in the order of their ends: for its own turns, and the root's for the first turn of a sub-agent.
    own: BTreeMap<Option<&'a str>, Vec<Running<'a>>>,
    /// Of all agents: for the root's turns, which join them.
    all: Vec<Running<'a>>,
    /// Turns of which the end is not known: they end only for those with the time that they waited.
    endless: Vec<Running<'a>>,
}

impl<'a> EndedTurns<'a> {
    /// Goes on to a time; `knows_pause` for a turn with the time that it waited after the turns before.
    fn advance(&mut self, at: Duration, knows_pause: bool) {
        while let Some(Reverse(first)) = self.running.pop() {
            if first.end > at {
                self.running.push(Reverse(first));
                break;
            }
            if first.end == first.start {
                self.endless.push(first);
            } else {
                self.end(first);
            }
        }
        if knows_pause {
            std::mem::take(&mut self.endless).into_iter().for_each(|turn| self.end(turn));
        }
    }

    fn end(&mut self, turn: Running<'a>) {
        add(self.own.entry(turn.agent).or_default(), turn, |_| true);
        // A turn of the root waited for all, one of a sub-agent for its own.
        add(&mut self.all, turn, |known| turn.agent.is_none() || known.agent == turn.agent);
    }

    /// The turns that an agent's next one waits for, and when the last of them ended.
    fn before(&self, agent: Option<&str>) -> (Option<Duration>, Vec<usize>) {
        let waits: &[Running] = match agent {
            None => &self.all,
            Some(_) => self.own.get(&agent).or(self.own.get(&None)).map_or(&[], Vec::as_slice),
        };
        (waits.last().map(|turn| turn.end), waits.iter().rev().map(|turn| turn.place).collect())
    }
}

/// Adds a turn that ended after these; of those that it may have waited for, the ones that had ended when it began are no longer needed.
fn add<'a>(known: &mut Vec<Running<'a>>, turn: Running<'a>, waited_for: impl Fn(&Running<'a>) -> bool) {
    known.retain(|known| known.end > turn.start || !waited_for(known));
    if known.len() >= MOST_WAITS {
        known.remove(0);
    }
    known.push(turn);
}

/// Draws the begins of sessions.
struct ArrivalClock {
    load: Load,
    random: StdRng,
    at: Duration,
}

impl ArrivalClock {
    fn new(load: Load, seed: u64) -> Self {
        Self { load, random: StdRng::seed_from_u64(seed), at: Duration::ZERO }
    }

    /// The begin of the next session, which began at `recorded` when it was recorded.
    fn next(&mut self, recorded: Duration) -> Option<Duration> {
        let (arrivals, speed) = match self.load {
            Load::Open(arrivals, speed) => (arrivals, speed),
            Load::Closed(_) => return None,
        };
        let gap = match arrivals {
            Arrivals::Recorded => return Some(recorded.div_f64(speed)),
            Arrivals::Burst => 0.0,
            Arrivals::Constant(rate) => 1.0 / (rate * speed),
            Arrivals::Gamma(rate, shape) => gamma(&mut self.random, shape) / (shape * rate * speed),
        };
        let at = self.at;
        self.at += Duration::try_from_secs_f64(gap).unwrap_or_default();
        Some(at)
    }
}

/// Draws from a gamma distribution of scale 1 by the method of Marsaglia and Tsang (2000, "A simple method for generating gamma variables").
fn gamma(random: &mut StdRng, shape: f64) -> f64 {
    if shape < 1.0 {
        let uniform: f64 = random.random();
        return gamma(random, shape + 1.0) * (1.0 - uniform).powf(1.0 / shape);
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let normal = normal(random);
        let v = (1.0 + c * normal).powi(3);
        let uniform: f64 = 1.0 - random.random::<f64>();
        if v > 0.0 && uniform.ln() < 0.5 * normal * normal + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

/// Draws from the standard normal distribution (Box and Muller).
fn normal(random: &mut StdRng) -> f64 {
    let (radius, angle): (f64, f64) = (1.0 - random.random::<f64>(), random.random());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

#[cfg(test)]
mod tests {
    use super::*;
    use recording::trace::Record;

    const MS: Duration = Duration::from_millis(1);

    /// A workload of requests with (session, arrival, duration) in ms.
    fn workload(requests: &[(usize, u32, u32)]) -> Workload {
        let request = |(number, (session, at, took)): (usize, &(usize, u32, u32))| WorkloadRequest {
            record: Record { e2e: Some(MS * *took), ..Record::default() },
            number,
            at: MS * *at,
            session: *session,
        };
        Workload { requests: requests.iter().enumerate().map(request).collect(), ..Workload::default() }
    }

    fn plan(requests: &[(usize, u32, u32)], load: Load, selection: &Selection) -> Plan {
        Plan::of(&workload(requests), load, selection)
    }

    #[test]
    fn turns_wait_for_what_had_ended_and_branches_overlap() {
        // A parent, two sub-agents of which the second begins while the first is on its way, and a turn after both.
        let requests = [(0, 0, 100), (0, 150, 100), (0, 160, 200), (0, 400, 10)];
        let plan = plan(&requests, Load::Open(Arrivals::Recorded, 1.0), &Selection::default());
        let turns: Vec<_> = plan.sessions[0].turns.iter().map(|turn| (turn.start, turn.waits.clone())).collect();
        assert_eq!(
            turns,
            [
                (Start::Since(Duration::ZERO), vec![]),
                (Start::After(MS * 50), vec![0]),
                (Start::After(MS * 60), vec![0]),
                (Start::After(MS * 40), vec![2, 1]),
            ]
        );
    }

    #[test]
    fn sub_agents_wait_for_their_own_turns_and_are_joined() {
        // The root, two sub-agents of two turns each, and the root again.
        let mut workload = workload(&[(0, 0, 10), (0, 20, 50), (0, 21, 10), (0, 40, 100), (0, 80, 10), (0, 200, 5)]);
        for (place, agent) in [(1, "a"), (2, "b"), (3, "b"), (4, "a")] {
            workload.requests[place].record.extra.insert("agent".to_owned(), agent.into());
        }
        let plan = Plan::of(&workload, Load::Closed(1), &Selection::default());
        let turns: Vec<_> = plan.sessions[0].turns.iter().map(|turn| (turn.start, turn.waits.clone())).collect();
        assert_eq!(
            turns,
            [
                (Start::Since(Duration::ZERO), vec![]),
                (Start::After(MS * 10), vec![0]),
                (Start::After(MS * 11), vec![0]),
                (Start::After(MS * 9), vec![2]),
                (Start::After(MS * 10), vec![1]),
                (Start::After(MS * 60), vec![3, 4, 0]),
            ]
        );
    }

    #[test]
    fn without_ends_the_recorded_pauses_or_the_arrivals_count() {
        let mut workload = workload(&[(0, 0, 0), (0, 100, 0), (0, 300, 0)]);
        let plan = |workload: &Workload| {
            let plan = Plan::of(workload, Load::Open(Arrivals::Recorded, 2.0), &Selection::default());
            plan.sessions[0].turns.iter().map(|turn| (turn.start, turn.waits.clone())).collect::<Vec<_>>()
        };
        let since = |at| (Start::Since(MS * at), vec![]);
        assert_eq!(plan(&workload), [since(0), since(50), since(150)]);
        for place in [1, 2] {
            workload.requests[place].record.extra.insert("think_ms".to_owned(), 40.into());
        }
        assert_eq!(plan(&workload), [since(0), (Start::After(MS * 20), vec![0]), (Start::After(MS * 20), vec![1])]);
    }

    #[test]
    fn a_session_of_many_turns_is_planned_in_no_time() {
        let requests: Vec<_> = (0..100_000).map(|at| (0, at * 10, 5)).collect();
        let plan = plan(&requests, Load::Closed(1), &Selection::default());
        assert!(plan.sessions[0].turns.iter().skip(1).all(|turn| turn.waits == [turn.request - 1]));
    }

    #[test]
    fn speed_scales_recorded_times_only_and_think_time_has_a_limit() {
        let requests = [(0, 0, 100), (1, 300, 100), (0, 1100, 1)];
        let selection = Selection { max_think: Some(MS * 400), ..Selection::default() };
        let fast = plan(&requests, Load::Open(Arrivals::Recorded, 2.0), &selection);
        assert_eq!(
            fast.sessions.iter().map(|session| session.begin).collect::<Vec<_>>(),
            [Some(Duration::ZERO), Some(MS * 150)]
        );
        assert_eq!(fast.sessions[0].turns[1].start, Start::After(MS * 400));
        let closed = plan(&requests, Load::Closed(3), &Selection::default());
        assert_eq!((closed.at_once, closed.sessions[0].turns[1].start), (Some(3), Start::After(MS * 1000)));
    }

    #[test]
    fn shards_are_whole_sessions_and_together_everything() {
        let requests: Vec<_> = (0..100).map(|at| (usize::try_from(at).unwrap() % 40, at * 10, 5)).collect();
        let sizes = (0..3).map(|part| {
            let selection = Selection { shard: (part, 3), ..Selection::default() };
            plan(&requests, Load::Closed(1), &selection).requests()
        });
        assert_eq!(sizes.sum::<usize>(), 100);
        let selection = Selection { sample: 0.5, ..Selection::default() };
        let half = plan(&requests, Load::Closed(1), &selection);
        assert!((10..30).contains(&half.sessions.len()), "{}", half.sessions.len());
        assert!(half.sessions.iter().all(|session| session.turns.len() >= 2));
    }

    #[test]
    fn drawn_distances_have_the_rate_and_the_shape() {
        for (shape, variation) in [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5)] {
            let requests: Vec<_> = (0..20_000).map(|at| (usize::try_from(at).unwrap(), 0, 1)).collect();
            let plan = plan(&requests, Load::Open(Arrivals::Gamma(50.0, shape), 2.0), &Selection::default());
            let begins: Vec<f64> = plan.sessions.iter().map(|session| session.begin.unwrap().as_secs_f64()).collect();
            let gaps: Vec<f64> = begins.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let mean = gaps.iter().sum::<f64>() / 19_999.0;
            let spread = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / 19_999.0;
            assert!((mean - 0.01).abs() < 0.0005, "{shape}: {mean}");
            assert!((spread.sqrt() / mean - variation).abs() < 0.1, "{shape}: {}", spread.sqrt() / mean);
        }
    }
}
