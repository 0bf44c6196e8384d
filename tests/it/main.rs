//! The integration tests, one binary.

mod layers;
mod links;
mod readme;
mod reference;
mod tree;
