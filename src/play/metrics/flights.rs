//! The choices of a response that is sent as it was recorded, among the engine's counters, and as requests of a simulated engine where
//! there is one.
//!
//! Limits: of several choices that a record gives one number of tokens for, each has an equal share.

use std::task::{Context, Poll};

use tokio::time::Instant;

use super::{Flight, Group, Metrics, Places};
use crate::{
    play::engine::{Next, RecordedRun},
    replay::{
        delivery::{AbortedBy, EngineToken, TokenCounter},
        player::{Generated, GeneratedChoice},
        timing::TokensDue,
    },
};

/// Choices on their way, none where no model generated the response.
#[derive(Debug, Default)]
pub(in super::super) struct Flights {
    choices: Vec<Choice>,
    /// Their requests of the simulated engine.
    run: Option<RecordedRun>,
    /// Further tokens of the engine's last step, and how many.
    burst: Option<(EngineToken, u32)>,
}

/// A choice on its way and the word for its end.
#[derive(Debug)]
struct Choice {
    /// `None` once it has ended.
    flight: Option<Flight>,
    finish: &'static str,
}

impl Flights {
    /// The choices of a recorded response to a request that came then and was admitted to these places. Where an engine runs them, it
    /// counts their prompts.
    pub(in super::super) fn of(
        metrics: &Metrics,
        at: Instant,
        generated: &Generated,
        places: Places,
        run: Option<RecordedRun>,
    ) -> Self {
        let Generated { prompt_tokens, cached_tokens, max_tokens, choices, .. } = generated;
        let group = Group::new(metrics, at, u32::try_from(choices.len()).unwrap_or(u32::MAX), places);
        let choice = |(index, GeneratedChoice { tokens, finish }): (usize, &GeneratedChoice)| {
            let prompt = run.as_ref().map_or(*prompt_tokens, |run| run.prompt_tokens(index));
            let mut flight = group.start(prompt, *cached_tokens, *max_tokens.max(tokens));
            if let Some(rank) = run.as_ref().and_then(|run| run.run.rank(index)) {
                flight.run_on(metrics, rank);
            }
            Choice { flight: Some(flight), finish }
        };
        Self { choices: choices.iter().enumerate().map(choice).collect(), run, burst: None }
    }
}

impl TokenCounter for Flights {
    fn count(&mut self, TokensDue { due, choice, tokens }: TokensDue, now: Instant) {
        if let Some(flight) = self.choices.get_mut(choice).and_then(|choice| choice.flight.as_mut()) {
            // The engine's times are those at which its steps end.
            let now = if self.run.is_some() { flight.at(due) } else { now };
            flight.step(tokens, now);
        }
    }

    fn settle(&mut self) {
        self.choices.iter_mut().filter_map(|choice| choice.flight.as_mut()).for_each(Flight::settle);
    }

    fn end(&mut self, aborted: Option<AbortedBy>) {
        self.run = None;
        self.burst = None;
        for Choice { flight, finish } in &mut self.choices {
            if let Some(mut flight) = flight.take() {
                flight.finish(aborted.map_or(*finish, |_| "abort"), aborted);
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
            let Poll::Ready(next) = run.poll_next(context) else { return Poll::Pending };
            let Next::Token(emission) = next else { return Poll::Ready(None) };
            let choice = usize::try_from(emission.choice).unwrap_or(usize::MAX);
            let flight = self.choices.get_mut(choice).and_then(|choice| choice.flight.as_mut());
            let Some(flight) = flight.filter(|_| run.arrive(choice, emission.tokens, 1).is_some()) else { continue };
            if run.is_news(choice, flight.is_scheduled()) {
                flight.schedule(run.scheduled(choice));
            }
            run.finish_if_over(choice);
            let token = EngineToken { choice, due: flight.due(emission.at) };
            self.burst = (emission.tokens > 1).then_some((token, emission.tokens.saturating_sub(1)));
            return Poll::Ready(Some(token));
        }
    }

    fn stop(&mut self) {
        self.burst = None;
        self.run.iter_mut().for_each(|run| drop(run.run.cancel()));
    }
}
