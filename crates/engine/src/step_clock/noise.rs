//! Draws for durations.

use rand::Rng;

use crate::length::normal;

/// Draws from the log-normal distribution with this mean and standard deviation; the mean itself where either is zero.
pub(super) fn log_normal(mean: f64, std_dev: f64, generator: &mut impl Rng) -> f64 {
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
