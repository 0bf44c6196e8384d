//! Consumption of one session.

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map::RandomState},
    hash::BuildHasher,
};

use super::{CassetteIndex, LookupRequest, MatchPolicy, OnExhausted, RequestMatch, Retries};
use base::bounded_cache::BoundedCache;
use recording::canonical::CanonicalKey;

/// Number of requests that are named for a record that they were served.
const MOST_NAMED: usize = 100;

/// Bytes that a session has for the requests that may be tried again, and for their idempotency keys; the least recent are forgotten.
const RETRY_BYTES: usize = 2 << 20;

/// Bytes of one of them, with its share of the table.
const RETRY_ENTRY: usize = 64;

base::with_defaults! {
    /// The consumption of one session.
    #[derive(Debug)]
    pub struct RequestSession {
        served: RequestConsumption,
        /// The hand-written records that were served.
        by_hand: RequestConsumption,
        /// How often the conditions of such records held that are served at certain times of them.
        matched: BTreeMap<usize, u64>,
        /// Requests that looked for a record, and those that were answered without a lookup.
        pub(crate) requests: u64,
        /// The record that a request was served last; none where the last one of its kind found none.
        last: BoundedCache<CanonicalKey, Option<LastServed>, RandomState> = BoundedCache::new(RETRY_BYTES, RETRY_ENTRY),
        /// Hashes of the keys: a client chooses how long they are.
        idempotency_keys: BoundedCache<u64, (), RandomState> = BoundedCache::new(RETRY_BYTES, RETRY_ENTRY),
        hasher: RandomState,
        /// How many answers each loose way found whose record asked something else.
        pub(crate) loose: BTreeMap<&'static str, u64>,
        /// How many records were served again, by the reason: `retry` or `exhausted`.
        pub(crate) again: BTreeMap<&'static str, u64>,
    }
}

/// The record that a request was served last.
#[derive(Debug, Clone, Copy)]
struct LastServed {
    record: usize,
    /// Its client got it whole, and has a reason to try again: it is a failure.
    has_failed: bool,
}

/// Records that were served, and to which requests.
#[derive(Debug, Default)]
pub struct RequestConsumption {
    served: BTreeMap<usize, ServedTimes>,
    /// The place among the records of a key before which none is fresh.
    next: HashMap<CanonicalKey, usize>,
}

/// Requests that a record was served to.
#[derive(Debug, Default)]
struct ServedTimes {
    times: usize,
    /// The first requests, counted from 1.
    first: Vec<u64>,
}

impl RequestConsumption {
    /// Notes that a record was served to a request.
    pub fn add(&mut self, record: usize, request: u64) {
        let served = self.served.entry(record).or_default();
        served.times += 1;
        if served.first.len() < MOST_NAMED {
            served.first.push(request);
        }
    }

    /// Takes back that a record was served; `key` is that of its own request.
    fn give_back(&mut self, record: usize, key: Option<CanonicalKey>) {
        if let Some(served) = self.served.get_mut(&record) {
            served.times = served.times.saturating_sub(1);
            served.first.truncate(served.times);
            if served.times == 0 {
                self.served.remove(&record);
            }
        }
        if let Some(key) = key {
            self.next.remove(&key);
        }
    }

    /// The first record of a key that is not consumed yet.
    pub(crate) fn first_fresh(&mut self, index: &CassetteIndex, key: CanonicalKey) -> Option<usize> {
        let records = index.of_key(key);
        let mut next = self.next.get(&key).copied().unwrap_or(0);
        while records.get(next).is_some_and(|record| !index.is_fresh(*record, self.times(*record))) {
            next += 1;
        }
        if next > 0 {
            self.next.insert(key, next);
        }
        records.get(next).copied()
    }

    pub(crate) fn times(&self, record: usize) -> usize {
        self.served.get(&record).map_or(0, |served| served.times)
    }

    /// The first requests that a record was served to.
    pub(crate) fn served_to(&self, record: usize) -> &[u64] {
        self.served.get(&record).map(|served| served.first.as_slice()).unwrap_or_default()
    }

    /// The records that were served.
    pub fn records(&self) -> impl Iterator<Item = usize> {
        self.served.keys().copied()
    }

    /// Returns how many records were served at least once.
    pub(crate) fn len(&self) -> usize {
        self.served.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.served.is_empty()
    }
}

/// Result of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// A record answers.
    Found(FoundRecord),
    /// Records match, and all of them were served before.
    Exhausted {
        /// They, in recorded order.
        records: Vec<usize>,
        /// The requests that they were served to.
        served_to: Vec<u64>,
    },
    /// No record matches.
    Nothing,
}

