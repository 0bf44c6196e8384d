//! The choices of a response that is sent as it was recorded, among the engine's counters.
//!
//! Limits: of several choices that a record gives one number of tokens for, each has an equal share.

use tokio::time::Instant;

use super::{Flight, Group, Metrics, Places};
use crate::replay::{
    delivery::TokenCounter,
    player::{Generated, GeneratedChoice},
};

/// Choices on their way, none where no model generated the response.
#[derive(Debug, Default)]
pub(in super::super) struct Flights(Vec<Choice>);

/// A choice on its way and the word for its end.
#[derive(Debug)]
struct Choice {
    /// `None` once it has ended.
    flight: Option<Flight>,
    finish: &'static str,
}

impl Flights {
    /// The only choice of a response.
    pub(in super::super) fn one(flight: Flight, finish: &'static str) -> Self {
        Self(vec![Choice { flight: Some(flight), finish }])
    }

    /// The choices of a cassette's response to a request that came then and was admitted to these places.
    pub(in super::super) fn of(metrics: &Metrics, at: Instant, generated: &Generated, places: Places) -> Self {
        let Generated { prompt_tokens, cached_tokens, max_tokens, choices } = generated;
        let group = Group::new(metrics, at, u32::try_from(choices.len()).unwrap_or(u32::MAX), places);
        let choice = |GeneratedChoice { tokens, finish }: &GeneratedChoice| {
            let flight = group.start(*prompt_tokens, *cached_tokens, *max_tokens.max(tokens));
            Choice { flight: Some(flight), finish }
        };
        Self(choices.iter().map(choice).collect())
    }
}

impl TokenCounter for Flights {
    fn count(&mut self, choice: usize, tokens: u32, now: Instant) {
        if let Some(flight) = self.0.get_mut(choice).and_then(|choice| choice.flight.as_mut()) {
            flight.step(tokens, now);
        }
    }

    fn settle(&mut self) {
        self.0.iter_mut().filter_map(|choice| choice.flight.as_mut()).for_each(Flight::settle);
    }

    fn end(&mut self, is_aborted: bool) {
        for Choice { flight, finish } in &mut self.0 {
            if let Some(mut flight) = flight.take() {
                flight.finish(if is_aborted { "abort" } else { finish });
            }
        }
    }
}
