//! What changes in the course of a run: TTFT by arrival, and output tokens per second.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use crate::{
    base::{stats::quantile, units::Millis},
    recording::trace::Record,
    replay::meter,
};

/// Groups of neighbouring responses, at most.
const GROUPS: usize = 120;

/// Buckets of a rate that are shown, at most.
const BUCKETS: u64 = 120;

/// Buckets that are counted while the length of the run is unknown, at most.
const MOST_BUCKETS: usize = 4096;

/// Width of the narrowest bucket, in microseconds.
const NARROWEST: u64 = 1000;

/// Moments to which the tokens of a response are assigned whose gaps were recorded as their mean only, at most.
const MOMENTS: u32 = 256;

/// TTFT in the course of a run: of groups of neighbouring responses, 120 at most. A point is `[seconds from the first arrival, milliseconds]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct OverTime {
    /// Responses of a group; the last one may have fewer.
    pub responses_per_group: usize,
    /// The median of each group.
    pub p50: Vec<[f64; 2]>,
    /// Its largest value.
    pub max: Vec<[f64; 2]>,
}

/// Rate of tokens in the course of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TokenRate {
    /// Start of the first bucket, in seconds from the first arrival.
    pub from_s: f64,
    /// Width of a bucket in milliseconds.
    pub bucket_ms: f64,
    /// Output tokens per second in each bucket, 120 buckets at most.
    pub series: Vec<f64>,
}

/// Arrivals and TTFTs.
#[derive(Debug, Default)]
pub(super) struct FirstTokens(Vec<(Duration, Duration)>);

impl FirstTokens {
    pub(super) fn add(&mut self, record: &Record) {
        self.0.extend(record.arrival.zip(meter::ttft(record)));
    }

    /// Groups the responses of a run that began then.
    pub(super) fn over_time(mut self, begin: Duration) -> Option<OverTime> {
        self.0.sort_unstable();
        let size = self.0.len().div_ceil(GROUPS).max(1);
        let mut over_time = OverTime { responses_per_group: size, ..OverTime::default() };
        for group in self.0.chunks(size) {
            let (arrivals, ttfts): (Vec<Duration>, Vec<Duration>) = group.iter().copied().unzip();
            let middle = arrivals.get(arrivals.len() / 2).copied().unwrap_or_default();
            let at = middle.saturating_sub(begin).as_secs_f64();
            let point = |ttft: Duration| [at, Millis::from(ttft).0];
            over_time.p50.extend(quantile(&ttfts, 0.5).map(point));
            over_time.max.extend(ttfts.iter().max().copied().map(point));
        }
        (!over_time.p50.is_empty()).then_some(over_time)
    }
}

/// Tokens by time. Buckets become twice as wide as soon as there are too many of them, so that runs of any length fit.
#[derive(Debug)]
pub(super) struct TokenBuckets {
    /// In microseconds.
    width: u64,
    /// Tokens by the number of their bucket, from the capture's zero.
    tokens: BTreeMap<u64, u64>,
}

impl Default for TokenBuckets {
    fn default() -> Self {
        Self { width: NARROWEST, tokens: BTreeMap::new() }
    }
}

impl TokenBuckets {
    pub(super) fn add(&mut self, record: &Record) {
        let Some(mut at) = record.arrival else { return };
        let mut listed = 0;
        for chunk in &record.chunks {
            at = at.saturating_add(chunk.gap);
            listed += u64::from(chunk.tokens);
            self.count(at, u64::from(chunk.tokens));
        }
        let Some(summary) = &record.itl_summary else { return };
        let rest = u64::from(record.output_tokens).saturating_sub(listed);
        let gap = Millis(summary.mean_ms).duration().unwrap_or_default();
        let moments = u64::from(MOMENTS).min(rest);
        for moment in 1..=moments {
            let (before, until) = (rest * (moment - 1) / moments, rest * moment / moments);
            let after = gap.saturating_mul(u32::try_from(until).unwrap_or(u32::MAX));
            self.count(at.saturating_add(after), until - before);
        }
    }

    fn count(&mut self, at: Duration, tokens: u64) {
        let micros = u64::try_from(at.as_micros()).unwrap_or(u64::MAX);
        *self.tokens.entry(micros / self.width).or_default() += tokens;
        while self.tokens.len() > MOST_BUCKETS {
            self.widen();
        }
    }

