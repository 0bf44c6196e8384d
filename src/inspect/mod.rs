//! Looks at traces: what a file holds, what it reveals, and whether it keeps the rules. And at the scheduler of the
//! simulated engine: what it decides on a workload.
//!
//! Limits: values and text come back, nothing is printed here. Files are read record by record; what stays in memory
//! per record is its arrival, its duration and its block hashes.

mod audit;
mod compare;
mod concurrency;
mod convert;
mod fit;
mod gate;
mod merge;
mod report;
mod schedule;
mod sharing;
mod simulate;
mod summary;
mod text;

pub use crate::recording::trace::check;
pub use audit::{AuditReport, Revealed, SecretFinding, audit};
pub use compare::{ComparedMetric, Judgement, MetricUnit, TraceComparison, compare};
pub use concurrency::Concurrency;
pub use convert::{ConvertReport, IdealHits, NamedFile, convert};
pub use fit::{Figure, FitReport, InspectFitError, Predicted, Prediction, fit};
pub use gate::{GateResult, MetricGate};
pub use merge::{MergeError, merge};
pub use report::{
    Axis, Curves, FailedRequests, FailureKind, Format, MOST_RUNS, OverTime, PrefixTree, ReportError, RunReport,
    SharedPrefix, SlowResponse, TokenRate, TraceReport, line_chart, report,
};
pub use schedule::{ScheduleWorkload, ScheduleWorkloadError};
pub use sharing::PrefixSharing;
pub use simulate::{
    Answers, AnswersInPrompts, ArrivalSchedule, Balance, Goodput, ReplicaReport, RouterPolicy, SimulateError,
    SimulateReport, Simulation, simulate,
};
pub use summary::{Breakdown, FieldCounts, LatencySummary, SummaryReport, TokenSummary, summary};
