//! Whether a run was in one state, and how sure its quantiles are.
//!
//! A change is looked for with the cumulative sum of ranks (Pettitt 1979, "A non-parametric approach to the change-point problem"): ranks, because latencies have long tails.
//! Intervals come from a moving-block bootstrap (Künsch 1989), because requests that are near in time are slow together.

use std::time::Duration;

use base::stats::quantile;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::Serialize;

use crate::numbers::{float, millis};

/// Minimum number of values for a result.
const FEWEST: usize = 40;

/// The statistic from which a change is one. For independent values 1.63 has a probability of 1 %; requests are not independent.
const CRITICAL: f64 = 2.5;

/// Ratio of the medians on both sides of a change, at least.
const FACTOR: f64 = 1.3;

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

/// Bounds between which a figure lies with a probability of 95 %, in its unit: of latencies milliseconds.
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

/// Returns the interval of each of these quantiles, the shares ascending, of values in the order of their times; `None` where there are too few of
/// them for it.
#[must_use]
pub fn intervals(values: &[Duration], shares: &[f64], seed: u64) -> Vec<Option<Interval>> {
    let values = Grouped::new(values.iter().map(|value| millis(*value)).enumerate());
    values.resampled(shares, seed).iter().map(|quantiles| bounds(quantiles)).collect()
}

/// Returns the interval of how much larger a figure of one run is than that of an earlier one, from the figures of their resamples; `None` where
/// either has none.
#[must_use]
pub fn interval_of_difference(earlier: &[f64], later: &[f64]) -> Option<Interval> {
    bounds(&earlier.iter().zip(later).map(|(old, new)| new - old).collect::<Vec<_>>())
}

/// The middle 95 % of the figures of resamples.
pub(crate) fn bounds(figures: &[f64]) -> Option<Interval> {
    let mut figures = figures.to_vec();
    figures.sort_by(f64::total_cmp);
    let beyond = figures.len() / 40;
    let (low, high) = (figures.get(beyond)?, figures.iter().rev().nth(beyond)?);
    Some(Interval { low: *low, high: *high })
}

/// Computes a figure of each resample, from how often each of the `count` neighbours is in it. Blocks of neighbours are drawn.
fn resample<T>(count: usize, seed: u64, mut figure: impl FnMut(&[u32]) -> T) -> Vec<T> {
    let length = (count.isqrt().isqrt().max(1) * 2).min(count);
    let mut random = StdRng::seed_from_u64(seed);
    let mut one = || {
        let mut drawn = vec![0; count];
        let mut left = count;
        while left > 0 {
            let from = random.random_range(0..=count - length);
            let taken = length.min(left);
            drawn.iter_mut().skip(from).take(taken).for_each(|times| *times += 1);
            left -= taken;
        }
        figure(&drawn)
    };
    (0..RESAMPLES).map(|_| one()).collect()
}

/// Values by the request that they are of: one has a TTFT, and a gap for each of its tokens but the first. Whole requests are resampled, because the
/// gaps of one are alike.
#[derive(Debug, Clone, Default)]
pub struct Grouped {
    /// Values with the numbers of their requests, sorted by value.
    sorted: Vec<(usize, f64)>,
    requests: usize,
}

impl Grouped {
    /// Takes values, each with the place of its request in the order of their times. A place without values is no request.
    #[must_use]
    pub fn new(values: impl IntoIterator<Item = (usize, f64)>) -> Self {
        let mut sorted: Vec<(usize, f64)> = values.into_iter().collect();
        sorted.sort_by_key(|(place, _)| *place);
        let mut requests = 0;
        for request in sorted.chunk_by_mut(|(one, _), (other, _)| one == other) {
            request.iter_mut().for_each(|(place, _)| *place = requests);
            requests += 1;
        }
        sorted.sort_by(|(_, one), (_, other)| one.total_cmp(other));
        Self { sorted, requests }
    }

    /// Returns the smallest value that at least this share of them does not exceed.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        self.quantiles(&[share], |_| 1).pop()
    }

    /// Returns these quantiles, the shares ascending, of values of which each counts as often as its request.
    fn quantiles(&self, shares: &[f64], times: impl Fn(usize) -> u32) -> Vec<f64> {
        let total: f64 = self.sorted.iter().map(|(request, _)| f64::from(times(*request))).sum();
        let mut wanted = shares.iter().map(|share| (total * share).ceil().max(1.0)).peekable();
        let mut quantiles = Vec::with_capacity(shares.len());
        let mut sum = 0.0;
        for (request, value) in &self.sorted {
            sum += f64::from(times(*request));
            while wanted.next_if(|place| sum >= *place).is_some() {
                quantiles.push(*value);
            }
        }
        quantiles
    }

    /// Returns, for each of the shares in ascending order, that quantile of every resample; none where there are too few values for it.
    #[must_use]
    pub fn resampled(&self, shares: &[f64], seed: u64) -> Vec<Vec<f64>> {
        // Ten values have to be beyond a quantile.
        let is_known = |share: f64| self.requests >= FEWEST && float(self.sorted.len()) * (1.0 - share) >= 10.0;
        let known: Vec<f64> = shares.iter().copied().filter(|share| is_known(*share)).collect();
        let mut resampled = vec![Vec::new(); shares.len()];
        if known.is_empty() {
            return resampled;
        }
        let of = |drawn: &[u32]| self.quantiles(&known, |request| drawn.get(request).copied().unwrap_or_default());
        for quantiles in resample(self.requests, seed, of) {
            resampled.iter_mut().zip(quantiles).for_each(|(all, quantile)| all.push(quantile));
        }
        resampled
    }
}

