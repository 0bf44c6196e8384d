//! The queue of waiting requests.

use std::collections::BTreeSet;

use super::{SchedulingPolicy, Slot, requests::Requests};

/// Waiting requests: those that have blocks, for a transfer, before all others, and of each in the order of a policy. First come, first served, arrivals stand behind all others and preempted requests before
/// them; else they are ordered by priority and arrival, wherever they came from.
#[derive(Debug)]
pub(super) struct RequestQueue {
    policy: SchedulingPolicy,
    /// Whether a request has no blocks, its priority and its place.
    order: BTreeSet<(bool, i64, i64, Slot)>,
}

impl RequestQueue {
    pub(super) fn new(policy: SchedulingPolicy) -> Self {
        Self { policy, order: BTreeSet::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Those that have blocks.
    pub(super) fn holding(&self) -> impl Iterator<Item = Slot> {
        self.order.iter().take_while(|(is_bare, ..)| !is_bare).map(|(.., slot)| *slot)
    }

    pub(super) fn add(&mut self, slot: Slot, requests: &Requests) {
        let behind = self.order.last().map_or(0, |(.., place, _)| place + 1);
        self.insert(slot, behind, requests);
    }

    /// Adds a request that was out of the queue.
    pub(super) fn prepend(&mut self, slot: Slot, requests: &Requests) {
        let is_bare = !requests[slot].holds_blocks();
        let next = self.order.range((is_bare, i64::MIN, i64::MIN, 0)..).next();
        let before = next.map_or(0, |(.., place, _)| place - 1);
        self.insert(slot, before, requests);
    }

    fn insert(&mut self, slot: Slot, place: i64, requests: &Requests) {
        let request = &requests[slot];
        let (priority, place) = match self.policy {
            SchedulingPolicy::Fcfs => (0, place),
            SchedulingPolicy::Priority => (request.priority, request.arrival.cast_signed()),
        };
        self.order.insert((!request.holds_blocks(), priority, place, slot));
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
