//! The cassette: recorded exchanges in YAML, for people to read, edit and review in Git.
//!
//! A record is one request and its answer. What differs from run to run although nothing changed (times, generated ids, the
//! events of a stream) is in a sidecar beside the file, `NAME.vcr/timing.jsonl`; so recording an unchanged conversation again
//! changes no line. The text is the truth: a record whose answer was edited is served as edited, and its sidecar entry only
//! holds how the text was cut and timed. A recorder can keep less, or the times in the records themselves ([`Keep`]).
//!
//! `like: N` with `messages+` (or `input+`) is a turn that continues record N: its messages, its answer, then these. An edited answer
//! is therefore also what the next request is expected to repeat. A record that is recorded again keeps its place.
//!
//! A record with `match` was written by hand and answers every request that fulfils its conditions ([`Fixture`]).
//!
//! Limits: comments of a file are lost when the whole file is written again (`all`, `cassette fmt`), not when records are
//! added to it.

mod answer_mistakes;
mod answers_file;
mod blob;
mod call_ids;
mod condition;
mod continued;
mod echo;
mod error;
mod fixture;
mod header;
mod json_added;
mod keep;
mod large;
mod load;
mod made;
mod message;
mod moments;
mod names;
mod partial;
mod private_file;
#[cfg(test)]
mod properties;
mod read;
mod recent;
mod record;
mod rerecorded;
#[cfg(test)]
mod rerecorded_properties;
mod side;
mod spool;
pub mod template;
#[cfg(test)]
mod tests;
mod threads;
mod verdict;
mod write;
mod writer;

pub use self::{
    answers_file::{AnswersError, AnswersFile, FaultReader, RecordFault, load_answers, read_answers, unreached},
    blob::{named_bytes, other_blobs_of, write_blobs},
    call_ids::name_calls,
    condition::{Condition, HeaderTest, MessageScope},
    continued::{Identified, Inherited, bases, identified, shares},
    echo::repeated_like,
    error::CassetteError,
    fixture::{Fixture, FixtureError},
    header::{Header, Redact},
    keep::{Keep, TokenIds},
    load::{Cassette, is_cassette, load, parse, text_of},
    made::{AnswerPart, MadeAnswer},
    message::{call_of, short_message, wire_message},
    moments::{Moment, Moments, Sidecar, Times},
    names::shown_by_order,
    partial::{remove_unfinished, rewrite},
    record::{
        AnswerContent, BreakForm, CassetteRecord, Echo, PlannedFault, RecordedAnswer, SseEvent, TransportFault,
        ValueSource,
    },
    side::{RecordTokens, RecordingRun, last_run, read_file as read_beside, sidecar_of, timing_of},
    verdict::{GuardVerdict, UnsafeWhen, VerdictKind},
    write::{emit, emit_expanded},
    writer::{CassetteWriter, RecordedExchange, WriteMode, refuse_object},
};

/// The version of the format.
pub const FORMAT: u64 = 1;
