//! The replicas and their common clock.

use std::time::Duration;

use super::{
    SimulateError, Simulation,
    report::{FleetMeasurements, ReplicaTotals, SimulateReport},
    router::{RoutedPrompt, Router},
    schedule::ArrivalSchedule,
};
use crate::engine::{
    kv_cache::CountedSequence,
    offline::OfflineEngine,
    scheduler::{Request, Scheduler},
    step_clock::StepClock,
};

/// Engines with the requests that they have.
pub(super) struct SimulatedFleet<'a> {
    schedule: &'a ArrivalSchedule,
    simulation: &'a Simulation,
    router: Router,
    replicas: Vec<SimulatedReplica>,
    /// Requests that each replica has.
    in_flight: Vec<u32>,
    measured: FleetMeasurements,
}

struct SimulatedReplica {
    engine: OfflineEngine,
    /// By the engine's ids, which are used again.
    live: Vec<LiveRequest>,
    vacant: Vec<usize>,
    totals: ReplicaTotals,
}

/// A request that has not ended.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LiveRequest {
    pub(super) arrival: Duration,
    pub(super) prompt_tokens: u32,
    /// Tokens so far, and when the first and the last one came.
    pub(super) tokens: u32,
    pub(super) first: Duration,
    pub(super) last: Duration,
    pub(super) longest_gap: Duration,
}

impl<'a> SimulatedFleet<'a> {
    /// Engines without requests.
    pub(super) fn new(schedule: &'a ArrivalSchedule, simulation: &'a Simulation) -> Result<Self, SimulateError> {
        let Simulation { scheduler, kv_cache, times, time_scale, seed, .. } = simulation;
        let replicas = (0..simulation.replicas.max(1)).zip(*seed..).map(|(_, seed)| {
            let scheduler = Scheduler::new(scheduler.clone(), kv_cache.clone())?;
            let engine = OfflineEngine::new(scheduler, StepClock::new(times.clone(), *time_scale, seed));
            Ok(SimulatedReplica { engine, live: Vec::new(), vacant: Vec::new(), totals: ReplicaTotals::default() })
        });
        let replicas = replicas.collect::<Result<Vec<SimulatedReplica>, SimulateError>>()?;
        Ok(Self {
            schedule,
            simulation,
            router: Router::new(simulation.policy, simulation.balance, *seed),
            in_flight: vec![0; replicas.len()],
            replicas,
            measured: FleetMeasurements::new(simulation.slo),
        })
    }

    /// Runs all requests to their ends. Where a request arrives as a step ends, it is there for the next one.
    pub(super) fn run(mut self) -> SimulateReport {
        let speed = self.simulation.speed;
        let due = |at: Duration| if speed == 1.0 { at } else { at.div_f64(speed) };
        let mut arrivals =
            self.schedule.requests.iter().enumerate().map(|(number, request)| (due(request.at), number)).peekable();
        loop {
            let next = self.next_event();
            if let Some((at, number)) = arrivals.next_if(|(at, _)| next.is_none_or(|(event, _)| *at <= event)) {
                self.route(at, number);
            } else if let Some((at, replica)) = next {
                self.step(at, replica);
            } else {
                break;
            }
        }
        let totals: Vec<ReplicaTotals> = self.replicas.into_iter().map(|replica| replica.totals).collect();
        self.measured.report(self.schedule, self.simulation, &totals)
    }

    /// The replica to which something happens next.
    fn next_event(&self) -> Option<(Duration, usize)> {
        let events =
            self.replicas.iter().zip(0..).filter_map(|(replica, number)| Some((replica.engine.next_event()?, number)));
        events.min()
    }

    /// Sends a request to a replica.
    fn route(&mut self, now: Duration, number: usize) {
        let Some(arriving) = self.schedule.requests.get(number) else { return };
        let (tokens, block_size) = (arriving.prompt_tokens, self.schedule.block_size);
        let (blocks, key) = (self.schedule.prompt_blocks(arriving), self.schedule.key(number));
        let prompt = RoutedPrompt { blocks, tokens, block_size, key };
        let chosen = self.router.choose(prompt, &self.in_flight);
        let (Some(replica), Some(in_flight)) = (self.replicas.get_mut(chosen), self.in_flight.get_mut(chosen)) else {
            return;
        };
        *in_flight += 1;
        replica.totals.requests += 1;
        let live = LiveRequest { arrival: now, prompt_tokens: tokens, ..LiveRequest::default() };
        let id = replica.enter(live);
        let kv_cache = &self.simulation.kv_cache;
        // Without a prefix cache no hash is looked at.
        let block_hashes = match kv_cache.enable_prefix_caching {
            true => self.schedule.hashes(number, kv_cache.block_size.max(1)),
            false => Vec::new(),
        };
        let (prompt_tokens, output_tokens) = (tokens as usize, arriving.output_tokens as usize);
        let counted = CountedSequence { prompt_tokens, output_tokens, block_hashes };
        let request = Request { id: id as u64, counted: Some(counted), ..Request::default() };
        replica.engine.submit(now + self.simulation.front_end, request);
    }

    /// Ends a step of a replica, and begins its next one.
    fn step(&mut self, now: Duration, number: usize) {
        let (Some(replica), Some(in_flight)) = (self.replicas.get_mut(number), self.in_flight.get_mut(number)) else {
            return;
        };
        let SimulatedReplica { engine, live, vacant, totals } = replica;
        if let Some(decisions) = engine.end_step() {
            totals.end(&decisions.stats);
            for output in &decisions.outputs {
                let id = usize::try_from(output.request_id).unwrap_or(usize::MAX);
                let Some(live) = live.get_mut(id) else { continue };
                self.measured.token(now, live);
                if let Some(cached) = output.num_cached_tokens {
                    self.measured.first(live, cached);
                }
                if output.finish_reason.is_some() {
                    self.measured.finished(live);
                    vacant.push(id);
                    *in_flight -= 1;
                }
            }
            self.measured.end = self.measured.end.max(now);
        }
        let begun = engine.begin_step(now);
        totals.begin(begun.as_ref(), engine.decisions());
        for (id, _) in engine.refused() {
            self.measured.refused += 1;
            vacant.push(usize::try_from(*id).unwrap_or(usize::MAX));
            *in_flight -= 1;
        }
    }
}

impl SimulatedReplica {
    /// Gives a request an id of the engine.
    fn enter(&mut self, live: LiveRequest) -> usize {
        if let Some((id, place)) = self.vacant.pop().and_then(|id| Some((id, self.live.get_mut(id)?))) {
            *place = live;
            return id;
        }
        self.live.push(live);
        self.live.len() - 1
    }
}
