//! How long blocks stay in the cache, of a sample of them: what vLLM's `--kv-cache-metrics` shows.
//!
//! A block that is taken from the pool is watched with the sample's probability until the pool takes it again, or the cache is reset.
//! Times are those that the caller has set; draws come from one seed. Source: `vllm/v1/core/kv_cache_metrics.py` of vLLM 0.32.0.

use std::{collections::HashMap, time::Duration};

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};

use super::BlockId;

/// Uses of a block that are remembered.
const USES: usize = 4;

/// Evictions that are kept for who asks for them; later ones are not counted until then.
const MOST_EVICTIONS: usize = 1 << 16;

/// A block that was used again for something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// Time since it was taken from the pool.
    pub lifetime: Duration,
    /// Time since it was found in the cache for the last time, or taken from the pool.
    pub idle: Duration,
    /// Times between the last four hits, in order.
    pub reuse_gaps: Vec<Duration>,
}

/// The blocks that are watched.
#[derive(Debug)]
pub(super) struct Residency {
    /// Probability of a block to be watched, from 0 to 1.
    sample: f64,
    generator: Xoshiro256PlusPlus,
    /// The time; a step's blocks are all taken and found at its beginning.
    pub(super) now: Duration,
    blocks: HashMap<BlockId, SampledBlock>,
    evictions: Vec<Eviction>,
}

#[derive(Debug)]
struct SampledBlock {
    taken: Duration,
    /// The last hits, the oldest one first.
    hits: Vec<Duration>,
}

impl Residency {
    pub(super) fn new(sample: f64) -> Self {
        let generator = Xoshiro256PlusPlus::seed_from_u64(0);
        Self { sample, generator, now: Duration::ZERO, blocks: HashMap::new(), evictions: Vec::new() }
    }

    /// The pool hands out a block: what it held is evicted.
    pub(super) fn take(&mut self, block: BlockId) {
        let now = self.now;
        if let Some(SampledBlock { taken, hits }) = self.blocks.remove(&block)
            && self.evictions.len() < MOST_EVICTIONS
        {
            let since = |then: Duration| now.saturating_sub(then);
            let gaps = hits.iter().zip(hits.iter().skip(1)).map(|(one, next)| next.saturating_sub(*one));
            let (lifetime, idle) = (since(taken), since(hits.last().copied().unwrap_or(taken)));
            self.evictions.push(Eviction { lifetime, idle, reuse_gaps: gaps.collect() });
        }
        if self.generator.random::<f64>() < self.sample {
            self.blocks.insert(block, SampledBlock { taken: now, hits: Vec::new() });
        }
    }

    /// A block was found in the cache.
    pub(super) fn hit(&mut self, block: BlockId) {
        if let Some(watched) = self.blocks.get_mut(&block) {
            if watched.hits.len() == USES {
                watched.hits.remove(0);
            }
            watched.hits.push(self.now);
        }
    }

    /// Forgets everything, as a reset of the cache does.
    pub(super) fn reset(&mut self) {
        self.blocks.clear();
        self.evictions.clear();
    }

    /// The evictions since the last call.
    pub(super) fn drain(&mut self) -> Vec<Eviction> {
        std::mem::take(&mut self.evictions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_evicted_block_tells_how_long_it_was_there_and_when_it_was_used() {
        let mut residency = Residency::new(1.0);
        residency.take(7);
        assert!(residency.drain().is_empty(), "nothing was in it");
        for at in [2, 3, 5, 8, 13] {
            residency.now = SECOND * at;
            residency.hit(7);
        }
        residency.hit(9);
        residency.now = SECOND * 20;
        residency.take(7);
        let reuse_gaps = vec![SECOND * 2, SECOND * 3, SECOND * 5];
        assert_eq!(residency.drain(), [Eviction { lifetime: SECOND * 20, idle: SECOND * 7, reuse_gaps }]);
        residency.now = SECOND * 21;
        residency.take(7);
        assert_eq!(residency.drain(), [Eviction { lifetime: SECOND, idle: SECOND, reuse_gaps: vec![] }]);
        residency.reset();
        residency.take(7);
        assert!(residency.drain().is_empty());
    }

    #[test]
    fn a_part_of_the_blocks_is_watched() {
        let mut residency = Residency::new(0.1);
        (0..10_000).for_each(|block| residency.take(block));
        assert!((800..1200).contains(&residency.blocks.len()), "{}", residency.blocks.len());
    }
}
