//! What was recorded, for people and for the environment of a command: models, upstreams, a request to try.

use std::collections::BTreeSet;

use serde_json::Value;

use super::CassettePlayer;
use recording::{
    canonical::{SharedBody, UPSTREAM_HEADER, split_upstream},
    cassette::Record,
};

/// Longest request that is shown as an example, in bytes.
const LONGEST_EXAMPLE: usize = 1000;

impl CassettePlayer {
    /// The models that were recorded.
    #[must_use]
    pub fn models(&self) -> Vec<String> {
        let names = self.index.boundaries().into_iter().filter_map(|boundary| boundary.strip_prefix("llm:"));
        let names = names.map(|name| split_upstream(name).0).filter(|name| !name.is_empty()).map(str::to_owned);
        let mut known = BTreeSet::new();
        names.chain(self.fixtures.models()).filter(|name| known.insert(name.clone())).collect()
    }

    /// The names of upstreams that were recorded.
    #[must_use]
    pub fn upstreams(&self) -> BTreeSet<String> {
        let headers = self.records.iter().flat_map(|(_, record)| &record.headers);
        headers.filter(|(name, _)| name == UPSTREAM_HEADER).map(|(_, upstream)| upstream.clone()).collect()
    }

    /// Path and body of the first recorded request of a model that is short enough to be tried by hand, else of one that a hand-written
    /// record answers.
    #[must_use]
    pub fn example(&self) -> Option<(String, Value)> {
        let is_short = |body: &SharedBody| body.fields().is_object() && body.is_at_most(LONGEST_EXAMPLE);
        let is_fit = |(at, (_, record)): &(usize, &(usize, Record))| {
            self.index.is_servable(*at)
                && record.method == "POST"
                && record.path.starts_with("/v1/")
                && is_short(&record.body)
        };
        let found = self.records.iter().enumerate().find(is_fit);
        let recorded = found.map(|(_, (_, record))| (record.path.clone(), record.body.value()));
        recorded.or_else(|| self.fixtures.example(&self.records))
    }
}
