//! Foundations for every room: units of measurement, a bounded cache, histograms, a limit on log lines.

pub mod bounded_cache;
pub mod rate_limited_log;
pub mod stats;
pub mod units;
