//! A closed loop at one concurrency, in figures of its steady window.

use std::{
    io::{self, Write},
    time::Duration,
};

use base::stats::quantile;
use serde::Serialize;

use crate::{
    numbers::float,
    results::Sample,
    steady::{self, Interval, Ratio},
};

/// Parts of a window, of which resamples are made.
const PARTS: usize = 64;

/// A closed loop at one concurrency.
#[derive(Debug, Clone, Serialize)]
pub struct Rung {
    /// Sessions on their way.
    pub concurrency: usize,
    /// The window: from here, in seconds from the start.
    pub from_s: f64,
    /// Up to here.
    pub to_s: f64,
    /// Requests that ended well, of those that were on their way in the window.
    pub requests: u64,
    /// Requests that did not, of all.
    pub failed: u64,
    /// Requests that ended well a second, in the window; of one that is not all in it, the share of its time that is.
    pub request_throughput: f64,
    /// Output tokens a second, each at its time between the first token and the end.
    pub output_throughput: f64,
    /// The interval of that; `None` where the window is empty.
    pub output_throughput_interval: Option<Interval>,
    /// Mean end-to-end latency, in milliseconds.
    pub e2e_mean_ms: f64,
    /// Median time to the first token.
    pub ttft_p50_ms: Option<f64>,
    /// Its 99th percentile.
    pub ttft_p99_ms: Option<f64>,
    /// Throughput times mean end-to-end latency, by Little's law the requests on their way.
    pub in_flight: f64,
    /// Share of the requests that kept the limits; `None` without limits.
    pub slo_share: Option<f64>,
    /// Such requests a second.
    pub goodput: Option<f64>,
    /// Their tokens a second.
    pub token_goodput: Option<f64>,
    /// Output tokens a second of resamples.
    #[serde(skip)]
    resampled: Vec<f64>,
}

/// Writes a table of rungs as comma-separated values, a line each. What is not known is empty.
///
/// # Errors
/// When it cannot be written.
pub fn csv(out: &mut impl Write, rungs: &[Rung]) -> io::Result<()> {
    writeln!(
        out,
        "concurrency,from_s,to_s,requests,failed,in_flight,request_throughput,output_throughput,output_throughput_low,output_throughput_high,e2e_mean_ms,ttft_p50_ms,ttft_p99_ms,slo_share,goodput,token_goodput"
    )?;
    for rung in rungs {
        let interval = rung.output_throughput_interval;
        write!(out, "{},{},{},{},{}", rung.concurrency, rung.from_s, rung.to_s, rung.requests, rung.failed)?;
        for figure in [
            Some(rung.in_flight),
            Some(rung.request_throughput),
            Some(rung.output_throughput),
            interval.map(|interval| interval.low),
            interval.map(|interval| interval.high),
            Some(rung.e2e_mean_ms),
            rung.ttft_p50_ms,
            rung.ttft_p99_ms,
            rung.slo_share,
            rung.goodput,
            rung.token_goodput,
        ] {
            write!(out, ",{}", figure.map(|figure| figure.to_string()).unwrap_or_default())?;
        }
        writeln!(out)?;
    }
    Ok(())
}

impl Rung {
    /// Measures the requests of a closed loop that began sessions for so long.
    pub(crate) fn of(concurrency: usize, samples: &[Sample], length: Duration) -> Self {
        let window = window(concurrency, samples, length);
        let inside: Vec<(f64, &Sample)> =
            samples.iter().map(|sample| (window.share_of(sample), sample)).filter(|(share, _)| *share > 0.0).collect();
        let good = || inside.iter().filter(|(_, sample)| sample.is_good);
        let seconds = (window.to - window.from).max(1e-9);
        let requests = good().count();
        // The sum of nothing is -0.
        let sum = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() + 0.0;
        let e2e_mean = sum(&mut good().map(|(_, sample)| sample.e2e.as_secs_f64())) / float(requests.max(1));
        let request_throughput = sum(&mut good().map(|(share, _)| *share)) / seconds;
        let ttfts: Vec<Duration> = good().filter_map(|(_, sample)| sample.ttft).collect();
        let ttft = |share| quantile(&ttfts, share).map(|ttft| ttft.as_secs_f64() * 1e3);
        let kept = || inside.iter().filter(|(_, sample)| sample.keeps_slo);
        let tokens = window.tokens(samples.iter()).into_iter().map(|tokens| (tokens, seconds / float(PARTS)));
        let tokens = Ratio::new(tokens);
        let good_tokens = window.tokens(samples.iter().filter(|sample| sample.keeps_slo));
        let resampled = if inside.is_empty() { Vec::new() } else { tokens.resampled(0) };
        Self {
            concurrency,
            from_s: window.from,
            to_s: window.to,
            requests: u64::try_from(requests).unwrap_or(u64::MAX),
            failed: samples.iter().filter(|sample| !sample.is_good).count().try_into().unwrap_or(u64::MAX),
            request_throughput,
            output_throughput: tokens.value().unwrap_or_default(),
            output_throughput_interval: steady::bounds(&resampled),
            e2e_mean_ms: e2e_mean * 1e3,
            ttft_p50_ms: ttft(0.5),
            ttft_p99_ms: ttft(0.99),
            in_flight: request_throughput * e2e_mean,
            slo_share: (!inside.is_empty()).then(|| float(kept().count()) / float(inside.len())),
            goodput: Some(sum(&mut kept().map(|(share, _)| *share)) / seconds),
            token_goodput: Some(sum(&mut good_tokens.into_iter()) / seconds),
            resampled,
        }
    }

