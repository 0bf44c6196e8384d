//! Record the token streams of a real LLM engine once and replay them forever, without a GPU.
//!
//! The crate is the `vllm-vcr` binary taken apart: every tool is a module that owns its configuration and runs on a
//! listener and a shutdown signal that the caller brings, so that a test can run it on port 0.
//!
//! Rooms below the tools are crates of their own, shown here under their names. ARCHITECTURE.md has the table of rooms and their duties.
//!
//! See docs/decisions/0032-rooms.md.

pub use {api, base, benchmark, drive, engine, engine_core, faults, net, play, recording, replay, tap, text};

pub mod cli;
pub mod conform;
pub mod inspect;
pub mod prove;
pub mod sweep;
