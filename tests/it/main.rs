//! The integration tests, one binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::print_stderr)]

mod layers;
mod links;
mod peer;
mod prompt;
mod readme;
mod reference;
mod tap;
mod trace;
mod tree;
