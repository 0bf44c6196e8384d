//! Watches one choice of a stream go by and keeps its token-bearing chunks.

use std::time::Duration;

use recording::trace::Chunk;

/// The chunks of one choice, gathered as they arrive.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChoiceMeter {
    chunks: Vec<Chunk>,
    /// How much each chunk carried, in any unit; separates tokens where the engine does not count them.
    weights: Vec<usize>,
    last: Duration,
}

impl ChoiceMeter {
    /// A chunk of `tokens` tokens was seen `at` this time after the request was sent. Nothing is kept of 0 tokens.
    pub fn chunk(&mut self, at: Duration, tokens: u32, weight: usize) {
        if tokens == 0 {
            return;
        }
        self.chunks.push(Chunk { gap: at.saturating_sub(self.last), tokens, step: None });
        self.weights.push(weight);
        self.last = at;
    }

    /// Tokens in all chunks.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.chunks.iter().map(|chunk| chunk.tokens).sum()
    }

    /// The gaps before each chunk, in order; the first is the TTFT.
    pub fn gaps(&self) -> impl Iterator<Item = Duration> + '_ {
        self.chunks.iter().map(|chunk| chunk.gap)
    }

    /// Chunks seen so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Returns whether no chunk was seen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Bytes that the chunks take.
    #[must_use]
    pub fn heap(&self) -> usize {
        self.chunks.capacity() * size_of::<Chunk>() + self.weights.capacity() * size_of::<usize>()
    }

    /// The chunks, in order.
    #[must_use]
    pub fn into_chunks(self) -> Vec<Chunk> {
        self.chunks
    }

    /// Spreads `total` tokens over the chunks, by what they carried (nothing counts as one byte), at least one each. When there are more chunks than
    /// tokens, the last ones are joined to the chunk before them.
    #[must_use]
    pub fn into_chunks_of(mut self, total: u32) -> Vec<Chunk> {
        let keep = usize::try_from(total).unwrap_or(usize::MAX).min(self.chunks.len());
        self.chunks.truncate(keep);
        self.weights.truncate(keep);
        let mut spare = total.saturating_sub(u32::try_from(keep).unwrap_or(u32::MAX));
        let mut weight_left: u64 = self.weights.iter().map(|weight| weigh(*weight)).sum();
        for (chunk, weight) in self.chunks.iter_mut().zip(&self.weights) {
            let weight = weigh(*weight);
            let share = (u64::from(spare) * weight).checked_div(weight_left).unwrap_or(u64::from(spare));
            let share = u32::try_from(share).unwrap_or(spare).min(spare);
            chunk.tokens = 1 + share;
            spare -= share;
            weight_left = weight_left.saturating_sub(weight);
        }
        self.chunks
    }
}

fn weigh(bytes: usize) -> u64 {
    bytes.max(1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn seen(weights: &[usize]) -> ChoiceMeter {
        let mut meter = ChoiceMeter::default();
        for (at, weight) in (1..).zip(weights) {
            meter.chunk(MS * at, 1, *weight);
        }
        meter
    }

    #[test]
    fn gaps_are_between_chunks_and_the_first_is_the_ttft() {
        let mut meter = ChoiceMeter::default();
        meter.chunk(MS * 30, 2, 0);
        meter.chunk(MS * 35, 0, 0);
        meter.chunk(MS * 40, 1, 0);
        let gaps: Vec<_> = meter.into_chunks().iter().map(|chunk| (chunk.gap, chunk.tokens)).collect();
        assert_eq!(gaps, [(MS * 30, 2), (MS * 10, 1)]);
    }

    #[test]
    fn tokens_are_spread_by_weight_and_all_of_them() {
        for (weights, total, expected) in [
            (&[10, 10, 10][..], 3, &[1, 1, 1][..]),
            (&[10, 30, 10], 8, &[2, 4, 2]),
            (&[0, 0], 5, &[2, 3]),
            (&[0, 9], 12, &[2, 10]),
            (&[5, 5, 5], 2, &[1, 1]),
            (&[5], 0, &[]),
        ] {
            let chunks = seen(weights).into_chunks_of(total);
            assert_eq!(chunks.iter().map(|chunk| chunk.tokens).collect::<Vec<_>>(), expected, "{weights:?} {total}");
        }
    }
}
