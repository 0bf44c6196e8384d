//! The integration tests, one binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::print_stderr)]

mod client;
mod goldens;
mod openai_errors;
mod play_api;
mod play_goldens;
mod play_server;
mod prompt;

mod trace;

mod layers;
mod peer;
mod tap;
mod links;
mod readme;
mod reference;
mod tree;
mod trace;
