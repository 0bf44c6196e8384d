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
pub use audit::{AuditReport, Revealed, Secret, audit};
pub use compare::{Compared, Comparison, Judgement, Unit, compare};
pub use concurrency::Concurrency;
pub use convert::{ConvertReport, IdealHits, NamedFile, convert};
pub use fit::{Figure, FitReport, InspectFitError, Predicted, Prediction, fit};
pub use gate::{Gate, GateResult};
pub use merge::{MergeError, merge};
pub use report::{
    Curves, FailedRequests, FailureKind, MOST_RUNS, OverTime, PrefixTree, Report, ReportError, Response, RunReport,
    SharedPrefix, TokenRate, report,
};
pub use schedule::{Workload, WorkloadError};
pub use sharing::PrefixSharing;
pub use simulate::{
    Answers, AnswersInPrompts, ArrivalSchedule, Balance, Goodput, Policy, ReplicaReport, SimulateError, SimulateReport,
    Simulation, UnknownPolicy, simulate,
};
pub use summary::{Breakdown, Counted, Latencies, SummaryReport, Tokens, summary};
