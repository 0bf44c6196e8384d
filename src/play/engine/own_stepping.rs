//! Steps that requests have of their own, by their recorded times: the thread wakes at the next end of any of them, and when something
//! arrives.
//!
//! See docs/decisions/0105-recorded-times-and-only-queueing.md.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::{connector::Connector, stepping::Stepping};
use crate::engine::{own_times::RecordedTimes, scheduler::RequestId};

/// Recorded times of a request that arrives.
#[derive(Debug)]
pub(super) struct Recorded {
    /// The zero of its times.
    pub(super) arrived: Instant,
    pub(super) times: RecordedTimes,
}

impl Stepping {
    /// Steps until the inbox is closed.
    pub(super) fn run_own_steps(mut self) {
        let mut next = None;
        while self.inbox.take(&mut self.mail, true, next).is_some() {
            self.receive();
            self.step_own();
            next = self.next_end();
        }
    }

    /// When a step ends, or something of the connector is due.
    fn next_end(&self) -> Option<Instant> {
        let end = self.own_times.as_ref().and_then(|times| times.next_end()).map(|end| self.zero + end);
        end.into_iter().chain(self.connector.as_ref().and_then(Connector::deadline)).min()
    }

    /// Notes the recorded times of a request that has reached the scheduler.
    pub(super) fn note_times(&mut self, id: RequestId, recorded: Option<Box<Recorded>>) {
        let (Some(times), Some(recorded)) = (&mut self.own_times, recorded) else { return };
        let Recorded { arrived, times: of_request } = *recorded;
        times.arrive(id, arrived.saturating_duration_since(self.zero), of_request);
    }

    /// Hands out the tokens of steps that have ended, and begins steps of what can be scheduled then.
    fn step_own(&mut self) {
        let (zero, start) = (self.zero, Instant::now());
        let now = start.saturating_duration_since(zero);
        let Some(times) = &mut self.own_times else { return };
        self.scheduler.set_now(now);
        let ended = times.take_ended(now);
        for output in self.scheduler.end_own_steps(ended.iter().map(|(id, _)| *id)) {
            times.sampled(output.request_id);
            if output.finish_reason.is_some() {
                times.forget(output.request_id);
            }
        }
        let ends: HashMap<RequestId, Duration> = ended.into_iter().collect();
        let given = self.give(|id| zero + ends.get(&id).copied().unwrap_or(now));
        let (present, slower) = (self.scheduler.num_requests(), self.slower());
        self.scheduler.begin_own_steps();
        self.begin(start);
        self.connector.iter_mut().for_each(|connector| connector.begin(&self.scheduler, start));
        if let Some(times) = &mut self.own_times {
            times.begin(now, self.scheduler.decisions(), present, slower);
        }
        self.publish(given);
        self.settle();
        self.report();
    }
}
