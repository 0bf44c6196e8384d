//! Whether the figures of a run may be believed.

use std::{fmt, time::Duration};

use serde::Serialize;

use crate::{
    Driven,
    calibrate::Ceiling,
    numbers::{float, millis},
    results::ResultsReport,
    steady::Change,
};

/// Lateness of 1 % of the requests from which the client was too slow.
const MAX_LATE: Duration = Duration::from_millis(10);

/// Processor time of the threads that send, as a share, from which they are taken to be the bottleneck.
const MAX_CPU_SHARE: f64 = 0.8;

/// Step of the system's clock that counts.
const MAX_CLOCK_STEP: Duration = Duration::from_millis(500);

/// Share of the prompts of which more than 1 % may be missing or too much.
const MAX_DRIFTED: f64 = 0.01;

/// A run's validity.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// The figures may be believed.
    pub valid: bool,
    /// Why not, the gravest first.
    pub reasons: Vec<Reason>,
}

/// A reason not to believe the figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Reason {
    /// No request counts.
    NothingMeasured {
        /// Requests of the warm-up.
        warmup: u64,
        /// Requests that were on their way when the run was stopped.
        cut: u64,
    },
    /// No request ended as it should.
    AllFailed,
    /// More requests failed than may.
    Errors {
        /// Share of the requests that failed.
        share: f64,
        /// The largest that is allowed.
        allowed: f64,
    },
    /// Requests were sent too late: the client was the bottleneck.
    ClientLate {
        /// 99th percentile of the lateness, in milliseconds.
        p99_ms: f64,
    },
    /// The threads that send could not run when they wanted to, or computed nearly all the time: the client was the bottleneck.
    ClientBusy {
        /// 99th percentile of how late they woke up, in milliseconds.
        lag_p99_ms: f64,
        /// Processor time as a share of what they could have had.
        cpu_share: f64,
    },
    /// The run came close to what this client reaches at a server that answers at once.
    ClientBound {
        /// Share of that.
        share: f64,
        /// What it reaches.
        #[serde(flatten)]
        ceiling: Ceiling,
    },
    /// At a concurrency there were more or fewer requests on their way than that.
    LittlesLaw {
        /// The concurrency.
        concurrency: usize,
        /// Throughput times mean end-to-end latency.
        in_flight: f64,
    },
    /// A latency changed within the run.
    NotStationary {
        /// Which one.
        latency: String,
        /// When, and from what to what.
        #[serde(flatten)]
        change: Change,
    },
    /// Prompts had other lengths than the recorded ones.
    PromptsDrifted {
        /// Requests of whose prompt more than 1 % was missing or too much.
        requests: u64,
        /// The largest difference, in tokens.
        largest: i64,
    },
    /// Outputs had other lengths than the recorded ones, of requests that asked for these.
    OutputsDrifted {
        /// Requests of whose output more than 1 % was missing or too much.
        requests: u64,
        /// The largest difference, in tokens.
        largest: i64,
    },
    /// What came back is not what was recorded.
    ContentDiffers {
        /// Responses that differ.
        responses: u64,
        /// Responses that were compared.
        compared: u64,
    },
    /// The run was stopped before its end.
    Stopped {
        /// Requests that were to be sent; `None` of a search, which sends its requests again and again.
        #[serde(skip_serializing_if = "Option::is_none")]
        planned: Option<u64>,
        /// Requests that were sent.
        sent: u64,
    },
    /// The system's clock was set during the run, so times of day in the results are wrong.
    ClockStep {
        /// By how much, in milliseconds.
        by_ms: f64,
    },
    /// Results are missing, because the client could not write them as fast as they came.
    ResultsLost {
        /// Requests without a result.
        requests: u64,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingMeasured { warmup, cut } => {
                write!(
                    f,
                    "no request was measured: {warmup} were of the warm-up, {cut} were cut off by the end of the run"
                )
            }
            Self::AllFailed => f.write_str("every request failed"),
            Self::Errors { share, allowed } => {
                write!(f, "{:.2} % of the requests failed, {:.2} % may", share * 100.0, allowed * 100.0)
            }
            Self::ClientLate { p99_ms } => {
                write!(f, "the client was the bottleneck: 1 % of the requests were sent {p99_ms:.1} ms late or more")
            }
            Self::ClientBusy { lag_p99_ms, cpu_share } => write!(
                f,
                "the client was the bottleneck: its threads computed {:.0} % of the time and woke up {lag_p99_ms:.1} ms late or more in 1 % of the cases",
                cpu_share * 100.0
            ),
            Self::ClientBound { share, ceiling: Ceiling { requests_per_s, tokens_per_s } } => write!(
                f,
                "the client was the bottleneck: {:.0} % of the {requests_per_s:.1} requests/s and {tokens_per_s:.1} tokens/s that it reaches at a server that answers at once",
                share * 100.0
            ),
            Self::LittlesLaw { concurrency, in_flight } => write!(
                f,
                "at a concurrency of {concurrency}, throughput times mean latency is {in_flight:.1}: places were empty, or sessions have pauses or branches"
            ),
            Self::NotStationary { latency, change: Change { at_s, before_ms, after_ms } } => write!(
                f,
                "not stationary: the median {latency} went from {before_ms:.1} to {after_ms:.1} ms after {at_s:.1} s"
            ),
            Self::PromptsDrifted { requests, largest } => {
                write!(
                    f,
                    "{requests} prompts were more than 1 % longer or shorter than recorded, by up to {largest} tokens"
                )
            }
            Self::OutputsDrifted { requests, largest } => {
                write!(
                    f,
                    "{requests} outputs were more than 1 % longer or shorter than asked for, by up to {largest} tokens"
                )
            }
            Self::ContentDiffers { responses, compared } => {
                write!(f, "{responses} of {compared} responses are not what was recorded")
            }
            Self::Stopped { planned: Some(planned), sent } => write!(f, "stopped after {sent} of {planned} requests"),
            Self::Stopped { planned: None, sent } => write!(f, "stopped after {sent} requests"),
            Self::ClockStep { by_ms } => write!(f, "the system's clock was set by {by_ms:.0} ms during the run"),
            Self::ResultsLost { requests } => {
                write!(f, "the results of {requests} requests are missing, or could not be written")
            }
        }
    }
}

