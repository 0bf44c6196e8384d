//! From the choices of an answer to requests of the engine.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    Engine,
    inbox::Arrived,
    run::{EngineRun, Outbox},
};
use crate::{
    api::ApiError,
    engine::scheduler::{FinishReason, Request},
};

/// A choice as the engine runs it.
#[derive(Debug)]
pub(in super::super) struct Planned<'a> {
    pub(in super::super) prompt: &'a [u32],
    /// Its tokens, unless a text ends it earlier; none for a choice that the engine does not run.
    pub(in super::super) output: Vec<u32>,
}

/// Parameters of a request that the scheduler looks at.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Parameters {
    pub(in super::super) priority: i64,
    pub(in super::super) cache_salt: Option<String>,
    pub(in super::super) session_id: Option<String>,
    pub(in super::super) reports_cached_blocks: bool,
    /// Whether log probabilities of the prompt are computed.
    pub(in super::super) scores_prompt: bool,
}

/// Bytes that the engine keeps of a token of the prompt, and of the output with the end of its step.
const OF_PROMPT: usize = 6;
const OF_OUTPUT: usize = 30;

/// Bytes that the engine keeps of the choices.
pub(in super::super) fn bytes_of(planned: &[Planned<'_>]) -> usize {
    let of_choice = |choice: &Planned<'_>| {
        choice.prompt.len().saturating_mul(OF_PROMPT).saturating_add(choice.output.len().saturating_mul(OF_OUTPUT))
    };
    planned.iter().map(of_choice).fold(0, usize::saturating_add)
}

impl Engine {
    /// Submits the choices of an answer.
    ///
    /// # Errors
    /// 503 where too many requests wait for the next step.
    pub(in super::super) fn submit(
        &self,
        planned: Vec<Planned<'_>>,
        parameters: &Parameters,
    ) -> Result<EngineRun, ApiError> {
        let queued = Instant::now();
        let outbox = Arc::new(Outbox::new(planned.len()));
        let tokens: Vec<usize> = planned.iter().map(|choice| choice.output.len()).collect();
        let numbered = planned.into_iter().zip(0..).filter(|(choice, _)| !choice.output.is_empty());
        let arrived = numbered.map(|(Planned { prompt, output }, choice)| Arrived {
            request: Request {
                prompt: prompt.to_vec(),
                output,
                ends_with: Some(FinishReason::Stop),
                priority: parameters.priority,
                cache_salt: parameters.cache_salt.clone(),
                session_id: parameters.session_id.clone(),
                reports_cached_blocks: parameters.reports_cached_blocks,
                skip_reading_prefix_cache: parameters.scores_prompt,
                ..Request::default()
            },
            outbox: Arc::clone(&outbox),
            choice,
            queued,
        });
        let first = self.inbox.submit(arrived.collect()).ok_or_else(ApiError::busy)?;
        Ok(EngineRun::new(outbox, Arc::clone(&self.inbox), first, &tokens))
    }
}
