//! Records that are choices of one prompt of one request.

use std::collections::HashMap;

use super::Keys;

/// Finds the siblings of a record.
#[derive(Debug, Default)]
pub(super) struct Families {
    family_of: HashMap<u32, usize>,
    families: Vec<Vec<u32>>,
}

impl Families {
    /// Of `servable` records, by their number. Siblings share a `group` and a prompt: a group may also come from a list
    /// of prompts. Prompts without hashes count as equal.
    pub(super) fn new<'a>(servable: impl Iterator<Item = (u32, Keys<'a>)>) -> Self {
        let mut grouped: HashMap<_, Vec<(Option<u32>, u32)>> = HashMap::new();
        for (number, keys) in servable {
            if let Some(group) = keys.group {
                grouped.entry((group, keys.prompt_hash, keys.chain)).or_default().push((keys.choice, number));
            }
        }
        let mut found = Self::default();
        for mut members in grouped.into_values().filter(|members| members.len() > 1) {
            members.sort_unstable();
            let family = found.families.len();
            found.family_of.extend(members.iter().map(|(_, number)| (*number, family)));
            found.families.push(members.into_iter().map(|(_, number)| number).collect());
        }
        found
    }

    /// A record and its siblings in order of `choice`; empty when it has none.
    pub(super) fn family(&self, record: u32) -> &[u32] {
        self.family_of.get(&record).and_then(|family| self.families.get(*family)).map_or(&[], Vec::as_slice)
    }
}
