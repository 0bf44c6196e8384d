//! Permutation of token ids, so that they cannot be decoded without the key, yet equal ids stay equal.
//!
//! A balanced Feistel network over the smallest even number of bits that holds the vocabulary, walked until the value is
//! inside it again. Limits: frequencies and neighbourhoods of tokens are kept on purpose, so that a reader who knows
//! the language can guess frequent tokens.

use super::HashKey;

const ROUNDS: u32 = 6;

/// A permutation of a vocabulary. Ids outside it stay what they are.
#[derive(Debug, Clone)]
pub struct IdPermutation {
    key: HashKey,
    size: u32,
    half: u32,
}

impl IdPermutation {
    /// The permutation of `size` ids that belongs to a key.
    #[must_use]
    pub fn new(key: HashKey, size: u32) -> Self {
        let bits = u32::BITS - size.saturating_sub(1).leading_zeros();
        Self { key, size, half: bits.div_ceil(2).max(1) }
    }

    /// Returns the permuted id.
    #[must_use]
    pub fn apply(&self, id: u32) -> u32 {
        if id >= self.size {
            return id;
        }
        let mut walked = u64::from(id);
        loop {
            walked = self.feistel(walked);
            if walked < u64::from(self.size) {
                return u32::try_from(walked).unwrap_or(id);
            }
        }
    }

    fn feistel(&self, value: u64) -> u64 {
        let mask = (1_u64 << self.half) - 1;
        let (mut left, mut right) = (value >> self.half, value & mask);
        for round in 0..ROUNDS {
            let mut input = [0; 12];
            input[..4].copy_from_slice(&round.to_le_bytes());
            input[4..].copy_from_slice(&right.to_le_bytes());
            (left, right) = (right, left ^ (self.key.hash(b"ids", &input) & mask));
        }
        (left << self.half) | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_permutation_that_depends_on_the_key() {
        let (one, other) = (HashKey::new(b"one key of some length"), HashKey::new(b"another key of some length"));
        for size in [1, 2, 3, 1000, 4096, 5000] {
            let permutation = IdPermutation::new(one.clone(), size);
            let mut seen: Vec<u32> = (0..size).map(|id| permutation.apply(id)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..size).collect::<Vec<_>>(), "{size}");
            assert_eq!(permutation.apply(size), size);
        }
        let (one, other) = (IdPermutation::new(one, 50_000), IdPermutation::new(other, 50_000));
        let same = (0..1000).filter(|id| one.apply(*id) == other.apply(*id)).count();
        assert!(same < 10, "{same}");
    }
}
