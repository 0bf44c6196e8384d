//! Recordings: traces and cassettes, the recorder that writes them, the canonical form of requests, and redaction.

pub mod canonical;
pub mod cassette;
pub mod recorder;
pub mod redaction;
pub mod trace;
pub mod yaml;
