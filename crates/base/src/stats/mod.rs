//! Distributions of durations and of counts, in constant memory.
//!
//! A thin face over hdrhistogram: 3 significant digits for quantiles, exact minimum, mean and maximum. Limits: a
//! histogram takes about 200 kB whatever it holds. [`histogram`] holds the kind that Prometheus reads, which is a few
//! hundred bytes and may be added to from anywhere, [`exposition`] writes pages for it, [`scraped`] reads those of others.

pub mod exposition;
pub mod histogram;
pub mod interval_log;
pub mod scraped;

mod lateness;

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

pub use self::lateness::{Lateness, LatenessSummary, StreamClass};

/// The largest duration of a histogram: 1 hour, in microseconds.
const LONGEST_MICROS: u64 = 3_600_000_000;

const LARGEST_COUNT: u64 = u32::MAX as u64;

/// The smallest value that at least this share of them does not exceed; `None` without any.
#[must_use]
#[allow(clippy::cast_possible_truncation)] // a place in a list
pub fn quantile<T: Copy + Ord>(values: &[T], share: f64) -> Option<T> {
    let mut values = values.to_vec();
    let place = ((values.len() as f64 * share).ceil() as usize).saturating_sub(1);
    (place < values.len()).then(|| *values.select_nth_unstable(place).1)
}

/// Of values in order, the one that is nearest to this share of the way from the first to the last; `None` without any.
#[must_use]
#[allow(clippy::cast_possible_truncation)] // a place in a list
pub fn nearest_quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * share).round() as usize).copied()
}

/// A distribution in figures. The unit is that of the histogram it came from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// Values recorded.
    pub count: u64,
    /// The smallest.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// 90 % are no larger.
    pub p90: f64,
    /// 99 % are no larger.
    pub p99: f64,
    /// 99.9 % are no larger.
    pub p999: f64,
    /// The largest.
    pub max: f64,
}

/// A distribution of durations: microsecond resolution, up to 1 hour; longer ones are clamped and counted.
#[derive(Debug, Clone)]
pub struct Durations(CountDistribution);

/// A distribution of counts, up to `u32::MAX` by default.
#[derive(Debug, Clone)]
pub struct CountDistribution {
    histogram: Histogram<u64>,
    largest: u64,
    min: u64,
    max: u64,
    sum: u128,
    clamped: u64,
}

impl Default for Durations {
    fn default() -> Self {
        Self(CountDistribution::up_to(LONGEST_MICROS))
    }
}

impl Durations {
    /// An empty distribution of durations up to this one; longer ones are clamped to it and counted.
    #[must_use]
    pub fn up_to(longest: Duration) -> Self {
        Self(CountDistribution::up_to(u64::try_from(longest.as_micros()).unwrap_or(u64::MAX).max(2)))
    }

    /// Adds one duration, rounded to the nearest microsecond.
    pub fn record(&mut self, duration: Duration) {
        self.record_many(duration, 1);
    }

    /// Adds the same duration so many times.
    pub fn record_many(&mut self, duration: Duration, times: u32) {
        let micros = duration.saturating_add(Duration::from_nanos(500)).as_micros();
        self.0.record_many(u64::try_from(micros).unwrap_or(u64::MAX), u64::from(times));
    }

    /// Adds all durations of another distribution.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0);
    }

    /// Returns the number of durations up to this one, with three digits of precision.
    pub(crate) fn at_most(&self, duration: Duration) -> u64 {
        self.0.histogram.count_between(0, u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }

    /// Their sum.
    pub(crate) fn total(&self) -> Duration {
        Duration::from_micros(self.0.total())
    }

    /// Returns the number of values longer than the longest, 1 hour by default, which count as that.
    #[must_use]
    pub fn clamped(&self) -> u64 {
        self.0.clamped
    }

    /// The figures in milliseconds; `None` when nothing was recorded.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        self.0.divided(1000.0)
    }

    /// Returns the milliseconds that this share of the durations does not exceed, as [`summary`](Self::summary) has them; `None` when nothing was
    /// recorded.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        (!self.0.histogram.is_empty()).then(|| self.0.quantile(share, 1000.0))
    }
}

