//! Recordings: traces and cassettes, the canonical form of requests, and redaction.

pub mod canonical;
pub mod cassette;
pub mod redaction;
pub mod trace;
pub mod yaml;
