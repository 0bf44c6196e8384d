//! Queues of waiting requests.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use super::{SchedulingPolicy, Slot, requests::Requests};

/// Waiting requests in the order of a policy.
#[derive(Debug)]
pub(super) enum RequestQueue {
    /// Arrivals are put behind all others, preempted requests before them.
    Fcfs(VecDeque<Slot>),
    /// By priority and arrival, wherever they came from.
    Priority(BinaryHeap<Reverse<(i64, u64, Slot)>>),
}

impl RequestQueue {
    pub(super) fn new(policy: SchedulingPolicy) -> Self {
        match policy {
            SchedulingPolicy::Fcfs => Self::Fcfs(VecDeque::new()),
            SchedulingPolicy::Priority => Self::Priority(BinaryHeap::new()),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Fcfs(queue) => queue.len(),
            Self::Priority(heap) => heap.len(),
        }
    }

    /// All of them, in no order.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> {
        let (queue, heap) = match self {
            Self::Fcfs(queue) => (Some(queue), None),
            Self::Priority(heap) => (None, Some(heap)),
        };
        let of_heap = heap.into_iter().flatten().map(|Reverse((.., slot))| *slot);
        queue.into_iter().flatten().copied().chain(of_heap)
    }

    pub(super) fn add(&mut self, slot: Slot, requests: &Requests) {
        match self {
            Self::Fcfs(queue) => queue.push_back(slot),
            Self::Priority(heap) => heap.push(key(slot, requests)),
        }
    }

    /// Adds a request that was out of the queue.
    pub(super) fn prepend(&mut self, slot: Slot, requests: &Requests) {
        match self {
            Self::Fcfs(queue) => queue.push_front(slot),
            Self::Priority(heap) => heap.push(key(slot, requests)),
        }
    }

    pub(super) fn peek(&self) -> Option<Slot> {
        match self {
            Self::Fcfs(queue) => queue.front().copied(),
            Self::Priority(heap) => heap.peek().map(|Reverse((.., slot))| *slot),
        }
    }

    pub(super) fn pop(&mut self) -> Option<Slot> {
        match self {
            Self::Fcfs(queue) => queue.pop_front(),
            Self::Priority(heap) => heap.pop().map(|Reverse((.., slot))| slot),
        }
    }

    /// Takes out requests that have ended while they waited.
    pub(super) fn forget_finished(&mut self, requests: &Requests) {
        match self {
            Self::Fcfs(queue) => queue.retain(|slot| !requests[*slot].is_finished()),
            Self::Priority(heap) => heap.retain(|Reverse((.., slot))| !requests[*slot].is_finished()),
        }
    }
}

fn key(slot: Slot, requests: &Requests) -> Reverse<(i64, u64, Slot)> {
    let request = &requests[slot];
    Reverse((request.priority, request.arrival, slot))
}