    fn widen(&mut self) {
        self.width = self.width.saturating_mul(2);
        let mut wider = BTreeMap::new();
        for (bucket, tokens) in std::mem::take(&mut self.tokens) {
            *wider.entry(bucket / 2).or_default() += tokens;
        }
        self.tokens = wider;
    }

    fn ends(&self) -> Option<(u64, u64)> {
        Some((*self.tokens.first_key_value()?.0, *self.tokens.last_key_value()?.0))
    }

    /// The rate of a run that began then.
    pub(super) fn rate(mut self, begin: Duration) -> Option<TokenRate> {
        while self.ends().is_some_and(|(first, last)| last - first >= BUCKETS) {
            self.widen();
        }
        let (first, last) = self.ends()?;
        let width = Duration::from_micros(self.width);
        let of = |bucket| self.tokens.get(&bucket).copied().unwrap_or_default() as f64 / width.as_secs_f64();
        Some(TokenRate {
            from_s: Duration::from_micros(first.saturating_mul(self.width)).as_secs_f64() - begin.as_secs_f64(),
            bucket_ms: Millis::from(width).0,
            series: (first..=last).map(of).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::trace::{Chunk, ItlSummary};

    const MS: Duration = Duration::from_millis(1);

    fn record(arrival: u32, gaps: &[u32]) -> Record {
        let chunk = |gap: &u32| Chunk { gap: MS * *gap, tokens: 2, step: None };
        let chunks: Vec<Chunk> = gaps.iter().map(chunk).collect();
        let output_tokens = u32::try_from(chunks.len()).unwrap() * 2;
        Record { arrival: Some(MS * arrival), chunks, output_tokens, ..Record::default() }
    }

    fn total(rate: &TokenRate) -> f64 {
        rate.series.iter().sum::<f64>() * rate.bucket_ms / 1000.0
    }

    #[test]
    fn every_token_is_in_one_bucket_however_long_the_run_is() {
        for step in [1, 1000, 60_000] {
            let mut buckets = TokenBuckets::default();
            (0..3000).for_each(|number| buckets.add(&record(5000 + number * step, &[20, 30])));
            assert!(buckets.tokens.len() <= MOST_BUCKETS, "{}", buckets.tokens.len());
            let rate = buckets.rate(MS * 5000).unwrap();
            assert!((total(&rate) - 12_000.0).abs() < 1e-6, "{rate:?}");
            assert!((60..=120).contains(&rate.series.len()), "{}", rate.series.len());
            assert!(rate.from_s <= 0.02 && rate.from_s > -rate.bucket_ms / 1000.0, "{rate:?}");
        }
        assert_eq!(TokenBuckets::default().rate(MS), None);
    }

    #[test]
    fn tokens_of_summarised_gaps_are_spread_and_all_counted() {
        let itl_summary = Some(ItlSummary { mean_ms: 1.0, count: u32::MAX - 2 });
        let long = Record { itl_summary, output_tokens: u32::MAX, ..record(0, &[5]) };
        let mut buckets = TokenBuckets::default();
        buckets.add(&long);
        let rate = buckets.rate(Duration::ZERO).unwrap();
        assert!((total(&rate) / f64::from(u32::MAX) - 1.0).abs() < 1e-9, "{rate:?}");
        assert!(rate.series.len() > 50, "{}", rate.series.len());
    }

    #[test]
    fn moments_that_no_clock_has_do_no_harm() {
        let mut buckets = TokenBuckets::default();
        buckets.add(&Record { arrival: Some(Duration::MAX), ..record(0, &[1]) });
        buckets.add(&record(0, &[1]));
        let rate = buckets.rate(Duration::ZERO).unwrap();
        assert!(rate.series.len() <= 120 && rate.series.iter().all(|value| value.is_finite()), "{rate:?}");
    }

    #[test]
    fn groups_of_neighbours_keep_their_largest_value() {
        let mut ttfts = FirstTokens::default();
        (0..1000).for_each(|number| ttfts.add(&record(number, &[if number == 500 { 900 } else { 20 }])));
        let over_time = ttfts.over_time(Duration::ZERO).unwrap();
        assert_eq!((over_time.responses_per_group, over_time.p50.len()), (9, 112));
        assert!(over_time.p50.iter().all(|[_, ms]| *ms == 20.0));
        let slow: Vec<_> = over_time.max.iter().filter(|[_, ms]| *ms == 900.0).collect();
        assert!(slow.len() == 1 && (slow[0][0] - 0.5).abs() < 0.01, "{slow:?}");
        assert_eq!(FirstTokens::default().over_time(Duration::ZERO), None);
    }
}
