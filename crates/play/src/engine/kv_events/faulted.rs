//! What goes wrong on purpose with batches on their way to subscribers.

use std::{sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::sleep};

use super::EventBatch;
use crate::faults::ServerFaults;
use ::faults::{BatchNumber, EventsFault};

/// Time after which a wait looks whether its engine is still there.
const LOOK: Duration = Duration::from_millis(100);

/// The faults of a server, its number among several, and that of one of its ranks.
#[derive(Debug, Clone)]
pub(crate) struct PublisherFaults {
    pub(crate) faults: Arc<ServerFaults>,
    pub(crate) replica: u32,
    pub(crate) rank: u32,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BatchFate {
    /// It waits so long, and those behind it too.
    pub(super) late: Duration,
    /// Numbers start again with it.
    pub(super) renumbers: bool,
    /// The socket is closed for so long before it.
    pub(super) restarts: Option<Duration>,
    /// It is sent after the next one.
    pub(super) is_held: bool,
    /// It is not sent.
    pub(super) is_dropped: bool,
    /// It is sent once more.
    pub(super) is_doubled: bool,
    /// Batches that are kept for replay, where there are fewer than otherwise.
    pub(super) kept: Option<usize>,
}

impl PublisherFaults {
    /// What happens to a batch that the engine gave this number.
    pub(super) fn of(&self, number: u64) -> BatchFate {
        let set = self.faults.current();
        let batch = BatchNumber { number, replica: self.replica, rank: self.rank };
        let mut fate = BatchFate { kept: set.replay_cut(batch), ..BatchFate::default() };
        for (fault, line) in set.of_batch(batch) {
            tracing::info!("fault: --fault '{line}'");
            match fault {
                EventsFault::Drop => fate.is_dropped = true,
                EventsFault::Double => fate.is_doubled = true,
                EventsFault::Late(time) => fate.late = fate.late.max(time),
                EventsFault::Reorder => fate.is_held = true,
                EventsFault::Reset => fate.renumbers = true,
                EventsFault::Restart(time) => (fate.renumbers, fate.restarts) = (true, Some(time)),
                EventsFault::ReplayCut(_) => {}
            }
        }
        fate
    }
}

/// Waits, but not longer than the engine is there.
pub(super) async fn wait(time: Duration, batches: &mpsc::Receiver<EventBatch>) {
    let mut left = time;
    while !left.is_zero() && !batches.is_closed() {
        let part = left.min(LOOK);
        sleep(part).await;
        left -= part;
    }
}
