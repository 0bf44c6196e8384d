//! Files of JSON Lines that are no traces, written as traces are: readable by their owner only, packed where the name ends in `.gz`.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{
    CreateMode, TraceError,
    output::{OutputUnit, TraceOutput, open},
    source::{Packing, is_standard},
};

/// Writer of lines.
pub struct JsonWriter {
    path: PathBuf,
    output: TraceOutput,
    unit: OutputUnit,
}

impl JsonWriter {
    /// Creates the file, which must not exist; `-` is standard output, not packed.
    pub(crate) fn create(path: &Path) -> Result<Self, TraceError> {
        if is_standard(path) {
            let output = TraceOutput::of_pipe(io::stdout());
            return Ok(Self { path: path.to_owned(), output, unit: OutputUnit::of(Packing::Plain) });
        }
        let packing = Packing::of(path)?;
        let output = TraceOutput::of_file(open(path, CreateMode::New)?, 0);
        Ok(Self { path: path.to_owned(), output, unit: OutputUnit::of(packing) })
    }

    /// Adds a line, given without its end.
    pub(crate) fn append(&mut self, line: &[u8]) -> Result<(), TraceError> {
        let pushed = self.unit.push(line).and_then(|()| self.unit.push(b"\n"));
        pushed.map_err(|source| self.failure(source))?;
        if self.unit.is_full() { self.flush() } else { Ok(()) }
    }

    /// Writes what waits.
    pub(crate) fn flush(&mut self) -> Result<(), TraceError> {
        let written = self.unit.take().and_then(|unit| self.output.put(&unit));
        written.map_err(|source| self.failure(source))
    }

    fn failure(&self, source: io::Error) -> TraceError {
        TraceError::Io { path: self.path.clone(), doing: "write", source }
    }
}
