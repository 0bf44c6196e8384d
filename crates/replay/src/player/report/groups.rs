//! Groups of records, by which it is decided which unconsumed ones count.

use std::collections::{HashMap, HashSet};

use recording::cassette::CassetteRecord;

/// The group of each record, by which it is decided which unconsumed records count.
///
/// A group is what a record's `group` names, which the records that go on from it (`like`) share; the records of a cassette without
/// one are a group too. A group has begun in a session once one of its records was served there. What a test that did not run left is
/// no failure, so that groups that have not begun do not count.
///
/// See docs/decisions/0063-unconsumed-records-of-what-has-begun.md.
#[derive(Debug, Default)]
pub(crate) struct RecordGroups {
    of: Vec<usize>,
    /// Whether each group has a name.
    are_named: Vec<bool>,
}

/// Other sessions beside which a session is judged.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scope<'a> {
    /// None, and its cassette is its own: it has begun as a whole.
    Own,
    /// None.
    Alone,
    /// Those that share its cassettes, as workers of one run do: these records were served to any of them.
    Shared(&'a HashSet<usize>),
    /// Those that go on after this one has ended: what has no name is judged with them.
    Ended,
}

impl RecordGroups {
    /// Groups records, each with the place of its cassette.
    pub(crate) fn new(records: &[(usize, CassetteRecord)]) -> Self {
        let mut groups = Self::default();
        let mut known: HashMap<(usize, Option<&str>), usize> = HashMap::new();
        let mut named: HashMap<(usize, u64), &str> = HashMap::new();
        for (cassette, record) in records {
            let inherited = record.like.and_then(|like| named.get(&(*cassette, like)).copied());
            let name = record.group.as_deref().or(inherited);
            named.extend(name.map(|name| ((*cassette, record.id), name)));
            let next = groups.are_named.len();
            let group = *known.entry((*cassette, name)).or_insert(next);
            if group == next {
                groups.are_named.push(name.is_some());
            }
            groups.of.push(group);
        }
        groups
    }

    pub(crate) fn of(&self, record: usize) -> Option<usize> {
        self.of.get(record).copied()
    }

    pub(crate) fn begun(&self, served: &HashSet<usize>) -> HashSet<usize> {
        served.iter().filter_map(|record| self.of(*record)).collect()
    }

    /// Returns whether an unconsumed record counts in a session in which these groups have begun.
    pub(crate) fn counts(&self, record: usize, begun: &HashSet<usize>, scope: Scope<'_>) -> bool {
        let Some(group) = self.of(record) else { return false };
        let (is_named, has_begun) = (self.are_named.get(group) == Some(&true), begun.contains(&group));
        match scope {
            Scope::Own => begun.is_empty() || !is_named || has_begun,
            Scope::Alone => begun.is_empty() || has_begun,
            // A run that was served nothing has begun nothing, which is no success.
            Scope::Shared(served) => served.is_empty() || (has_begun && (is_named || !served.contains(&record))),
            Scope::Ended => is_named && has_begun,
        }
    }
}
