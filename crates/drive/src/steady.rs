//! Whether a run was in one state, and how sure its quantiles are.
//!
//! A change is looked for with the cumulative sum of ranks (Pettitt 1979, "A non-parametric approach to the change-point problem"): ranks, because latencies have long tails.
//! Intervals come from a moving-block bootstrap (Künsch 1989), because requests that are near in time are slow together.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::Serialize;

/// Values below which nothing is said.
const FEWEST: usize = 40;

/// The statistic from which a change is one. For independent values 1.63 has a probability of 1 %; requests are not independent.
const CRITICAL: f64 = 2.5;

/// How many times larger the median has to be on one side of a change than on the other.
const FACTOR: f64 = 1.3;

/// Resamples of a bootstrap.
const RESAMPLES: usize = 400;

/// A change of a latency within a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Change {
    /// When, in seconds from the start of the run.
    pub at_s: f64,
    /// Median before it, in milliseconds.
    pub before_ms: f64,
    /// Median after it.
    pub after_ms: f64,
}

/// Bounds between which a quantile lies with a probability of 95 %, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// The lower bound.
    pub low: f64,
    /// The upper bound.
    pub high: f64,
}

/// Finds the strongest change in values, each with its time from the start of the run; `None` where the run is steady or too short.
#[must_use]
pub fn change(values: &[(Duration, Duration)]) -> Option<Change> {
    let mut values = values.to_vec();
    values.sort_by_key(|(at, _)| *at);
    if values.len() < FEWEST {
        return None;
    }
    let ranks = ranks(&values.iter().map(|(_, value)| *value).collect::<Vec<_>>());
    let count = float(values.len());
    let (mut sum, mut strongest, mut place) = (0.0, 0.0_f64, 0);
    for (number, rank) in (1..).zip(&ranks) {
        sum += rank - (count + 1.0) / 2.0;
        if f64::abs(sum) > strongest {
            (strongest, place) = (f64::abs(sum), number);
        }
    }
    // The standard deviation of a rank is count / sqrt(12).
    let statistic = strongest / (count / 12.0_f64.sqrt() * count.sqrt());
    let (before, after) = values.split_at_checked(place)?;
    let median =
        |side: &[(Duration, Duration)]| quantile(&side.iter().map(|(_, value)| *value).collect::<Vec<_>>(), 0.5);
    let (before_ms, after_ms) = (millis(median(before)?), millis(median(after)?));
    let factor = (before_ms.max(after_ms)) / before_ms.min(after_ms).max(1e-3);
    let at_s = after.first()?.0.as_secs_f64();
    (statistic > CRITICAL && factor > FACTOR).then_some(Change { at_s, before_ms, after_ms })
}

/// Returns the interval of a quantile of values in the order of their times; `None` where there are too few of them for it.
#[must_use]
pub fn interval(values: &[Duration], share: f64, seed: u64) -> Option<Interval> {
    let quantiles = resampled(values, share, seed)?;
    Some(Interval { low: millis(quantile(&quantiles, 0.025)?), high: millis(quantile(&quantiles, 0.975)?) })
}

/// Returns the interval of how much larger a quantile of `later` is than that of `earlier`; `None` where there are too few of either.
#[must_use]
pub fn interval_of_difference(earlier: &[Duration], later: &[Duration], share: f64, seed: u64) -> Option<Interval> {
    let (earlier, later) = (resampled(earlier, share, seed)?, resampled(later, share, seed ^ 1)?);
    let mut differences: Vec<f64> = earlier.iter().zip(&later).map(|(old, new)| millis(*new) - millis(*old)).collect();
    differences.sort_by(f64::total_cmp);
    let (low, high) = (differences.get(RESAMPLES / 40)?, differences.get(RESAMPLES - 1 - RESAMPLES / 40)?);
    Some(Interval { low: *low, high: *high })
}

