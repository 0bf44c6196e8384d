//! Which recorded exchange answers a request, where whole requests were recorded.
//!
//! The ways in a chain are tried one after the other; the first record of the first way that has one is served and consumed,
//! in recorded order. A way whose records are all consumed ends the search: a looser way must not hide that a duplicate is
//! missing, unless it may ([`MatchPolicy::loose_after_exhausted`]).
//!
//! Consumption belongs to a [`RequestSession`]; its lock is the caller's. N equal requests at once get N records, in the order in which
//! they take the lock.

mod closest;
mod conversations;
mod likeness;
mod session;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    str::FromStr,
    sync::Arc,
};

use self::conversations::{Candidates, Conversations};
pub use super::OnExhausted;
use super::{MinMatch, index_in};
use recording::canonical::{CanonicalKey, Identity};

pub use session::{Again, FoundRecord, Lookup, RequestConsumption, RequestSession};

base::named! {
    /// A way to find a record.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum RequestMatch {
        /// The same route, and the same JSON but for white space.
        Exact = "exact",
        /// The same [identity](recording::canonical).
        Canonical = "canonical",
        /// The next one of the same boundary, whatever its content.
        Ordered = "ordered",
        /// The number after the last `-` of the request id.
        Index = "index",
        /// The most messages from the start of the conversation in common, at least one.
        Prefix = "prefix",
        /// The test in [`MatchPolicy::custom`]. It has no name on the command line.
        Custom = "custom",
        /// A command's choice, after all other ways ([`RequestSession::choose`]).
        Exec = "exec",
        /// The conditions of a record that was written by hand, where no way finds a recorded one. It has no name on the command line.
        Fixture = "fixture",
    }
}

/// A text that is no way to find a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no way to find a record{hint}", hint = hint(.0))]
pub struct UnknownMatch(String);

/// The ways, or what helps where a way has its place elsewhere.
fn hint(name: &str) -> &'static str {
    if name.trim().starts_with("exec") {
        " here: exec:COMMAND runs a command, which only --match names"
    } else if name.trim() == "semantic" {
        ": no embeddings are built in; --match exec:COMMAND runs a command that may use some"
    } else {
        ": exact, canonical, ordered, index or prefix"
    }
}

impl RequestMatch {
    /// Returns whether it may find a record of another request.
    pub(crate) fn is_loose(self) -> bool {
        matches!(self, Self::Ordered | Self::Prefix | Self::Custom | Self::Exec)
    }
}

impl FromStr for RequestMatch {
    type Err = UnknownMatch;

    fn from_str(text: &str) -> Result<Self, UnknownMatch> {
        Ok(match text.trim().replace('-', "_").as_str() {
            "exact" => Self::Exact,
            "canonical" | "ignore_volatile" => Self::Canonical,
            "ordered" | "sequential" => Self::Ordered,
            "index" => Self::Index,
            "prefix" | "conversation" => Self::Prefix,
            _ => return Err(UnknownMatch(text.to_owned())),
        })
    }
}

/// Record of a retried request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Retries {
    /// The record that was served before, but the next one after a failure that its client got whole.
    #[default]
    Reserve,
    /// The next one, as any request.
    Consume,
}

base::with_defaults! {
    /// Rules by which requests find records.
    ///
    /// The default is canonical matching: each record answers once, in recorded order.
    #[derive(Debug, Clone)]
    pub struct MatchPolicy {
        /// The ways, tried in order.
        pub chain: Vec<RequestMatch> = vec![RequestMatch::Canonical],
        /// How many of a request's messages a record has to share that [`RequestMatch::Prefix`] finds.
        pub min_match: MinMatch,
        /// What exhausted records give; `None` for a miss, but the last one where the way is [`RequestMatch::Prefix`],
        /// and where the request is a GET.
        pub on_exhausted: Option<OnExhausted>,
        /// Whether looser ways follow one whose records are all consumed.
        pub loose_after_exhausted: bool,
        /// What another try gets.
        pub retries: Retries = Retries::Reserve,
        /// The test of [`RequestMatch::Custom`], which finds nothing without one.
        pub custom: Option<CustomMatch>,
    }
}

