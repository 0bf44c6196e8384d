//! The client's figures over the time of a run.

use serde::Serialize;

use crate::{results::Sample, rung::Window};

const MOST_POINTS: f64 = 3600.0;

/// The client in one part of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ClientPoint {
    /// The middle of the part, in seconds from the start of the run.
    pub at_s: f64,
    /// Requests on their way, on average.
    pub in_flight: f64,
    /// Output tokens a second; those of a request are spread evenly between its first token and its end.
    pub tokens_per_s: f64,
}

/// Returns the points of a run, a second apart; further apart where that were too many.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "at most as many parts as there may be points")]
pub fn client(samples: &[Sample]) -> Vec<ClientPoint> {
    let seconds = samples.iter().map(|sample| (sample.sent + sample.e2e).as_secs_f64()).fold(0.0, f64::max);
    let width = (seconds / MOST_POINTS).max(1.0);
    let count = (seconds / width).ceil() as usize;
    let mut points: Vec<ClientPoint> =
        Window::parts(width, count).map(|part| ClientPoint { at_s: part.middle(), ..ClientPoint::default() }).collect();
    let place = |at: f64| (at / width) as usize;
    for sample in samples {
        let (sent, end) = (sample.sent.as_secs_f64(), (sample.sent + sample.e2e).as_secs_f64());
        let first = sent + sample.ttft.unwrap_or_default().as_secs_f64();
        let covered = place(sent)..=place(end);
        let parts = Window::parts(width, count).zip(&mut points);
        for (part, point) in parts.skip(*covered.start()).take(covered.end() - covered.start() + 1) {
            point.in_flight += part.share_between(sent, end) * (end - sent) / width;
            point.tokens_per_s += part.share_between(first, end) * f64::from(sample.output_tokens) / width;
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn requests_and_tokens_are_where_they_were() {
        let ms = Duration::from_millis;
        let sample = |sent: u64, ttft: u64, e2e: u64| Sample {
            intended: ms(sent),
            sent: ms(sent),
            ttft: Some(ms(ttft)),
            e2e: ms(e2e),
            output_tokens: 10,
            is_good: true,
            keeps_slo: true,
            ..Sample::default()
        };
        let points = client(&[sample(500, 500, 1500), sample(0, 200, 200)]);
        assert_eq!(points.iter().map(|point| point.at_s).collect::<Vec<_>>(), [0.5, 1.5]);
        assert!((points[0].in_flight - 0.7).abs() < 1e-9 && (points[1].in_flight - 1.0).abs() < 1e-9, "{points:?}");
        assert!((points[0].tokens_per_s - 10.0).abs() < 1e-9, "{points:?}");
        assert!((points[1].tokens_per_s - 10.0).abs() < 1e-9, "{points:?}");
        assert!(client(&[]).is_empty());
        let long = client(&[sample(0, 100, 36_000_000)]);
        assert_eq!(long.len(), 3600);
        let tokens: f64 = long.iter().map(|point| point.tokens_per_s * 10.0).sum();
        assert!((tokens - 10.0).abs() < 1e-6, "{tokens}");
    }
}
