//! The table of requests.

#![allow(clippy::indexing_slicing)] // slots are handed out here, and a table never shrinks

use std::{
    collections::{BTreeMap, HashMap},
    ops::{Index, IndexMut},
};

use super::{
    Request, RequestId, Slot,
    request::{RequestState, RequestStatus},
};

/// Requests by slot and by id. A finished one keeps its slot until [`Requests::release_finished`].
#[derive(Debug, Default)]
pub(super) struct Requests {
    table: Vec<RequestState>,
    slots: HashMap<RequestId, Slot>,
    finished: Vec<Slot>,
    /// Those that have ended and keep their blocks.
    held: BTreeMap<RequestId, Slot>,
    vacant: Vec<Slot>,
    arrivals: u64,
}

impl Requests {
    /// Number of requests that are not finished.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The ids of requests that are not finished, in no order.
    pub(super) fn ids(&self) -> Vec<RequestId> {
        self.slots.keys().copied().collect()
    }

    /// The slot of a request that is not finished.
    pub(super) fn slot(&self, id: RequestId) -> Option<Slot> {
        self.slots.get(&id).copied()
    }

    /// Adds a request; `None` where its id is in use.
    pub(super) fn add(&mut self, request: Request) -> Option<Slot> {
        let id = request.id;
        if self.slots.contains_key(&id) {
            return None;
        }
        let state = request.into_state(self.arrivals);
        self.arrivals += 1;
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.table[slot as usize] = state;
                slot
            }
            None => {
                self.table.push(state);
                Slot::try_from(self.table.len() - 1).ok()?
            }
        };
        self.table[slot as usize].sequence.number = slot;
        self.slots.insert(id, slot);
        Some(slot)
    }

    /// Takes a request out of the requests; its slot can still be read, and stays until it is let go where it is held.
    pub(super) fn finish(&mut self, slot: Slot, is_held: bool) {
        let request = &mut self.table[slot as usize];
        request.status = RequestStatus::Finished;
        self.slots.remove(&request.id);
        if is_held {
            self.held.insert(request.id, slot);
        } else {
            self.finished.push(slot);
        }
    }

    pub(super) fn held(&self) -> impl Iterator<Item = RequestId> {
        self.held.keys().copied()
    }

    pub(super) fn held_slot(&self, id: RequestId) -> Option<Slot> {
        self.held.get(&id).copied()
    }

    /// Holds a request no longer; its slot can still be read.
    pub(super) fn let_go(&mut self, id: RequestId) -> Option<Slot> {
        let slot = self.held.remove(&id)?;
        self.finished.push(slot);
        Some(slot)
    }

    pub(super) fn release_finished(&mut self) {
        for slot in self.finished.drain(..) {
            self.table[slot as usize] = RequestState::default();
            self.vacant.push(slot);
        }
    }
}

impl Index<Slot> for Requests {
    type Output = RequestState;

    fn index(&self, slot: Slot) -> &RequestState {
        &self.table[slot as usize]
    }
}

impl IndexMut<Slot> for Requests {
    fn index_mut(&mut self, slot: Slot) -> &mut RequestState {
        &mut self.table[slot as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_finished_requests_are_used_again() {
        let mut requests = Requests::default();
        for id in 0..100 {
            let slot = requests.add(Request { id, ..Request::default() }).unwrap();
            assert_eq!((requests.slot(id), requests.len()), (Some(slot), 1));
            requests.finish(slot, false);
            assert_eq!((requests.slot(id), requests[slot].id), (None, id));
            requests.release_finished();
        }
        assert_eq!(requests.table.len(), 1);
    }
}
