//! Files of other tools that hold requests: read as records, and written from them.
//!
//! [`read`] hands the requests of a file out one after the other, each as a [`Record`](crate::trace::Record) with what the file has of it: lengths, arrival,
//! hashes of its prompt, session, times, body. [`RequestWriter`] writes them in another format. What a format has no place for is counted
//! ([`Losses`]), never guessed.
//!
//! Block hashes: an id of another tool stands for itself and the ids before it, so that it is folded with those; ids that are local to a conversation
//! are folded with the conversation's name too. Hashes of whole prefixes (traces, Dynamo) stay as they are.
//!
//! Limits: memory holds one object of the file (256 MiB of text at the most) and what its requests are; the formats that are written in
//! another order than requests come go through a temporary file. The formats are described in `docs/src/guides/formats.md`.

mod chains;
mod chats;
mod dynamo;
mod fields;
mod kind;
mod losses;
mod reading;
mod record;
mod regroup;
mod rows;
mod sorted;
mod weka;
mod write;
mod write_weka;

use std::io;

pub use kind::TraceFormat;
pub use losses::Losses;
pub use reading::{Head, ReadOptions, kind_of, read};
pub use write::{ConversionTarget, RequestWriter};

use crate::trace::TraceError;

/// A file that cannot be read or written as requests.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// It cannot be read or written at all.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// An object is no request of its format.
    #[error("{path}:{line}: {reason}")]
    Line {
        /// The file.
        path: String,
        /// The line on which the object begins, from 1.
        line: u64,
        /// What is wrong.
        reason: String,
    },
    /// Its format is not clear.
    #[error("{path}:{line}: an object with {fields} is of no format that is known for sure; name it with --from")]
    Unclear {
        /// The file.
        path: String,
        /// The line, from 1.
        line: u64,
        /// Names of the object's fields.
        fields: String,
    },
    /// It holds no request.
    #[error("{path}: holds no request")]
    Empty {
        /// The file.
        path: String,
    },
    /// This format is read only.
    #[error("{kind} is read, not written; write a trace, mooncake, weka or dynamo (--to)")]
    NotWritten {
        /// The format.
        kind: TraceFormat,
    },
    /// A session is longer than any line may be.
    #[error("session {session} is longer than 256 MiB as one line of {kind}")]
    LongSession {
        /// The session.
        session: String,
        /// The format.
        kind: TraceFormat,
    },
    /// The temporary file for sorting could not be used.
    #[error("cannot use a temporary file in {folder}: {source}")]
    Temporary {
        /// Its folder.
        folder: String,
        /// The system's answer.
        source: io::Error,
    },
}