/// A record that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundRecord {
    /// Its place in the index.
    pub record: usize,
    /// How it was found.
    pub by: RequestMatch,
    /// Whether it was served before.
    pub again: Again,
}

/// Reason for which a record is served again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// It was not.
    Fresh,
    /// To an earlier try of the same request.
    Retry,
    /// Nothing fresh was left.
    Exhausted,
}

impl RequestSession {
    /// Finds the record for a request and consumes it.
    pub fn select(&mut self, index: &CassetteIndex, policy: &MatchPolicy, request: &LookupRequest<'_>) -> Lookup {
        self.requests += 1;
        self.select_also(index, policy, request)
    }

    /// Finds a record for the request that was looked for last, in another form or in another index of the same records.
    pub(crate) fn select_also(
        &mut self,
        index: &CassetteIndex,
        policy: &MatchPolicy,
        request: &LookupRequest<'_>,
    ) -> Lookup {
        let mut earlier = None;
        if let Some(LastServed { record, has_failed }) = self.retried(policy, request) {
            let by = policy.chain.first().copied().unwrap_or(RequestMatch::Canonical);
            let found = FoundRecord { record, by, again: Again::Retry };
            if !has_failed {
                return self.take(index, request, found);
            }
            earlier = Some(found);
        }
        let mut exhausted = None;
        for by in &policy.chain {
            let candidates = index.candidates(policy, *by, request);
            if candidates.is_empty() {
                continue;
            }
            let is_fresh = |record: usize| index.is_fresh(record, self.times(record));
            let fresh = candidates.iter().find(|record| *by == RequestMatch::Index || is_fresh(*record));
            if let Some(record) = fresh {
                let again = if is_fresh(record) { Again::Fresh } else { Again::Exhausted };
                return self.take(index, request, FoundRecord { record, by: *by, again });
            }
            exhausted.get_or_insert((*by, candidates));
            if !policy.loose_after_exhausted || earlier.is_some() {
                break;
            }
        }
        // No other answer to the same request was recorded: the failure is the answer to every try.
        if let Some(found) = earlier {
            return self.take(index, request, found);
        }
        // Another try of this one is none of what was served before.
        self.last.insert(request.identity.key, None, RETRY_ENTRY);
        let Some((by, candidates)) = exhausted else { return Lookup::Nothing };
        let on_exhausted = policy.on_exhausted(by, request.identity);
        match on_exhausted.choose(candidates.iter(), |record| self.times(record)) {
            Some(record) => self.take(index, request, FoundRecord { record, by, again: Again::Exhausted }),
            None => {
                let served_to = candidates.iter().flat_map(|record| self.served_to(record)).copied().collect();
                Lookup::Exhausted { records: candidates.iter().collect(), served_to }
            }
        }
    }

    /// Goes on with a record for a request; it is consumed, and once only.
    pub fn go_on(&mut self, index: &CassetteIndex, request: &LookupRequest<'_>, record: usize) -> Lookup {
        self.requests += 1;
        let found = FoundRecord { record, by: RequestMatch::Canonical, again: Again::Fresh };
        if self.times(record) > 0 { Lookup::Found(found) } else { self.take(index, request, found) }
    }

    /// Marks that the client got a failure whole, so that another try of the request goes on to the next record.
    pub fn failed(&mut self, key: CanonicalKey, record: usize) {
        if self.last.get(&key).is_some_and(|last| last.is_some_and(|last| last.record == record)) {
            self.last.insert(key, Some(LastServed { record, has_failed: true }), RETRY_ENTRY);
        }
    }

    /// Serves a record that a command chose for the request that was looked for last, unless it was served before and may not be
    /// again.
    pub fn choose(
        &mut self,
        index: &CassetteIndex,
        policy: &MatchPolicy,
        request: &LookupRequest<'_>,
        record: usize,
    ) -> Lookup {
        let by = RequestMatch::Exec;
        if index.is_fresh(record, self.times(record)) {
            return self.take(index, request, FoundRecord { record, by, again: Again::Fresh });
        }
        match policy.on_exhausted(by, request.identity) {
            OnExhausted::Error => {
                Lookup::Exhausted { records: vec![record], served_to: self.served_to(record).to_vec() }
            }
            OnExhausted::Last | OnExhausted::Cycle => {
                self.take(index, request, FoundRecord { record, by, again: Again::Exhausted })
            }
        }
    }

