//! From the choices of an answer to requests of the engine.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Engine,
    connector::Transfer,
    inbox::{Arrived, RecordedArrival},
    run::{EmissionQueue, EngineRun, Submitted},
};
use ::engine::{
    recorded_timings::RecordedTimes,
    scheduler::{KvTransfer, Request, SchedulerFinishReason},
};
use api::{ApiError, KvTransferParams};
use base::rate_limited_log::RateLimitedLog;

/// A choice as the engine runs it.
#[derive(Debug)]
pub(in super::super) struct PlannedChoice<'a> {
    pub(in super::super) prompt: &'a [u32],
    /// Its tokens, unless a text ends it earlier; none for a choice that the engine does not run.
    pub(in super::super) output: Vec<u32>,
    /// When these were recorded, from the request's arrival; nothing where the engine's steps decide.
    pub(in super::super) times: Vec<Duration>,
    /// Numbers of tokens after which a burst of speculative decoding ends, where they were recorded.
    pub(in super::super) burst_ends: Vec<usize>,
}

/// What all choices of an answer have in common.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct RequestParameters {
    /// Without tokens.
    pub(in super::super) request: Request,
    /// Its part in disaggregated serving, and its name in it.
    pub(in super::super) kv_transfer: Option<KvTransferParams>,
    pub(in super::super) name: String,
    /// When it arrived, and how many requests were there when it was recorded.
    pub(in super::super) arrived: Option<Instant>,
    pub(in super::super) concurrency: u32,
    /// The rank that its client names.
    pub(in super::super) data_parallel_rank: Option<usize>,
}

impl RequestParameters {
    /// Its part in transfers, where it has one. Each choice has a name of its own.
    fn transfer(&self, params: &KvTransferParams, choice: u32) -> Option<Box<Transfer>> {
        let name = if choice == 0 { self.name.clone() } else { format!("{choice}_{}", self.name) };
        let has_part = params.sends || params.remote.is_some();
        has_part.then(|| Box::new(Transfer { name, sends: params.sends, remote: params.remote.clone() }))
    }
}

/// Bytes that the engine keeps of a token of the prompt, and of the output with the end of its step.
const OF_PROMPT: usize = 6;
const OF_OUTPUT: usize = 30;
const OF_TIME: usize = size_of::<Duration>();

/// Bytes that the engine keeps of the choices.
pub(in super::super) fn bytes_of(planned: &[PlannedChoice<'_>]) -> usize {
    let of_choice = |choice: &PlannedChoice<'_>| {
        let output =
            choice.output.len().saturating_mul(OF_OUTPUT).saturating_add(choice.times.len().saturating_mul(OF_TIME));
        choice.prompt.len().saturating_mul(OF_PROMPT).saturating_add(output)
    };
    planned.iter().map(of_choice).fold(0, usize::saturating_add)
}

/// vLLM's error for an engine whose process has ended.
const DEAD: &str = "EngineCore encountered an issue. See stack trace (above) for the root cause.";

impl Engine {
    /// Checks whether a rank has ended, which only a defect of this program does while the server runs.
    pub(in super::super) fn is_dead(&self) -> bool {
        self.inboxes.iter().any(|inbox| inbox.is_closed())
    }

    /// Submits the choices of an answer, each to a rank.
    /// Errors: 503 where too many requests wait for the next step, 500 where the engine has ended.
    pub(in super::super) fn submit(
        &self,
        planned: Vec<PlannedChoice<'_>>,
        parameters: &RequestParameters,
    ) -> Result<EngineRun, ApiError> {
        let queued = Instant::now();
        let emissions = Arc::new(EmissionQueue::new(planned.len()));
        let tokens: Vec<usize> = planned.iter().map(|choice| choice.output.len()).collect();
        let transfer_params = self.transfer_params(parameters);
        let kv_transfer = transfer_params.map_or_else(KvTransfer::default, |params| KvTransfer {
            sends: params.sends,
            receives: params.remote.is_some(),
        });
        let mut arrivals: Vec<Vec<Arrived>> = self.inboxes.iter().map(|_| Vec::new()).collect();
        for (PlannedChoice { prompt, output, times, burst_ends }, choice) in planned.into_iter().zip(0..) {
            if output.is_empty() {
                continue;
            }
            let (rank, in_flight) = match &self.balancer {
                Some(balancer) => {
                    let (rank, in_flight) = balancer.choose(parameters.data_parallel_rank, queued);
                    (rank, Some(in_flight))
                }
                None => (0, None),
            };
            let (prompt, ends_with) = (prompt.to_vec(), Some(SchedulerFinishReason::Stop));
            let request = Request { prompt, output, ends_with, kv_transfer, burst_ends, ..parameters.request.clone() };
            let transfer = transfer_params.and_then(|params| parameters.transfer(params, choice));
            let emissions = Arc::clone(&emissions);
            let recorded = self.config.has_recorded_times().then(|| {
                let times = RecordedTimes { tokens: times, concurrency: parameters.concurrency };
                Box::new(RecordedArrival { arrived: parameters.arrived.unwrap_or(queued), times })
            });
            let arrived = Arrived { request, emissions, choice, queued, recorded, transfer, in_flight };
            if let Some(of_rank) = arrivals.get_mut(rank) {
                of_rank.push(arrived);
            }
        }
        let mut run = EngineRun::new(emissions, Arc::clone(&self.inboxes), &tokens);
        run.remote_cached = parameters.kv_transfer.as_ref().and_then(|params| params.remote_cached_tokens);
        for (rank, (inbox, arrivals)) in self.inboxes.iter().zip(arrivals).enumerate() {
            let choices: Vec<u32> = arrivals.iter().map(|arrived| arrived.choice).collect();
            if choices.is_empty() {
                continue;
            }
            // What is refused ends the requests of other ranks with it.
            let refused = || if inbox.is_closed() { ApiError::internal(DEAD) } else { self.metrics.busy() };
            let first = inbox.submit(arrivals).ok_or_else(refused)?;
            choices.into_iter().zip(first..).for_each(|(choice, id)| run.submitted(choice, Submitted { rank, id }));
        }
        Ok(run)
    }

    /// What a request asks of the connector; nothing without one, as in vLLM.
    fn transfer_params<'a>(&self, parameters: &'a RequestParameters) -> Option<&'a KvTransferParams> {
        let params = parameters.kv_transfer.as_ref();
        if self.side_channels.is_empty() {
            ignored(params.is_some(), "there is no KV connector (--kv-transfer-config)");
            return None;
        }
        ignored(
            params.is_some_and(|params| params.receives && params.remote.is_none()),
            "they do not name the blocks, engine, request, host and port of a prefill; its prompt is computed here",
        );
        params
    }
}

/// Logs that a request's `kv_transfer_params` have no effect, where they have none.
fn ignored(is_ignored: bool, reason: &str) {
    static LOG: RateLimitedLog = RateLimitedLog::new();
    if let Some(more) = is_ignored.then(|| LOG.due()).flatten() {
        tracing::warn!(more, "kv_transfer_params of a request have no effect: {reason}");
    }
}
