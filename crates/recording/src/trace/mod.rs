//! The trace: what one engine streamed, request by request, and the file it lives in.
//!
//! A trace file is JSON Lines (gzip when the path ends in `.gz`): an optional `{"meta":{…}}` line and one record per line
//! in the order in which requests finished. A packed file whose capture was closed properly ends in an empty member that
//! has a mark for it (older ones, packed or not, in a line `{"end":{…}}`).
//! The schema is a superset of the public vllm-vcr schema: its files load here unchanged, and ours load there.
//!
//! Limits: this module knows bytes, fields and rules. It does not know which record answers a request
//! (`replay::matching`) nor when a chunk is due (`replay::timing`).

mod agreement;
mod closing;
mod error;
mod gunzip;
mod gzip_members;
#[cfg(test)]
mod hostile;
mod json_values;
mod json_writer;
mod load;
mod logprobs;
mod mend;
mod meta;
mod output;
mod packed;
mod parts;
mod pipeline;
mod progress;
mod raw;
mod read;
mod read_ahead;
mod record;
mod record_reader;
mod record_ref;
mod response;
mod resume;
mod rules;
mod scan;
mod several;
mod shared_prompt;
mod source;
mod store;
mod tail;
mod whole;
mod write;
#[cfg(test)]
mod write_tests;

pub use api::Endpoint;
pub use error::{BadLines, Finding, TraceError, Warning};
pub use gunzip::{gunzip, gunzip_within};
pub(crate) use gzip_members::SharedFile;
pub use json_values::JsonValues;
pub use json_writer::JsonWriter;
pub use load::{load, load_all};
pub use logprobs::{Logprobs, PromptLogprobs, RankedLogprob, RankedLogprobs, SpelledToken, TokenLogprobs};
pub(crate) use mend::{of_line, to_line};
pub use meta::{CaptureEnd, Meta, TokenizerId};
pub use output::CreateMode;
pub use packed::Example;
pub use parts::{RotationLimits, TraceParts};
pub use progress::{LoadCounts, LoadProgress};
pub(crate) use raw::reason;
pub use read::{Checked, TraceReader, check, read, read_bytes};
pub use record::{
    AGENT, Chunk, FinishReason, INTENDED_MS, ItlSummary, Outcome, Record, RecordedErrorResponse, StepContext, THINK_MS,
    UNREAD_EVENTS, USAGE_OUTPUT_TOKENS, USAGE_PROMPT_TOKENS, WITHHELD, replay_key, replay_order,
};
pub use record_ref::RecordRef;
pub(crate) use response::varies;
pub use response::{ContentSource, Response, ResponseContent, is_acted_on};
pub(crate) use rules::brief;
pub(crate) use several::is_trace;
pub use several::{IDS_PERMUTED, Joined, JoinedTimeline, Sources, zeros};
pub(crate) use source::is_standard;
pub use store::Store;
pub use whole::{LoadedFile, Trace};
pub use write::TraceWriter;

/// The version of this project's additions to the public schema that is written here.
pub const FORMAT: u32 = 1;