impl MatchPolicy {
    fn on_exhausted(&self, by: RequestMatch, identity: &Identity) -> OnExhausted {
        // Reading has no effect, so it may be repeated.
        let may_repeat = by == RequestMatch::Prefix || identity.route.starts_with("GET ");
        let usual = if may_repeat { OnExhausted::Last } else { OnExhausted::Error };
        self.on_exhausted.unwrap_or(usual)
    }
}

/// Test whether a recorded request (the first argument) answers a received one, for [`RequestMatch::Custom`].
///
/// Both are in canonical form and have the same method and path. The test runs for each record of that route on each request, under the
/// session's lock; so it should be quick and must not block.
#[derive(Clone)]
pub struct CustomMatch(Arc<Test>);

/// A test over the recorded and the received request.
type Test = dyn Fn(&Identity, &Identity) -> bool + Send + Sync;

impl CustomMatch {
    /// Makes a way to find a record of a test.
    ///
    /// ```no_run
    /// use vllm_vcr_replay::matching::requests::{CustomMatch, MatchPolicy, RequestMatch};
    ///
    /// let same_model = CustomMatch::new(|recorded, received| recorded.boundary == received.boundary);
    /// let policy = MatchPolicy { chain: vec![RequestMatch::Canonical, RequestMatch::Custom], custom: Some(same_model), ..MatchPolicy::default() };
    /// assert_eq!(policy.chain.len(), 2);
    /// ```
    #[must_use]
    pub fn new(answers: impl Fn(&Identity, &Identity) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(answers))
    }

    fn answers(&self, recorded: &Identity, received: &Identity) -> bool {
        recorded.route == received.route && (self.0)(recorded, received)
    }
}

impl fmt::Debug for CustomMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomMatch")
    }
}

/// A request that looks for its record.
#[derive(Debug, Clone, Copy)]
pub struct LookupRequest<'a> {
    /// Its canonical identity.
    pub identity: &'a Identity,
    /// The id that its client gave.
    pub request_id: Option<&'a str>,
    /// Whether the client marks it as a retry (`x-stainless-retry-count`).
    pub is_retry: bool,
    /// The client's key for all tries of one request (`Idempotency-CanonicalKey`).
    pub idempotency_key: Option<&'a str>,
}

/// Method and path, query aside.
fn path_of(identity: &Identity) -> &str {
    identity.route.split('?').next().unwrap_or_default()
}

/// The recorded requests, indexed.
#[derive(Debug, Default)]
pub struct CassetteIndex {
    identities: Vec<Identity>,
    servable: Vec<bool>,
    /// How often records may be served before they are consumed, where that is not once.
    times: HashMap<usize, u64>,
    by_exact: HashMap<CanonicalKey, Vec<usize>>,
    by_key: HashMap<CanonicalKey, Vec<usize>>,
    by_boundary: HashMap<String, Vec<usize>>,
    /// Method and path, query aside.
    routes: HashSet<String>,
    conversations: Conversations,
}

impl CassetteIndex {
    /// Adds a record after all others. One that is not servable, as one whose client left, keeps its number and is never found.
    pub fn push(&mut self, identity: Identity, is_servable: bool) {
        let at = self.identities.len();
        if is_servable {
            self.by_exact.entry(identity.exact).or_default().push(at);
            self.by_key.entry(identity.key).or_default().push(at);
            self.by_boundary.entry(identity.boundary.clone()).or_default().push(at);
            self.conversations.push(&identity, at);
        }
        let route = path_of(&identity);
        if !self.routes.contains(route) {
            self.routes.insert(route.to_owned());
        }
        self.identities.push(identity);
        self.servable.push(is_servable);
    }