    /// Returns the interval of how much more output tokens a second another rung has.
    pub(crate) fn interval_to(&self, other: &Self) -> Option<Interval> {
        steady::interval_of_difference(&self.resampled, &other.resampled)
    }

    /// Leaves out what only limits give a meaning.
    pub(crate) fn forget_slo(&mut self) {
        (self.slo_share, self.goodput, self.token_goodput) = (None, None, None);
    }
}

#[cfg(test)]
impl Rung {
    /// A rung of a server of which everything is known.
    pub(crate) fn made_up(concurrency: usize, throughput: f64, slo_share: Option<f64>) -> Self {
        let noise = (0..100).map(|number| throughput * (1.0 + (f64::from(number) - 49.5) * 1e-4));
        Self {
            output_throughput: throughput,
            request_throughput: throughput,
            slo_share,
            goodput: slo_share.map(|share| share * throughput),
            resampled: noise.collect(),
            ..Self::of(concurrency, &[], Duration::from_secs(1))
        }
    }
}

/// Seconds from the start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Window {
    from: f64,
    to: f64,
}

/// From when every place has come round, at most half of the time, to when no session is begun any more; the longer part of that where latencies
/// changed within it.
fn window(concurrency: usize, samples: &[Sample], length: Duration) -> Window {
    let mut ends: Vec<Duration> = samples.iter().map(end).collect();
    ends.sort_unstable();
    let to = length.min(ends.last().copied().unwrap_or_default());
    let round = ends.get(concurrency.saturating_sub(1)).copied().unwrap_or(to);
    let whole = Window { from: round.min(to / 2).as_secs_f64(), to: to.as_secs_f64() };
    let begun = samples.iter().filter(|sample| sample.is_good && whole.contains(sample.sent));
    let latencies: Vec<(Duration, Duration)> = begun.map(|sample| (sample.sent, sample.e2e)).collect();
    match steady::change(&latencies) {
        Some(change) if change.at_s * 2.0 > whole.from + whole.to => Window { to: change.at_s, ..whole },
        Some(change) => Window { from: change.at_s, ..whole },
        None => whole,
    }
}

fn end(sample: &Sample) -> Duration {
    sample.sent + sample.e2e
}

impl Window {
    /// So many windows of this width, one after the other.
    pub(crate) fn parts(width: f64, count: usize) -> impl Iterator<Item = Self> {
        (0..count).map(move |part| Self { from: float(part) * width, to: float(part + 1) * width })
    }

    pub(crate) fn middle(self) -> f64 {
        f64::midpoint(self.from, self.to)
    }

    fn contains(&self, at: Duration) -> bool {
        (self.from..self.to).contains(&at.as_secs_f64())
    }

    /// The share of the time between these that is in it.
    pub(crate) fn share_between(&self, from: f64, to: f64) -> f64 {
        if to <= from {
            return f64::from(u8::from((self.from..self.to).contains(&from)));
        }
        (to.min(self.to) - from.max(self.from)).max(0.0) / (to - from)
    }

    /// The share of a request's time that is in it.
    fn share_of(&self, sample: &Sample) -> f64 {
        self.share_between(sample.sent.as_secs_f64(), end(sample).as_secs_f64())
    }