/// Quantiles of resamples that are put together of blocks of the values.
fn resampled(values: &[Duration], share: f64, seed: u64) -> Option<Vec<Duration>> {
    let count = values.len();
    // Ten values have to be beyond the quantile.
    if count < FEWEST || float(count) * (1.0 - share) < 10.0 {
        return None;
    }
    let length = count.isqrt().isqrt().max(1) * 2;
    let mut random = StdRng::seed_from_u64(seed);
    let mut quantiles: Vec<Duration> = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        let mut resampled = Vec::with_capacity(count + length);
        while resampled.len() < count {
            let from = random.random_range(0..=count - length.min(count));
            resampled.extend(values.iter().skip(from).take(length));
        }
        resampled.truncate(count);
        quantiles.extend(quantile(&resampled, share));
    }
    Some(quantiles)
}

/// The smallest value that at least this share of them does not exceed.
#[must_use]
pub fn quantile(values: &[Duration], share: f64) -> Option<Duration> {
    let mut values = values.to_vec();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length")]
    let place = ((float(values.len()) * share).ceil() as usize).saturating_sub(1);
    (place < values.len()).then(|| *values.select_nth_unstable(place).1)
}

/// Ranks from 1; equal values share the mean of theirs.
fn ranks(values: &[Duration]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by_key(|place| values.get(*place));
    let mut ranks = vec![0.0; values.len()];
    let mut from = 0;
    for equal in order.chunk_by(|one, other| values.get(*one) == values.get(*other)) {
        let rank = float(2 * from + equal.len() + 1) / 2.0;
        from += equal.len();
        for place in equal {
            if let Some(own) = ranks.get_mut(*place) {
                *own = rank;
            }
        }
    }
    ranks
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^53")]
fn float(count: usize) -> f64 {
    count as f64
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Values of a run: noise of a factor of two around 20 ms, times `slower` from three fifths on.
    fn run(seed: u64, count: u32, slower: f64) -> Vec<(Duration, Duration)> {
        let mut random = StdRng::seed_from_u64(seed);
        (0..count)
            .map(|number| {
                let factor = if number >= count * 3 / 5 { slower } else { 1.0 };
                (MS * number * 100, (MS * 20).mul_f64((0.7 + 0.7 * random.random::<f64>()) * factor))
            })
            .collect()
    }

    #[test]
    fn a_server_that_slows_down_is_found_with_its_time() {
        let found = change(&run(1, 500, 2.0)).unwrap();
        assert!((found.at_s - 30.0).abs() < 1.0, "{found:?}");
        assert!((found.after_ms / found.before_ms - 2.0).abs() < 0.2, "{found:?}");
    }

    #[test]
    fn a_steady_run_has_no_change() {
        let changes = (0..200).filter(|seed| change(&run(*seed, 300, 1.0)).is_some()).count();
        assert_eq!(changes, 0);
        assert_eq!(change(&run(1, 20, 4.0)), None, "too few to say");
    }

    #[test]
    fn an_interval_holds_the_true_quantile() {
        let holds = (0..100).filter(|seed| {
            let values: Vec<Duration> = run(*seed, 400, 1.0).into_iter().map(|(_, value)| value).collect();
            let interval = interval(&values, 0.5, *seed).unwrap();
            (interval.low..=interval.high).contains(&21.0)
        });
        assert!(holds.count() >= 88);
        assert_eq!(interval(&[MS; 100], 0.999, 0), None, "p99.9 of a hundred");
    }

    #[test]
    fn a_difference_is_shown_where_there_is_one_and_not_else() {
        let values = |seed, slower| run(seed, 400, slower).into_iter().map(|(_, value)| value).collect::<Vec<_>>();
        let holds_zero = |earlier: &[Duration], later: &[Duration]| {
            let interval = interval_of_difference(earlier, later, 0.5, 7).unwrap();
            interval.low <= 0.0 && interval.high >= 0.0
        };
        let same = (0..20).filter(|seed| holds_zero(&values(*seed, 1.0), &values(seed + 100, 1.0))).count();
        assert!(same >= 18, "{same} of 20 runs against themselves");
        let slower: Vec<Duration> = values(3, 1.0).into_iter().map(|value| value.mul_f64(1.2)).collect();
        assert!(!holds_zero(&values(4, 1.0), &slower));
    }
}
