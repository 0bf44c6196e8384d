//! Foundations for every room: priority of threads, cancellation of work, causes of errors, units of measurement, a bounded cache, structs with their defaults, enums with their names, files of bounded length, a hasher for keys that are hashes, a limit of bytes that holders share, a lock without poison, text as one line, control characters, histograms, a limit on log lines.

pub mod background;
pub mod bounded_cache;
pub mod bounded_read;
pub mod cancellation;
pub mod causes;
pub mod control_characters;
mod declare;
pub mod hash_is_key;
pub mod held_bytes;
pub mod lock;
pub mod one_line;
pub mod rate_limited_log;
pub mod stats;
pub mod units;
