//! Wake-ups of many answers on one thread: the engine wakes the thread once, and a task there wakes the answers.
//!
//! A task that is woken from another thread costs a system call; one that is woken on its own thread costs a push. So each thread
//! that answers wait on has a [`Relay`], to which the engine gives all that it wakes after a step.
//!
//! See docs/decisions/0097-one-wake-up-per-thread.md.

use std::{
    cell::RefCell,
    future::poll_fn,
    sync::Arc,
    task::{Poll, Waker},
};

use tokio::runtime::Handle;

use base::lock::Lock;

/// The answers of one thread that are to be woken.
#[derive(Debug, Default)]
pub(super) struct Relay(Lock<RelayWakers>);

#[derive(Debug, Default)]
struct RelayWakers {
    wakers: Vec<Waker>,
    /// That of the relay's task.
    own: Option<Waker>,
    /// Whether the task has ended, with its runtime.
    is_over: bool,
}

thread_local! {
    static OF_THREAD: RefCell<Option<Arc<Relay>>> = const { RefCell::new(None) };
}

/// Waiter for a step: a waker, and the relay of its thread.
#[derive(Debug)]
pub(super) struct Sleeper {
    pub(super) waker: Waker,
    relay: Option<Arc<Relay>>,
}

impl Sleeper {
    /// The task that is polled on this thread.
    pub(super) fn here(waker: &Waker) -> Self {
        Self { waker: waker.clone(), relay: Relay::of_thread() }
    }
}

impl Relay {
    /// That of this thread, which begins with the first answer that waits here; `None` outside of a runtime.
    fn of_thread() -> Option<Arc<Self>> {
        OF_THREAD.with_borrow_mut(|known| {
            if let Some(relay) = known.as_ref().filter(|relay| !relay.0.lock().is_over) {
                return Some(Arc::clone(relay));
            }
            let handle = Handle::try_current().ok()?;
            let relay = Arc::new(Self::default());
            handle.spawn(pass_on(EndOnDrop(Arc::clone(&relay))));
            *known = Some(Arc::clone(&relay));
            Some(relay)
        })
    }
}

/// Ends a relay when its task is dropped.
struct EndOnDrop(Arc<Relay>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let left = {
            let mut waiting = self.0.0.lock();
            waiting.is_over = true;
            std::mem::take(&mut waiting.wakers)
        };
        left.into_iter().for_each(Waker::wake);
    }
}

/// The relay's task: wakes whatever the engine gives it.
async fn pass_on(relay: EndOnDrop) {
    let mut woken = Vec::new();
    poll_fn(|context| {
        {
            let mut waiting = relay.0.0.lock();
            std::mem::swap(&mut woken, &mut waiting.wakers);
            if !waiting.own.as_ref().is_some_and(|own| own.will_wake(context.waker())) {
                waiting.own = Some(context.waker().clone());
            }
        }
        woken.drain(..).for_each(Waker::wake);
        Poll::<()>::Pending
    })
    .await;
}

/// Sleepers that are woken together.
#[derive(Debug, Default)]
pub(super) struct WakeUps {
    by_relay: Vec<(Arc<Relay>, Vec<Waker>)>,
    others: Vec<Waker>,
}

impl WakeUps {
    pub(super) fn add(&mut self, Sleeper { waker, relay }: Sleeper) {
        let Some(relay) = relay else { return self.others.push(waker) };
        match self.by_relay.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &relay)) {
            Some((_, wakers)) => wakers.push(waker),
            None => self.by_relay.push((relay, vec![waker])),
        }
    }

    /// Wakes all, each thread once.
    pub(super) fn wake(&mut self) {
        self.others.drain(..).for_each(Waker::wake);
        self.by_relay.retain_mut(|(relay, wakers)| {
            if wakers.is_empty() {
                return true;
            }
            let own = {
                let mut waiting = relay.0.lock();
                let is_served = !waiting.is_over;
                if is_served {
                    waiting.wakers.append(wakers);
                }
                waiting.own.clone().filter(|_| is_served)
            };
            let is_served = wakers.is_empty();
            wakers.drain(..).for_each(Waker::wake);
            own.into_iter().for_each(Waker::wake);
            is_served
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    /// A task that waits until it was woken so many times.
    async fn woken(times: usize, sleepers: &Lock<Vec<Sleeper>>, count: &AtomicUsize) {
        let mut seen = 0;
        poll_fn(|context| {
            if seen == times {
                return Poll::Ready(());
            }
            seen += 1;
            count.fetch_add(1, Relaxed);
            sleepers.lock().push(Sleeper::here(context.waker()));
            Poll::Pending
        })
        .await;
    }

    fn run(tasks: usize, times: usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (sleepers, count) = (Arc::new(Lock::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (waiting, counted) = (Arc::clone(&sleepers), Arc::clone(&count));
        let engine = std::thread::spawn(move || {
            let mut wake_ups = WakeUps::default();
            while counted.load(Relaxed) < tasks * times || !waiting.lock().is_empty() {
                waiting.lock().drain(..).for_each(|sleeper| wake_ups.add(sleeper));
                wake_ups.wake();
                std::thread::yield_now();
            }
            wake_ups.by_relay.len()
        });
        runtime.block_on(async {
            let all = (0..tasks).map(|_| {
                let (sleepers, count) = (Arc::clone(&sleepers), Arc::clone(&count));
                tokio::spawn(async move { woken(times, &sleepers, &count).await })
            });
            for task in all.collect::<Vec<_>>() {
                task.await.unwrap();
            }
        });
        assert_eq!(engine.join().unwrap(), 1, "one relay for one thread");
    }

    #[test]
    fn all_are_woken_through_the_relay_of_their_thread_and_of_a_later_runtime_on_it() {
        run(20, 50);
        run(3, 7);
    }
}
