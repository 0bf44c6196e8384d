//! The thread of the engine: schedules a step, waits until it ends, and hands out what it computed.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    balancer::InFlight,
    check::{EngineTotals, Snapshot, of},
    config::EngineError,
    connector::KvConnector,
    control::Pausing,
    inbox::{Arrived, Inbox, Mail},
    kv_events::EventSender,
    relay::WakeUps,
    run::{Emission, EmissionQueue, Scheduled},
    slowdown::PacedClock,
    step_reports::Rank,
};
use crate::metrics::RunningAdapter;
use ::engine::{
    kv_cache::{KvCacheConfig, LoraRequest},
    recorded_timings::RecordedTimings,
    scheduler::{EngineCoreOutput, RequestId, ScheduledAs, Scheduler, SchedulerConfig},
    step_clock::StepWork,
};

/// Delay that later steps make up for; after a longer one the engine's time goes on from there.
const MADE_UP: Duration = Duration::from_millis(100);

/// Time after which it is looked again whether an exhausted cache has free blocks.
const LOOK: Duration = Duration::from_millis(10);

/// The engine's own state.
#[derive(Debug)]
pub(super) struct Stepping {
    pub(super) scheduler: Scheduler,
    clock: PacedClock,
    pub(super) inbox: Arc<Inbox>,
    rank: Rank,
    pub(super) live: HashMap<RequestId, SteppedRequest>,
    pub(super) mail: Mail,
    /// Requests before their first step, in the order of their arrival.
    pub(super) delayed: VecDeque<Arrived>,
    blocks: u32,
    wake_ups: WakeUps,
    /// Pauses that wait for running requests.
    pub(super) pausing: Vec<Pausing>,
    /// Where events about the cache go.
    pub(super) kv_events: Option<EventSender>,
    /// The part of transfers between engines, where it has one.
    pub(super) connector: Option<KvConnector>,
    /// Recorded times, where requests have steps of their own.
    pub(super) recorded_timings: Option<RecordedTimings>,
    pub(super) totals: EngineTotals,
    /// End of the last step, while steps follow each other.
    now: Option<Instant>,
    /// Whether the cache has no free block on purpose.
    is_exhausted: bool,
    /// Zero of the times that evictions are measured by.
    pub(super) zero: Instant,
}

/// Tokens that were given to requests.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Given {
    /// Of prompts that were computed for first tokens.
    computed: usize,
    /// Of outputs.
    generated: usize,
}

#[derive(Debug)]
pub(super) struct SteppedRequest {
    pub(super) emissions: Arc<EmissionQueue>,
    choice: u32,
    prompt_tokens: usize,
    queued: Instant,
    /// Beginning of the first step that it took part in.
    began: Option<Instant>,
    scheduled: Scheduled,
    lora: Option<Arc<LoraRequest>>,
    /// Its adapter, counted from its first token on.
    running: Option<RunningAdapter>,
    _in_flight: Option<InFlight>,
}

impl Stepping {
    /// An engine without requests.
    pub(super) fn new(
        scheduler: SchedulerConfig,
        kv_cache: KvCacheConfig,
        clock: PacedClock,
        inbox: Arc<Inbox>,
        rank: Rank,
    ) -> Result<Self, EngineError> {
        let blocks = kv_cache.num_gpu_blocks;
        let scheduler = Scheduler::new(scheduler, kv_cache)?;
        let (live, mail, delayed) = (HashMap::new(), Mail::default(), VecDeque::new());
        Ok(Self {
            scheduler,
            clock,
            inbox,
            rank,
            live,
            mail,
            delayed,
            blocks,
            wake_ups: WakeUps::default(),
            pausing: Vec::new(),
            kv_events: None,
            connector: None,
            recorded_timings: None,
            totals: EngineTotals::default(),
            now: None,
            is_exhausted: false,
            zero: Instant::now(),
        })
    }

    /// Steps until the inbox is closed: all requests together, or each for itself by its recorded times.
    pub(super) fn run(mut self) {
        let (mut is_idle, mut due) = (true, None);
        while self.inbox.take(&mut self.mail, is_idle, due).is_some() {
            self.receive();
            is_idle = if self.recorded_timings.is_some() {
                self.step_requests();
                true
            } else {
                let Some(worked) = self.step() else { return };
                // Where nothing could be scheduled, nothing can be until something arrives or is aborted.
                !worked && self.delayed.is_empty()
            };
            self.settle();
            self.report();
            due = self.next_end();
            if self.is_exhausted {
                let look = Instant::now() + LOOK;
                due = Some(due.map_or(look, |due| due.min(look)));
            }
        }
    }