impl Default for CountDistribution {
    fn default() -> Self {
        Self::up_to(LARGEST_COUNT)
    }
}

impl CountDistribution {
    /// Adds one count.
    pub fn record(&mut self, count: u32) {
        self.record_many(u64::from(count), 1);
    }

    /// Sum of all counts.
    #[must_use]
    pub fn total(&self) -> u64 {
        u64::try_from(self.sum).unwrap_or(u64::MAX)
    }

    /// The figures; `None` when nothing was recorded.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        self.divided(1.0)
    }

    fn up_to(largest: u64) -> Self {
        let histogram = match Histogram::new_with_bounds(1, largest, 3) {
            Ok(histogram) => histogram,
            Err(error) => unreachable!("the bounds are constants: {error}"),
        };
        Self { histogram, largest, min: u64::MAX, max: 0, sum: 0, clamped: 0 }
    }

    fn record_many(&mut self, value: u64, times: u64) {
        if times == 0 {
            return;
        }
        if value > self.largest {
            self.clamped += times;
        }
        let value = value.min(self.largest);
        self.histogram.saturating_record_n(value, times);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.sum += u128::from(value) * u128::from(times);
    }

    fn add(&mut self, other: &Self) {
        for step in other.histogram.iter_recorded() {
            self.record_many(step.value_iterated_to().clamp(other.min, other.max), step.count_at_value());
        }
        (self.min, self.max) = (self.min.min(other.min), self.max.max(other.max.min(self.largest)));
    }

    fn quantile(&self, share: f64, divisor: f64) -> f64 {
        self.histogram.value_at_quantile(share).clamp(self.min, self.max) as f64 / divisor
    }

    fn divided(&self, divisor: f64) -> Option<Summary> {
        let count = self.histogram.len();
        let quantile = |share| self.quantile(share, divisor);
        (count > 0).then(|| Summary {
            count,
            min: self.min as f64 / divisor,
            mean: self.sum as f64 / count as f64 / divisor,
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: self.max as f64 / divisor,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_have_three_digits_and_the_ends_are_exact() {
        let mut durations = Durations::default();
        assert_eq!((durations.summary(), durations.quantile(0.5)), (None, None));
        for millis in 1..=1000 {
            durations.record(Duration::from_millis(millis));
        }
        let summary = durations.summary().unwrap();
        assert_eq!((durations.quantile(0.9), durations.quantile(1.0)), (Some(summary.p90), Some(1000.0)));
        assert_eq!((summary.count, summary.min, summary.mean, summary.max), (1000, 1.0, 500.5, 1000.0));
        for (value, exact) in [(summary.p50, 500.0), (summary.p90, 900.0), (summary.p99, 990.0), (summary.p999, 999.0)]
        {
            assert!((value / exact - 1.0).abs() < 1e-3, "{value} for {exact}");
        }
    }

    #[test]
    fn quantiles_of_a_list_have_two_rules() {
        assert_eq!([0.0, 0.25, 0.3, 0.5, 1.0].map(|share| quantile(&[4, 1, 3, 2], share)), [1, 1, 2, 2, 4].map(Some));
        assert_eq!(
            [0.0, 0.16, 0.17, 0.5, 1.0].map(|share| nearest_quantile(&[1.0, 2.0, 3.0, 4.0], share)),
            [1.0, 1.0, 2.0, 3.0, 4.0].map(Some)
        );
        assert_eq!((quantile::<u8>(&[], 0.5), nearest_quantile(&[], 0.5)), (None, None));
    }

    #[test]
    fn what_is_too_long_is_clamped_and_counted() {
        let mut durations = Durations::default();
        durations.record(Duration::from_secs(7200));
        assert_eq!(durations.clamped(), 1);
        assert_eq!(durations.summary().unwrap().max, 3_600_000.0);
    }

    #[test]
    fn counts_add_up() {
        let mut counts = CountDistribution::default();
        counts.record(0);
        counts.record(u32::MAX);
        assert_eq!(counts.total(), u64::from(u32::MAX));
        assert_eq!(counts.summary().unwrap().min, 0.0);
    }
}