/// A sum divided by another one, of parts in the order of their times: failed requests by requests, tokens by seconds.
#[derive(Debug, Clone, Default)]
pub struct Ratio(Vec<(f64, f64)>);

impl Ratio {
    /// Takes what each part adds to both sums.
    #[must_use]
    pub fn new(parts: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self(parts.into_iter().collect())
    }

    /// Returns the ratio; `None` where the divisor is zero.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        self.weighted(|_| 1)
    }

    fn weighted(&self, times: impl Fn(usize) -> u32) -> Option<f64> {
        let add = |(above, below), (place, part): (usize, &(f64, f64))| {
            let times = f64::from(times(place));
            (above + part.0 * times, below + part.1 * times)
        };
        let (above, below) = self.0.iter().enumerate().fold((0.0, 0.0), add);
        (below > 0.0).then_some(above / below)
    }

    /// Returns the ratio of every resample; none where there are too few parts.
    #[must_use]
    pub fn resampled(&self, seed: u64) -> Vec<f64> {
        if self.0.len() < FEWEST {
            return Vec::new();
        }
        let of = |drawn: &[u32]| self.weighted(|place| drawn.get(place).copied().unwrap_or_default());
        resample(self.0.len(), seed, of).into_iter().flatten().collect()
    }
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
            let interval = intervals(&values, &[0.5], *seed)[0].unwrap();
            (interval.low..=interval.high).contains(&21.0)
        });
        assert!(holds.count() >= 88);
        assert_eq!(intervals(&[MS; 100], &[0.999], 0), [None], "p99.9 of a hundred");
    }

    fn singles(seed: u64, slower: f64) -> Grouped {
        Grouped::new(run(seed, 400, 1.0).iter().map(|(_, value)| millis(*value) * slower).enumerate())
    }

    #[test]
    fn a_difference_is_shown_where_there_is_one_and_not_else() {
        let holds_zero = |earlier: &Grouped, later: &Grouped| {
            let (earlier, later) = (earlier.resampled(&[0.5], 7), later.resampled(&[0.5], 6));
            let interval = interval_of_difference(&earlier[0], &later[0]).unwrap();
            interval.low <= 0.0 && interval.high >= 0.0
        };
        let same = (0..20).filter(|seed| holds_zero(&singles(*seed, 1.0), &singles(seed + 100, 1.0))).count();
        assert!(same >= 18, "{same} of 20 runs against themselves");
        assert!(!holds_zero(&singles(4, 1.0), &singles(3, 1.2)));
    }

    #[test]
    fn values_of_one_request_are_resampled_together() {
        let width = |per_request: usize| {
            let mut random = StdRng::seed_from_u64(5);
            let levels: Vec<f64> = (0..2000 / per_request).map(|_| 1.0 + random.random::<f64>()).collect();
            let values = (0..2000).map(|number| (number / per_request, levels[number / per_request]));
            let interval = bounds(&Grouped::new(values).resampled(&[0.5], 0)[0]).unwrap();
            interval.high - interval.low
        };
        // 50 levels say less about their median than 2,000 do.
        assert!(width(40) > width(1) * 3.0, "{} {}", width(40), width(1));
    }

    #[test]
    fn quantiles_are_those_of_the_values() {
        let values = Grouped::new([(3, 4.0), (0, 1.0), (3, 2.0), (9, 3.0)]);
        assert_eq!([0.0, 0.25, 0.5, 0.9, 1.0].map(|share| values.quantile(share)), [1.0, 1.0, 2.0, 4.0, 4.0].map(Some));
        assert_eq!(values.requests, 3);
        assert_eq!(Grouped::default().quantile(0.5), None);
        assert!(values.resampled(&[0.5, 0.9], 0).iter().all(Vec::is_empty), "too few");
        let many = singles(1, 1.0).resampled(&[0.5, 0.99], 0);
        assert_eq!((many[0].len(), many[1].len()), (RESAMPLES, 0), "four are beyond the 99th percentile of 400");
    }

    #[test]
    fn a_ratio_has_an_interval_too() {
        let ratio = |every: u32| Ratio::new((0..500).map(|number| (f64::from(u8::from(number % every == 0)), 1.0)));
        assert_eq!(ratio(10).value(), Some(0.1));
        let difference =
            |one, other| interval_of_difference(&ratio(one).resampled(0), &ratio(other).resampled(1)).unwrap();
        let (same, other) = (difference(10, 10), difference(10, 5));
        assert!(same.low <= 0.0 && same.high >= 0.0, "{same:?}");
        assert!(other.low > 0.0 && other.low < 0.1 && other.high > 0.1, "{other:?}");
        assert_eq!(Ratio::new([(1.0, 0.0)]).value(), None);
    }
}
