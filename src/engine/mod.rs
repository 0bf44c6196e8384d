//! The simulated engine: what answers where no record does.
//!
//! Tokens are free ([`synthetic`]), or conform to what a request asks of them ([`guided`]). Limits: no scheduler, no KV cache, no latency model.

pub mod guided;
pub mod synthetic;
