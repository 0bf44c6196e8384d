//! Values that are secrets by their names, looked for in texts without their names.
//!
//! A value is found by its first eight bytes, then by its length: one pass over a text, however many values are known. Limits: values
//! of less than eight bytes are not looked for; of more than eight long values with the same beginning, the beginning alone counts.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    sync::Arc,
};

/// A shorter value, in bytes, is found by chance.
const SHORTEST: usize = 8;

/// Bytes by which longer values are looked up.
const HEAD: usize = 64;

/// Long values with the same beginning that are compared whole.
const MOST_TAILS: usize = 8;

/// Bits of the filter before the table, a power of two.
const FILTER_BITS: usize = 1 << 16;

/// Secrets found by their names.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownSecrets {
    /// Values of up to [`HEAD`] bytes, with their kinds.
    short: HashMap<Box<[u8]>, Arc<str>>,
    /// Beginnings of longer values, with the rest of each.
    long: HashMap<Box<[u8]>, Long>,
    /// The first eight bytes of each value: a bit for each length, the last one for [`HEAD`] and more.
    lengths: HashMap<u64, u64>,
    /// First eight bytes that may be in the table.
    filter: Vec<u64>,
    /// Values that were added.
    count: usize,
}

#[derive(Debug, Clone)]
struct Long {
    kind: Arc<str>,
    /// The rest of each value; empty where there are too many.
    tails: HashSet<Box<[u8]>>,
    is_full: bool,
}

/// Place of a known value, and its kind.
pub(super) type KnownSpan<'k> = (Range<usize>, &'k Arc<str>);

impl KnownSecrets {
    pub(super) fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// Number of values that were added.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// All values with their kinds, in no order; of many long ones with the same beginning none.
    pub(super) fn values(&self) -> impl Iterator<Item = (String, &Arc<str>)> {
        let short = self.short.iter().map(|(value, kind)| (value.to_vec(), kind));
        let long = self
            .long
            .iter()
            .flat_map(|(head, long)| long.tails.iter().map(move |tail| ([&**head, &**tail].concat(), &long.kind)));
        short.chain(long).filter_map(|(value, kind)| Some((String::from_utf8(value).ok()?, kind)))
    }

    /// Whether a value is worth looking for: long enough, one word, and not known yet.
    pub(super) fn wants(&self, value: &str) -> bool {
        value.len() >= SHORTEST && !value.contains(char::is_whitespace) && !self.has(value.as_bytes())
    }

    fn has(&self, value: &[u8]) -> bool {
        match value.split_at_checked(HEAD) {
            None | Some((_, [])) => self.short.contains_key(value),
            Some((head, tail)) => self.long.get(head).is_some_and(|long| long.is_full || long.tails.contains(tail)),
        }
    }

    pub(super) fn kind_of(&self, value: &str) -> Option<&Arc<str>> {
        self.short.get(value.as_bytes())
    }

    /// Adds a value that it [wants](Self::wants).
    pub(super) fn add(&mut self, value: &str, kind: &Arc<str>) {
        let value = value.as_bytes();
        let Some(first) = first_eight(value) else { return };
        self.count += 1;
        match value.split_at_checked(HEAD) {
            None | Some((_, [])) => drop(self.short.insert(value.into(), Arc::clone(kind))),
            Some((head, tail)) => {
                let new = || Long { kind: Arc::clone(kind), tails: HashSet::new(), is_full: false };
                let long = self.long.entry(head.into()).or_insert_with(new);
                long.is_full |= long.tails.len() >= MOST_TAILS;
                if long.is_full {
                    long.tails.clear();
                } else {
                    long.tails.insert(tail.into());
                }
            }
        }
        *self.lengths.entry(first).or_default() |= 1 << (value.len().min(HEAD) - 1);
        self.filter.resize(FILTER_BITS / 64, 0);
        let (word, bit) = filter_place(first);
        self.filter.get_mut(word).into_iter().for_each(|word| *word |= bit);
    }

    /// Where known values are, in order; those within others are left out. Beside them the comparisons that it took.
    pub(super) fn spans(&self, text: &str) -> (Vec<KnownSpan<'_>>, u64) {
        let (mut spans, mut covered, mut compared) = (Vec::new(), 0_usize, 0);
        if self.is_empty() {
            return (spans, compared);
        }
        let bytes = text.as_bytes();
        for (at, window) in bytes.windows(SHORTEST).enumerate() {
            let Some(first) = first_eight(window) else { continue };
            let (word, bit) = filter_place(first);
            if self.filter.get(word).is_none_or(|word| word & bit == 0) {
                continue;
            }
            let Some(lengths) = self.lengths.get(&first) else { continue };
            let rest = bytes.get(at..).unwrap_or_default();
            let found = self.longest(rest, *lengths, covered.saturating_sub(at), &mut compared);
            if let Some((length, kind)) = found {
                covered = at + length;
                spans.push((at..covered, kind));
            }
        }
        (spans, compared)
    }