    /// Lets a record be served so often before it is consumed.
    pub(crate) fn allow(&mut self, record: usize, times: u64) {
        self.times.insert(record, times);
    }

    /// Returns whether a record that was served so often is not consumed yet.
    fn is_fresh(&self, record: usize, served: usize) -> bool {
        let most = self.times.get(&record).copied().unwrap_or(1);
        u64::try_from(served).is_ok_and(|served| served < most)
    }

    pub(crate) fn len(&self) -> usize {
        self.identities.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.identities.is_empty()
    }

    pub(crate) fn identity(&self, record: usize) -> Option<&Identity> {
        self.identities.get(record)
    }

    pub(crate) fn is_servable(&self, record: usize) -> bool {
        self.servable.get(record).copied().unwrap_or(false)
    }

    /// Returns whether a request has a record behind all that can be served.
    pub(crate) fn comes_later(&self, key: CanonicalKey) -> bool {
        self.unserved(key) > self.servable.iter().rposition(|servable| *servable)
    }

    /// The records of a request, in order.
    pub(crate) fn of_key(&self, key: CanonicalKey) -> &[usize] {
        self.by_key.get(&key).map(Vec::as_slice).unwrap_or_default()
    }

    /// The last record of a request that can not be served.
    pub(crate) fn unserved(&self, key: CanonicalKey) -> Option<usize> {
        self.identities.iter().zip(&self.servable).rposition(|(identity, servable)| !servable && identity.key == key)
    }

    /// Returns whether anything of a boundary was recorded.
    pub(crate) fn knows(&self, boundary: &str) -> bool {
        self.by_boundary.contains_key(boundary)
    }

    /// Returns whether any record has this route, query aside.
    pub(crate) fn has_route(&self, method: &str, path: &str) -> bool {
        self.routes.contains(&format!("{method} {path}"))
    }

    /// The boundaries that were recorded, sorted.
    pub(crate) fn boundaries(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.by_boundary.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// The records that a way finds for a request, in recorded order.
    fn candidates(&self, policy: &MatchPolicy, by: RequestMatch, request: &LookupRequest<'_>) -> Candidates<'_> {
        let identity = request.identity;
        let found = match by {
            RequestMatch::Exact => self.by_exact.get(&identity.exact),
            RequestMatch::Canonical => self.by_key.get(&identity.key),
            RequestMatch::Ordered => self.by_boundary.get(&identity.boundary),
            RequestMatch::Index => return Candidates::Listed(self.by_index(request.request_id).into()),
            RequestMatch::Prefix => return self.conversations.longest(identity, policy.min_match),
            RequestMatch::Exec | RequestMatch::Fixture => None,
            RequestMatch::Custom => {
                return Candidates::Listed(self.by_test(policy.custom.as_ref(), identity).into());
            }
        };
        Candidates::Listed(found.map(Vec::as_slice).unwrap_or_default().into())
    }

    /// The servable records that pass the caller's test.
    fn by_test(&self, test: Option<&CustomMatch>, received: &Identity) -> Vec<usize> {
        let Some(test) = test else { return Vec::new() };
        let records = self.identities.iter().zip(&self.servable).enumerate();
        let passing = records.filter(|(_, (recorded, servable))| **servable && test.answers(recorded, received));
        passing.map(|(at, _)| at).collect()
    }

    fn by_index(&self, request_id: Option<&str>) -> &[usize] {
        let index = request_id.and_then(index_in).and_then(|index| usize::try_from(index).ok());
        let Some(identity) = index.filter(|index| self.is_servable(*index)).and_then(|at| self.identities.get(at))
        else {
            return &[];
        };
        let siblings = self.by_boundary.get(&identity.boundary).map(Vec::as_slice).unwrap_or_default();
        let place = index.and_then(|index| siblings.binary_search(&index).ok());
        place.and_then(|place| siblings.get(place..=place)).unwrap_or_default()
    }
}
