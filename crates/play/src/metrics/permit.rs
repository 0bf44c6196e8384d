//! Room for choices: taken before a request is read, given up choice by choice; and choices that are held up.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use super::{Metrics, engine::EngineMetrics};

/// Room for some choices, taken until they end or this is dropped.
#[derive(Debug)]
pub(in super::super) struct AdmissionPermit {
    engine: Arc<EngineMetrics>,
    left: AtomicU32,
}

impl AdmissionPermit {
    /// Room for these choices, where no more than `most` are admitted with them.
    pub(super) fn take(engine: &Arc<EngineMetrics>, choices: u32, most: Option<u32>) -> Option<Self> {
        let most = most.map_or(u64::MAX, u64::from);
        let with = |admitted: u64| admitted.checked_add(choices.into()).filter(|together| *together <= most);
        engine.admitted.fetch_update(Relaxed, Relaxed, with).ok()?;
        Some(Self { engine: Arc::clone(engine), left: AtomicU32::new(choices) })
    }

    /// Gives up the room of one choice.
    pub(super) fn give_up_one(&self) {
        if self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            self.engine.admitted.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        self.engine.admitted.fetch_sub(u64::from(*self.left.get_mut()), Relaxed);
    }
}

/// Choices that are held up and do not count as running, until this is dropped.
#[derive(Debug)]
pub(in super::super) struct Queued {
    engine: Arc<EngineMetrics>,
    choices: u64,
}

impl Queued {
    /// Some choices that have set out wait from now on.
    pub(in super::super) fn new(metrics: &Metrics, choices: u32) -> Self {
        // The scheduler of a simulated engine has gauges of its own.
        let choices = if metrics.engine.is_scheduled { 0 } else { u64::from(choices) };
        metrics.engine.running.fetch_sub(choices, Relaxed);
        Self { engine: Arc::clone(&metrics.engine), choices }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.engine.running.fetch_add(self.choices, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::metrics::RequestMetrics;

    #[test]
    fn a_burst_does_not_overshoot() {
        let metrics = Metrics::new(4096);
        let admitted = || {
            thread::scope(|scope| {
                let threads: Vec<_> = (0..64).map(|_| scope.spawn(|| metrics.admit(1, Some(10)))).collect();
                threads.into_iter().filter_map(|thread| thread.join().unwrap().ok()).collect::<Vec<AdmissionPermit>>()
            })
        };
        let permits = admitted();
        assert_eq!(permits.len(), 10);
        assert_eq!(metrics.engine.rejected.load(Relaxed), 54);
        drop(permits);
        assert_eq!(admitted().len(), 10);
        assert_eq!(metrics.engine.admitted.load(Relaxed), 0);
    }

    #[test]
    fn room_is_given_up_choice_by_choice() {
        let metrics = Metrics::new(4096);
        let admitted = || metrics.engine.admitted.load(Relaxed);
        let permit = metrics.admit(3, Some(3)).unwrap();
        let request = RequestMetrics::new(&metrics, tokio::time::Instant::now(), 3, permit);
        let choices = [request.start(1, 0, 1), request.start(1, 0, 1)];
        drop(request);
        assert!(metrics.admit(1, Some(3)).is_err());
        let [first, second] = choices;
        drop(first);
        assert_eq!(admitted(), 2);
        // What never set out ends with the request.
        drop(second);
        assert_eq!(admitted(), 0);
    }
}
