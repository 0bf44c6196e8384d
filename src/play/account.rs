//! What the sessions of a trace consumed, and how requests found their records.
//!
//! A session is independent consumption for one client; requests that name none share the default one. Counting takes a few
//! atomic additions for each prompt; only misses take a lock.
//!
//! Limits: the first [`KEPT_MISSES`] misses of a session are kept, the others only counted.

use std::sync::{
    Arc, Mutex, PoisonError, RwLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use serde_json::Value;

use crate::matching::{Consumption, MatchBy, Matcher, Miss, MissReason, Selection};

/// Misses of a session that are kept.
const KEPT_MISSES: usize = 1000;

/// Shares of a prompt's blocks, in hundredths, by which matches are counted.
const SHARES: [u64; 4] = [25, 50, 75, 100];

/// The sessions of a trace.
#[derive(Debug)]
pub(super) struct Account {
    default: Arc<Slot>,
}

/// One session, which can begin anew.
#[derive(Debug)]
pub(super) struct Slot(RwLock<Session>);

/// The consumption of one session, and its counts.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) consumption: Consumption,
    counts: Counts,
    misses: Mutex<Vec<Value>>,
}

#[derive(Debug, Default)]
struct Counts {
    prompts: AtomicU64,
    index: AtomicU64,
    whole: AtomicU64,
    /// By the share of the prompt's blocks, see [`SHARES`].
    prefix: [AtomicU64; SHARES.len()],
    next: AtomicU64,
    matched_blocks: AtomicU64,
    total_blocks: AtomicU64,
    again: AtomicU64,
    asked_again: AtomicU64,
    no_match: AtomicU64,
    exhausted: AtomicU64,
}

impl Account {
    pub(super) fn new(matcher: &Matcher) -> Self {
        Self { default: Arc::new(Slot::new(matcher)) }
    }

    /// The session of requests that name none.
    pub(super) fn default_session(&self) -> &Arc<Slot> {
        &self.default
    }
}

impl Slot {
    fn new(matcher: &Matcher) -> Self {
        Self(RwLock::new(Session::new(matcher)))
    }

    /// Reads the session while it does not begin anew.
    pub(super) fn with<T>(&self, read: impl FnOnce(&Session) -> T) -> T {
        read(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Session {
    fn new(matcher: &Matcher) -> Self {
        Self { consumption: matcher.session(), counts: Counts::default(), misses: Mutex::default() }
    }

    /// Counts what became of a prompt.
    pub(super) fn count(&self, outcome: &Result<Selection, Miss>) {
        let counts = &self.counts;
        counts.prompts.fetch_add(1, Relaxed);
        match outcome {
            Ok(selection) => counts.found(selection),
            Err(Miss { reason: MissReason::NoMatch, .. }) => drop(counts.no_match.fetch_add(1, Relaxed)),
            Err(Miss { reason: MissReason::Exhausted, .. }) => drop(counts.exhausted.fetch_add(1, Relaxed)),
        }
    }

    /// Keeps a miss, unless enough are kept.
    pub(super) fn keep_miss(&self, explain: impl FnOnce() -> Value) {
        let has_room = || self.misses.lock().unwrap_or_else(PoisonError::into_inner).len() < KEPT_MISSES;
        if has_room() {
            let miss = explain();
            self.misses.lock().unwrap_or_else(PoisonError::into_inner).push(miss);
        }
    }
}

impl Counts {
    fn found(&self, selection: &Selection) {
        let Selection { by, whole, matched_blocks, total_blocks, again, .. } = selection;
        let way = match by {
            MatchBy::Index | MatchBy::Auto => &self.index,
            MatchBy::Next => &self.next,
            MatchBy::Prefix if *whole => &self.whole,
            MatchBy::Prefix => {
                let (matched, total) = (*matched_blocks as u64, (*total_blocks as u64).max(1));
                self.matched_blocks.fetch_add(matched, Relaxed);
                self.total_blocks.fetch_add(total, Relaxed);
                let share = (matched * 100 / total).min(99);
                let slot = SHARES.iter().position(|most| share < *most);
                let Some(way) = slot.and_then(|slot| self.prefix.get(slot)) else { return };
                way
            }
        };
        way.fetch_add(1, Relaxed);
        if *again {
            let way = if *by == MatchBy::Index { &self.asked_again } else { &self.again };
            way.fetch_add(1, Relaxed);
        }
    }
}
