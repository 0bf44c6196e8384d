//! Reading ahead: one thread cuts the file into lines, others parse them, and the steps come out in file order.
//!
//! A slow taker holds the readers back, so memory stays at some megabytes.

use std::{
    path::{Path, PathBuf},
    vec,
};

use super::{
    TraceError,
    pipeline::Pipeline,
    record_reader::{FromLine, ReadStep},
    source::{Fetched, NumberedLines},
};

/// Bytes of lines that are handed over together.
const BATCH: usize = 512 * 1024;

/// The most lines that are handed over together: what is wrong with a line takes more memory than a short line.
const BATCH_LINES: usize = 4096;

type ReadSteps<R> = Vec<Result<ReadStep<R>, TraceError>>;

/// The steps of a file, made on other threads.
pub(super) struct ReadAhead<R> {
    path: PathBuf,
    batches: Pipeline<ReadSteps<R>>,
    current: vec::IntoIter<Result<ReadStep<R>, TraceError>>,
}

impl<R: FromLine> ReadAhead<R> {
    /// Starts to read what is left of `lines`.
    pub(super) fn start(lines: NumberedLines) -> Result<Self, TraceError> {
        let path = lines.path().to_owned();
        match Pipeline::start("trace-parse", LineBatches { lines, over: false }, parse) {
            Ok(batches) => Ok(Self { path, batches, current: Vec::new().into_iter() }),
            Err(source) => Err(TraceError::Io { path, doing: "read", source }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The next step. `records` is how many records the caller has had, for the error.
    pub(super) fn next(&mut self, records: u64) -> Result<ReadStep<R>, TraceError> {
        loop {
            match self.current.next() {
                Some(Err(TraceError::Corrupt { path, line, source, .. })) => {
                    return Err(TraceError::Corrupt { path, line, records, source });
                }
                Some(step) => return step,
                None => {}
            }
            let failed = |source| TraceError::Io { path: self.path.clone(), doing: "read", source };
            let Some(batch) = self.batches.next().map_err(failed)? else {
                return Ok(ReadStep::of(0, Fetched::Over, &[]));
            };
            self.current = batch.into_iter();
        }
    }
}

struct LineBatch {
    bytes: Vec<u8>,
    /// Number, kind and end of each line.
    lines: Vec<(u64, Fetched, usize)>,
    failure: Option<TraceError>,
}

struct LineBatches {
    lines: NumberedLines,
    over: bool,
}

impl Iterator for LineBatches {
    type Item = LineBatch;

    fn next(&mut self) -> Option<LineBatch> {
        if self.over {
            return None;
        }
        let mut batch = LineBatch { bytes: Vec::with_capacity(BATCH + BATCH / 8), lines: Vec::new(), failure: None };
        while batch.bytes.len() < BATCH && batch.lines.len() < BATCH_LINES && !self.over {
            match self.lines.fetch(0) {
                Ok(fetched) => {
                    self.over = matches!(fetched, Fetched::CutHere | Fetched::Over);
                    batch.bytes.extend_from_slice(self.lines.line());
                    batch.lines.push((self.lines.number(), fetched, batch.bytes.len()));
                }
                Err(error) => {
                    self.over = true;
                    batch.failure = Some(error);
                }
            }
        }
        Some(batch)
    }
}

fn parse<R: FromLine>(batch: LineBatch) -> ReadSteps<R> {
    let mut start = 0;
    let mut steps = Vec::with_capacity(batch.lines.len() + 1);
    for (number, fetched, end) in batch.lines {
        steps.push(Ok(ReadStep::of(number, fetched, batch.bytes.get(start..end).unwrap_or_default())));
        start = end;
    }
    steps.extend(batch.failure.map(Err));
    steps
}
