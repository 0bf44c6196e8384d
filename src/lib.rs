//! Record the token streams of a real LLM engine once and replay them for ever, without a GPU.
//!
//! The crate is the `vllm-vcr` binary taken apart: every tool is a module that owns its configuration and runs on a
//! listener and a shutdown signal that the caller brings, so that a test can run it on port 0.
//!
//! A room imports from its own row or from rows below it (`tests/it/layers.rs` checks it, and this table):
//!
//! | row | room | duty |
//! |---|---|---|
//! | 6 | [`cli`] | arguments, configuration files, printing, exit codes |
//! | 5 | [`tap`] | the recording proxy |
//! | 5 | [`play`] | the replay server |
//! | 5 | [`inspect`] | summary, check and audit of traces, the scheduler's steps |
//! | 4 | [`replay`] | which record answers a request, when, and the account of what was served |
//! | 3 | [`recording`] | traces and cassettes, the recorder, canonical requests, redaction |
//! | 3 | [`engine`] | made-up tokens, free or constrained, scheduler and KV cache |
//! | 2 | [`api`] | the endpoint families: requests, answers and errors in vLLM's words |
//! | 1 | [`text`] | tokenizer, chat templates, block hashes, parsers |
//! | 1 | [`net`] | server, HTTP client, server-sent events |
//! | 0 | [`base`] | units, a bounded cache, histograms |
//!
//! See docs/decisions/0032-rooms.md.

pub use {api, base, engine, net, recording, replay, text};

pub mod cli;
pub mod inspect;
pub mod play;
pub mod tap;