    /// Takes what came since the last step.
    pub(super) fn receive(&mut self) {
        if let Some(connector) = &mut self.connector {
            let now = Instant::now();
            connector.receive(&mut self.mail.notices, &mut self.scheduler, now);
            connector.end_due(&mut self.scheduler, now);
        }
        self.is_exhausted = self.clock.slowdown.is_exhausted();
        self.scheduler.set_exhausted(self.is_exhausted);
        self.totals.submitted += of(self.mail.arrivals.len());
        self.delayed.extend(self.mail.arrivals.drain(..));
        let (now, delay) = (Instant::now(), self.clock.before_steps());
        while let Some(arrived) = self.delayed.pop_front_if(|arrived| arrived.queued + delay <= now) {
            let Arrived { request, emissions, choice, queued, recorded, transfer, in_flight } = arrived;
            let (id, prompt_tokens, lora) = (request.id, request.prompt.len(), request.lora.clone());
            match self.scheduler.add_request(request) {
                Ok(()) => {
                    let live = SteppedRequest::new(emissions, choice, prompt_tokens, queued);
                    self.live.insert(id, SteppedRequest { lora, _in_flight: in_flight, ..live });
                    self.note_times(id, recorded);
                    if let (Some(connector), Some(transfer)) = (&mut self.connector, transfer) {
                        connector.arrive(id, *transfer, now);
                    }
                }
                Err((_, rejection)) => {
                    self.totals.aborted += 1;
                    tracing::error!("the engine refuses a request that was accepted before: {rejection}");
                    emissions.close();
                }
            }
        }
        self.obey();
        self.abort();
        self.settle();
    }

    fn abort(&mut self) {
        let mut aborts = std::mem::take(&mut self.mail.aborts);
        let mut others = HashSet::new();
        aborts.retain(|id| {
            let is_live = self.live.remove(id).is_some();
            if !is_live {
                others.insert(*id);
            }
            is_live
        });
        self.scheduler.abort_requests(aborts.iter().copied());
        for id in aborts.iter().copied() {
            self.recorded_timings.iter_mut().for_each(|times| times.forget(id));
            self.connector.iter_mut().for_each(|connector| connector.abort(id));
        }
        let delayed = self.delayed.len();
        if !others.is_empty() {
            self.delayed.retain(|arrived| !others.contains(&arrived.request.id));
        }
        let before_first_step = delayed - self.delayed.len();
        self.totals.aborted += of(aborts.len() + before_first_step);
        self.totals.ended_late += of(others.len() - before_first_step);
    }

    /// Takes one step; whether it computed anything. `None` once the inbox is closed.
    fn step(&mut self) -> Option<bool> {
        self.scheduler.set_now(self.zero.elapsed());
        let decisions = self.scheduler.schedule();
        let work = StepWork::of(decisions);
        let is_busy = work.requests() > 0;
        let now = Instant::now();
        let start = self.now.map_or(now, |last| last.max(now.checked_sub(MADE_UP).unwrap_or(last)));
        let mut end = start + self.clock.duration(&work);
        self.begin(start);
        self.connector.iter_mut().for_each(|connector| connector.begin(&self.scheduler, start));
        if is_busy {
            end = self.inbox.sleep_until(end, || self.clock.is_changed())?;
            // Those that were aborted meanwhile get no token, as in vLLM.
            self.inbox.take_aborts(&mut self.mail.aborts);
            self.abort();
        }
        if let (false, Some(next)) = (is_busy, self.delayed.front()) {
            self.inbox.sleep_until(next.queued + self.clock.before_steps(), || self.clock.is_changed())?;
        }
        self.scheduler.update_from_output();
        self.now = (is_busy && self.scheduler.has_requests()).then_some(end);
        // A client that has a token may ask how many batches there are.
        self.publish_events();
        let given = self.give(|_| end);
        self.count(given);
        Some(is_busy)
    }

    /// Notes which requests begin to run, and which were preempted.
    pub(super) fn begin(&mut self, start: Instant) {
        let decisions = self.scheduler.decisions();
        for scheduled in decisions.scheduled.iter().filter(|scheduled| scheduled.scheduled_as == ScheduledAs::New) {
            if let Some(live) = self.live.get_mut(&scheduled.request_id) {
                live.began.get_or_insert(start.max(live.queued));
            }
        }
        for id in &decisions.preempted {
            if let Some(live) = self.live.get_mut(id) {
                live.scheduled.preemptions += 1;
            }
        }
    }

