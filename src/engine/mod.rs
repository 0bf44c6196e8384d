//! The simulated engine: what answers where no record does.
//!
//! Tokens are free ([`synthetic`]), or conform to what a request asks of them ([`guided`]); how many there are is drawn
//! from a distribution ([`OutputTokens`]). Limits: no scheduler, no KV cache, no latency model.

pub mod guided;
mod length;
pub mod synthetic;

pub use length::{LengthError, OutputTokens};
