//! The step clock: how long each step of the [`scheduler`](super::scheduler) takes.
//!
//! A [`StepClock`] gives the duration of a step from its [`StepWork`]: the requests that decode, the prompt tokens that are
//! prefilled, the tokens before them. [`StepTimes`] is where durations come from: times that are set one by one ([`Knobs`]), a
//! [`LinearModel`] that was fitted to steps that were measured, or the data sheets of a GPU and a model ([`Profile`]). All draws
//! come from one seed, one step after the other, so the same steps have the same durations.
//!
//! A step ends for all of its requests together: a prompt that is prefilled delays the tokens of others, as in the engine.
//! Limits: a step knows sums, not single requests; only fitted times have any for requests outside of steps.
//!
//! See docs/decisions/0088-time-of-a-step.md.

mod fit;
mod knobs;
mod profile;
mod transfer;
mod work;

use std::time::Duration;

use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};

pub use self::{
    fit::{FitError, LinearModel, MeasuredStep, StepFit},
    knobs::{Knobs, Spread},
    profile::{PROFILES, Profile, UnknownProfile},
    transfer::{TransferClock, TransferTimes},
    work::StepWork,
};

/// Longest step: a day.
const LONGEST: f64 = 86_400.0;

/// Source of the durations of steps.
#[derive(Debug, Clone, PartialEq)]
pub enum StepTimes {
    /// Steps take no time.
    Instant,
    /// Times that are set one by one.
    Knobs(Knobs),
    /// A model that was fitted to measured steps.
    Fitted(StepFit),
    /// A GPU and a model, by their data sheets.
    Profile(Profile),
}

/// Clock of an engine's steps.
pub type StepClock = ScaledClock<StepTimes>;

/// Clock of what an engine does, whose durations are drawn from some times.
#[derive(Debug, Clone)]
pub struct ScaledClock<T> {
    times: T,
    /// How many times faster than these times.
    scale: f64,
    generator: Xoshiro256PlusPlus,
}

impl<T> ScaledClock<T> {
    /// A clock that runs `scale` times faster than its times have it; 1 where the scale is no positive number.
    #[must_use]
    pub fn new(times: T, scale: f64, seed: u64) -> Self {
        let scale = if scale.is_finite() && scale > 0.0 { scale } else { 1.0 };
        Self { times, scale, generator: Xoshiro256PlusPlus::seed_from_u64(seed) }
    }

    /// Takes other times for what begins from now on.
    pub fn set_times(&mut self, times: T) {
        self.times = times;
    }

    fn scaled(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64((seconds / self.scale).clamp(0.0, LONGEST))
    }
}

impl StepClock {
    /// Time of a request before its first step.
    #[must_use]
    pub fn before_steps(&self) -> Duration {
        match &self.times {
            StepTimes::Fitted(fit) => self.scaled(fit.model.request),
            StepTimes::Instant | StepTimes::Knobs(_) | StepTimes::Profile(_) => Duration::ZERO,
        }
    }

    /// Draws the duration of the next step; zero for a step without work.
    pub fn duration(&mut self, work: &StepWork) -> Duration {
        if work.requests() == 0 {
            return Duration::ZERO;
        }
        let seconds = match &self.times {
            StepTimes::Instant => 0.0,
            StepTimes::Knobs(knobs) => knobs.seconds(work, &mut self.generator),
            StepTimes::Fitted(fit) => fit.seconds(work, &mut self.generator),
            StepTimes::Profile(profile) => profile.seconds(work),
        };
        self.scaled(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECODES: StepWork = StepWork {
        decodes: 4,
        draft_tokens: 0,
        prefills: 0,
        prefill_tokens: 0,
        prefill_share: 0.0,
        context_tokens: 400,
    };

    fn durations(clock: &mut StepClock) -> Vec<Duration> {
        (0..50).map(|_| clock.duration(&DECODES)).collect()
    }

    fn spread() -> StepTimes {
        let itl = Spread { mean: Duration::from_millis(20), std_dev: Duration::from_millis(5) };
        StepTimes::Knobs(Knobs { inter_token_latency: itl, ..Knobs::default() })
    }

    #[test]
    fn one_seed_gives_the_same_durations_and_another_one_others() {
        let of_seed = |seed| durations(&mut StepClock::new(spread(), 1.0, seed));
        assert_eq!(of_seed(3), of_seed(3));
        assert_ne!(of_seed(3), of_seed(4));
    }

    #[test]
    fn the_scale_divides_every_duration() {
        let plain = durations(&mut StepClock::new(spread(), 1.0, 3));
        let scaled = durations(&mut StepClock::new(spread(), 10.0, 3));
        for (plain, scaled) in plain.iter().zip(scaled) {
            assert!((plain.as_secs_f64() / 10.0 - scaled.as_secs_f64()).abs() < 1e-8);
        }
        assert_eq!(StepClock::new(spread(), 0.0, 3).scale, 1.0);
    }

    #[test]
    fn a_step_without_work_takes_no_time() {
        assert_eq!(StepClock::new(spread(), 1.0, 0).duration(&StepWork::default()), Duration::ZERO);
        assert_eq!(StepClock::new(StepTimes::Instant, 1.0, 0).duration(&DECODES), Duration::ZERO);
    }
}
