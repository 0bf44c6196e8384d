//! The header timeout of a connection: one timer for all its requests.
//!
//! hyper sets a deadline before each request head and drops it when the head is there. To register and cancel a timer of the
//! runtime each time would cost as much as parsing the head. So the timer stays registered for a deadline that was dropped
//! and is reset only when it fires: once per timeout and connection instead of once per request.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use base::lock::Lock;
use hyper::rt::{Sleep, Timer};
use tokio::time::{self, Instant};

/// The timer of a connection; clones share it.
#[derive(Clone, Default)]
pub(super) struct HeaderTimer(Arc<Lock<Option<Pin<Box<time::Sleep>>>>>);

impl fmt::Debug for HeaderTimer {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("HeaderTimer")
    }
}

impl HeaderTimer {
    fn at(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Deadline { timer: self.clone(), deadline })
    }
}

impl Timer for HeaderTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.at(Instant::now() + duration)
    }

    #[allow(clippy::disallowed_types)] // the trait's signature
    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        self.at(Instant::from_std(deadline))
    }

    #[allow(clippy::disallowed_types)]
    fn now(&self) -> std::time::Instant {
        Instant::now().into_std()
    }
}

#[derive(Debug)]
struct Deadline {
    timer: HeaderTimer,
    deadline: Instant,
}

impl Sleep for Deadline {}

impl Future for Deadline {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut timer = self.timer.0.lock();
        let timer = timer.get_or_insert_with(|| Box::pin(time::sleep_until(self.deadline)));
        if timer.deadline() > self.deadline {
            timer.as_mut().reset(self.deadline);
        }
        // The timer may fire for an earlier deadline that was dropped.
        while timer.as_mut().poll(context).is_ready() {
            if timer.deadline() >= self.deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(self.deadline);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn is_pending(deadline: &mut Pin<Box<dyn Sleep>>) -> bool {
        deadline.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[tokio::test]
    async fn a_deadline_is_met_whatever_the_timer_was_set_for() {
        let (timer, start) = (HeaderTimer::default(), Instant::now());
        let mut dropped = timer.sleep(2 * MS);
        assert!(is_pending(&mut dropped));
        drop(dropped);
        timer.sleep(20 * MS).await;
        assert!(start.elapsed() >= 20 * MS);
        let mut late = timer.sleep(3600 * 1000 * MS);
        assert!(is_pending(&mut late));
        timer.sleep(MS).await;
        assert!(is_pending(&mut late));
    }
}
