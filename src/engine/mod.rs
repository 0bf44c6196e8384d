//! The simulated engine: what answers where no record does.
//!
//! Limits: only tokens so far ([`synthetic`]); no scheduler, no KV cache, no latency model.

pub mod synthetic;
