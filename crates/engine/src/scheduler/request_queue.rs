//! Queues of waiting requests.

use std::collections::BTreeSet;

use super::{SchedulingPolicy, Slot, requests::Requests};

/// Waiting requests in the order of a policy. First come, first served, arrivals stand behind all others and preempted requests before
/// them; else they are ordered by priority and arrival, wherever they came from.
#[derive(Debug)]
pub(super) struct RequestQueue {
    policy: SchedulingPolicy,
    /// Priority and place of each request.
    order: BTreeSet<(i64, i64, Slot)>,
}

impl RequestQueue {
    pub(super) fn new(policy: SchedulingPolicy) -> Self {
        Self { policy, order: BTreeSet::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.order.iter().map(|(.., slot)| *slot)
    }

    pub(super) fn add(&mut self, slot: Slot, requests: &Requests) {
        let behind = self.order.last().map_or(0, |(_, place, _)| place + 1);
        self.insert(slot, behind, requests);
    }

    /// Adds a request that was out of the queue.
    pub(super) fn prepend(&mut self, slot: Slot, requests: &Requests) {
        let before = self.order.first().map_or(0, |(_, place, _)| place - 1);
        self.insert(slot, before, requests);
    }

    fn insert(&mut self, slot: Slot, place: i64, requests: &Requests) {
        let request = &requests[slot];
        self.order.insert(match self.policy {
            SchedulingPolicy::Fcfs => (0, place, slot),
            SchedulingPolicy::Priority => (request.priority, request.arrival.cast_signed(), slot),
        });
    }

    pub(super) fn peek(&self) -> Option<Slot> {
        self.order.first().map(|(.., slot)| *slot)
    }

    pub(super) fn pop(&mut self) {
        self.order.pop_first();
    }

    /// Takes out requests that have ended while they waited.
    pub(super) fn forget_finished(&mut self, requests: &Requests) {
        self.order.retain(|(.., slot)| !requests[*slot].is_finished());
    }
}
