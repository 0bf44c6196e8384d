//! When each request is sent.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::workload::Workload;

/// How requests arrive that wait for no other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// When they arrived in the recording.
    Recorded,
    /// So many a second, in equal distances.
    Constant(f64),
    /// So many a second, in exponential distances.
    Poisson(f64),
    /// All at once.
    Burst,
}

/// What decides when the next request is sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// Time: sessions begin when they arrive, so many times faster than they would, however slow the server is.
    Open(Arrivals, f64),
    /// The server: so many sessions, or requests outside of sessions, are on their way at once.
    Closed(usize),
}

/// When one request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At this time from the start of the run.
    At(Duration),
    /// So long after the end of the turn before it.
    After(Duration),
    /// When a place is free.
    Free,
}

/// The requests of a run: chains, each sent one request after the other.
#[derive(Debug)]
pub struct Plan {
    /// Chains in the order of their starts; each names its requests by their indices in the workload.
    pub chains: Vec<Vec<(usize, Start)>>,
    /// Chains that run at once; `None` for no limit.
    pub at_once: Option<usize>,
}

impl Plan {
    /// Plans all requests of a workload. No think time is longer than `max_think`. The same seed draws the same arrivals.
    #[must_use]
    pub fn of(workload: &Workload, load: Load, max_think: Option<Duration>, seed: u64) -> Self {
        let mut chains: Vec<Vec<(usize, Start)>> = Vec::new();
        let mut chain_of = vec![0; workload.requests.len()];
        let mut clock = ArrivalClock::new(load, seed);
        for (index, request) in workload.requests.iter().enumerate() {
            let before = request.after.and_then(|before| Some((before, workload.requests.get(before)?)));
            let chain = match before {
                Some((before, earlier)) => {
                    let pause = request.at.saturating_sub(earlier.at + earlier.took());
                    let think = scaled(pause, load).min(max_think.unwrap_or(Duration::MAX));
                    let chain = chain_of.get(before).copied().unwrap_or_default();
                    if let Some(turns) = chains.get_mut(chain) {
                        turns.push((index, Start::After(think)));
                    }
                    chain
                }
                None => {
                    chains.push(vec![(index, clock.next(request.at))]);
                    chains.len() - 1
                }
            };
            if let Some(own) = chain_of.get_mut(index) {
                *own = chain;
            }
        }
        let at_once = match load {
            Load::Closed(places) => Some(places),
            Load::Open(..) => None,
        };
        Self { chains, at_once }
    }

    /// Number of requests.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.chains.iter().map(Vec::len).sum()
    }
}

fn scaled(pause: Duration, load: Load) -> Duration {
    match load {
        Load::Open(Arrivals::Recorded, speed) => pause.div_f64(speed),
        Load::Open(..) | Load::Closed(_) => pause,
    }
}

/// Draws the starts of chains.
struct ArrivalClock {
    load: Load,
    random: StdRng,
    at: Duration,
}

impl ArrivalClock {
    fn new(load: Load, seed: u64) -> Self {
        Self { load, random: StdRng::seed_from_u64(seed), at: Duration::ZERO }
    }

    fn next(&mut self, recorded: Duration) -> Start {
        let (arrivals, speed) = match self.load {
            Load::Open(arrivals, speed) => (arrivals, speed),
            Load::Closed(_) => return Start::Free,
        };
        let gap = match arrivals {
            Arrivals::Recorded => return Start::At(recorded.div_f64(speed)),
            Arrivals::Burst => Duration::ZERO,
            Arrivals::Constant(rate) => Duration::from_secs_f64(1.0 / (rate * speed)),
            Arrivals::Poisson(rate) => {
                let uniform: f64 = self.random.random();
                Duration::from_secs_f64(-(1.0 - uniform).ln() / (rate * speed))
            }
        };
        let at = self.at;
        self.at += gap;
        Start::At(at)
    }
}