    /// Gives requests their tokens, at the ends of their steps.
    pub(super) fn give(&mut self, end_of: impl Fn(RequestId) -> Instant) -> Given {
        let Self { scheduler, rank, live, wake_ups, totals, connector, .. } = self;
        let (mut given, mut tokens) = (Given::default(), 0);
        for output in &scheduler.decisions().outputs {
            let end = end_of(output.request_id);
            let Some(known) = live.get_mut(&output.request_id) else { continue };
            if let Some(computed) = known.first(output, end) {
                known.running = known.lora.as_ref().and_then(|lora| rank.metrics.run_adapter(lora));
                given.computed += computed;
                totals.prompt_tokens += of(known.prompt_tokens);
                totals.cached_tokens += u64::from(known.scheduled.cached);
            }
            given.generated += 1;
            totals.generated_tokens += 1;
            tokens += 1;
            if output.has_more {
                continue;
            }
            let emission = Emission { choice: known.choice, tokens: std::mem::take(&mut tokens), at: end };
            if output.finish_reason.is_some()
                && let Some(connector) = connector
                && let Some(params) = connector.keep(output, scheduler, end)
            {
                known.emissions.keep(known.choice, params);
            }
            if let Some(sleeper) = known.emissions.push(emission, known.scheduled) {
                wake_ups.add(sleeper);
            }
            if output.finish_reason.is_some() {
                live.remove(&output.request_id);
                totals.finished += 1;
            }
        }
        given
    }

    /// Publishes what a step changed in the cache.
    pub(super) fn publish_events(&mut self) {
        if let Some(kv_events) = &mut self.kv_events {
            kv_events.publish(&self.scheduler);
        }
    }

    /// Counts a step and what was given with it, and wakes who got a token.
    pub(super) fn count(&mut self, Given { computed, generated }: Given) {
        self.rank.step(self.scheduler.decisions(), computed, generated);
        self.rank.metrics.evicted(self.rank.number, &self.scheduler.drain_evictions());
        self.wake_ups.wake();
        self.rank.reports.notify();
    }

    /// How many times longer steps take.
    pub(super) fn slower(&self) -> f64 {
        self.clock.slower()
    }

    /// Answers those who asked for a snapshot.
    pub(super) fn report(&mut self) {
        if self.mail.requested.is_empty() {
            return;
        }
        let stats = self.scheduler.decisions().stats;
        let held = self.live.keys().copied().chain(self.scheduler.held());
        let blocks: HashSet<u32> = held.flat_map(|id| self.scheduler.block_ids(id)).copied().collect();
        let running = self.live.keys().filter(|id| self.scheduler.is_running(**id)).count();
        let snapshot = Snapshot {
            totals: self.totals,
            running: of(running),
            waiting: of(self.live.len() - running),
            delayed: of(self.delayed.len()),
            // Those that a fault has taken are no request's.
            blocks_in_use: match self.is_exhausted {
                true => of(blocks.len()),
                false => self.blocks_in_use(stats.kv_cache_usage),
            },
            blocks_held: of(blocks.len()),
            kv_events: None,
            shown: self.rank.metrics.shown(self.rank.number),
            differences: Vec::new(),
            ranks: Vec::new(),
        };
        let snapshot = snapshot.compared(&stats);
        for requested in self.mail.requested.drain(..) {
            let _left = requested.send(snapshot.clone());
        }
    }

    /// Blocks in use, from the share of them that the scheduler shows.
    #[allow(clippy::cast_possible_truncation)] // a count of blocks
    fn blocks_in_use(&self, usage: f64) -> u64 {
        (usage * f64::from(self.blocks.saturating_sub(1))).round() as u64
    }
}

impl SteppedRequest {
    fn new(emissions: Arc<EmissionQueue>, choice: u32, prompt_tokens: usize, queued: Instant) -> Self {
        let scheduled = Scheduled::default();
        let (lora, running, _in_flight) = (None, None, None);
        Self { emissions, choice, prompt_tokens, queued, began: None, scheduled, lora, running, _in_flight }
    }

    /// Notes the first token; gives the tokens of the prompt that were computed for it, and nothing for a later token.
    fn first(&mut self, output: &EngineCoreOutput, end: Instant) -> Option<usize> {
        let cached = output.num_cached_tokens?;
        let began = self.began.unwrap_or(self.queued);
        self.scheduled.queued = began.saturating_duration_since(self.queued);
        self.scheduled.prefill = end.saturating_duration_since(began);
        self.scheduled.cached = u32::try_from(cached).unwrap_or(u32::MAX);
        self.scheduled.external = u32::try_from(output.num_external_tokens).unwrap_or(u32::MAX);
        Some(self.prompt_tokens.saturating_sub(cached))
    }
}

impl Drop for Stepping {
    /// Nothing more comes, whatever ended it.
    fn drop(&mut self) {
        self.live.values().for_each(|live| live.emissions.close());
        self.inbox.close();
    }
}
