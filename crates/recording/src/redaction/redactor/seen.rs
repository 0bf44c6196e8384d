//! The secrets that were found so far, with their numbers.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    ops::Bound::{Included, Unbounded},
    sync::Arc,
};

use crate::redaction::{Placeholder, known::KnownSecrets};

/// The secrets of a part of a record: the same ones have the same numbers in the next part. A copy costs nothing.
#[derive(Debug, Clone, Default)]
pub struct SeenSecrets(pub(super) Arc<SecretNumbers>);

#[derive(Clone, Default)]
pub(super) struct SecretNumbers {
    /// The number of each secret of a kind.
    pub(super) numbers: HashMap<Arc<str>, KindNumbers>,
    /// Secrets found by their names.
    pub(super) known: Arc<KnownSecrets>,
}

impl fmt::Debug for SecretNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.numbers.values().map(|numbers| numbers.of.len()).sum::<usize>())
    }
}

#[derive(Clone, Default)]
pub(super) struct KindNumbers {
    pub(super) of: BTreeMap<Box<str>, usize>,
    /// The last number that was given, or that a placeholder has that was there before.
    pub(super) last: usize,
}

impl SeenSecrets {
    /// Secrets that names show, with their kinds, in no order.
    pub(in crate::redaction) fn named(&self) -> impl Iterator<Item = (String, &Arc<str>)> {
        self.0.known.values()
    }

    /// Nothing but secrets that names show.
    pub(in crate::redaction) fn of_named<'v>(values: impl Iterator<Item = (&'v str, &'v Arc<str>)>) -> Self {
        let mut known = KnownSecrets::default();
        values
            .filter(|(value, _)| known.wants(value))
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|(value, kind)| known.add(value, kind));
        Self(Arc::new(SecretNumbers { known: Arc::new(known), ..SecretNumbers::default() }))
    }

    /// The secrets that have numbers, with their placeholders, in no order.
    pub fn values(&self) -> impl Iterator<Item = (Placeholder, &str)> {
        self.0.numbers.iter().flat_map(|(kind, numbers)| {
            let of = numbers.of.iter();
            of.map(move |(value, number)| (Placeholder { kind: Arc::clone(kind), number: *number }, &**value))
        })
    }

    /// The number of a secret of one kind.
    #[must_use]
    pub fn number(&self, kind: &str, secret: &str) -> Option<usize> {
        self.0.numbers.get(kind)?.of.get(secret).copied()
    }

    /// The secrets of one kind, with their numbers, in no order.
    pub fn of_kind(&self, kind: &str) -> impl Iterator<Item = (usize, &str)> {
        let numbers = self.0.numbers.get(kind).into_iter().flat_map(|numbers| &numbers.of);
        numbers.map(|(value, number)| (*number, &**value))
    }
}

impl SecretNumbers {
    /// A secret that begins so, and its kind; the first by the alphabet.
    pub(super) fn beginning_with(&self, text: &str) -> Option<(Arc<str>, Box<str>)> {
        let of_kind = |(kind, numbers): (&Arc<str>, &KindNumbers)| {
            let (secret, _) = numbers.of.range::<str, _>((Included(text), Unbounded)).next()?;
            secret.starts_with(text).then(|| (Arc::clone(kind), secret.clone()))
        };
        self.numbers.iter().filter_map(of_kind).min()
    }

    /// The number of a secret among those of its kind, from 1.
    pub(super) fn number(&mut self, kind: &Arc<str>, secret: &str) -> usize {
        let of_kind = self.numbers.entry(Arc::clone(kind)).or_default();
        if let Some(number) = of_kind.of.get(secret) {
            return *number;
        }
        of_kind.last += 1;
        of_kind.of.insert(secret.into(), of_kind.last);
        of_kind.last
    }
}
