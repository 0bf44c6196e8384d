//! How long a KV transfer between two engines takes.

use std::time::Duration;

use super::{ScaledClock, Spread};

/// Durations of the parts of a transfer; they add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TransferTimes {
    /// Time that does not depend on the prompt.
    pub latency: Spread,
    /// Time of each token that is transferred.
    pub per_token: Spread,
}

/// Clock of an engine's transfers, with draws of its own: steps have the same durations with and without transfers.
pub type TransferClock = ScaledClock<TransferTimes>;

impl TransferClock {
    /// Distinguishes the draws of transfers from those of steps with the same seed.
    pub const SEED: u64 = 0x6b76_7472_616e_7366;

    /// Draws the duration of the next transfer, of so many tokens.
    pub fn duration(&mut self, tokens: usize) -> Duration {
        let constant = self.times.latency.draw(&mut self.generator);
        let seconds = constant + self.times.per_token.draw(&mut self.generator) * tokens as f64;
        self.scaled(seconds)
    }
}

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
