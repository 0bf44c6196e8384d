//! Which sample of a prompt's answers a request gets: the first time the first one, then the next.

use std::hash::BuildHasherDefault;

use xxhash_rust::xxh3::Xxh3Default;

use base::bounded_cache::BoundedCache;
use base::lock::Lock;

/// Maximum bytes that counters take; the counters of prompts that were not sent for long begin at zero again.
const BYTES: usize = 1 << 20;
/// Maximum bytes that those of a named session take.
pub(crate) const SESSION_BYTES: usize = 32 << 10;
/// Bytes of a counter.
const ENTRY: usize = 40;

/// Number of times that each prompt came, by its hash.
#[derive(Debug)]
pub(crate) struct Samples(Lock<BoundedCache<u64, u32, BuildHasherDefault<Xxh3Default>>>);

impl Default for Samples {
    fn default() -> Self {
        Self::within(BYTES)
    }
}

impl Samples {
    /// Counters of at most so many bytes.
    pub(crate) fn within(bytes: usize) -> Self {
        Self(Lock::new(BoundedCache::new(bytes, ENTRY)))
    }

    /// Counts a prompt; how often it was counted before.
    pub(crate) fn next(&self, prompt: u64) -> u32 {
        let mut counts = self.0.lock();
        let count = counts.get(&prompt).copied().unwrap_or(0);
        counts.insert(prompt, count.wrapping_add(1), ENTRY);
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_prompt_is_counted_for_itself_within_bounds() {
        let samples = Samples::default();
        assert_eq!([1, 1, 2, 1, 2].map(|prompt| samples.next(prompt)), [0, 1, 0, 2, 1]);
        for prompt in 0..100_000 {
            samples.next(prompt);
        }
        assert!(samples.0.lock().size() <= BYTES);
        assert_eq!(samples.next(99_999), 1);
    }
}
