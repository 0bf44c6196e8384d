//! A cache of requests, so that a repeated body is not parsed, validated, rendered and tokenized again.
//!
//! The key is a seeded hash of the body, and a hit is equal byte for byte. Only what depends on nothing but the body and the
//! server's configuration is cached, and only of requests that were accepted: a server that is too busy refuses a cached
//! request like any other, and one that is refused is read again each time. A client gets nothing of it but the response to
//! its own body.
//!
//! Limits: a body is cached when it comes a second time, so that bodies which never do cost a hash. Entries that were not
//! used since half of the cache was filled again are evicted.
//!
//! See docs/decisions/0019-repeated-bodies-are-read-once.md.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::request::admitted::CachedRequest;
use api::Api;
use base::{bounded_cache::BoundedCache, hash_is_key::BuildHashIsKey, lock::Lock};

/// Maximum size of the cached requests, estimated, in bytes.
const BYTES: usize = 16 << 20;

/// Memory of a parsed body for each of its bytes, and beside them.
const PER_BYTE: usize = 8;
const ENTRY: usize = 2048;

/// Number of hashes of bodies that came once.
const SEEN: usize = 1024;

/// Requests that came more than once recently.
#[derive(Debug)]
pub(crate) struct RequestCache {
    seed: u64,
    seen: Box<[AtomicU64]>,
    entries: Lock<BoundedCache<BodyKey, CachedBody, BuildHashIsKey>>,
}

/// A body's name in a [`RequestCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BodyKey(u64);

#[derive(Debug)]
struct CachedBody {
    body: Bytes,
    known: Arc<CachedRequest>,
}

impl RequestCache {
    pub(crate) fn new() -> Self {
        Self::of(BYTES)
    }

    /// A cache of so many bytes; an entry takes an eighth of them at most.
    fn of(limit: usize) -> Self {
        let seen = (0..SEEN).map(|_| AtomicU64::new(0)).collect();
        Self { seed: rand::random(), seen, entries: Lock::new(BoundedCache::new(limit, limit / 8)) }
    }

    pub(crate) fn key(&self, api: Api, body: &[u8]) -> BodyKey {
        let endpoint = match api {
            Api::Chat => 0,
            Api::Completions => 1,
        };
        BodyKey(xxh3_64_with_seed(body, self.seed ^ endpoint))
    }

    /// Finds the request that was read from this body.
    pub(crate) fn recall(&self, key: BodyKey, body: &[u8]) -> Option<Arc<CachedRequest>> {
        let mut entries = self.entries.lock();
        let entry = entries.get(&key)?;
        (entry.body == body).then(|| Arc::clone(&entry.known))
    }

    /// Caches a request whose body came before.
    pub(crate) fn keep(&self, key: BodyKey, body: &[u8], known: impl FnOnce() -> CachedRequest) {
        let slot = usize::try_from(key.0).unwrap_or_default() % SEEN;
        let came_before = self.seen.get(slot).is_some_and(|seen| seen.swap(key.0, Relaxed) == key.0);
        if !came_before {
            return;
        }
        let entry = CachedBody { body: Bytes::copy_from_slice(body), known: Arc::new(known()) };
        let size = entry.size();
        self.entries.lock().insert(key, entry, size);
    }
}

impl CachedBody {
    fn size(&self) -> usize {
        self.body.len() * PER_BYTE + self.known.size() + ENTRY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> CachedRequest {
        let body = br#"{"messages":[{"role":"user","content":"hi"}]}"#;
        CachedRequest::new(api::GenerationRequest::parse(Api::Chat, body).unwrap(), Vec::new())
    }

    fn keep(cache: &RequestCache, body: &str) -> BodyKey {
        let key = cache.key(Api::Chat, body.as_bytes());
        cache.keep(key, body.as_bytes(), known);
        key
    }

    fn size(cache: &RequestCache) -> usize {
        cache.entries.lock().size()
    }

    #[test]
    fn a_body_is_known_when_it_came_twice_to_the_same_endpoint() {
        let cache = RequestCache::of(BYTES);
        let key = keep(&cache, "a");
        assert!(cache.recall(key, b"a").is_none());
        keep(&cache, "a");
        assert!(cache.recall(key, b"a").is_some());
        let other = cache.key(Api::Completions, b"a");
        assert!(cache.recall(other, b"a").is_none());
    }

    #[test]
    fn an_equal_hash_is_not_enough() {
        let cache = RequestCache::of(BYTES);
        keep(&cache, "a");
        let key = keep(&cache, "a");
        assert!(cache.recall(key, b"b").is_none());
    }

    #[test]
    fn it_stays_within_its_limit_and_keeps_what_is_asked_for() {
        let limit = 40 * (ENTRY + known().size() + 8 * PER_BYTE);
        let cache = RequestCache::of(limit);
        keep(&cache, "often");
        let often = keep(&cache, "often");
        for number in 0..1000 {
            keep(&cache, &number.to_string());
            keep(&cache, &number.to_string());
            assert!(size(&cache) <= limit);
            assert!(cache.recall(often, b"often").is_some());
        }
        assert!(cache.recall(cache.key(Api::Chat, b"3"), b"3").is_none());
    }

    #[test]
    fn what_is_too_large_is_not_kept() {
        let cache = RequestCache::of(8 * ENTRY);
        let body = "x".repeat(ENTRY);
        keep(&cache, &body);
        let key = keep(&cache, &body);
        assert!(cache.recall(key, body.as_bytes()).is_none());
    }
}
