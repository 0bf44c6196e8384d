//! Misses that are kept to be shown: the first ones of each session, within the bytes that all sessions share.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde_json::Value;

/// Maximum number of misses that a session keeps.
const MOST: usize = 1000;

/// Bytes that the kept misses of all sessions may have together, as JSON.
const BYTES: usize = 16 << 20;

/// Bytes that they have.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// Misses of one session. Those that do not fit are counted by the caller only.
#[derive(Debug, Default)]
pub struct KeptMisses {
    list: Vec<Value>,
    bytes: usize,
}

impl KeptMisses {
    /// Returns whether another one may fit.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.list.len() < MOST && HELD.load(Relaxed) < BYTES
    }

    /// Keeps a miss, unless enough are kept.
    pub fn keep(&mut self, miss: Value) {
        if !self.has_room() {
            return;
        }
        let bytes = miss.to_string().len();
        if HELD.fetch_add(bytes, Relaxed) + bytes > BYTES {
            HELD.fetch_sub(bytes, Relaxed);
            return;
        }
        self.bytes += bytes;
        self.list.push(miss);
    }

    /// The kept ones.
    #[must_use]
    pub fn list(&self) -> &[Value] {
        &self.list
    }
}

impl Drop for KeptMisses {
    fn drop(&mut self) {
        HELD.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_bounded_in_number_and_all_together_in_bytes() {
        let mut many = KeptMisses::default();
        (0..2 * MOST).for_each(|number| many.keep(number.into()));
        assert_eq!(many.list().len(), MOST);
        let miss = || Value::from("x".repeat(BYTES / 8));
        let mut sessions: Vec<KeptMisses> = Vec::new();
        for _ in 0..20 {
            let mut session = KeptMisses::default();
            session.keep(miss());
            sessions.push(session);
        }
        let kept = || sessions.iter().map(|session| session.list().len()).sum::<usize>();
        assert!((1..8).contains(&kept()), "{} kept", kept());
        sessions.clear();
        let mut after = KeptMisses::default();
        after.keep(miss());
        assert_eq!(after.list().len(), 1);
    }
}
