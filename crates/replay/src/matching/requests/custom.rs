//! A way to find a record that the caller of the library brings.

use std::{fmt, sync::Arc};

use recording::canonical::Identity;

/// Test whether a recorded request (the first argument) answers a received one, for [`RequestMatch::Custom`](super::RequestMatch).
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

    pub(super) fn answers(&self, recorded: &Identity, received: &Identity) -> bool {
        recorded.route == received.route && (self.0)(recorded, received)
    }
}

impl fmt::Debug for CustomMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomMatch")
    }
}