    /// The longest value at the beginning of a text, where it is longer than so many bytes.
    fn longest(&self, text: &[u8], lengths: u64, beyond: usize, compared: &mut u64) -> Option<(usize, &Arc<str>)> {
        let mut left = lengths;
        while left != 0 {
            let length = 64 - usize::try_from(left.leading_zeros()).ok()?;
            left &= !(1 << (length - 1));
            let Some(head) = text.get(..length) else { continue };
            *compared += 1;
            if length == HEAD
                && beyond <= HEAD
                && let Some(long) = self.long.get(head)
                && let Some(tail) = long.tail(text.get(HEAD..).unwrap_or_default(), compared)
            {
                return Some((HEAD + tail, &long.kind));
            }
            if length <= beyond {
                return None;
            }
            if let Some(kind) = self.short.get(head) {
                return Some((length, kind));
            }
        }
        None
    }
}

impl Long {
    /// Bytes of a value after its beginning, where it stands there.
    fn tail(&self, rest: &[u8], compared: &mut u64) -> Option<usize> {
        if self.is_full {
            let is_end = |byte: &u8| byte.is_ascii_whitespace() || b"\"'`,;<>()[]{}".contains(byte);
            let length = rest.iter().position(is_end).unwrap_or(rest.len());
            *compared += length as u64;
            return Some(length);
        }
        let found = self.tails.iter().filter(|tail| rest.starts_with(tail)).map(|tail| tail.len()).max();
        *compared += found.unwrap_or(0) as u64;
        found
    }
}

fn first_eight(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk::<SHORTEST>().map(|first| u64::from_le_bytes(*first))
}

/// The place of a beginning in the filter: a word and its bit.
fn filter_place(first: u64) -> (usize, u64) {
    let hash = first.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48;
    (usize::try_from(hash / 64).unwrap_or_default(), 1 << (hash % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(values: &[&str]) -> KnownSecrets {
        let mut known = KnownSecrets::default();
        for value in values {
            assert!(known.wants(value), "{value}");
            known.add(value, &Arc::from("password"));
        }
        known
    }

    fn found<'t>(known: &KnownSecrets, text: &'t str) -> Vec<&'t str> {
        known.spans(text).0.into_iter().map(|(span, _)| &text[span]).collect()
    }

    #[test]
    fn values_are_found_wherever_they_stand_and_overlap() {
        let known = known(&["abcdefgh", "efghijkl", "abcdefghXY"]);
        assert_eq!(found(&known, "abcdefgh abcdefghXY efghijkl"), ["abcdefgh", "abcdefghXY", "efghijkl"]);
        assert_eq!(found(&known, "abcdefghijkl"), ["abcdefgh", "efghijkl"]);
        assert!(found(&known, "abcdefg efghijk").is_empty());
    }

    #[test]
    fn long_values_are_compared_to_their_end() {
        let (one, other) = ("x".repeat(70) + "one", "x".repeat(70) + "other");
        let known = known(&[&one, &"x".repeat(64)]);
        assert_eq!(found(&known, &format!("<{one}>")), [&one]);
        assert_eq!(
            found(&known, &other),
            [&other[..64], &other[1..65], &other[2..66], &other[3..67], &other[4..68], &other[5..69], &other[6..70]]
        );
    }

    #[test]
    fn of_many_long_values_with_one_beginning_the_beginning_counts() {
        let value = |at: usize| format!("{}{at:04}", "é".repeat(40));
        let mut known = KnownSecrets::default();
        (0..20)
            .filter(|at| known.wants(&value(*at)).then(|| known.add(&value(*at), &Arc::from("k"))).is_some())
            .count();
        assert_eq!(found(&known, &format!("a {} b", value(77))), [value(77)]);
    }

    #[test]
    fn comparisons_are_linear_in_the_text() {
        let values: Vec<String> = (8..=64).map(|length| "a".repeat(length)).collect();
        let known = known(&values.iter().map(String::as_str).collect::<Vec<_>>());
        let compared = |length: usize| known.spans(&"a".repeat(length)).1;
        assert!(compared(20_000) <= compared(10_000) * 21 / 10, "{} {}", compared(10_000), compared(20_000));
    }
}
