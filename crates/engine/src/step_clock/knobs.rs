//! Durations that are set one by one, by the names that vllm-vcr's and llm-d-inference-sim's flags have.

use std::time::Duration;

use rand::Rng;

use super::StepWork;
use crate::length::normal;

/// A mean and the standard deviation around it, of a log-normal distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spread {
    /// The mean.
    pub mean: Duration,
    /// The standard deviation.
    pub std_dev: Duration,
}

base::with_defaults! {
    /// Durations of the parts of a step.
    ///
    /// A step with decodes takes the inter-token latency. A step that computes a whole prefill takes the time to the first
    /// token, or the overhead and the time per token where one of these is set; one that computes a part of it, that part of the time. Of
    /// a step with both the longer one counts.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Knobs {
        /// Time of a prefill, however long the prompt is.
        pub time_to_first_token: Spread,
        /// Time of a step that decodes.
        pub inter_token_latency: Spread,
        /// Time of a prefill that does not depend on its length.
        pub prefill_overhead: Duration,
        /// Time of each token of a prefill; cached tokens take none.
        pub prefill_time_per_token: Spread,
        /// How many times longer everything takes with `max_num_seqs` requests than with one; between them it grows evenly.
        pub time_factor_under_load: f64 = 1.0,
        /// Requests of a full batch.
        pub max_num_seqs: u32 = 1,
    }
}

impl Spread {
    /// A duration that does not vary.
    #[must_use]
    pub fn exactly(mean: Duration) -> Self {
        Self { mean, std_dev: Duration::ZERO }
    }

    pub(super) fn draw(self, generator: &mut impl Rng) -> f64 {
        log_normal(self.mean.as_secs_f64(), self.std_dev.as_secs_f64(), generator)
    }
}

impl Knobs {
    /// A prefill of one duration and decodes of another one, whatever else runs.
    #[must_use]
    pub fn constant(time_to_first_token: Duration, inter_token_latency: Duration) -> Self {
        let (time_to_first_token, inter_token_latency) =
            (Spread::exactly(time_to_first_token), Spread::exactly(inter_token_latency));
        Self { time_to_first_token, inter_token_latency, ..Self::default() }
    }

    pub(super) fn seconds(&self, work: &StepWork, generator: &mut impl Rng) -> f64 {
        let decode = if work.decodes > 0 { self.inter_token_latency.draw(generator) } else { 0.0 };
        let prefill = if work.prefills > 0 { self.prefill(work, generator) } else { 0.0 };
        decode.max(prefill) * self.load_factor(work.requests())
    }

    fn prefill(&self, work: &StepWork, generator: &mut impl Rng) -> f64 {
        let per_token = self.prefill_time_per_token.draw(generator);
        if per_token > 0.0 || self.prefill_overhead > Duration::ZERO {
            let overhead = self.prefill_overhead.as_secs_f64() * work.prefill_share;
            return overhead + per_token * f64::from(work.prefill_tokens);
        }
        self.time_to_first_token.draw(generator) * work.prefill_share
    }

    fn load_factor(&self, requests: u32) -> f64 {
        let most = self.max_num_seqs.saturating_sub(1);
        if most == 0 {
            return 1.0;
        }
        let load = f64::from(requests.saturating_sub(1)) / f64::from(most);
        1.0 + (self.time_factor_under_load - 1.0) * load.min(1.0)
    }
}

/// Draws from the log-normal distribution with this mean and standard deviation; the mean itself where either is zero.
fn log_normal(mean: f64, std_dev: f64, generator: &mut impl Rng) -> f64 {
    if mean <= 0.0 || std_dev <= 0.0 {
        return mean.max(0.0);
    }
    let variance = (1.0 + (std_dev / mean).powi(2)).ln();
    (mean.ln() - variance / 2.0 + variance.sqrt() * normal(generator)).exp()
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};

    use super::*;

    fn millis(knobs: &Knobs, work: &StepWork) -> f64 {
        let seconds = knobs.seconds(work, &mut Xoshiro256PlusPlus::seed_from_u64(1));
        (seconds * 1e6).round() / 1e3
    }

    fn exactly(millis: u64) -> Spread {
        Spread::exactly(Duration::from_millis(millis))
    }

    #[test]
    fn a_step_takes_as_long_as_its_longer_part() {
        let knobs = Knobs { time_to_first_token: exactly(200), inter_token_latency: exactly(20), ..Knobs::default() };
        let decodes = StepWork { decodes: 3, ..StepWork::default() };
        let prefill = StepWork { prefills: 1, prefill_tokens: 512, prefill_share: 1.0, ..StepWork::default() };
        let part = StepWork { prefill_share: 0.05, ..prefill };
        assert_eq!(millis(&knobs, &decodes), 20.0);
        assert_eq!(millis(&knobs, &prefill), 200.0);
        assert_eq!(millis(&knobs, &StepWork { decodes: 3, ..prefill }), 200.0);
        assert_eq!(millis(&knobs, &part), 10.0);
        assert_eq!(millis(&knobs, &StepWork { decodes: 3, ..part }), 20.0);
    }

    #[test]
    fn a_time_per_token_wins_over_the_time_to_the_first_one() {
        let knobs = Knobs {
            time_to_first_token: exactly(200),
            prefill_overhead: Duration::from_millis(10),
            prefill_time_per_token: Spread::exactly(Duration::from_micros(50)),
            ..Knobs::default()
        };
        let whole = StepWork { prefills: 1, prefill_tokens: 1000, prefill_share: 1.0, ..StepWork::default() };
        assert_eq!(millis(&knobs, &whole), 60.0);
        let half = StepWork { prefill_tokens: 500, prefill_share: 0.5, ..whole };
        assert_eq!(millis(&knobs, &half), 30.0);
    }

    #[test]
    fn a_full_batch_takes_the_factor_longer_and_half_of_it_half_of_that() {
        let knobs = Knobs {
            inter_token_latency: exactly(10),
            time_factor_under_load: 3.0,
            max_num_seqs: 9,
            ..Knobs::default()
        };
        let of = |decodes| millis(&knobs, &StepWork { decodes, ..StepWork::default() });
        assert_eq!([of(1), of(5), of(9), of(40)], [10.0, 20.0, 30.0, 30.0]);
        assert_eq!(millis(&Knobs { max_num_seqs: 1, ..knobs }, &StepWork { decodes: 1, ..StepWork::default() }), 10.0);
    }

    #[test]
    fn draws_have_the_mean_and_the_deviation_that_were_asked_for() {
        let mut generator = Xoshiro256PlusPlus::seed_from_u64(1);
        let drawn: Vec<f64> = (0..20_000).map(|_| log_normal(0.02, 0.005, &mut generator)).collect();
        let mean = drawn.iter().sum::<f64>() / 20_000.0;
        let variance = drawn.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!((mean - 0.02).abs() < 2e-4, "{mean}");
        assert!((variance.sqrt() - 0.005).abs() < 2e-4, "{}", variance.sqrt());
        assert!(drawn.iter().all(|value| *value > 0.0));
        assert_eq!(log_normal(0.02, 0.0, &mut generator), 0.02);
    }
}
