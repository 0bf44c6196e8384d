//! Recordings: exchanges and their two encodings, traces and cassettes; the recorder that writes them, the canonical form of requests, and redaction.

pub mod canonical;
pub mod capture;
pub mod cassette;
pub mod children;
pub mod exchange;
mod field_path;
pub mod formats;
pub mod mcp;
pub mod recorder;
pub mod redaction;
pub mod storage;
pub mod trace;
pub mod yaml;
