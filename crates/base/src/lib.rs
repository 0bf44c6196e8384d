//! Foundations for every room: priority of threads, cancellation of work, units of measurement, a bounded cache, a hasher for keys that are hashes, text as one line, histograms, a limit on log lines.

pub mod background;
pub mod bounded_cache;
pub mod cancellation;
pub mod hash_is_key;
pub mod one_line;
pub mod rate_limited_log;
pub mod stats;
pub mod units;
