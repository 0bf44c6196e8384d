//! What every room may use: units of measurement, a bounded cache, histograms.

pub mod recent;
pub mod stats;
pub mod units;
