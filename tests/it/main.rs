//! The integration tests, one binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::print_stderr)]

mod cli;
mod client;
mod goldens;
mod layers;
mod links;
mod openai_errors;
mod parsers;
mod peer;
mod play_api;
mod play_goldens;
mod play_server;
mod prompt;
mod readme;
mod reference;
mod tap;
mod tokenizers;
mod trace;
mod tree;
