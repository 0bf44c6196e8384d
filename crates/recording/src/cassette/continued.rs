//! Continuations among records, so that the state of one is not computed again for the next: a chain of 2,000 turns is
//! gone through once.

use std::collections::HashMap;

use super::record::CassetteRecord;
use crate::canonical::{CanonicalProgress, CanonicalRules, ConversationStart, Identity, RequestParts};

/// The earlier record whose messages each record begins with, in memory as well as in meaning, by their places.
#[must_use]
pub fn bases(records: &[CassetteRecord]) -> Vec<Option<usize>> {
    let mut places: HashMap<u64, usize> = HashMap::new();
    let base = |(at, record): (usize, &CassetteRecord)| {
        let base = record.like.and_then(|like| places.get(&like).copied());
        places.insert(record.id, at);
        let earlier = records.get(base?)?.body.messages()?;
        record.body.messages()?.since(earlier).and(base)
    };
    records.iter().enumerate().map(base).collect()
}

/// State of records, kept until the last record that continues them has it.
#[derive(Debug)]
pub struct Inherited<S> {
    bases: Vec<Option<usize>>,
    /// Number of records that still continue each.
    heirs: Vec<usize>,
    known: HashMap<usize, S>,
}

impl<S: Clone> Inherited<S> {
    /// Nothing is known yet of records with these [`bases`].
    #[must_use]
    pub fn new(bases: &[Option<usize>]) -> Self {
        let mut heirs = vec![0; bases.len()];
        for base in bases.iter().flatten() {
            heirs.get_mut(*base).into_iter().for_each(|count| *count += 1);
        }
        Self { bases: bases.to_vec(), heirs, known: HashMap::new() }
    }

    /// The record that another one continues, and what is known of it; to be asked once for each record.
    pub fn of(&mut self, at: usize) -> Option<(usize, S)> {
        let base = self.bases.get(at).copied().flatten()?;
        let left = self.heirs.get_mut(base)?;
        *left = left.saturating_sub(1);
        // The last one has it without a copy: in a conversation that nothing branches off, everyone is the last one.
        let known = if *left == 0 { self.known.remove(&base) } else { self.known.get(&base).cloned() };
        Some((base, known?))
    }

    /// Keeps what is known of a record, if anything continues it.
    pub fn keep(&mut self, at: usize, known: S) {
        if self.heirs.get(at).is_some_and(|heirs| *heirs > 0) {
            self.known.insert(at, known);
        }
    }
}

/// A record's request in canonical form.
#[derive(Debug)]
pub struct Identified {
    /// Its form.
    pub identity: Identity,
    /// Number of links of its chain that it shares with the record that it continues.
    pub known: usize,
}

/// The requests of records in canonical form; what they have in common is worked out once.
pub fn identified(rules: &CanonicalRules, records: &[CassetteRecord]) -> impl Iterator<Item = Identified> {
    let mut begun: Inherited<(CanonicalProgress, usize)> = Inherited::new(&bases(records));
    records.iter().enumerate().map(move |(at, record)| {
        let before = begun.of(at).and_then(|(base, begun)| Some((records.get(base)?.body.messages()?, begun)));
        let known = before.as_ref().map_or(0, |(_, (_, links))| *links);
        let start = before.map(|(messages, (progress, _))| ConversationStart { messages, progress });
        let CassetteRecord { method, path, headers, .. } = record;
        let parts = RequestParts { method, path, headers, body: &record.compared() };
        let (identity, progress) = rules.identify_after(&parts, start);
        let links = identity.chain.len();
        progress.into_iter().for_each(|progress| begun.keep(at, (progress, links)));
        Identified { identity, known }
    })
}

/// The places of records in so many shares of about one size; records that continue each other are in one share, in order.
#[must_use]
pub fn shares(bases: &[Option<usize>], count: usize) -> Vec<Vec<usize>> {
    let mut roots: Vec<usize> = Vec::with_capacity(bases.len());
    for (at, base) in bases.iter().enumerate() {
        let root = base.and_then(|base| roots.get(base).copied());
        roots.push(root.unwrap_or(at));
    }
    let size = bases.len().div_ceil(count.max(1)).max(1);
    let (mut shares, mut share_of): (Vec<Vec<usize>>, HashMap<usize, usize>) = (vec![Vec::new()], HashMap::new());
    for (at, root) in roots.into_iter().enumerate() {
        let last = shares.len() - 1;
        let is_full = shares.get(last).is_some_and(|share| share.len() >= size);
        let share = *share_of.entry(root).or_insert(last + usize::from(is_full));
        if share == shares.len() {
            shares.push(Vec::new());
        }
        shares.get_mut(share).into_iter().for_each(|share| share.push(at));
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_keep_conversations_together() {
        let bases = [None, None, Some(0), Some(1), Some(2), None];
        assert_eq!(shares(&bases, 2), [vec![0, 1, 2, 3, 4], vec![5]]);
        assert_eq!(shares(&[None; 5], 2), [vec![0, 1, 2], vec![3, 4]]);
        assert_eq!(shares(&[], 2), [Vec::<usize>::new()]);
    }

    #[test]
    fn the_last_heir_has_what_is_known() {
        let mut inherited = Inherited::new(&[None, Some(0), Some(0), None]);
        inherited.keep(0, "x");
        inherited.keep(3, "unused");
        assert_eq!((inherited.of(0), inherited.of(1), inherited.known.len()), (None, Some((0, "x")), 1));
        assert_eq!((inherited.of(2), inherited.known.len()), (Some((0, "x")), 0));
    }
}
