//! Foundations for every room: units of measurement, a bounded cache, histograms.

pub mod bounded_cache;
pub mod stats;
pub mod units;
