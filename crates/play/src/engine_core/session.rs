//! A front end that has joined: what it sends, and what the engine's steps give its requests, in one message for each step and client.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use engine_core::{
    layout::VersionFamily,
    msgpack::MsgpackValue,
    outputs::{RequestError, WireFinish, WireOutput, WireOutputs},
    request::{EngineCoreRequest, RequestType, aborted, id_of_unknown},
    session::{EngineSession, SessionInput},
    stats::EngineFigures,
    utility::UtilityCall,
};
use futures_util::{
    FutureExt, StreamExt,
    future::{AbortHandle, Abortable, BoxFuture, ready},
    stream::FuturesUnordered,
};
use tokio::{select, sync::watch, time::Instant};

use super::{
    CoreRank,
    request::begin,
    running::{EngineClock, RequestOutput, RunningRequest},
    utility::{AdapterNumbers, call},
};
use crate::{
    engine::{StepReport, StepReports},
    fleet::Life,
};
use base::rate_limited_log::RateLimitedLog;

/// Requests of one front end at a time; more end with an error.
const MOST_REQUESTS: usize = 65_536;

#[derive(Debug)]
pub(super) enum SessionEnd {
    Stopped,
    /// The front end is gone, and why that is believed.
    Gone(String),
}

/// Something that came of a request or a call.
#[allow(clippy::large_enum_variant)] // nearly all of them are tokens
enum SessionEvent {
    /// Tokens, of a request that may have more.
    Tokens(Box<RequestInProgress>, Option<RequestOutput>),
    /// A request without an answer.
    Refused {
        client: usize,
        id: String,
        error: RequestError,
    },
    Called {
        client: usize,
        output: MsgpackValue,
    },
}

/// A request, and the client that waits for it.
struct RequestInProgress {
    client: usize,
    id: String,
    running: RunningRequest,
}

#[derive(Default)]
struct ClientOutputs {
    outputs: Vec<WireOutput>,
    /// Requests that have ended.
    finished: Vec<String>,
    /// End of the last step.
    at: Option<Instant>,
}

/// A front end, and its requests and calls in progress.
pub(super) struct FrontEnd {
    core: CoreRank,
    session: EngineSession,
    family: VersionFamily,
    clock: EngineClock,
    turns: FuturesUnordered<Abortable<BoxFuture<'static, SessionEvent>>>,
    /// Requests in progress by their ids, with their clients.
    requests: HashMap<String, (usize, AbortHandle)>,
    adapters: Arc<AdapterNumbers>,
    reports: Arc<StepReports>,
    pending: Vec<ClientOutputs>,
    /// Running and waiting requests in the last report to the coordinator.
    reported: (usize, usize),
    /// Whether there are several ranks.
    is_one_of_many: bool,
}

impl FrontEnd {
    pub(super) fn new(core: CoreRank, session: EngineSession) -> Self {
        let engine = core.engine();
        let reports = engine.and_then(|engine| engine.reports.get(usize::from(core.rank)).map(Arc::clone));
        let is_one_of_many = engine.is_some_and(|engine| engine.ranks() > 1);
        let pending = (0..session.clients()).map(|_| ClientOutputs::default()).collect();
        Self {
            family: core.config.family,
            session,
            clock: EngineClock::now(),
            turns: FuturesUnordered::new(),
            requests: HashMap::new(),
            adapters: Arc::default(),
            reports: reports.unwrap_or_default(),
            pending,
            reported: (0, 0),
            is_one_of_many,
            core,
        }
    }

    /// Serves it until it is gone or the engine is not alive any more.
    pub(super) async fn serve(mut self, life: &mut watch::Receiver<Life>) -> SessionEnd {
        let reports = Arc::clone(&self.reports);
        // Figures of steps before it came are not its own.
        let _earlier = reports.take();
        loop {
            let served = select! {
                now = life.wait_for(|life| *life != Life::Alive) => {
                    match now.map_or(Life::Over, |life| *life) {
                        Life::Unreachable => {}
                        Life::Dead => self.session.end().await,
                        Life::Over | Life::Alive => self.end().await,
                    }
                    return SessionEnd::Stopped;
                }
                input = self.session.next() => match input {
                    SessionInput::Client { client, frames } => self.receive(client, &frames).await,
                    // Waves are those of mixtures of experts, whose ranks step together.
                    SessionInput::Coordinator(_) => Ok(()),
                    SessionInput::Gone(reason) => return SessionEnd::Gone(reason),
                },
                Some(turn) = self.turns.next() => match self.take(turn).await {
                    Ok(()) => self.send_all().await,
                    gone => gone,
                },
                () = reports.changed() => self.send_all().await,
            };
            if let Err(error) = served {
                return SessionEnd::Gone(error.to_string());
            }
        }
    }

