//! Waiting for an instant, to a fraction of a millisecond.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::Instant;

#[cfg(target_os = "linux")]
use super::timer::{Timer, TimerSleep};

/// Wakes tasks at their deadlines. A clone shares the timer; drop the last one and nothing of it is left.
///
/// tokio's own timer rounds up to the next millisecond. The precise pacer has one timer of the operating system inside
/// the runtime and wakes whatever is due within 50 µs of it together; so it may wake up to 50 µs *before* a deadline.
///
/// Limits: the precise pacer exists on Linux only and ignores a paused tokio clock; see [`Pacer::coarse`].
#[derive(Debug, Clone)]
pub struct Pacer(PacerKind);

#[derive(Debug, Clone)]
enum PacerKind {
    #[cfg(target_os = "linux")]
    Precise(Timer),
    Coarse,
}

impl Pacer {
    /// The most precise pacer that this machine has; [`Pacer::coarse`] where it has no timer of its own to give.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled. The pacer belongs to that runtime.
    #[must_use]
    pub fn precise() -> Self {
        #[cfg(target_os = "linux")]
        match Timer::start() {
            Ok(timer) => return Self(PacerKind::Precise(timer)),
            Err(error) => tracing::warn!(%error, "no precise timer; events are up to a millisecond late"),
        }
        Self::coarse()
    }

    /// tokio's timer: up to a millisecond late, cheaper, and obedient to a paused clock.
    #[must_use]
    pub fn coarse() -> Self {
        Self(PacerKind::Coarse)
    }

    /// Completes at `deadline`. Dropping it before that leaves nothing behind.
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep(match &self.0 {
            #[cfg(target_os = "linux")]
            PacerKind::Precise(timer) => SleepKind::Precise(timer.sleep_until(deadline)),
            PacerKind::Coarse => SleepKind::Coarse(Box::pin(tokio::time::sleep_until(deadline))),
        })
    }
}

/// Waits for one deadline, see [`Pacer::sleep_until`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Sleep(SleepKind);

#[derive(Debug)]
enum SleepKind {
    #[cfg(target_os = "linux")]
    Precise(TimerSleep),
    Coarse(Pin<Box<tokio::time::Sleep>>),
}

impl Future for Sleep {
    type Output = ();

    // The place to measure lateness of wake-ups, if it is ever wanted: both kinds complete here and nowhere else.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            #[cfg(target_os = "linux")]
            SleepKind::Precise(sleep) => Pin::new(sleep).poll(context),
            SleepKind::Coarse(sleep) => sleep.as_mut().poll(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn either_pacer_waits_for_its_deadline() {
        for pacer in [Pacer::precise(), Pacer::coarse()] {
            let deadline = Instant::now() + Duration::from_millis(2);
            pacer.sleep_until(deadline).await;
            assert!(Instant::now() + Duration::from_micros(50) >= deadline);
            pacer.sleep_until(deadline).await;
        }
    }
}
