//! Who serves connections: the caller's runtime, or threads that each have one of their own.
//!
//! On a thread of its own a connection never moves: its timer, its socket and its task are one thread's, nothing is handed
//! over and nobody else has to be woken for it. That is what keeps events on time. Connections are dealt out in turn.
//!
//! Limits: a thread does not help another one, so a request that takes long to read holds up its neighbours.
//!
//! See docs/decisions/0014-a-connection-stays-on-its-thread.md.

use std::{
    fmt, io,
    num::NonZeroUsize,
    thread::{Builder, JoinHandle},
};

use tokio::{
    runtime::{self, Handle},
    sync::oneshot,
};

/// How many tasks a thread runs before it looks for what the system has to tell: a batch of events that are due must not
/// keep it from the next batch for long.
const EVENT_INTERVAL: u32 = 31;

/// The threads; they end when this is dropped.
#[derive(Debug)]
pub struct Crew {
    workers: Vec<Worker>,
}

struct Worker {
    handle: Handle,
    /// `None` for the caller's runtime.
    own: Option<Thread>,
}

struct Thread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Crew {
    /// The runtime of the caller.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn here() -> Self {
        Self { workers: vec![Worker { handle: Handle::current(), own: None }] }
    }

    /// So many threads.
    ///
    /// # Errors
    /// When the system has none to give.
    pub fn start(threads: NonZeroUsize) -> io::Result<Self> {
        let workers = (0..threads.get()).map(Worker::start).collect::<io::Result<_>>()?;
        Ok(Self { workers })
    }

    /// So many threads; the runtime of the caller where none were asked for, or where the system has none to give.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn of(threads: Option<NonZeroUsize>) -> Self {
        let crew = threads.map_or_else(|| Ok(Self::here()), Self::start);
        crew.unwrap_or_else(|error| {
            tracing::warn!(%error, "no threads of their own for connections");
            Self::here()
        })
    }

    /// What `make` makes inside each runtime, with that runtime.
    pub(super) fn equip<T>(&self, make: impl Fn() -> T) -> Vec<(Handle, T)> {
        let equip = |worker: &Worker| {
            let _inside = worker.handle.enter();
            (worker.handle.clone(), make())
        };
        self.workers.iter().map(equip).collect()
    }
}

impl Worker {
    fn start(number: usize) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().event_interval(EVENT_INTERVAL).build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            let _dropped_or_sent = runtime.block_on(stopped);
            runtime.shutdown_background();
        };
        let thread = Builder::new().name(format!("serve-{number}")).spawn(run)?;
        Ok(Self { handle, own: Some(Thread { stop: Some(stop), thread: Some(thread) }) })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        if let Some(Err(_)) = ended {
            tracing::error!("a thread that served connections panicked");
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.own.is_some() { "Thread" } else { "Here" })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn each_thread_runs_what_it_is_given() {
        let crew = Crew::start(NonZeroUsize::MIN.saturating_add(1)).unwrap();
        let mut seen = Vec::new();
        for (handle, made) in crew.equip(|| Handle::current().metrics().num_workers()) {
            assert_eq!(made, 1);
            seen.push(handle.spawn(async { thread::current().id() }).await.unwrap());
        }
        assert_eq!(seen.len(), 2);
        assert!(seen[0] != seen[1] && !seen.contains(&thread::current().id()));
    }

    #[tokio::test]
    async fn here_is_here() {
        let crew = Crew::here();
        let (handle, ()) = crew.equip(|| ()).pop().unwrap();
        assert_eq!(handle.id(), Handle::current().id());
    }
}
