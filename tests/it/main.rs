//! The integration tests, one binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::print_stderr)]

mod cli;
mod client;
mod differential;
mod goldens;
mod guided;
mod layers;
mod links;
mod openai_errors;
mod parsers;
mod peer;
mod play_api;
mod play_apis;
mod play_development;
mod play_fields;
mod play_front;
mod play_messages;
mod play_metrics;
mod play_pages;
mod play_parsers;
mod play_responses;
mod play_server;
mod play_streams;
mod play_tls;
mod play_transports;
mod prompt;
mod prompt_smollm2;
mod readme;
mod reference;
mod tap;
mod tap_outcomes;
mod tokenizers;
mod trace;
mod tree;
