//! The last records of a recording, which others may continue or try again. Those before them are on the disk.

use std::collections::HashSet;

use super::record::CassetteRecord;

#[derive(Debug)]
pub(super) struct RecentRecords {
    list: Vec<CassetteRecord>,
    gone: usize,
    /// Bytes that the list holds, about, and the places in memory of its messages.
    held: usize,
    seen: HashSet<usize>,
    most: usize,
}

impl RecentRecords {
    /// No records; written ones may hold so many bytes.
    pub(super) fn of(most: usize) -> Self {
        Self { list: Vec::new(), gone: 0, held: 0, seen: HashSet::new(), most }
    }

    pub(super) fn push(&mut self, record: CassetteRecord) {
        self.held += record.memory(&mut self.seen);
        self.list.push(record);
    }

    /// Puts all records in place of the last ones.
    pub(super) fn set(&mut self, records: Vec<CassetteRecord>) {
        *self = Self { list: records, ..Self::of(self.most) };
    }

    pub(super) fn count(&self) -> usize {
        self.gone + self.list.len()
    }

    /// The record at a place among all, while it is there.
    pub(super) fn get(&self, place: usize) -> Option<&CassetteRecord> {
        self.list.get(place.checked_sub(self.gone)?)
    }

    pub(super) fn list(&self) -> &[CassetteRecord] {
        &self.list
    }

    pub(super) fn list_mut(&mut self) -> &mut Vec<CassetteRecord> {
        &mut self.list
    }

    pub(super) fn since(&self, place: usize) -> impl Iterator<Item = &CassetteRecord> {
        self.list.iter().skip(place.saturating_sub(self.gone))
    }

    pub(super) fn since_mut(&mut self, place: usize) -> impl Iterator<Item = &mut CassetteRecord> {
        self.list.iter_mut().skip(place.saturating_sub(self.gone))
    }

    /// Lets the first go, where they hold too much: half of what they may hold is free then. Returns the place of the first that
    /// stays, where any went.
    pub(super) fn let_go(&mut self) -> Option<usize> {
        if self.held <= self.most {
            return None;
        }
        let (mut held, mut seen) = (0, HashSet::new());
        let stays = |record: &&CassetteRecord| {
            held += record.memory(&mut seen);
            held <= self.most / 2
        };
        let gone = self.list.len() - self.list.iter().rev().take_while(stays).count();
        self.list.drain(..gone);
        self.seen = HashSet::new();
        self.held = self.list.iter().map(|record| record.memory(&mut self.seen)).sum();
        self.gone += gone;
        Some(self.gone)
    }
}