    /// Reads a message of a client. What cannot be read is ignored, with a line in the log; a request ends with an error if its id can be.
    async fn receive(&mut self, client: usize, frames: &[Vec<u8>]) -> io::Result<()> {
        static LOG: RateLimitedLog = RateLimitedLog::new();
        let [kind, message, ..] = frames else { return Ok(()) };
        let read = match RequestType::read(kind) {
            Some(RequestType::Add) => match EngineCoreRequest::read(message) {
                Ok(request) => {
                    self.add(request);
                    Ok(())
                }
                Err(error) => match id_of_unknown(message) {
                    Some(id) => {
                        self.refuse(client, id, RequestError::failed(&error.to_string()));
                        Ok(())
                    }
                    None => Err(error),
                },
            },
            Some(RequestType::Abort) => aborted(message).map(|ids| self.abort(&ids)),
            Some(RequestType::Utility) => UtilityCall::read(message).map(|call| self.call(call)),
            Some(RequestType::StartDpWave) | None => Ok(()),
        };
        if let (Err(error), Some(more)) = (&read, LOG.due()) {
            tracing::error!(more, "a message of the front end is ignored, and its client gets no answer: {error}");
        }
        // An abort may be all that there is to report.
        if self.is_one_of_many { self.send_all().await } else { Ok(()) }
    }

    fn add(&mut self, request: EngineCoreRequest) {
        self.take_family(request.family);
        let (client, id) = (request.client_index, request.request_id.clone());
        if self.requests.len() >= MOST_REQUESTS {
            return self.refuse(client, id, RequestError::OVERLOADED);
        }
        if self.core.state.dev.refuses_requests.load(Relaxed) {
            return self.refuse(client, id, RequestError::PAUSED);
        }
        let (state, rank, clock, arrived) = (Arc::clone(&self.core.state), self.core.rank, self.clock, Instant::now());
        let name = id.clone();
        let begun = async move {
            match begin(state, rank, request, arrived).await {
                Ok(running) => next(Box::new(RequestInProgress { client, id: name, running }), clock).await,
                Err(reason) => {
                    note_refusal(&name, &reason);
                    SessionEvent::Refused { client, id: name, error: RequestError::failed(&reason) }
                }
            }
        };
        if let Some((_, before)) = self.requests.insert(id, (client, self.start(begun.boxed()))) {
            before.abort();
        }
    }

    fn start(&self, turn: BoxFuture<'static, SessionEvent>) -> AbortHandle {
        let (handle, registration) = AbortHandle::new_pair();
        self.turns.push(Abortable::new(turn, registration));
        handle
    }

    fn refuse(&self, client: usize, id: String, error: RequestError) {
        note_refusal(&id, &error.message);
        let _answered = self.start(ready(SessionEvent::Refused { client, id, error }).boxed());
    }

    /// Answers in the form of the front end's version, if its requests are not those of the configured one.
    fn take_family(&mut self, family: VersionFamily) {
        let config = &self.core.config;
        if config.family.has_requests_of(&family) || self.family == family {
            return;
        }
        let (version, known) = (&config.version, family.versions());
        tracing::warn!(
            "requests are not those of vLLM {version}: they are answered as vLLM {known} does; if that is wrong, name the front end's \
             version with --vllm-version"
        );
        self.family = family;
    }

    fn abort(&mut self, ids: &[String]) {
        for id in ids {
            let Some((client, request)) = self.requests.remove(id) else { continue };
            request.abort();
            if let Some(pending) = self.pending.get_mut(client).filter(|_| self.is_one_of_many) {
                pending.finished.push(id.clone());
            }
        }
    }

    fn call(&mut self, requested: UtilityCall) {
        let (state, adapters) = (Arc::clone(&self.core.state), Arc::clone(&self.adapters));
        let called = async move {
            let output = call(&state, &adapters, &requested).await;
            SessionEvent::Called { client: requested.client_index, output }
        };
        // A call is answered in any case.
        let _answered = self.start(called.boxed());
    }

    /// Takes what has come, and whatever else has.
    async fn take(&mut self, first: Result<SessionEvent, futures_util::future::Aborted>) -> io::Result<()> {
        let mut next = Some(first);
        while let Some(turn) = next {
            match turn {
                Ok(SessionEvent::Tokens(request, output)) => self.take_tokens(request, output),
                Ok(SessionEvent::Refused { client, id, error }) => {
                    // It may have the id of one in progress, which ends with it for this client only.
                    if self.requests.get(&id).is_some_and(|(owner, _)| *owner == client)
                        && let Some((_, same)) = self.requests.remove(&id)
                    {
                        same.abort();
                    }
                    self.finish(client, id, WireFinish::Error, Some(error));
                }
                Ok(SessionEvent::Called { client, output }) => {
                    let outputs = WireOutputs { utility_output: Some(output), ..self.outputs() };
                    self.session.send(client, &outputs.to_bytes(self.family)).await?;
                }
                // A request that its client has given up.
                Err(_) => {}
            }
            next = self.turns.next().now_or_never().flatten();
        }
        Ok(())
    }

