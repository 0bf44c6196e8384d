//! How long a KV transfer between two engines takes.

use std::time::Duration;

use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};

use super::{LONGEST, Spread};

/// Durations of the parts of a transfer; they add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TransferTimes {
    /// Time that does not depend on the prompt.
    pub latency: Spread,
    /// Time of each token that is transferred.
    pub per_token: Spread,
}

/// Clock of an engine's transfers, with draws of its own: steps have the same durations with and without transfers.
#[derive(Debug, Clone)]
pub struct TransferClock {
    times: TransferTimes,
    /// How many times faster than these times.
    scale: f64,
    generator: Xoshiro256PlusPlus,
}

impl TransferClock {
    /// A clock that runs `scale` times faster than its times have it; 1 where the scale is no positive number.
    #[must_use]
    pub fn new(times: TransferTimes, scale: f64, seed: u64) -> Self {
        let scale = if scale.is_finite() && scale > 0.0 { scale } else { 1.0 };
        Self { times, scale, generator: Xoshiro256PlusPlus::seed_from_u64(seed ^ TRANSFERS) }
    }

    /// Sets the times of the transfers that begin from now on.
    pub fn set_times(&mut self, times: TransferTimes) {
        self.times = times;
    }

    /// Draws the duration of the next transfer, of so many tokens.
    pub fn duration(&mut self, tokens: usize) -> Duration {
        let constant = self.times.latency.draw(&mut self.generator);
        let seconds = constant + self.times.per_token.draw(&mut self.generator) * tokens as f64;
        Duration::from_secs_f64((seconds / self.scale).clamp(0.0, LONGEST))
    }
}

/// Distinguishes the draws of transfers from those of steps.
const TRANSFERS: u64 = 0x6b76_7472_616e_7366;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_transfer_takes_its_latency_and_the_time_of_its_tokens() {
        let times = TransferTimes { latency: Spread::exactly(20 * MS), per_token: Spread::exactly(MS / 10) };
        assert_eq!(TransferClock::new(times, 1.0, 1).duration(100), 30 * MS);
        assert_eq!(TransferClock::new(times, 10.0, 1).duration(100), 3 * MS);
        let mut clock = TransferClock::new(TransferTimes::default(), 1.0, 1);
        assert_eq!(clock.duration(100), Duration::ZERO);
        clock.set_times(times);
        assert_eq!(clock.duration(100), 30 * MS);
    }

    #[test]
    fn durations_vary_by_the_seed() {
        let times = TransferTimes { latency: Spread { mean: 20 * MS, std_dev: 5 * MS }, ..TransferTimes::default() };
        let drawn = |seed| {
            let mut clock = TransferClock::new(times, 1.0, seed);
            [clock.duration(1), clock.duration(1)]
        };
        assert_eq!(drawn(3), drawn(3));
        assert!(drawn(3) != drawn(4) && drawn(3)[0] != drawn(3)[1]);
    }
}
