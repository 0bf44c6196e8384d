//! Requests of responses that are sent as they were recorded.

use tokio::time::Instant;

use super::{Engine, EngineRun, PlannedChoice, RequestParameters, bytes_of};
use crate::request::budget::MemoryReservation;
use ::engine::scheduler::Request;
use api::ApiError;
use base::rate_limited_log::RateLimitedLog;
use replay::player::{EngineInput, Generated};
use replay::timing::ResponseSchedule;

/// Limits the lines about responses that no engine of this length computes.
static TOO_LONG: RateLimitedLog = RateLimitedLog::new();

/// The choices of a recorded response as requests of the engine.
#[derive(Debug)]
pub(in super::super) struct RecordedRun {
    pub(in super::super) run: EngineRun,
    /// Tokens of each choice's prompt.
    prompt_tokens: Vec<u32>,
    /// Whether what follows a token comes as long after it as recorded.
    pub(in super::super) keeps_gaps: bool,
    /// What they take of the memory for answers.
    _memory: MemoryReservation,
}

#[derive(Debug, Clone, Copy)]
pub(in super::super) struct RecordedTiming<'a> {
    /// Its deadlines.
    pub(in super::super) schedule: &'a ResponseSchedule,
    /// The request's arrival.
    pub(in super::super) arrived: Instant,
    /// Requests that were there when it was recorded.
    pub(in super::super) concurrency: u32,
}

impl RecordedRun {
    pub(in super::super) fn prompt_tokens(&self, choice: usize) -> u32 {
        self.prompt_tokens.get(choice).copied().unwrap_or(0)
    }
}

impl Engine {
    /// Submits the choices of a recorded response; `None` of one that the engine does not compute: it has no tokens, or more than a
    /// request may have.
    /// Errors: 503 where the engine has no room for more, 400 where the response takes too much memory.
    pub(in super::super) fn run_recorded(
        &self,
        generated: &Generated,
        timing: RecordedTiming<'_>,
    ) -> Result<Option<RecordedRun>, ApiError> {
        if generated.choices.iter().all(|choice| choice.tokens == 0) {
            return Ok(None);
        }
        if let Some(input) = &generated.engine_input {
            return self.submit_recorded(input, timing).map(Some);
        }
        if let Some(suppressed) = TOO_LONG.due() {
            tracing::warn!(
                suppressed,
                "a recorded response is longer than --max-model-len: it is sent at its recorded times and not simulated"
            );
        }
        Ok(None)
    }

    fn submit_recorded(&self, input: &EngineInput, timing: RecordedTiming<'_>) -> Result<RecordedRun, ApiError> {
        let keeps_gaps = self.config.has_recorded_times();
        let plan = |(choice, (prompt, output)): (usize, (_, &[u32]))| {
            let timed = if keeps_gaps { output.len() } else { 0 };
            let times = timing.schedule.token_times(choice, timed);
            PlannedChoice { prompt, output: output.to_vec(), times, burst_ends: Vec::new() }
        };
        let planned: Vec<PlannedChoice<'_>> = input.choices().enumerate().map(plan).collect();
        let prompt_tokens =
            planned.iter().map(|choice| u32::try_from(choice.prompt.len()).unwrap_or(u32::MAX)).collect();
        let mut memory = MemoryReservation::default();
        memory.try_reserve(bytes_of(&planned))?;
        let parameters = RequestParameters {
            request: Request {
                priority: input.priority,
                cache_salt: input.cache_salt.clone(),
                session_id: input.session_id.clone(),
                reports_cached_blocks: input.reports_cached_blocks,
                ..Request::default()
            },
            arrived: Some(timing.arrived),
            concurrency: timing.concurrency,
            ..RequestParameters::default()
        };
        Ok(RecordedRun { run: self.submit(planned, &parameters)?, prompt_tokens, keeps_gaps, _memory: memory })
    }
}
