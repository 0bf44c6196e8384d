//! A histogram of atomics, and Prometheus' way to write numbers.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Values by bucket. Sums are kept in whole units: nanoseconds or tokens.
#[derive(Debug)]
pub struct Histogram {
    bounds: Vec<f64>,
    /// One more than there are bounds.
    buckets: Vec<AtomicU64>,
    sum: AtomicU64,
    units: f64,
}

const NANOS: f64 = 1e9;

impl Default for Histogram {
    /// One bucket for all counts.
    fn default() -> Self {
        Self::counts(Vec::new())
    }
}

impl Histogram {
    /// Of durations, bounds in seconds.
    #[must_use]
    pub fn seconds(bounds: &[f64]) -> Self {
        Self::new(bounds.to_vec(), NANOS)
    }

    /// Of counts.
    #[must_use]
    pub fn counts(bounds: Vec<f64>) -> Self {
        Self::new(bounds, 1.0)
    }

    fn new(bounds: Vec<f64>, units: f64) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, sum: AtomicU64::new(0), units }
    }

    /// Adds a duration.
    pub fn time(&self, duration: Duration) {
        self.time_all(duration, 1);
    }

    /// Adds a duration so many times.
    pub fn time_all(&self, duration: Duration, times: u64) {
        self.add(duration.as_secs_f64(), u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), times);
    }

    /// Adds a count.
    pub fn count(&self, count: u32) {
        self.add(f64::from(count), u64::from(count), 1);
    }

    fn add(&self, value: f64, units: u64, times: u64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = self.buckets.get(at) {
            bucket.fetch_add(times, Relaxed);
            self.sum.fetch_add(units.wrapping_mul(times), Relaxed);
        }
    }

    /// Each bound as Prometheus writes it, with how many values were no larger.
    pub(crate) fn cumulated(&self) -> Vec<(String, f64)> {
        let bounds = self.bounds.iter().map(|bound| number(*bound)).chain(["+Inf".to_owned()]);
        let counts = self.buckets.iter().scan(0, |below, bucket| {
            *below += bucket.load(Relaxed);
            Some(float(*below))
        });
        bounds.zip(counts).collect()
    }

    /// Returns the number of values.
    #[must_use]
    pub fn total(&self) -> f64 {
        float(self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum())
    }

    /// Their sum.
    #[must_use]
    pub fn sum(&self) -> f64 {
        float(self.sum.load(Relaxed)) / self.units
    }
}

/// 1, 2, 5, 10 and so on up to `most`.
#[must_use]
pub fn one_two_five(most: u32) -> Vec<f64> {
    let decades = (0..10).map(|exponent| 10_f64.powi(exponent));
    let all = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|mantissa| mantissa * decade));
    all.take_while(|bound| *bound <= f64::from(most)).collect()
}

/// A counter's value.
#[must_use]
pub fn float(count: u64) -> f64 {
    count as f64
}

/// A number as Prometheus' Python client writes it: all are floats, from a million on with an exponent.
#[must_use]
pub fn number(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let plain = format!("{value:?}");
    if let Some((mantissa, exponent)) = plain.split_once('e') {
        let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    let (whole, fraction) = plain.split_once('.').unwrap_or((&plain, "0"));
    if value < 0.0 || whole.len() <= 6 {
        return plain;
    }
    let (first, rest) = whole.split_at(1);
    let digits = format!("{first}.{rest}{fraction}");
    format!("{}e+0{}", digits.trim_end_matches(['0', '.']), whole.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_by_the_python_client() {
        for (value, text) in [
            (0.0, "0.0"),
            (882.0, "882.0"),
            (30.86, "30.86"),
            (0.00005, "5e-05"),
            (999_999.5, "999999.5"),
            (1_000_000.0, "1e+06"),
            (4_919_201_792.0, "4.919201792e+09"),
            (1_795_229_313.049_081_6, "1.7952293130490816e+09"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_value_counts_in_its_bucket_and_all_larger_ones() {
        let histogram = Histogram::seconds(&[0.001, 0.5]);
        for millis in [1, 2, 700] {
            histogram.time(Duration::from_millis(millis));
        }
        let expected = [("0.001", 1.0), ("0.5", 2.0), ("+Inf", 3.0)].map(|(bound, count)| (bound.to_owned(), count));
        assert_eq!(histogram.cumulated(), expected);
        assert_eq!((histogram.total(), histogram.sum()), (3.0, 0.703));
    }

    #[test]
    fn bounds_end_below_the_longest() {
        assert_eq!(one_two_five(4096).last(), Some(&2000.0));
        assert_eq!(one_two_five(32_768).last(), Some(&20_000.0));
        assert_eq!(one_two_five(5), [1.0, 2.0, 5.0]);
    }
}
