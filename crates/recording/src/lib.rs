//! Recordings: exchanges and their two encodings, traces and cassettes; the recorder that writes them, the canonical form of requests, and redaction.

extern crate api;
extern crate base;
extern crate net;
extern crate self as recording;
extern crate text;

pub mod canonical;
pub mod capture;
pub mod cassette;
pub mod exchange;
mod field_path;
pub mod mcp;
pub mod recorder;
pub mod redaction;
pub mod trace;
pub mod yaml;
