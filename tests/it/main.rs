//! The integration tests, one binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::print_stderr)]

mod answers;
mod bench;
mod cassettes;
mod conform;
mod decisions;
mod differential;
mod doctor;
mod drive;
mod exit_codes;
mod faults;
mod framework_examples;
mod kv_events;
mod layers;
mod links;
mod mcp;
mod play;
mod prove;
mod readme;
mod reference;
mod schedule;
mod secrets_page;
mod stability;
mod structure;
mod support;
mod sweep;
mod tap;
mod text;
mod trace;
mod validation;
mod vllm_flags;
