//! The integration tests, one binary.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // helpers of tests are no #[test] themselves

mod trace;
