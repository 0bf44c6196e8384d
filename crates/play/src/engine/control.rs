//! What an operator does to the engine between two steps: pauses, and resets of its prefix cache.

use tokio::sync::oneshot;

use super::{
    check::of,
    inbox::{Control, Order},
    stepping::Stepping,
};
use ::engine::{recorded_timings::RecordedTimings, scheduler::PauseState};

/// A pause that waits for running requests.
#[derive(Debug)]
pub(super) struct Pausing {
    clears: bool,
    reply: oneshot::Sender<bool>,
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
        let of_scheduler = aborted.iter().filter_map(|id| self.live.remove(id)).map(|live| live.emissions);
        let queues = of_scheduler.chain(self.delayed.drain(..).map(|arrived| arrived.emissions));
        queues.for_each(|emissions| emissions.close());
    }
}
