//! The simulated engine: what answers where no record does.
//!
//! Tokens are free ([`synthetic`]), or conform to what a request asks of them ([`guided`]); how many there are is drawn
//! from a distribution ([`OutputTokens`]). When an engine would compute them is decided by the [`scheduler`] over the blocks of
//! the [`kv_cache`], which `inspect schedule` runs. Limits: no latency model, and `play` does not use the scheduler.

pub mod guided;
pub mod kv_cache;
mod length;
pub mod scheduler;
pub mod synthetic;

pub use length::{LengthError, OutputTokens};
