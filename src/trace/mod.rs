//! The trace: what one engine streamed, request by request, and the file it lives in.
//!
//! A trace file is JSON Lines (gzip when the path ends in `.gz`): an optional `{"meta":{…}}` line, one record per line
//! in the order in which requests finished, and `{"end":{…}}` as the last line of a capture that was closed properly.
//! The schema is a superset of the public vllm-vcr schema: its files load here unchanged, and ours load there.
//!
//! Limits: this module knows bytes, fields and rules. It does not know which record answers a request
//! ([`crate::matching`]) nor when a chunk is due ([`crate::timing`]).

mod ahead;
mod beside;
mod check;
mod convert;
mod error;
mod error_response;
mod gunzip;
#[cfg(test)]
mod hostile;
mod logprobs;
mod members;
mod meta;
mod order;
mod packed;
mod parts;
mod pipeline;
mod progress;
mod raw;
mod read;
mod record;
mod scan;
mod source;
mod store;
mod walk;
mod write;

pub use check::{Checked, check};
pub use error::{Finding, TraceError, Warning};
pub use error_response::ErrorResponse;
pub use gunzip::{gunzip, gunzip_within};
pub use logprobs::{Logprobs, PromptLogprobs, RankedLogprob, RankedLogprobs, Spelled, TokenLogprobs};
pub use meta::{End, Meta, TokenizerId};
pub use order::{replay_key, replay_order};
pub use parts::{Limits, Parts};
pub use progress::{Loaded, Progress};
pub use read::{Reader, Trace, read, read_bytes};
pub use record::{Chunk, Endpoint, FinishReason, ItlSummary, Outcome, Record, StepContext};
pub use store::{Kept, Store, load};
pub use write::{CreateMode, Writer};

/// The version of this project's additions to the public schema that is written here.
pub const FORMAT: u32 = 1;
