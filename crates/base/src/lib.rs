//! Foundations for every room: priority of threads, cancellation of work, units of measurement, a bounded cache, files of bounded length, a hasher for keys that are hashes, a lock without poison, text as one line, control characters, histograms, a limit on log lines.

pub mod background;
pub mod bounded_cache;
pub mod bounded_read;
pub mod cancellation;
pub mod control_characters;
pub mod hash_is_key;
pub mod lock;
pub mod one_line;
pub mod rate_limited_log;
pub mod stats;
pub mod units;
