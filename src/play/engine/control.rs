//! What an operator does to the engine between two steps: pauses, and resets of its prefix cache.

use tokio::sync::oneshot;

use super::{Engine, check::of, stepping::Stepping};
use crate::engine::{recorded_timings::RecordedTimings, scheduler::PauseState};

/// What is to be done.
#[derive(Debug, Clone, Copy)]
pub(super) enum Control {
    /// Requests are not scheduled from now on; done once none runs.
    Pause {
        /// Which ones.
        state: PauseState,
        /// Whether all requests end first.
        aborts: bool,
        /// Whether the prefix cache is forgotten once none runs.
        clears: bool,
    },
    /// Requests are scheduled again.
    Resume,
    /// The prefix cache is forgotten; replies whether it was.
    Reset {
        /// Whether running requests lose their blocks for it.
        preempts_running: bool,
    },
}

/// Something to be done, and where its reply goes.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) control: Control,
    pub(super) reply: oneshot::Sender<bool>,
}

/// A pause that waits for running requests.
#[derive(Debug)]
pub(super) struct Pausing {
    clears: bool,
    reply: oneshot::Sender<bool>,
}

impl Engine {
    /// Pauses the scheduler; returns once no request runs, and its prefix cache is forgotten where that is wanted.
    pub(in super::super) async fn pause(&self, state: PauseState, aborts: bool, clears: bool) {
        self.order(Control::Pause { state, aborts, clears }).await;
    }

    /// Goes on after a pause.
    pub(in super::super) async fn resume(&self) {
        self.order(Control::Resume).await;
    }

    /// Forgets the prefix cache of each rank; returns false where running requests of the first one have blocks and may keep them. As
    /// in vLLM the others do not show.
    pub(in super::super) async fn reset_prefix_cache(&self, preempts_running: bool) -> bool {
        self.order(Control::Reset { preempts_running }).await
    }

    /// Gives an order to all ranks; the reply of the first one, once all have carried it out.
    async fn order(&self, control: Control) -> bool {
        let replies: Vec<_> = self.inboxes.iter().map(|inbox| inbox.order(control)).collect();
        let mut first = None;
        for reply in replies {
            let reply = reply.await.unwrap_or(false);
            first.get_or_insert(reply);
        }
        first.unwrap_or(false)
    }
}

impl Stepping {
    /// Carries out what was ordered since the last step.
    pub(super) fn obey(&mut self) {
        for Order { control, reply } in std::mem::take(&mut self.mail.orders) {
            match control {
                Control::Pause { state, aborts, clears } => {
                    if aborts {
                        self.abort_all();
                    }
                    self.scheduler.set_pause_state(state);
                    self.pausing.push(Pausing { clears, reply });
                }
                Control::Resume => {
                    self.scheduler.set_pause_state(PauseState::None);
                    let _gone = reply.send(true);
                }
                Control::Reset { preempts_running } => {
                    let _gone = reply.send(self.scheduler.reset_prefix_cache(preempts_running));
                }
            }
        }
    }

    /// Completes pauses once nothing runs.
    pub(super) fn settle(&mut self) {
        if self.pausing.is_empty() || self.scheduler.has_work() {
            return;
        }
        for Pausing { clears, reply } in std::mem::take(&mut self.pausing) {
            // Requests that are kept lose their blocks.
            let _gone = reply.send(!clears || self.scheduler.reset_prefix_cache(true));
        }
    }

    fn abort_all(&mut self) {
        let aborted = self.scheduler.abort_all();
        self.totals.aborted += of(aborted.len() + self.delayed.len());
        aborted.iter().for_each(|id| self.connector.iter_mut().for_each(|connector| connector.abort(*id)));
        self.recorded_timings.iter_mut().for_each(RecordedTimings::clear);
        let of_scheduler = aborted.iter().filter_map(|id| self.live.remove(id)).map(|live| live.outbox);
        let outboxes = of_scheduler.chain(self.delayed.drain(..).map(|arrived| arrived.outbox));
        outboxes.for_each(|outbox| outbox.close());
    }
}
