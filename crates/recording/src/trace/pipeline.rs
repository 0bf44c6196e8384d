//! Work that is done on several threads and comes out in order.
//!
//! One thread makes jobs, as many as there are cores do them, and the results come out in the order of the jobs. Every
//! queue is bounded, so that a slow taker holds all of them back. The threads end by themselves after the last job, and
//! when the pipeline is dropped.

use base::lock::Lock;
use std::{
    io,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

/// Results in the order of their jobs.
pub(super) struct Pipeline<T> {
    /// One receiver per job, then `None`.
    results: Receiver<Option<Receiver<T>>>,
    is_over: bool,
}

type JobTicket<J, T> = (J, SyncSender<T>);

impl<T: Send + 'static> Pipeline<T> {
    /// Starts threads: the workers are called `name`.
    pub(super) fn start<J: Send + 'static>(
        name: &str,
        jobs: impl Iterator<Item = J> + Send + 'static,
        work: impl Fn(J) -> T + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let (made, results) = sync_channel(2 * workers);
        let (handed, taken) = sync_channel(workers);
        let (taken, work) = (Arc::new(Lock::new(taken)), Arc::new(work));
        for _ in 0..workers {
            let (taken, work) = (Arc::clone(&taken), Arc::clone(&work));
            thread::Builder::new().name(name.into()).spawn(move || work_all(&taken, work.as_ref()))?;
        }
        thread::Builder::new().name(name.into()).spawn(move || hand_out(jobs, &made, &handed))?;
        Ok(Self { results, is_over: false })
    }

    /// The next result; `None` after the last one.
    pub(super) fn next(&mut self) -> io::Result<Option<T>> {
        if self.is_over {
            return Ok(None);
        }
        let lost = |_| io::Error::other("a thread that worked on it ended early");
        match self.results.recv().map_err(lost)? {
            Some(result) => result.recv().map(Some).map_err(lost),
            None => {
                self.is_over = true;
                Ok(None)
            }
        }
    }
}

fn hand_out<J, T>(
    jobs: impl Iterator<Item = J>,
    made: &SyncSender<Option<Receiver<T>>>,
    handed: &SyncSender<JobTicket<J, T>>,
) {
    for job in jobs {
        let (give, result) = sync_channel(1);
        if made.send(Some(result)).is_err() || handed.send((job, give)).is_err() {
            return;
        }
    }
    // The receiver may be gone.
    let _ = made.send(None);
}

fn work_all<J, T>(taken: &Lock<Receiver<JobTicket<J, T>>>, work: &impl Fn(J) -> T) {
    loop {
        let received = taken.lock().recv();
        let Ok((job, give)) = received else { return };
        // The receiver may be gone.
        let _ = give.send(work(job));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_the_order_of_the_jobs() {
        let slow_at_times = |job: u32| (job, (0..job % 7 * 1000).fold(0_u32, u32::wrapping_add));
        let mut pipeline = Pipeline::start("test", 0..500, slow_at_times).unwrap();
        for expected in 0..500 {
            assert_eq!(pipeline.next().unwrap().unwrap().0, expected);
        }
        assert!(pipeline.next().unwrap().is_none());
    }

    #[test]
    fn an_endless_one_ends_when_it_is_dropped() {
        let (alive, ended) = sync_channel::<()>(0);
        let endless = std::iter::repeat_with(move || alive.send(()).is_err());
        let mut pipeline = Pipeline::start("test", endless.take_while(|over| !over), |over| over).unwrap();
        ended.recv().unwrap();
        assert_eq!(pipeline.next().unwrap(), Some(false));
        drop(pipeline);
        while ended.recv().is_ok() {}
    }

    #[test]
    fn a_lost_thread_is_an_error() {
        let mut pipeline = Pipeline::start("test", 0..3, |job| assert_ne!(job, 0)).unwrap();
        assert!(pipeline.next().is_err());
        let failing = (0..3).inspect(|job| assert_ne!(*job, 1));
        let mut pipeline = Pipeline::start("test", failing, |job| job).unwrap();
        assert_eq!(pipeline.next().unwrap(), Some(0));
        assert!(pipeline.next().is_err(), "and not the end");
    }
}
