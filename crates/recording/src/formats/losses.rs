//! What a conversion leaves out.

use std::collections::BTreeMap;

/// Different things that are counted apart.
const MOST: usize = 64;

/// Counts of what was left out, by what it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Losses(BTreeMap<String, u64>);

impl Losses {
    /// Counts more of something.
    pub fn add(&mut self, what: &str, count: u64) {
        if count == 0 {
            return;
        }
        if let Some(known) = self.0.get_mut(what) {
            *known += count;
        } else {
            let what = if self.0.len() < MOST { what } else { "further fields" };
            *self.0.entry(what.to_owned()).or_default() += count;
        }
    }

    /// Adds the counts of others.
    pub fn join(&mut self, others: &Self) {
        others.0.iter().for_each(|(what, count)| self.add(what, *count));
    }

    /// All of them, by name.
    #[must_use]
    pub fn list(&self) -> Vec<(String, u64)> {
        self.0.iter().map(|(what, count)| (what.clone(), *count)).collect()
    }
}
