//! Pauses, and resets of the prefix cache: what an operator does to a running scheduler.

use super::{RequestId, Scheduler, Slot};

/// Requests that are not scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PauseState {
    /// None: the scheduler is not paused.
    #[default]
    None,
    /// Those that wait; running ones go on, and those that have blocks for a transfer.
    New,
    /// All.
    All,
}

impl Scheduler {
    /// Sets which requests are not scheduled from the next step on.
    pub fn set_pause_state(&mut self, pause: PauseState) {
        self.pause = pause;
    }

    /// Returns whether requests are there that a step may schedule.
    #[must_use]
    pub fn has_work(&self) -> bool {
        match self.pause {
            PauseState::None => self.has_requests(),
            PauseState::New => !self.running.is_empty() || self.waiting.holding().next().is_some(),
            PauseState::All => false,
        }
    }

    /// Sets whether the cache has no free block from the next step on, as if others had taken them.
    pub fn set_exhausted(&mut self, is_exhausted: bool) {
        self.kv_cache_manager.set_exhausted(is_exhausted);
    }

    /// Forgets the prefix cache. Does nothing and returns false while running requests have blocks, unless these are
    /// preempted: then they are recomputed, before all that wait.
    pub fn reset_prefix_cache(&mut self, preempts_running: bool) -> bool {
        if preempts_running {
            // The last one first, so that they wait in the order in which they ran.
            while let Some(slot) = self.running.pop() {
                let id = self.preempt(slot);
                self.preempted_by_reset.push(id);
            }
        }
        self.kv_cache_manager.reset_prefix_cache()
    }

    /// Ends all requests, and gives their ids.
    pub fn abort_all(&mut self) -> Vec<RequestId> {
        let ids = self.requests.ids();
        self.abort_requests(ids.iter().copied());
        ids
    }

    /// Takes the blocks of a request that runs no more and puts it back into the queue; it will be recomputed.
    pub(super) fn preempt(&mut self, slot: Slot) -> RequestId {
        self.leave_request_step(slot);
        let request = &mut self.requests[slot];
        self.kv_cache_manager.free(&mut request.sequence);
        request.status = super::request::RequestStatus::Preempted;
        request.num_computed_tokens = 0;
        request.num_preemptions += 1;
        request.drafts = super::request::Drafts::default();
        request.is_prefill_chunk = false;
        let id = request.id;
        self.waiting.prepend(slot, &self.requests);
        id
    }
}
