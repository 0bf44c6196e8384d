//! The integration tests, one binary.

mod trace;
