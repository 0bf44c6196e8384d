//! Record the token streams of a real LLM engine once and replay them for ever, without a GPU.
//!
//! The crate is the `vllm-vcr` binary taken apart: every tool is a module that owns its configuration and runs on a
//! listener and a shutdown signal that the caller brings, so that a test can run it on port 0.
//!
//! Layers import downward only (`tests/it/layers.rs` enforces it):
//!
//! | layer | modules | duty |
//! |---|---|---|
//! | L6 | [`cli`] | arguments, printing, exit codes |
//! | L5 | [`tap`] [`play`] [`inspect`] | the tools; none imports another |
//! | L4 | [`serve`] [`upstream`] [`stats`] [`engine`] [`ledger`] [`deck`] | listener and drain, the HTTP client, histograms, simulated engine, the account of what was served, playing and recording cassettes |
//! | L3 | [`matching`] [`timing`] [`meter`] | which record, when, what was seen |
//! | L2 | [`trace`] | the trace model and its file format |
//! | L1 | [`wire`] [`openai`] [`prompt`] [`parsers`] [`redaction`] | SSE and JSON bytes, API types, tokens, reasoning and tool calls, secrets |
//! | L0 | [`units`] [`recent`] | durations, rates, seeds; a map that forgets |

pub mod cassette;
pub mod cli;
pub mod deck;
pub mod engine;
pub mod identity;
pub mod inspect;
pub mod ledger;
pub mod matching;
pub mod meter;
pub mod openai;
pub mod parsers;
pub mod play;
pub mod prompt;
pub mod recent;
pub mod redaction;
pub mod serve;
pub mod stats;
pub mod tap;
pub mod timing;
pub mod trace;
pub mod units;
pub mod upstream;
pub mod wire;
pub mod yaml;
