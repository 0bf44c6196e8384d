//! An answer whose choices run on a simulated engine: a step is due at the end of the engine's step that completes it.

use std::{cmp::Reverse, time::Duration};

use super::AnswerStream;
use crate::engine::{Engine, PlannedChoice, RequestParameters, bytes_of};
use api::{ApiError, CacheUse, CachedTokens};

impl AnswerStream {
    /// Submits the choices to an engine; those without tokens stay due at once.
    /// Errors: 503 where the engine has no room for more, 400 where the answer takes too much memory.
    pub(in super::super) fn submit(
        mut self,
        engine: &Engine,
        parameters: &RequestParameters,
    ) -> Result<Self, ApiError> {
        if self.failed {
            return Ok(self);
        }
        let (has_recorded_times, mut closing) = (engine.config.has_recorded_times(), Duration::ZERO);
        let speculates = engine.config.scheduler.speculation.is_some();
        let planned = self.sequences.iter_mut().map(|sequence| {
            let times = if has_recorded_times { sequence.choice.times() } else { Vec::new() };
            if let (Some(end), Some(last)) = (sequence.choice.scheduled_end(), times.last()) {
                closing = closing.max(end.saturating_sub(*last));
            }
            let burst_ends = if speculates { sequence.choice.burst_ends() } else { Vec::new() };
            let output = sequence.choice.plan(has_recorded_times);
            PlannedChoice { prompt: &sequence.prompt, output, times, burst_ends }
        });
        let planned: Vec<PlannedChoice<'_>> = planned.collect();
        self.closing = closing;
        self.memory.try_reserve(bytes_of(&planned))?;
        let run = engine.submit(planned, parameters)?;
        self.waiting.retain(|Reverse((_, _, index))| !run.has(*index));
        for (index, sequence) in self.sequences.iter_mut().enumerate() {
            run.rank(index).into_iter().for_each(|rank| sequence.metrics.run_on(&engine.metrics, rank));
        }
        self.run = Some(run);
        self.cache_block = u32::try_from(engine.config.kv_cache.block_size).unwrap_or(u32::MAX);
        Ok(self)
    }

    /// Use of the prefix cache as the engine had it: of a stream that of the choice that came first, of a body that of the last
    /// choice, as in vLLM.
    pub(super) fn cached(&self, is_body: bool) -> CachedTokens {
        let (Some(run), CachedTokens::Reported(_)) = (&self.run, self.parts.cached) else { return self.parts.cached };
        let last = self.sequences.len().saturating_sub(1);
        let index = if is_body { last } else { self.emitted.unwrap_or(0) };
        let taken = run.scheduled(index).cached;
        // Of a prompt that another engine has computed, what was cached there.
        let found = run.remote_cached.unwrap_or(taken);
        CachedTokens::Reported(CacheUse { found, created: self.created(index, taken) })
    }

    /// Prompt tokens of a choice that are new in the cache.
    pub(crate) fn created(&self, index: usize, taken: u32) -> u32 {
        let prompt = self.sequences.get(index).map_or(0, |sequence| sequence.prompt_tokens);
        created(prompt, self.cache_block, taken)
    }
}

/// Tokens of a prompt that are new in a cache of such blocks: those of full blocks, beyond those that were there.
pub(crate) fn created(prompt: u32, block: u32, found: u32) -> u32 {
    let full = prompt.checked_div(block).unwrap_or(0).saturating_mul(block);
    full.saturating_sub(found)
}