    fn take_tokens(&mut self, request: Box<RequestInProgress>, output: Option<RequestOutput>) {
        let Some(RequestOutput { output, at }) = output else {
            self.requests.remove(&request.id);
            return;
        };
        let (client, is_over) = (request.client, output.finish_reason.is_some());
        if is_over {
            self.requests.remove(&request.id);
        } else if self.requests.contains_key(&request.id) {
            let (clock, id) = (self.clock, request.id.clone());
            let handle = self.start(next(request, clock).boxed());
            self.requests.insert(id, (client, handle));
        }
        self.put(client, output, Some(at));
    }

    /// Ends a request that gets no more tokens.
    fn finish(&mut self, client: usize, request_id: String, reason: WireFinish, error: Option<RequestError>) {
        let output = WireOutput { request_id, finish_reason: Some(reason), error, ..WireOutput::default() };
        self.put(client, output, None);
    }

    fn put(&mut self, client: usize, output: WireOutput, at: Option<Instant>) {
        let Some(pending) = self.pending.get_mut(client) else { return };
        if self.is_one_of_many && output.finish_reason.is_some() {
            pending.finished.push(output.request_id.clone());
        }
        pending.outputs.push(output);
        pending.at = pending.at.max(at);
    }

    /// Sends what has come: to each client its outputs, to the first of them the figures of the steps.
    async fn send_all(&mut self) -> io::Result<()> {
        let report = self.reports.take();
        let mut scheduler_stats = report.as_ref().map(|report| self.stats(report));
        for client in 0..self.pending.len() {
            let ClientOutputs { outputs, finished, at } =
                self.pending.get_mut(client).map(std::mem::take).unwrap_or_default();
            let is_last = client + 1 == self.pending.len();
            if outputs.is_empty() && finished.is_empty() && !(is_last && scheduler_stats.is_some()) {
                continue;
            }
            let outputs = WireOutputs {
                outputs,
                scheduler_stats: scheduler_stats.take(),
                timestamp: self.clock.seconds(at.unwrap_or_else(Instant::now)),
                finished_requests: (!finished.is_empty()).then_some(finished),
                weight_version: Some(self.core.state.dev.weight_version()),
                ..self.outputs()
            };
            self.session.send(client, &outputs.to_bytes(self.family)).await?;
        }
        match report {
            Some(report) => self.report_to_coordinator(&report).await,
            None => Ok(()),
        }
    }

    /// Reports the number of requests to the coordinator of several ranks, if it has changed.
    async fn report_to_coordinator(&mut self, report: &StepReport) -> io::Result<()> {
        let counts = (report.stats.num_running_reqs, report.stats.num_waiting_reqs);
        if !self.is_one_of_many || std::mem::replace(&mut self.reported, counts) == counts {
            return Ok(());
        }
        let outputs = WireOutputs { scheduler_stats: Some(self.stats(report)), ..self.outputs() };
        self.session.send_to_coordinator(&outputs.to_bytes(self.family)).await
    }

    /// A message of now, with nothing in it.
    fn outputs(&self) -> WireOutputs {
        let timestamp = engine_core::outputs::monotonic_seconds();
        WireOutputs { engine_index: self.core.rank.into(), timestamp, ..WireOutputs::default() }
    }

    /// The figures of steps, as they are sent.
    fn stats(&self, StepReport { steps, stats, spec_decoding }: &StepReport) -> MsgpackValue {
        let state = &self.core.state;
        let config = state.config.engine.as_ref();
        let speculation = config.and_then(|config| config.scheduler.speculation.as_ref());
        let drafts = speculation.filter(|_| spec_decoding.num_drafts > 0);
        stats.value(&EngineFigures {
            steps: *steps,
            has_connector: config.is_some_and(|config| config.kv_transfer.is_some()),
            drafts: drafts.map(|speculation| (speculation.num_speculative_tokens, spec_decoding)),
        })
    }

    /// Aborts all requests, and notifies every client that the engine is dead.
    async fn end(mut self) {
        for (id, (client, request)) in std::mem::take(&mut self.requests) {
            request.abort();
            self.finish(client, id, WireFinish::Abort, None);
        }
        match self.send_all().await {
            Ok(()) => self.session.end().await,
            Err(error) => tracing::debug!(%error, "the front end is gone before its requests are aborted"),
        }
    }
}

/// Waits for the next tokens of a request.
async fn next(mut request: Box<RequestInProgress>, clock: EngineClock) -> SessionEvent {
    let output = request.running.next(clock).await;
    SessionEvent::Tokens(request, output)
}

fn note_refusal(id: &str, reason: &str) {
    static LOG: RateLimitedLog = RateLimitedLog::new();
    if let Some(more) = LOG.due() {
        tracing::warn!(more, "request {id} ends with an error: {reason}");
    }
}
