//! Deadlines on one `timerfd` inside the runtime.
//!
//! All waiting tasks are in one ordered map by deadline; the `timerfd` is armed for the first of them. One task waits for
//! it to fire and wakes whatever is due within [`QUANTUM`], so that deadlines close together share a wake-up. With
//! nothing to wait for the timer is not armed and nothing runs. A dropped [`TimerSleep`] takes its entry with it.
//!
//! Limits: a timer that the kernel refuses to arm (it has no reason to) is logged, and its deadlines are then only met when a
//! later arming succeeds.

use std::{
    collections::BTreeMap,
    future::Future,
    io,
    os::fd::OwnedFd,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use base::lock::Lock;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::JoinHandle,
    time::Instant,
};

/// Deadlines that are this close are met together; so one is met up to this much early.
pub(super) const QUANTUM: Duration = Duration::from_micros(50);

/// A timer; clones share it.
#[derive(Debug, Clone)]
pub(super) struct Timer {
    shared: Arc<TimerState>,
    _driver: Arc<Driver>,
}

#[derive(Debug)]
struct TimerState {
    fd: AsyncFd<OwnedFd>,
    waiting: Lock<TimerWaiters>,
}

/// A deadline, and a number that distinguishes equal ones.
type DeadlineKey = (Instant, u64);

#[derive(Debug, Default)]
struct TimerWaiters {
    wakers: BTreeMap<DeadlineKey, Waker>,
    next_number: u64,
    /// The deadline that the `timerfd` is armed for.
    armed: Option<Instant>,
}

/// The task that waits for the `timerfd`; it ends with the last [`Timer`].
#[derive(Debug)]
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Timer {
    /// Makes the `timerfd`, where one is to be had, and starts the task that serves it.
    pub(super) fn start() -> io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let shared = Arc::new(TimerState { fd: register(fd)?, waiting: Lock::default() });
        let driver = Driver(tokio::spawn(drive(Arc::clone(&shared))));
        Ok(Self { shared, _driver: Arc::new(driver) })
    }

    pub(super) fn sleep_until(&self, deadline: Instant) -> TimerSleep {
        TimerSleep { timer: self.clone(), deadline, number: None }
    }
}

/// Registers the `timerfd` with the runtime.
///
/// tokio calls this constructor unsound and offers an `unsafe` one, because a type other than ours might close its
/// descriptor while it is registered. An [`OwnedFd`] with no other holder cannot, and this crate has no `unsafe`.
#[allow(deprecated)]
fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

async fn drive(shared: Arc<TimerState>) {
    let mut due = Vec::new();
    while let Ok(mut ready) = shared.fd.readable().await {
        // How often it fired need not be read: each firing is an edge of its own to the runtime, and arming it resets it.
        ready.clear_ready();
        shared.take_due(&mut due);
        due.drain(..).for_each(Waker::wake);
    }
}

impl TimerState {
    /// Takes out whatever is due, and arms the timer for the first of the others.
    fn take_due(&self, due: &mut Vec<Waker>) {
        let mut waiting = self.waiting.lock();
        let limit = (Instant::now() + QUANTUM, u64::MAX);
        // One by one: to split the map would cost as much as the map is large.
        while let Some(first) = waiting.wakers.first_entry().filter(|first| *first.key() <= limit) {
            due.push(first.remove());
        }
        waiting.armed = None;
        self.arm(&mut waiting);
    }

    /// Arms the timer for the first deadline, unless it is armed for that or an earlier one.
    fn arm(&self, waiting: &mut TimerWaiters) {
        let Some((&(first, _), _)) = waiting.wakers.first_key_value() else { return };
        if waiting.armed.is_some_and(|armed| armed <= first) {
            return;
        }
        // Zero would disarm it.
        let delay = first.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let once = Timespec::default();
        let value = Timespec::try_from(delay).unwrap_or(Timespec { tv_sec: i64::from(i32::MAX), tv_nsec: 0 });
        match timerfd_settime(
            self.fd.get_ref(),
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: once, it_value: value },
        ) {
            Ok(_) => waiting.armed = Some(first),
            Err(error) => tracing::error!(%error, "cannot arm the timer"),
        }
    }
}

/// Waits for one deadline.
#[derive(Debug)]
pub(super) struct TimerSleep {
    timer: Timer,
    deadline: Instant,
    /// Of its entry; `None` before the first poll.
    number: Option<u64>,
}

impl Future for TimerSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.deadline <= Instant::now() + QUANTUM {
            return Poll::Ready(());
        }
        let shared = Arc::clone(&self.timer.shared);
        let mut waiting = shared.waiting.lock();
        let number = *self.number.get_or_insert_with(|| {
            waiting.next_number += 1;
            waiting.next_number
        });
        waiting
            .wakers
            .entry((self.deadline, number))
            .or_insert_with(|| context.waker().clone())
            .clone_from(context.waker());
        shared.arm(&mut waiting);
        Poll::Pending
    }
}

impl Drop for TimerSleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            // The timer stays armed: one idle wake-up is cheaper than arming it again for every stream that ends.
            self.timer.shared.waiting.lock().wakers.remove(&(self.deadline, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn noop() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    #[tokio::test]
    async fn an_earlier_deadline_comes_first() {
        let timer = Timer::start().unwrap();
        let start = Instant::now();
        let mut long = timer.sleep_until(start + HOUR);
        assert!(Pin::new(&mut long).poll(&mut noop()).is_pending());
        timer.sleep_until(start + Duration::from_millis(2)).await;
        assert!(Pin::new(&mut long).poll(&mut noop()).is_pending());
        assert_eq!(timer.shared.waiting.lock().wakers.len(), 1);
    }

    #[tokio::test]
    async fn a_dropped_sleep_leaves_nothing() {
        let timer = Timer::start().unwrap();
        let deadline = Instant::now() + HOUR;
        let mut sleeps: Vec<_> = (0..10).map(|_| timer.sleep_until(deadline)).collect();
        for sleep in &mut sleeps {
            assert!(Pin::new(&mut *sleep).poll(&mut noop()).is_pending());
            assert!(Pin::new(sleep).poll(&mut noop()).is_pending(), "polled twice, it has one entry");
        }
        assert_eq!(timer.shared.waiting.lock().wakers.len(), 10);
        drop(sleeps);
        assert!(timer.shared.waiting.lock().wakers.is_empty());
        // What was armed for it fires without effect, and the next one is armed for itself.
        timer.sleep_until(Instant::now() + Duration::from_millis(1)).await;
    }

    #[tokio::test]
    async fn the_task_ends_with_the_last_clone() {
        let timer = Timer::start().unwrap();
        let watch = Arc::downgrade(&timer.shared);
        let sleep = timer.sleep_until(Instant::now() + Duration::from_millis(1));
        drop(timer);
        sleep.await;
        while watch.upgrade().is_some() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_tasks_are_all_woken() {
        let timer = Timer::start().unwrap();
        let tasks: Vec<_> = (0..200_u32)
            .map(|task| {
                let timer = timer.clone();
                tokio::spawn(async move {
                    for step in 1..5 {
                        timer
                            .sleep_until(Instant::now() + Duration::from_micros(u64::from(task * 7 % 300 * step)))
                            .await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert!(timer.shared.waiting.lock().wakers.is_empty());
    }
}