    /// Takes back that a record was served to a request, which gets something else.
    pub fn give_back(&mut self, index: &CassetteIndex, request: &LookupRequest<'_>, found: &FoundRecord) {
        let key = index.identity(found.record).map(|identity| identity.key);
        self.served.give_back(found.record, key);
        let uncount = |count: Option<&mut u64>| count.into_iter().for_each(|count| *count = count.saturating_sub(1));
        if counts_as_loose(index, request, found) {
            uncount(self.loose.get_mut(found.by.name()));
        }
        uncount(why_again(found.again).and_then(|why| self.again.get_mut(why)));
    }

    /// Serves a hand-written record to the request that was looked for last, so often at most; returns the number of the answer among
    /// those of such records.
    pub(crate) fn take_fixture(&mut self, record: usize, most: u64) -> Option<u64> {
        if u64::try_from(self.by_hand.times(record)).is_ok_and(|times| times >= most) {
            return None;
        }
        self.by_hand.add(record, self.requests);
        u64::try_from(self.by_hand()).ok()
    }

    /// Takes back that a hand-written record was served, and that the request fulfilled the conditions of these records.
    pub(crate) fn give_back_fixture(&mut self, record: usize, matched: &[usize]) {
        self.by_hand.give_back(record, None);
        for record in matched {
            self.matched.entry(*record).and_modify(|count| *count = count.saturating_sub(1));
        }
    }

    /// Counts a request that fulfils the conditions of a hand-written record; returns how many did.
    pub(crate) fn count_match(&mut self, record: usize) -> u64 {
        let count = self.matched.entry(record).or_default();
        *count += 1;
        *count
    }

    /// Returns how many requests fulfilled the conditions of a hand-written record that counts them.
    pub(crate) fn matched(&self, record: usize) -> u64 {
        self.matched.get(&record).copied().unwrap_or(0)
    }

    /// Returns how many answers were those of hand-written records.
    pub(crate) fn by_hand(&self) -> usize {
        self.by_hand.records().map(|record| self.by_hand.times(record)).sum()
    }

    /// Returns the record that an earlier try of the request was served.
    fn retried(&mut self, policy: &MatchPolicy, request: &LookupRequest<'_>) -> Option<LastServed> {
        let is_known = request.idempotency_key.is_some_and(|key| {
            let hash = self.hasher.hash_one(key);
            let is_known = self.idempotency_keys.get(&hash).is_some();
            if !is_known {
                self.idempotency_keys.insert(hash, (), RETRY_ENTRY);
            }
            is_known
        });
        let is_again = policy.retries == Retries::Reserve && (is_known || request.is_retry);
        self.last.get(&request.identity.key).filter(|_| is_again).copied().flatten()
    }

    fn take(&mut self, index: &CassetteIndex, request: &LookupRequest<'_>, found: FoundRecord) -> Lookup {
        self.served.add(found.record, self.requests);
        let last = LastServed { record: found.record, has_failed: false };
        self.last.insert(request.identity.key, Some(last), RETRY_ENTRY);
        if counts_as_loose(index, request, &found) {
            *self.loose.entry(found.by.name()).or_default() += 1;
        }
        why_again(found.again).into_iter().for_each(|why| *self.again.entry(why).or_default() += 1);
        Lookup::Found(found)
    }

    /// Bytes that it has for requests that may be tried again.
    #[cfg(test)]
    pub(super) fn retry_bytes(&self) -> usize {
        self.last.size() + self.idempotency_keys.size()
    }

    /// Returns how often a record was served.
    pub(crate) fn times(&self, record: usize) -> usize {
        match self.served.times(record) {
            0 => self.by_hand.times(record),
            times => times,
        }
    }

    /// The first requests that a record was served to, counted from 1.
    pub(crate) fn served_to(&self, record: usize) -> &[u64] {
        self.served.served_to(record)
    }

    /// The records that were served.
    pub(crate) fn served(&self) -> HashSet<usize> {
        self.served.records().chain(self.by_hand.records()).collect()
    }

    /// Returns how many records were served at least once.
    pub(crate) fn consumed(&self) -> usize {
        self.served.len()
    }
}

/// Returns whether a loose way found the record of another request.
fn counts_as_loose(index: &CassetteIndex, request: &LookupRequest<'_>, found: &FoundRecord) -> bool {
    let differs = index.identity(found.record).is_none_or(|identity| identity.key != request.identity.key);
    found.by.is_loose() && differs && found.again != Again::Retry
}

/// The name under which records are counted that are served again.
fn why_again(again: Again) -> Option<&'static str> {
    match again {
        Again::Fresh => None,
        Again::Retry => Some("retry"),
        Again::Exhausted => Some("exhausted"),
    }
}
