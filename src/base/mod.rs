//! Foundations for every room: priority of threads, cancellation of work, units of measurement, a bounded cache, text as one line, histograms, a limit on log lines.

pub mod background;
pub mod bounded_cache;
pub mod cancellation;
pub mod one_line;
pub mod rate_limited_log;
pub mod stats;
pub mod units;
