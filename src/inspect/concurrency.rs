//! Concurrency: requests that ran at once, from their arrivals and durations.

use std::time::Duration;

use serde::Serialize;

/// Buckets of the time series, at most.
const BUCKETS: usize = 60;

/// Requests in flight over the capture.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Concurrency {
    /// The most at any moment.
    pub max: u64,
    /// Mean over time, from the first arrival to the last end.
    pub mean: f64,
    /// Width of a bucket in milliseconds.
    pub bucket_ms: f64,
    /// Mean requests in flight in each bucket, 60 buckets at most.
    pub series: Vec<f64>,
}

/// Measures intervals of (arrival, duration); `None` when there are none.
pub(super) fn measure(intervals: &[(Duration, Duration)]) -> Option<Concurrency> {
    let start = intervals.iter().map(|(arrival, _)| *arrival).min()?;
    let end = intervals.iter().map(|(arrival, length)| arrival.saturating_add(*length)).max()?;
    let span = end.saturating_sub(start).as_secs_f64();
    let busy: f64 = intervals.iter().map(|(_, length)| length.as_secs_f64()).sum();
    let buckets = BUCKETS.min(intervals.len().max(1) * 4);
    let width = span / buckets as f64;
    let mut series = vec![0.0; buckets];
    if width > 0.0 {
        for (arrival, length) in intervals {
            let from = arrival.saturating_sub(start).as_secs_f64() / width;
            spread(&mut series, from, from + length.as_secs_f64() / width);
        }
    }
    let mean = if span > 0.0 { busy / span } else { 0.0 };
    Some(Concurrency { max: peak(intervals), mean, bucket_ms: width * 1e3, series })
}

/// Adds one interval, in units of buckets, to the buckets that it covers.
#[allow(clippy::cast_possible_truncation)] // 0 to 60
fn spread(series: &mut [f64], from: f64, to: f64) {
    let (first, last) = (from as usize, to.ceil() as usize);
    for (index, bucket) in series.iter_mut().enumerate().take(last).skip(first) {
        let left = index as f64;
        *bucket += (to.min(left + 1.0) - from.max(left)).max(0.0);
    }
}

/// The most intervals that overlap; one that ends as another begins does not overlap it.
fn peak(intervals: &[(Duration, Duration)]) -> u64 {
    let mut edges: Vec<(Duration, i64)> = intervals
        .iter()
        .filter(|(_, length)| !length.is_zero())
        .flat_map(|(arrival, length)| [(*arrival, 1), (arrival.saturating_add(*length), -1)])
        .collect();
    edges.sort_unstable();
    let (mut now, mut most) = (0_i64, 0_i64);
    for (_, change) in edges {
        now += change;
        most = most.max(now);
    }
    most.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_is_counted_and_spread_over_buckets() {
        let second = Duration::from_secs(1);
        let found = measure(&[(second, second * 2), (second * 2, second * 2), (second * 4, second)]).unwrap();
        assert_eq!(found.max, 2);
        assert!((found.mean - 1.25).abs() < 1e-9);
        let mean = found.series.iter().sum::<f64>() / 12.0;
        assert_eq!(found.series.len(), 12);
        assert!((mean - 1.25).abs() < 1e-9, "{mean}");
        assert_eq!(measure(&[]), None);
    }
}
