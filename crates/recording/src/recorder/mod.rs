//! The recorder: a bounded queue of exchanges that ended and one thread that hands them to a [`Sink`].
//!
//! A request never waits for it: what does not fit into the queue is refused, and counted by the submitter. The queue is bounded in
//! items and in bytes. The sink is flushed twice a second, so that a crash of the program loses at most the last second.
//!
//! To wake the thread costs more than a whole small record, so it is woken only when it is idle: after a batch it sleeps for a moment and takes
//! what came meanwhile together.
//!
//! A disk that does not answer at all holds up this thread only: at the end it is waited for, but not for ever. What waits at the end is
//! written as long as that goes on, which may take longer than a drain: the log has every two seconds what is left.
//!
//! See docs/decisions/0011-recording-never-fails-a-request.md.

mod progress;

use std::{
    fmt, io,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel, sync_channel},
    },
    thread,
    time::Duration,
};

use tokio::time::Instant;

pub use self::progress::{Capacity, RecorderProgress, RecorderState};
use base::lock::Lock;
use base::rate_limited_log::RateLimitedLog;

/// Interval at which written data is handed to the operating system.
const FLUSH_EVERY: Duration = Duration::from_millis(500);

/// Time for which items gather after a batch was taken.
const REST: Duration = Duration::from_millis(10);

/// Interval of log lines at the end about what is still to be written.
pub const NOTE_EVERY: Duration = Duration::from_secs(2);

/// Number of such waits at the end for a search for secrets.
const FINISH_SEARCHES: u32 = 6;

/// Writer of one format. It lives on the recorder's thread, where it may block.
pub trait Sink: Send + 'static {
    /// Item that is recorded.
    type Item: fmt::Debug + Send + 'static;
    /// Result of a recording.
    type Ending: fmt::Debug + Send + 'static;

    /// Bytes that an item holds while it waits, as far as they are bounded here.
    fn weight(item: &Self::Item) -> usize;

    /// Prepares for a batch: whatever was submitted before this call is in it.
    fn begin_batch(&mut self) {}

    /// Records one item.
    fn record(&mut self, item: Self::Item);

    /// Ends a batch; it may have been empty.
    fn end_batch(&mut self) {}

    /// Hands what was recorded to the operating system, and does what is due from time to time.
    fn flush(&mut self);

    /// Closes the recording.
    fn finish(self) -> Self::Ending;
}

/// Handle of a recorder, shared by everything that records.
#[derive(Debug)]
pub struct Recorder<S: Sink> {
    /// `None` once it is closed.
    queue: Lock<Option<Sender<S::Item>>>,
    progress: Arc<RecorderProgress>,
    /// Taken by the first that waits for the end.
    ending: Lock<Option<Receiver<S::Ending>>>,
    full: RateLimitedLog,
    stalled: RateLimitedLog,
}

/// An item that does not fit into the queue.
#[derive(Debug, PartialEq, Eq)]
pub struct RefusedItem<T> {
    /// The item.
    pub item: T,
    /// Reason for the refusal.
    pub reason: RefusedReason,
}

/// Reason why an item was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedReason {
    /// The queue holds as many items as it may, or is closed.
    Full,
    /// The queue would hold more bytes than it may.
    Bytes,
}

/// A recorder whose end is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecorderError {
    /// The disk did not answer in time.
    #[error("the disk did not answer at the end")]
    TimedOut,
    /// A record was still being searched for secrets.
    #[error("a record was still being searched for secrets at the end")]
    Searching,
    /// The thread panicked.
    #[error("its thread panicked")]
    Panicked,
}

