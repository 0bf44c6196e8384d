//! The simulated engine: what answers where no record does.
//!
//! Tokens are free ([`synthetic`]), or conform to what a request asks of them ([`guided`]); how many there are is drawn
//! from a distribution ([`OutputTokens`]). When an engine would compute them is decided by the [`scheduler`] over the blocks of
//! the [`kv_cache`], which `inspect schedule` runs and `play --engine` answers through; how long it would take by a [`step_clock`], or
//! by recorded times ([`recorded_timings`]).
//! What subscribers are sent about the blocks is in [`kv_events`].

pub mod guided;
pub mod kv_cache;
pub mod kv_events;
mod length;
pub mod offline;
pub mod recorded_timings;
pub mod scheduler;
pub mod step_clock;
pub mod synthetic;

pub use length::{LengthError, OutputTokens};