impl Verdict {
    /// Judges a run of which `planned` requests were to be sent; of them at most this share may fail.
    #[must_use]
    pub fn of(report: &ResultsReport, driven: &Driven, planned: u64, allowed: f64) -> Self {
        let mut reasons = Vec::new();
        let share = share(report.failed, report.requests);
        if report.requests == 0 {
            reasons.push(Reason::NothingMeasured { warmup: report.warmup, cut: report.cut });
        } else if report.failed > 0 && report.requests == report.failed + report.as_recorded {
            reasons.push(Reason::AllFailed);
        } else if share > allowed {
            reasons.push(Reason::Errors { share, allowed });
        }
        if let Some(late) = report.late_ms.filter(|late| late.p99 > millis(MAX_LATE)) {
            reasons.push(Reason::ClientLate { p99_ms: late.p99 });
        }
        let lag_p99_ms = driven.lag.summary().map_or(0.0, |lag| lag.p99);
        if lag_p99_ms > millis(MAX_LATE) || driven.spent.cpu_share > MAX_CPU_SHARE {
            reasons.push(Reason::ClientBusy { lag_p99_ms, cpu_share: driven.spent.cpu_share });
        }
        let seen = report.requests + report.warmup;
        let lost = if driven.stopped { 0 } else { driven.sent.saturating_sub(seen) };
        let lost = lost.max(driven.recorder.write_failed);
        if lost > 0 {
            reasons.push(Reason::ResultsLost { requests: lost });
        }
        let changes = report.changes.iter();
        reasons.extend(
            changes.map(|(latency, change)| Reason::NotStationary { latency: latency.clone(), change: *change }),
        );
        if let Some(drift) = report.drift.filter(|drift| self::share(drift.off, drift.prompts) > MAX_DRIFTED) {
            reasons.push(Reason::PromptsDrifted { requests: drift.off, largest: drift.largest });
        }
        if let Some(drift) = report.output_drift.filter(|drift| self::share(drift.off, drift.prompts) > MAX_DRIFTED) {
            reasons.push(Reason::OutputsDrifted { requests: drift.off, largest: drift.largest });
        }
        if let Some(check) = report.check.as_ref().filter(|check| check.differ > 0) {
            reasons.push(Reason::ContentDiffers { responses: check.differ, compared: check.compared });
        }
        if driven.stopped {
            reasons.push(Reason::Stopped { planned: Some(planned), sent: driven.sent });
        }
        if driven.spent.clock_step > MAX_CLOCK_STEP {
            reasons.push(Reason::ClockStep { by_ms: millis(driven.spent.clock_step) });
        }
        Self { valid: reasons.is_empty(), reasons }
    }

    /// Adds a reason.
    #[must_use]
    pub fn with(mut self, reason: Option<Reason>) -> Self {
        self.reasons.extend(reason);
        Self { valid: self.reasons.is_empty(), ..self }
    }
}

fn share(part: u64, whole: u64) -> f64 {
    float(part) / float(whole).max(1.0)
}
