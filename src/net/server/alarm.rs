//! The deadlines of one connection's heads, one after the other, on one alarm.
//!
//! hyper asks for a deadline before each head and drops it when the head is there; to set and clear a timer of the
//! runtime each time would cost as much as reading the head. So the alarm stays set for a deadline that is over with, and is
//! only set anew when it goes off: once per time-out and connection instead of once per request.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use hyper::rt::{Sleep, Timer};
use tokio::time::{self, Instant};

/// The alarm of a connection; clones share it.
#[derive(Clone, Default)]
pub(super) struct Alarm(Arc<Mutex<Option<Pin<Box<time::Sleep>>>>>);

impl fmt::Debug for Alarm {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("Alarm")
    }
}

impl Alarm {
    fn at(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Wait { alarm: self.clone(), deadline })
    }
}

impl Timer for Alarm {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.at(Instant::now() + duration)
    }

    #[allow(clippy::disallowed_types)] // the trait has it so
    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        self.at(Instant::from_std(deadline))
    }

    #[allow(clippy::disallowed_types)]
    fn now(&self) -> std::time::Instant {
        Instant::now().into_std()
    }
}

/// Waits for one deadline.
#[derive(Debug)]
struct Wait {
    alarm: Alarm,
    deadline: Instant,
}

impl Sleep for Wait {}

impl Future for Wait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut alarm = self.alarm.0.lock().unwrap_or_else(PoisonError::into_inner);
        let alarm = alarm.get_or_insert_with(|| Box::pin(time::sleep_until(self.deadline)));
        if alarm.deadline() > self.deadline {
            alarm.as_mut().reset(self.deadline);
        }
        while alarm.as_mut().poll(context).is_ready() {
            if alarm.deadline() >= self.deadline {
                return Poll::Ready(());
            }
            alarm.as_mut().reset(self.deadline);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn is_pending(wait: &mut Pin<Box<dyn Sleep>>) -> bool {
        wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[tokio::test]
    async fn a_deadline_is_met_whatever_the_alarm_was_set_for() {
        let (alarm, start) = (Alarm::default(), Instant::now());
        let mut dropped = alarm.sleep(2 * MS);
        assert!(is_pending(&mut dropped));
        drop(dropped);
        alarm.sleep(20 * MS).await;
        assert!(start.elapsed() >= 20 * MS);
        let mut late = alarm.sleep(3600 * 1000 * MS);
        assert!(is_pending(&mut late));
        alarm.sleep(MS).await;
        assert!(is_pending(&mut late));
    }
}