    /// Tokens in each of its parts.
    fn tokens<'a>(&self, samples: impl Iterator<Item = &'a Sample>) -> Vec<f64> {
        let width = (self.to - self.from) / float(PARTS);
        let parts: Vec<Self> = (0..PARTS)
            .map(|part| Self { from: self.from + float(part) * width, to: self.from + float(part + 1) * width })
            .collect();
        let mut tokens = vec![0.0; PARTS];
        for sample in samples.filter(|sample| sample.output_tokens > 0) {
            let from = (sample.sent + sample.ttft.unwrap_or_default()).as_secs_f64();
            let to = end(sample).as_secs_f64();
            if to < self.from || from > self.to {
                continue;
            }
            for (part, own) in parts.iter().zip(&mut tokens) {
                *own += f64::from(sample.output_tokens) * part.share_between(from, to);
            }
        }
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Four places, each with requests of 200 ms one after the other, ten tokens in the last half of them.
    fn samples(rounds: u32, e2e: impl Fn(u32) -> u32) -> Vec<Sample> {
        let mut samples = Vec::new();
        for place in 0..4 {
            let mut at = MS * (place * 50);
            for round in 0..rounds {
                let e2e = MS * e2e(round);
                samples.push(Sample {
                    intended: at,
                    sent: at,
                    ttft: Some(e2e / 2),
                    e2e,
                    output_tokens: 10,
                    is_good: true,
                    keeps_slo: place > 0,
                    ..Sample::default()
                });
                at += e2e;
            }
        }
        samples
    }

    #[test]
    fn the_window_begins_when_every_place_has_come_round_and_littles_law_holds() {
        let rung = Rung::of(4, &samples(50, |_| 200), MS * 9000);
        assert!((rung.from_s - 0.35).abs() < 1e-9 && (rung.to_s - 9.0).abs() < 1e-9, "{rung:?}");
        assert!((rung.request_throughput - 20.0).abs() < 0.01, "{rung:?}");
        assert!((rung.output_throughput - 200.0).abs() < 2.0, "{rung:?}");
        assert!((rung.in_flight - 4.0).abs() < 0.01 && (rung.e2e_mean_ms - 200.0).abs() < 1e-6, "{rung:?}");
        assert!((rung.goodput.unwrap() - 15.0).abs() < 0.01, "{rung:?}");
        assert!((rung.token_goodput.unwrap() - 150.0).abs() < 1.5, "{rung:?}");
        let all: Vec<Sample> =
            samples(50, |_| 200).into_iter().map(|sample| Sample { keeps_slo: true, ..sample }).collect();
        let rung = Rung::of(4, &all, MS * 9000);
        assert!((rung.token_goodput.unwrap() - rung.output_throughput).abs() < 1e-6, "{rung:?}");
        let interval = rung.output_throughput_interval.unwrap();
        assert!(interval.low < 200.1 && interval.high > 199.0, "{interval:?}");
    }

    #[test]
    fn a_table_has_a_line_for_each_rung() {
        let rungs = [Rung::of(4, &samples(50, |_| 200), MS * 9000), Rung::of(1, &[], MS)];
        let mut table = Vec::new();
        csv(&mut table, &rungs).unwrap();
        let text = String::from_utf8(table).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!(lines.iter().map(Vec::len).collect::<Vec<_>>(), [16; 3]);
        assert_eq!((lines[1][0], lines[2][8], lines[2][13]), ("4", "", ""));
        assert!((lines[1][10].parse::<f64>().unwrap() - 200.0).abs() < 1e-6, "{text}");
    }

    #[test]
    fn a_change_within_it_leaves_the_longer_part() {
        let rung = Rung::of(4, &samples(80, |round| if round < 20 { 400 } else { 200 }), MS * 18_000);
        assert!(rung.from_s > 7.0 && (rung.request_throughput - 20.0).abs() < 0.5, "{rung:?}");
    }

    #[test]
    fn nothing_is_nothing() {
        let rung = Rung::of(4, &[], MS * 1000);
        assert_eq!((rung.requests, rung.slo_share, rung.output_throughput_interval), (0, None, None));
        let figures = [rung.request_throughput, rung.output_throughput, rung.e2e_mean_ms, rung.in_flight];
        assert!(figures.iter().all(|figure| figure.abs() < 1e-9 && figure.is_sign_positive()), "{figures:?}");
    }
}
