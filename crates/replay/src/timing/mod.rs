//! When the chunks of an answer are due.
//!
//! A [`Schedule`] gives each chunk's offset from the request, so that a late chunk does not delay the ones after it. Offsets
//! are integer sums of the recorded nanoseconds, and a sum is scaled as a whole. A [`ResponseSchedule`] does the same for a
//! response that is sent as it was recorded. A [`Pacer`] waits for such an instant
//! more precisely than tokio's timer does.
//!
//! Limits: what is due is not what was sent; lateness is for the sender to measure.

mod pacer;
mod response;
mod schedule;
#[cfg(target_os = "linux")]
mod timer;

pub use pacer::{Pacer, Sleep};
pub use response::{ResponseSchedule, TokenChunk, TokensDue};
pub use schedule::{ChangedPacing, Due, Pacing, Schedule};
