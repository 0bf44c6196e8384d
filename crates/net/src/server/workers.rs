//! Runtimes that serve connections: the caller's, or threads that each have one of their own.
//!
//! On a thread of its own a connection never moves: timer, socket and task belong to one thread, and no other thread has
//! to be woken for it, which keeps events on time. Connections are distributed round robin.
//!
//! Limits: threads do not steal work, so a request that takes long to parse delays the other connections of its thread.
//!
//! See docs/decisions/0014-a-connection-stays-on-its-thread.md.

use std::{
    fmt, io,
    num::NonZeroUsize,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread::{Builder, JoinHandle},
    time::Duration,
};

use tokio::{
    runtime::{self, Handle},
    sync::oneshot,
    time::Instant,
};

use base::background::lower_priority;
use base::lock::Lock;

/// Tasks that a worker runs before it polls for I/O events. tokio's 61 would let a batch of due events delay the next
/// batch for too long.
const EVENT_INTERVAL: u32 = 31;

/// The runtimes that serve connections. Dropping them ends the threads.
#[derive(Debug)]
pub struct Workers {
    workers: Vec<WorkerThread>,
}

struct WorkerThread {
    handle: Handle,
    /// `None` for the caller's runtime.
    own: Option<Thread>,
}

struct Thread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected when the thread ends.
    ended: Lock<Receiver<()>>,
}

/// Time in which all threads have to end once they are dropped; one that still computes then is left behind.
const END_WITHIN: Duration = Duration::from_secs(1);

impl Workers {
    /// Uses the caller's runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(crate) fn current() -> Self {
        Self { workers: vec![WorkerThread { handle: Handle::current(), own: None }] }
    }

    /// Starts `threads` threads.
    ///
    /// # Errors
    /// When the system cannot start a thread.
    pub fn start(threads: NonZeroUsize) -> io::Result<Self> {
        let workers = (0..threads.get()).map(WorkerThread::start).collect::<io::Result<_>>()?;
        Ok(Self { workers })
    }

    /// Starts `threads` threads, or uses the caller's runtime where that is `None` or the system cannot start them.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn new(threads: Option<NonZeroUsize>) -> Self {
        let Some(threads) = threads else { return Self::current() };
        Self::start(threads).unwrap_or_else(|error| {
            tracing::warn!(%error, threads, "cannot start threads for connections; all are served by the main runtime");
            Self::current()
        })
    }

    /// Calls `make` once inside each runtime and returns the results with their runtimes.
    pub fn in_each<T>(&self, make: impl Fn() -> T) -> Vec<(Handle, T)> {
        let make_inside = |worker: &WorkerThread| {
            let _inside = worker.handle.enter();
            (worker.handle.clone(), make())
        };
        self.workers.iter().map(make_inside).collect()
    }
}

impl WorkerThread {
    fn start(number: usize) -> io::Result<Self> {
        // The threads that such a runtime starts are those of `spawn_blocking`.
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .event_interval(EVENT_INTERVAL)
            .on_thread_start(lower_priority)
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let (running, ended) = sync_channel(0);
        let run = move || {
            let _until_the_end: SyncSender<()> = running;
            let _dropped_or_sent = runtime.block_on(stopped);
            // Blocking tasks may still run; waiting for them would delay the exit.
            runtime.shutdown_background();
        };
        let thread = Builder::new().name(format!("serve-{number}")).spawn(run)?;
        Ok(Self { handle, own: Some(Thread { stop: Some(stop), thread: Some(thread), ended: Lock::new(ended) }) })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut threads: Vec<&mut Thread> = self.workers.iter_mut().filter_map(|worker| worker.own.as_mut()).collect();
        threads.iter_mut().for_each(|thread| drop(thread.stop.take()));
        let deadline = Instant::now() + END_WITHIN;
        for thread in threads {
            thread.end_before(deadline);
        }
    }
}

impl Thread {
    /// Waits for the end of the thread, after its stop.
    fn end_before(&mut self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let ended = self.ended.get_mut();
        if let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(left) {
            tracing::warn!("a thread that serves connections is busy and left behind");
            return;
        }
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("a thread that served connections panicked");
        }
    }
}

impl fmt::Debug for WorkerThread {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.own.is_some() { "Thread" } else { "Current" })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        net::TcpStream,
        sync::{Arc, mpsc},
        thread,
    };

    use axum_core::body::Body;
    use http::{Request, Response};
    use hyper::body::Incoming;

    use super::*;
    use crate::server::{Peer, bind, run_on};

    #[tokio::test]
    async fn each_thread_runs_what_it_is_given() {
        let workers = Workers::start(NonZeroUsize::MIN.saturating_add(1)).unwrap();
        let mut seen = Vec::new();
        for (handle, made) in workers.in_each(|| Handle::current().metrics().num_workers()) {
            assert_eq!(made, 1);
            seen.push(handle.spawn(async { thread::current().id() }).await.unwrap());
        }
        assert_eq!(seen.len(), 2);
        assert!(seen[0] != seen[1] && !seen.contains(&thread::current().id()));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn blocking_work_is_less_urgent_than_connections() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let workers = Workers::start(NonZeroUsize::MIN).unwrap();
        let (handle, ()) = workers.in_each(|| ()).pop().unwrap();
        let serving = handle.spawn(async move { nice() }).await.unwrap();
        let blocking = handle.spawn_blocking(nice).await.unwrap();
        assert_eq!(serving, nice());
        assert!(blocking > serving || serving == 19, "{blocking} {serving}");
    }

    #[tokio::test]
    async fn the_current_runtime_is_the_callers() {
        let workers = Workers::current();
        let (handle, ()) = workers.in_each(|| ()).pop().unwrap();
        assert_eq!(handle.id(), Handle::current().id());
    }

    #[test]
    fn a_busy_thread_does_not_hold_up_the_end() {
        let workers = Workers::start(NonZeroUsize::MIN).unwrap();
        let (release, held) = mpsc::channel::<()>();
        let (begun, busy) = mpsc::channel();
        let task = async move {
            begun.send(()).unwrap();
            held.recv().unwrap_err();
        };
        workers.workers[0].handle.spawn(task);
        busy.recv().unwrap();
        drop(workers);
        drop(release);
    }

    #[tokio::test]
    async fn a_busy_connection_is_cut_at_the_deadline() {
        let workers = Workers::start(NonZeroUsize::MIN).unwrap();
        let (release, held) = mpsc::channel::<()>();
        let (begun, mut busy) = tokio::sync::mpsc::unbounded_channel();
        let held = Arc::new(Lock::new(held));
        let make = move || {
            let (held, begun) = (Arc::clone(&held), begun.clone());
            move |_request: Request<Incoming>, _peer: Peer| {
                let (held, begun) = (Arc::clone(&held), begun.clone());
                async move {
                    begun.send(()).unwrap();
                    held.lock().recv().unwrap_err();
                    Response::new(Body::empty())
                }
            }
        };
        let listener = bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        let shutdown = async move { busy.recv().await.unwrap() };
        let report = run_on(&workers, listener, make, shutdown, Duration::from_millis(10)).await;
        assert_eq!(report.cut, 1);
        drop(workers);
        drop(release);
    }
}
