//! Reading ahead: one thread unpacks the file and cuts it into lines, others parse them, and the steps come out in file
//! order.
//!
//! Every queue is bounded, so that a slow taker holds the readers back and memory stays at some megabytes. The threads
//! end by themselves at the end of the file, at the first error, and when what they made is dropped.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread, vec,
};

use super::{
    TraceError,
    read::Step,
    source::{Fetched, Lines},
};

/// Bytes of lines that are handed over together.
const BATCH: usize = 512 * 1024;

type Steps = Vec<Result<Step, TraceError>>;

/// The steps of a file, made on other threads.
pub(super) struct Ahead {
    path: PathBuf,
    /// One receiver per batch, in file order.
    batches: Receiver<Receiver<Steps>>,
    current: vec::IntoIter<Result<Step, TraceError>>,
}

/// Lines to parse, and where the steps go.
struct Batch {
    bytes: Vec<u8>,
    /// Number, kind and end of each line.
    lines: Vec<(u64, Fetched, usize)>,
    /// What came after the last line, where it was not another line.
    last: Option<Result<Step, TraceError>>,
    steps: SyncSender<Steps>,
}

impl Ahead {
    /// Starts to read what is left of `lines`.
    ///
    /// # Errors
    /// When the system has no threads left.
    pub(super) fn start(lines: Lines) -> Result<Self, TraceError> {
        let path = lines.path().to_owned();
        let parsers = thread::available_parallelism().map_or(1, usize::from);
        let (batch_made, batches) = sync_channel(2 * parsers);
        let (work_made, work) = sync_channel(parsers);
        let work = Arc::new(Mutex::new(work));
        let failed = |source| TraceError::Io { path: path.clone(), doing: "read", source };
        for _ in 0..parsers {
            let work = Arc::clone(&work);
            thread::Builder::new().name("trace-parse".into()).spawn(move || parse_all(&work)).map_err(failed)?;
        }
        let fetch = move || fetch_all(lines, &batch_made, &work_made);
        thread::Builder::new().name("trace-read".into()).spawn(fetch).map_err(failed)?;
        Ok(Self { path, batches, current: Vec::new().into_iter() })
    }

    /// The file, or a name that stands for it.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The next step. `records` is how many records the caller has had, for the error.
    pub(super) fn next(&mut self, records: u64) -> Result<Step, TraceError> {
        loop {
            match self.current.next() {
                Some(Err(TraceError::Corrupt { path, line, source, .. })) => {
                    return Err(TraceError::Corrupt { path, line, records, source });
                }
                Some(step) => return step,
                None => {}
            }
            let lost = |_| TraceError::Io {
                path: self.path.clone(),
                doing: "read",
                source: io::Error::other("a thread that read it ended early"),
            };
            self.current = self.batches.recv().and_then(|batch| batch.recv()).map_err(lost)?.into_iter();
        }
    }
}

fn fetch_all(mut lines: Lines, batches: &SyncSender<Receiver<Steps>>, work: &SyncSender<Batch>) {
    loop {
        let (steps, batch_steps) = sync_channel(1);
        let batch = fill(&mut lines, steps);
        let over = batch.last.is_some();
        if batches.send(batch_steps).is_err() || work.send(batch).is_err() || over {
            return;
        }
    }
}

fn fill(lines: &mut Lines, steps: SyncSender<Steps>) -> Batch {
    let mut batch = Batch { bytes: Vec::with_capacity(BATCH + BATCH / 8), lines: Vec::new(), last: None, steps };
    while batch.bytes.len() < BATCH && batch.last.is_none() {
        match lines.fetch(0) {
            Ok(fetched @ (Fetched::Whole | Fetched::Tail)) => {
                batch.bytes.extend_from_slice(lines.line());
                batch.lines.push((lines.number(), fetched, batch.bytes.len()));
            }
            Ok(fetched @ (Fetched::CutHere | Fetched::Over)) => {
                batch.last = Some(Ok(Step::of(lines.number(), fetched, &[])));
            }
            Err(error) => batch.last = Some(Err(error)),
        }
    }
    batch
}

fn parse_all(work: &Mutex<Receiver<Batch>>) {
    loop {
        let received = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(batch) = received else { return };
        let (mut start, mut steps) = (0, Vec::with_capacity(batch.lines.len() + 1));
        for (number, fetched, end) in batch.lines {
            steps.push(Ok(Step::of(number, fetched, batch.bytes.get(start..end).unwrap_or_default())));
            start = end;
        }
        steps.extend(batch.last);
        // Nobody may want it any more.
        let _ = batch.steps.send(steps);
    }
}
