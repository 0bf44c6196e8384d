//! One trace of several, on one clock.
//!
//! Records are copied file by file, in constant memory: who reads a trace sorts them. Arrivals count from the earliest start of the files, by their
//! clocks.

use std::{
    path::{Path, PathBuf},
    slice,
    sync::Arc,
};

use super::{SummaryReport, summary};
use crate::recording::trace::{
    BadLines, CaptureEnd, CreateMode, Joined, LoadProgress, Meta, Sources, TraceError, TraceWriter, zeros,
};

/// Records between two flushes.
const FLUSH_AFTER: u64 = 4096;

/// Traces that cannot be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// One cannot be read, or the merged one not be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A trace has no start time.
    #[error("{path}: its first line has no `started_at`, so that its records have no place among those of the others", path = .0.display())]
    NoStart(PathBuf),
}

/// Writes the records of all traces into a new one, and sums them up.
///
/// # Errors
/// When a trace cannot be read or has no start time, or the new one exists or cannot be written.
pub fn merge(sources: &Sources, out: &Path, progress: &Arc<LoadProgress>) -> Result<SummaryReport, MergeError> {
    let (meta, end) = heads(sources)?;
    let mut writer = TraceWriter::create(out, &meta, CreateMode::New)?;
    let mut joined = Joined::of(sources);
    let mut unflushed = 0;
    while let Some((path, mut reader)) = joined.next_file()? {
        let mut bad_lines = BadLines::default();
        while let Some((_, mut record)) = reader.next_sound(&mut bad_lines)? {
            joined.place(&mut record);
            for mended in writer.append(&record)? {
                tracing::warn!(path = %path.display(), mended, "a record breaks a rule of the format");
            }
            unflushed += 1;
            if unflushed >= FLUSH_AFTER {
                writer.flush()?;
                unflushed = 0;
            }
        }
    }
    writer.finish(end)?;
    Ok(SummaryReport { meta, ..summary(sources, progress)? })
}

/// The metadata of all files: all metadata, with the earliest start, and the counts of all.
fn heads(sources: &Sources) -> Result<(Meta, CaptureEnd), MergeError> {
    let mut all: Option<Meta> = None;
    let mut end = CaptureEnd::default();
    let mut joined = Joined::of(sources);
    while let Some((path, mut reader)) = joined.next_file()? {
        let meta = reader.meta().clone();
        if zeros(slice::from_ref(&meta)).first().is_none_or(Option::is_none) {
            return Err(MergeError::NoStart(path.to_owned()));
        }
        // Counts stand at the end.
        let mut bad_lines = BadLines::default();
        while reader.next_sound(&mut bad_lines)?.is_some() {}
        end.dropped += reader.end().map_or(0, |end| end.dropped) + bad_lines.count;
        match &mut all {
            None => all = Some(meta),
            Some(all) => all.join(&meta),
        }
    }
    let meta = all.unwrap_or_default();
    Ok((Meta { started_at: sources.started_at().or(meta.started_at.clone()), ..meta }, end))
}
