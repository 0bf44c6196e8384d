//! The queue between the threads that serve and the recorder's.
//!
//! To wake a thread costs more than a whole small record, so a producer wakes the recorder only when it is idle; after a
//! batch it rests for a moment and takes what came meanwhile together. Limits: it is one lock for
//! all, held for a push or for the exchange of two buffers.
//!
//! See docs/decisions/0011-recording-never-fails-a-request.md.

use std::{
    mem,
    sync::{Condvar, MutexGuard, PoisonError},
    time::Duration,
};

use base::lock::Lock;
use tokio::time::Instant;

/// Time for which items gather after a batch was taken.
const REST: Duration = Duration::from_millis(10);

/// Bounded queue of many producers and one consumer.
#[derive(Debug)]
pub(super) struct Queue<T> {
    state: Lock<QueueState<T>>,
    awake: Condvar,
    most: usize,
}

#[derive(Debug)]
struct QueueState<T> {
    waiting: Vec<T>,
    /// Number of waiting items at which the consumer is woken.
    wake_at: usize,
    is_closed: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Some,
    Nothing,
    /// Nothing, and nothing will come any more.
    Over,
}

impl<T> Queue<T> {
    pub(super) fn new(most: usize) -> Self {
        let state = QueueState { waiting: Vec::new(), wake_at: 1, is_closed: false };
        Self { state: Lock::new(state), awake: Condvar::new(), most }
    }

    /// Adds something; never waits for the consumer. Gives it back when the queue is full or closed.
    pub(super) fn push(&self, value: T) -> Result<(), T> {
        let mut state = self.state.lock();
        if state.is_closed || state.waiting.len() >= self.most {
            return Err(value);
        }
        state.waiting.push(value);
        let wakes = state.waiting.len() == state.wake_at;
        drop(state);
        if wakes {
            self.awake.notify_one();
        }
        Ok(())
    }

    /// Nothing more is taken in.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.awake.notify_one();
    }

    /// Takes all that wait into `batch`, which is empty; waits for something until `deadline`.
    pub(super) fn take(&self, batch: &mut Vec<T>, deadline: Instant) -> Taken {
        self.take_from(self.state.lock(), batch, deadline)
    }

    /// As [`take`](Self::take), after a rest in which things may gather: it ends early when the queue fills or closes.
    pub(super) fn rest_and_take(&self, batch: &mut Vec<T>, deadline: Instant) -> Taken {
        let mut state = self.state.lock();
        state.wake_at = (self.most / 4).max(1);
        state = self.wait(state, deadline.min(Instant::now() + REST), |state| state.waiting.len() < state.wake_at);
        state.wake_at = 1;
        self.take_from(state, batch, deadline)
    }

    fn take_from(&self, state: MutexGuard<'_, QueueState<T>>, batch: &mut Vec<T>, deadline: Instant) -> Taken {
        let mut state = self.wait(state, deadline, |state| state.waiting.is_empty());
        if !state.waiting.is_empty() {
            mem::swap(&mut state.waiting, batch);
            Taken::Some
        } else if state.is_closed {
            Taken::Over
        } else {
            Taken::Nothing
        }
    }

    /// Waits while too little is there, until a time or the end of the queue.
    fn wait<'s>(
        &self,
        state: MutexGuard<'s, QueueState<T>>,
        until: Instant,
        is_too_little: impl Fn(&QueueState<T>) -> bool,
    ) -> MutexGuard<'s, QueueState<T>> {
        let left = until.saturating_duration_since(Instant::now());
        let waits = |state: &mut QueueState<T>| !state.is_closed && is_too_little(state);
        self.awake.wait_timeout_while(state, left, waits).unwrap_or_else(PoisonError::into_inner).0
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn everything_arrives_once_and_in_order() {
        let queue = Arc::new(Queue::new(1 << 20));
        let giver = Arc::clone(&queue);
        let giving = thread::spawn(move || {
            for number in 0..100_000 {
                giver.push(number).unwrap();
            }
            giver.close();
        });
        let (mut all, mut batch) = (Vec::new(), Vec::new());
        while queue.rest_and_take(&mut batch, Instant::now() + LONG) == Taken::Some {
            all.append(&mut batch);
        }
        giving.join().unwrap();
        assert!(all.into_iter().eq(0..100_000));
        assert_eq!(queue.push(1), Err(1));
    }

    #[test]
    fn a_full_queue_refuses_and_wakes_who_rests() {
        let (queue, mut batch) = (Arc::new(Queue::new(4)), Vec::new());
        for number in 0..4 {
            queue.push(number).unwrap();
        }
        assert_eq!(queue.push(4), Err(4));
        assert_eq!(queue.take(&mut batch, Instant::now()), Taken::Some);
        assert_eq!(std::mem::take(&mut batch), [0, 1, 2, 3]);
        assert_eq!(queue.take(&mut batch, Instant::now()), Taken::Nothing);
        queue.close();
        assert_eq!(queue.rest_and_take(&mut batch, Instant::now() + LONG), Taken::Over);
    }

    #[test]
    fn who_waits_is_woken_by_the_first() {
        let queue = Arc::new(Queue::new(1 << 10));
        let taker = Arc::clone(&queue);
        let taking = thread::spawn(move || {
            let mut batch = Vec::new();
            (taker.take(&mut batch, Instant::now() + LONG), batch)
        });
        queue.push(7).unwrap();
        assert_eq!(taking.join().unwrap(), (Taken::Some, vec![7]));
    }
}
