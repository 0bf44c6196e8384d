//! The choices of a response that is sent as it was recorded, among the engine's counters, and as requests of a simulated engine where
//! there is one.
//!
//! Limits: of several choices that a record gives one number of tokens for, each has an equal share.

use std::task::{Context, Poll, ready};

use tokio::time::Instant;

use super::{AdmissionPermit, ChoiceMetrics, Metrics, RequestMetrics};
use crate::engine::RecordedRun;
use replay::{
    delivery::{AbortedBy, EngineToken, TokenCounter},
    player::{Generated, GeneratedChoice},
    timing::TokensDue,
};

/// Choices of a response in progress, none where no model generated it.
#[derive(Debug, Default)]
pub(in super::super) struct ResponseMetrics {
    choices: Vec<MeteredChoice>,
    /// Their requests of the simulated engine.
    run: Option<RecordedRun>,
    /// Further tokens of the engine's last step, and how many.
    burst: Option<(EngineToken, u32)>,
}

/// A choice in progress and the word for its end.
#[derive(Debug)]
struct MeteredChoice {
    /// `None` once it has ended.
    metrics: Option<ChoiceMetrics>,
    tokens: u32,
    finish: &'static str,
}

impl ResponseMetrics {
    /// The choices of a recorded response to a request that came then, may have so many tokens and was admitted with this permit. Where
    /// an engine runs them, it counts their prompts.
    pub(in super::super) fn of(
        metrics: &Metrics,
        at: Instant,
        generated: &Generated,
        limit: u32,
        permit: AdmissionPermit,
        run: Option<RecordedRun>,
    ) -> Self {
        let Generated { cached_tokens, choices, .. } = generated;
        let request = RequestMetrics::new(metrics, at, u32::try_from(choices.len()).unwrap_or(u32::MAX), permit);
        let choice = |(index, generated): (usize, &GeneratedChoice)| {
            let GeneratedChoice { prompt_tokens, tokens, finish } = *generated;
            let prompt = run.as_ref().map_or(prompt_tokens, |run| run.prompt_tokens(index));
            let mut counted = request.start(prompt, *cached_tokens, limit.max(tokens));
            if let Some(rank) = run.as_ref().and_then(|run| run.run.rank(index)) {
                counted.run_on(metrics, rank);
            }
            MeteredChoice { metrics: Some(counted), tokens, finish }
        };
        Self { choices: choices.iter().enumerate().map(choice).collect(), run, burst: None }
    }
}

impl TokenCounter for ResponseMetrics {
    fn count(&mut self, TokensDue { due, choice, tokens }: TokensDue, now: Instant) {
        if let Some(metrics) = self.choices.get_mut(choice).and_then(|choice| choice.metrics.as_mut()) {
            // The engine's times are those at which its steps end.
            let now = if self.run.is_some() { metrics.at(due) } else { now };
            metrics.step(tokens, now);
        }
    }

    fn settle(&mut self) {
        self.choices.iter_mut().filter_map(|choice| choice.metrics.as_mut()).for_each(ChoiceMetrics::settle);
    }

    fn end(&mut self, aborted: Option<AbortedBy>) {
        self.run = None;
        self.burst = None;
        for MeteredChoice { metrics, tokens, finish } in &mut self.choices {
            if let Some(mut metrics) = metrics.take() {
                // Its tokens have no text of their own, as those of a tool call.
                if aborted.is_none() && !metrics.has_begun() {
                    metrics.step(*tokens, Instant::now());
                }
                metrics.finish(aborted.map_or(*finish, |_| "abort"), aborted);
            }
        }
    }

    fn awaits(&self) -> bool {
        self.burst.is_some() || self.run.as_ref().is_some_and(|run| run.run.is_live())
    }

    fn keeps_gaps(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.keeps_gaps)
    }

    fn poll_token(&mut self, context: &mut Context<'_>) -> Poll<Option<EngineToken>> {
        if let Some((token, left)) = self.burst.take() {
            self.burst = (left > 1).then_some((token, left.saturating_sub(1)));
            return Poll::Ready(Some(token));
        }
        let Some(RecordedRun { run, .. }) = &mut self.run else { return Poll::Ready(None) };
        loop {
            let Some(emission) = ready!(run.poll_next(context)) else { return Poll::Ready(None) };
            let choice = usize::try_from(emission.choice).unwrap_or(usize::MAX);
            let metrics = self.choices.get_mut(choice).and_then(|choice| choice.metrics.as_mut());
            let Some(metrics) = metrics.filter(|_| run.arrive(choice, emission.tokens, 1).is_some()) else { continue };
            if run.is_news(choice, metrics.is_scheduled()) {
                metrics.schedule(run.scheduled(choice));
            }
            run.finish_if_over(choice);
            let token = EngineToken { choice, due: metrics.due(emission.at) };
            self.burst = (emission.tokens > 1).then_some((token, emission.tokens.saturating_sub(1)));
            return Poll::Ready(Some(token));
        }
    }

    fn stop(&mut self) {
        self.burst = None;
        self.run.iter_mut().for_each(|run| drop(run.run.cancel()));
    }
}
