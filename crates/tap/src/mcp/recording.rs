//! The recording of one connection over stdio.
//!
//! A copy is handed over before its bytes go on, so that a request is known before its answer comes. Splitting, parsing,
//! redaction and writing are work of the recorder's thread ([`McpSink`]); what does not fit into its queue is lost for the
//! recording and counted, never waited for.

use std::{io, path::PathBuf, sync::Arc};

use time::OffsetDateTime;
use tokio::time::Instant;

use super::{
    McpRecorded,
    sink::{Chunk, Copied, McpSink},
};
use recording::{
    cassette::{CassetteError, CassetteWriter, Header, WriteMode},
    recorder::{Progress, Recorder},
    redaction::Rules,
};
use replay::mcp::Sender;

/// Where a connection is recorded.
#[derive(Debug)]
pub struct RecordingTarget {
    /// The server's name in the cassette.
    pub server: String,
    /// The cassette.
    pub cassette: PathBuf,
    /// Top of a cassette that is written anew.
    pub header: Header,
    /// Treatment of a cassette that is there.
    pub mode: WriteMode,
    /// What counts as a secret.
    pub secrets: Rules,
}

impl RecordingTarget {
    /// Opens the cassette.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn open(self) -> Result<Opened, CassetteError> {
        let writer = CassetteWriter::create(&self.cassette, &self.header, self.mode)?;
        Ok(Opened { writer, target: self })
    }
}

/// A cassette that is being written.
#[derive(Debug)]
pub(super) struct Opened {
    writer: CassetteWriter,
    target: RecordingTarget,
}

/// The recorder of a connection.
#[derive(Debug)]
pub(super) struct Recording {
    recorder: Arc<Recorder<McpSink>>,
    began: Instant,
    cassette: PathBuf,
}

impl Recording {
    /// Starts the recorder's thread.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start(opened: Opened) -> Result<Self, CassetteError> {
        let Opened { writer, target: RecordingTarget { server, cassette, secrets, .. } } = opened;
        let progress = Arc::new(Progress::default());
        progress.set_open(true);
        let sink = McpSink::new(writer, &server, secrets, OffsetDateTime::now_utc());
        match Recorder::start(sink, progress) {
            Ok(recorder) => Ok(Self { recorder: Arc::new(recorder), began: Instant::now(), cassette }),
            Err(source) => Err(CassetteError::Io { path: cassette, source }),
        }
    }

    /// Copies of what a side sends.
    pub(super) fn copies(&self, sender: Sender) -> Copies {
        Copies { sender, began: self.began, recorder: Arc::clone(&self.recorder), lacks: false }
    }

    /// Writes everything.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) async fn finish(self) -> Result<McpRecorded, CassetteError> {
        let Self { recorder, cassette, .. } = self;
        let io = |error: Box<dyn std::error::Error + Send + Sync>| CassetteError::Io {
            path: cassette,
            source: io::Error::other(error),
        };
        match tokio::task::spawn_blocking(move || recorder.finish()).await {
            Ok(Ok(ending)) => ending.unwrap_or(Ok(McpRecorded::default())),
            Ok(Err(error)) => Err(io(error.into())),
            Err(error) => Err(io(error.into())),
        }
    }
}

/// Copies of what one side sends.
#[derive(Debug)]
pub(super) struct Copies {
    sender: Sender,
    began: Instant,
    recorder: Arc<Recorder<McpSink>>,
    /// Bytes were refused, and the sink does not know it yet.
    lacks: bool,
}

impl Copies {
    /// The side that is copied.
    pub(super) fn sender(&self) -> Sender {
        self.sender
    }

    /// Hands a copy over.
    pub(super) fn submit(&mut self, content: Copied) {
        let at = self.began.elapsed().as_secs_f64() * 1e3;
        if self.lacks {
            self.lacks = self.recorder.submit(Chunk { sender: self.sender, at, content: Copied::Lost }).is_err();
        }
        self.lacks |= self.recorder.submit(Chunk { sender: self.sender, at, content }).is_err();
    }
}
