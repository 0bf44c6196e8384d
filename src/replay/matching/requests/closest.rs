//! The records that are closest to a request without one.

use std::{cmp::Reverse, collections::HashSet};

use super::CassetteIndex;
use crate::recording::canonical::{Identity, leaves};

/// Maximum number of records compared field by field.
const COMPARED: usize = 24;

/// Maximum number of differences counted.
const MOST: usize = 100;

impl CassetteIndex {
    /// The closest records, the closest first: those of the same route and boundary, with the most messages in common, with the
    /// fewest differences, not among the `served` ones, in recorded order.
    #[must_use]
    pub fn closest(&self, identity: &Identity, served: &HashSet<usize>, most: usize) -> Vec<usize> {
        let shared = self.conversations.shared(identity, &self.boundaries());
        let mut candidates: Vec<_> = self
            .identities
            .iter()
            .enumerate()
            .filter(|(at, other)| self.is_servable(*at) && other.route == identity.route)
            .map(|(at, other)| {
                let shared = shared.get(&at).copied().unwrap_or(0);
                let away = other.chain.len().abs_diff(identity.chain.len());
                ((other.boundary != identity.boundary, Reverse(shared), away), served.contains(&at), at)
            })
            .collect();
        if candidates.len() > COMPARED {
            candidates.select_nth_unstable(COMPARED);
            candidates.truncate(COMPARED);
        }
        // What both begin with is no difference.
        let differing = |at: usize, shared: usize| {
            let other = self.identity(at);
            other.map_or(MOST, |other| leaves(&other.body_after(shared), &identity.body_after(shared), MOST))
        };
        let mut ranked: Vec<_> = candidates
            .into_iter()
            .map(|((other, shared, _), consumed, at)| ((other, shared, differing(at, shared.0), consumed, at), at))
            .collect();
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, at)| at).take(most).collect()
    }
}