impl<S: Sink> Recorder<S> {
    /// Starts the thread, which owns the sink.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(sink: S, progress: Arc<RecorderProgress>) -> io::Result<Self> {
        let (queue, items) = channel();
        let (send, ending) = sync_channel(1);
        let shared = Arc::clone(&progress);
        thread::Builder::new().name("recorder".to_owned()).spawn(move || {
            if let Some(ending) = run(sink, &items, &shared) {
                // The receiver is gone if the wait for the end timed out.
                let _late = send.send(ending);
            }
        })?;
        let (full, stalled) = (RateLimitedLog::default(), RateLimitedLog::default());
        Ok(Self { queue: Lock::new(Some(queue)), progress, ending: Lock::new(Some(ending)), full, stalled })
    }

    /// Submits an item; never waits.
    ///
    /// # Errors
    /// With the item, when it does not fit.
    pub fn submit(&self, item: S::Item) -> Result<(), RefusedItem<S::Item>> {
        let weight = S::weight(&item);
        if let Err(reason) = self.progress.reserve(weight) {
            return Err(RefusedItem { item, reason });
        }
        let refused = match &*self.queue.lock() {
            Some(queue) => queue.send(item).err().map(|SendError(item)| item),
            None => Some(item),
        };
        if let Some(item) = refused {
            self.progress.release(weight);
            return Err(RefusedItem { item, reason: RefusedReason::Full });
        }
        self.watch();
        Ok(())
    }

    /// Counts records that were refused and are not submitted again.
    pub fn drop_records(&self, records: u64, reason: RefusedReason) {
        self.progress.count_dropped(records, reason);
        if let Some(suppressed) = self.full.due() {
            let dropped = suppressed + 1;
            tracing::warn!(dropped, "the recorder cannot keep up: records are dropped (requests are not affected)");
        }
    }

    /// Logs that the disk does not answer, or that one record takes long, which the recorder's thread cannot do itself.
    fn watch(&self) {
        let state = self.progress.state();
        let (silence, cause) = match state {
            RecorderState::Stalled(silence) => (silence, "the disk does not answer"),
            RecorderState::Searching(silence) => (silence, "a record is being searched for secrets"),
            _ => return,
        };
        if self.stalled.due().is_some() {
            let waiting = self.progress.queued();
            tracing::error!(?silence, waiting, "{cause}: requests are forwarded, their records wait");
        }
    }

    /// Closes the queue, and waits until everything is written, but not for ever. `None` where that was waited for before.
    ///
    /// # Errors
    /// When the disk does not answer, one record takes too long, or the thread panicked.
    pub fn finish(&self) -> Result<Option<S::Ending>, RecorderError> {
        self.queue.lock().take();
        let ending = self.ending.lock().take();
        let Some(ending) = ending else { return Ok(None) };
        let timeout = self.progress.capacity.disk_timeout;
        let (mut searches, mut position, mut since) = (0, self.progress.position(), Instant::now());
        loop {
            match ending.recv_timeout(timeout.min(NOTE_EVERY)) {
                Ok(ending) => return Ok(Some(ending)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(RecorderError::Panicked),
            }
            tracing::warn!("{}", self.progress.remaining());
            // A long queue is written as long as it gets shorter, and so is a long item.
            let is_moving = std::mem::replace(&mut position, self.progress.position()) != position;
            if !is_moving && since.elapsed() < timeout {
                continue;
            }
            since = Instant::now();
            match (is_moving, self.progress.is_searching()) {
                (true, _) => {}
                (false, true) if searches < FINISH_SEARCHES => searches += 1,
                (false, true) => return Err(RecorderError::Searching),
                (false, false) => return Err(RecorderError::TimedOut),
            }
        }
    }
}

impl<S: Sink> Drop for Recorder<S> {
    fn drop(&mut self) {
        // Dropped without `finish`: the thread flushes its items and leaves the file without an end.
        self.progress.abandon();
        self.queue.lock().take();
    }
}

/// The thread: takes batches until the queue is closed and empty. `None` where the recording was abandoned.
fn run<S: Sink>(mut sink: S, queue: &Receiver<S::Item>, progress: &RecorderProgress) -> Option<S::Ending> {
    let (mut due, mut batch) = (Instant::now() + FLUSH_EVERY, Vec::new());
    loop {
        sink.begin_batch();
        let first = queue.recv_timeout(due.saturating_duration_since(Instant::now()));
        let is_over = matches!(first, Err(RecvTimeoutError::Disconnected));
        batch.extend(first.into_iter().chain(queue.try_iter()).take(progress.capacity.items));
        let is_idle = batch.is_empty();
        for item in batch.drain(..) {
            progress.release(S::weight(&item));
            sink.record(item);
            flush_if_due(&mut sink, progress, &mut due);
        }
        sink.end_batch();
        flush_if_due(&mut sink, progress, &mut due);
        if is_over {
            if progress.is_abandoned() {
                sink.flush();
                return None;
            }
            return Some(sink.finish());
        }
        if !is_idle {
            thread::sleep(REST);
        }
    }
}

fn flush_if_due<S: Sink>(sink: &mut S, progress: &RecorderProgress, due: &mut Instant) {
    if *due <= Instant::now() {
        progress.beat();
        sink.flush();
        progress.beat();
        *due = Instant::now() + FLUSH_EVERY;
    }
}

#[cfg(test)]
mod tests;
