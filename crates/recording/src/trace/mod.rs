//! The trace: what one engine streamed, request by request, and the file it lives in.
//!
//! A trace file is JSON Lines (gzip when the path ends in `.gz`): an optional `{"meta":{…}}` line and one record per line
//! in the order in which requests finished. A packed file whose capture was closed properly ends in an empty member that
//! has a mark for it (older ones, packed or not, in a line `{"end":{…}}`).
//! The schema is a superset of the public vllm-vcr schema: its files load here unchanged, and ours load there.
//!
//! Limits: this module knows bytes, fields and rules. It does not know which record answers a request
//! (`replay::matching`) nor when a chunk is due (`replay::timing`).

mod ahead;
mod bad_lines;
mod beside;
mod check;
mod closing;
mod convert;
mod create;
mod error;
mod error_response;
mod exchange;
mod gunzip;
#[cfg(test)]
mod hostile;
mod json_lines;
mod kept;
mod load;
mod logprobs;
mod members;
mod mend;
mod meta;
mod order;
mod packed;
mod parts;
mod pipeline;
mod progress;
mod raw;
mod read;
mod record;
mod response;
mod resume;
mod scan;
mod several;
mod shared_prompt;
mod source;
mod store;
mod tail;
mod unit;
mod walk;
mod write;
#[cfg(test)]
mod write_tests;

pub use api::Endpoint;
pub use bad_lines::BadLines;
pub use check::{Checked, check};
pub use create::CreateMode;
pub use error::{Finding, TraceError, Warning};
pub use error_response::{ErrorResponse, WITHHELD};
pub use gunzip::{gunzip, gunzip_within};
pub use json_lines::JsonLines;
pub use kept::Kept;
pub use load::{LoadedFile, load, load_all};
pub use logprobs::{Logprobs, PromptLogprobs, RankedLogprob, RankedLogprobs, Spelled, TokenLogprobs};
pub use meta::{End, Meta, TokenizerId};
pub use order::{replay_key, replay_order};
pub use packed::Example;
pub use parts::{Limits, Parts};
pub use progress::{Loaded, Progress};
pub use read::{Reader, Trace, read, read_bytes};
pub use record::{Chunk, FinishReason, ItlSummary, Outcome, Record, StepContext};
pub use response::{ContentSource, Response, ResponseContent};
pub use several::{Joined, Sources};
pub use store::Store;
pub use write::Writer;

/// The version of this project's additions to the public schema that is written here.
pub const FORMAT: u32 = 1;
