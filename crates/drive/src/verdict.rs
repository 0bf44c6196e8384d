//! Whether the figures of a run may be believed.

use std::{fmt, time::Duration};

use serde::Serialize;

use crate::results::ResultsReport;

/// Lateness of 1 % of the requests from which the client was too slow.
const MAX_LATE: Duration = Duration::from_millis(10);

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
    /// Results are missing, because the client could not write them as fast as they came.
    ResultsLost {
        /// Requests without a result.
        requests: u64,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllFailed => f.write_str("every request failed"),
            Self::Errors { share, allowed } => {
                write!(f, "{:.2} % of the requests failed, {:.2} % may", share * 100.0, allowed * 100.0)
            }
            Self::ClientLate { p99_ms } => {
                write!(f, "the client was the bottleneck: 1 % of the requests were sent {p99_ms:.1} ms late or more")
            }
            Self::ResultsLost { requests } => write!(f, "the results of {requests} requests are missing"),
        }
    }
}

impl Verdict {
    /// Judges a run of which `planned` requests were sent; of them at most this share may fail.
    #[must_use]
    pub fn of(report: &ResultsReport, planned: u64, allowed: f64) -> Self {
        let mut reasons = Vec::new();
        #[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^53")]
        let share = report.failed as f64 / (report.requests as f64).max(1.0);
        if report.requests == report.failed {
            reasons.push(Reason::AllFailed);
        } else if share > allowed {
            reasons.push(Reason::Errors { share, allowed });
        }
        if let Some(late) = report.late_ms.filter(|late| late.p99 > MAX_LATE.as_secs_f64() * 1000.0) {
            reasons.push(Reason::ClientLate { p99_ms: late.p99 });
        }
        if report.requests < planned {
            reasons.push(Reason::ResultsLost { requests: planned - report.requests });
        }
        Self { valid: reasons.is_empty(), reasons }
    }
}
