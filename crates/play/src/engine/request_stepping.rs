//! Steps that requests have of their own, by their recorded times: the thread wakes at the next end of any of them, and when something
//! arrives.
//!
//! See docs/decisions/0105-recorded-times-and-only-queueing.md.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::{connector::KvConnector, inbox::RecordedArrival, stepping::Stepping};
use ::engine::{recorded_timings::RecordedTimings, scheduler::RequestId};

impl Stepping {
    /// When a step ends, or something of the connector is due.
    pub(super) fn next_end(&self) -> Option<Instant> {
        let end = self.recorded_timings.as_ref().and_then(RecordedTimings::next_end).map(|end| self.zero + end);
        end.into_iter().chain(self.connector.as_ref().and_then(KvConnector::deadline)).min()
    }

    pub(super) fn note_times(&mut self, id: RequestId, recorded: Option<Box<RecordedArrival>>) {
        let (Some(times), Some(recorded)) = (&mut self.recorded_timings, recorded) else { return };
        let RecordedArrival { arrived, times: of_request } = *recorded;
        times.arrive(id, arrived.saturating_duration_since(self.zero), of_request);
    }

    /// Hands out the tokens of steps that have ended, and begins steps of what can be scheduled then.
    pub(super) fn step_requests(&mut self) {
        let (zero, start) = (self.zero, Instant::now());
        let now = start.saturating_duration_since(zero);
        let Some(times) = &mut self.recorded_timings else { return };
        self.scheduler.set_now(now);
        let ended = times.take_ended(now);
        for output in self.scheduler.end_request_steps(ended.iter().map(|(id, _)| *id)) {
            times.sampled(output.request_id);
            if output.finish_reason.is_some() {
                times.forget(output.request_id);
            }
        }
        let ends: HashMap<RequestId, Duration> = ended.into_iter().collect();
        let given = self.give(|id| zero + ends.get(&id).copied().unwrap_or(now));
        let (present, slower) = (self.scheduler.num_requests(), self.slower());
        self.scheduler.begin_request_steps();
        self.begin(start);
        self.connector.iter_mut().for_each(|connector| connector.begin(&self.scheduler, start));
        if let Some(times) = &mut self.recorded_timings {
            times.begin(now, self.scheduler.decisions(), present, slower);
        }
        self.publish_events();
        self.count(given);
    }
}
