//! Routers: which replica a request goes to.
//!
//! [`RouterPolicy::Prefix`] is the `cache_aware` policy of vllm-router 0.1.17: a tree of the prompts that it has sent, and where; while the
//! replicas are in balance a prompt goes where most of it went before, if that is enough of it, else where the fewest requests are
//! in flight. It does not know what engines have evicted. Deviations: it compares blocks where the original compares tokens, and where
//! several replicas have had the same prefix, the last one counts.
//!
//! [`RouterPolicy::LeastRequest`] is Envoy's least request balancer with its default of two choices: two hosts are drawn, perhaps the same one
//! twice, and the first counts where both have equally many. [`RouterPolicy::ConsistentHash`] is a rendezvous hash, which spreads keys as evenly as
//! Envoy's Maglev does; no replica comes or goes here, so that a ring would differ in its evenness only.

use std::{collections::HashMap, str::FromStr};

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::base::hash_is_key::BuildHashIsKey;

base::named! {
    /// Way to choose a replica.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RouterPolicy {
        /// Each in turn.
        RoundRobin = "round_robin",
        /// The one with the fewest requests in flight; the first of several.
        LeastLoaded = "least_loaded",
        /// Of two that are drawn by the seed, the one with fewer requests in flight.
        LeastRequest = "least_request",
        /// The same for all requests of a session, or, outside of sessions, for all prompts with the same first block.
        ConsistentHash = "consistent_hash",
        /// Where the longest prefix went before, within the [`Balance`].
        Prefix = "prefix",
        /// Any, by the seed.
        Random = "random",
    }
}

/// Thresholds of [`RouterPolicy::Prefix`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Balance {
    /// Share of a prompt that must have gone somewhere before, from 0 to 1.
    pub cache_threshold: f64,
    /// The replicas are out of balance where the most requests in flight are more than this above the fewest, and
    pub abs_threshold: u32,
    /// more than so many times the fewest.
    pub rel_threshold: f64,
}

impl Default for Balance {
    fn default() -> Self {
        Self { cache_threshold: 0.3, abs_threshold: 64, rel_threshold: 1.5 }
    }
}

impl FromStr for RouterPolicy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let [others @ .., last] = Self::ALL.map(Self::name);
        let unknown = || format!("`{name}` is no router: use {} or {last}", others.join(", "));
        Self::named(name).ok_or_else(unknown)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RoutedPrompt<'a> {
    /// Numbers of its blocks, each for all of the prompt up to there.
    pub(super) blocks: &'a [u64],
    pub(super) tokens: u32,
    pub(super) block_size: u32,
    /// What a consistent hash is taken of.
    pub(super) key: u64,
}

/// A policy with what it remembers.
#[derive(Debug)]
pub(super) struct Router {
    policy: RouterPolicy,
    balance: Balance,
    turn: usize,
    generator: Xoshiro256PlusPlus,
    /// Where the prompt up to a block went last.
    sent: HashMap<u64, u32, BuildHashIsKey>,
}

impl Router {
    pub(super) fn new(policy: RouterPolicy, balance: Balance, seed: u64) -> Self {
        Self { policy, balance, turn: 0, generator: Xoshiro256PlusPlus::seed_from_u64(seed), sent: HashMap::default() }
    }

    /// Chooses among replicas by the requests that each has in flight; there is at least one.
    pub(super) fn choose(&mut self, prompt: RoutedPrompt<'_>, in_flight: &[u32]) -> usize {
        match self.policy {
            RouterPolicy::RoundRobin => {
                self.turn = (self.turn + 1) % in_flight.len();
                (self.turn + in_flight.len() - 1) % in_flight.len()
            }
            RouterPolicy::LeastLoaded => least(in_flight),
            RouterPolicy::LeastRequest => {
                let [first, second] = [(); 2].map(|()| self.generator.random_range(0..in_flight.len()));
                if in_flight.get(second) < in_flight.get(first) { second } else { first }
            }
            RouterPolicy::ConsistentHash => {
                let hash = |replica: &usize| xxh3_64_with_seed(&prompt.key.to_le_bytes(), *replica as u64);
                (0..in_flight.len()).max_by_key(hash).unwrap_or(0)
            }
            RouterPolicy::Prefix => self.by_prefix(prompt, in_flight),
            RouterPolicy::Random => self.generator.random_range(0..in_flight.len()),
        }
    }

    fn by_prefix(&mut self, prompt: RoutedPrompt<'_>, in_flight: &[u32]) -> usize {
        let Balance { cache_threshold, abs_threshold, rel_threshold } = self.balance;
        let fewest = in_flight.iter().min().copied().unwrap_or(0);
        let most = in_flight.iter().max().copied().unwrap_or(0);
        let is_balanced = most - fewest <= abs_threshold || f64::from(most) <= f64::from(fewest) * rel_threshold;
        let known = prompt.blocks.iter().map_while(|block| self.sent.get(block));
        let (blocks, replica) = known.fold((0_u32, None), |(blocks, _), replica| (blocks + 1, Some(*replica)));
        let tokens = blocks.saturating_mul(prompt.block_size).min(prompt.tokens);
        let share = f64::from(tokens) / f64::from(prompt.tokens.max(1));
        let chosen = match replica {
            Some(replica) if is_balanced && share > cache_threshold => usize::try_from(replica).unwrap_or(0),
            _ => least(in_flight),
        };
        let number = u32::try_from(chosen).unwrap_or(0);
        self.sent.extend(prompt.blocks.iter().map(|block| (*block, number)));
        chosen
    }
}

fn least(in_flight: &[u32]) -> usize {
    in_flight.iter().enumerate().min_by_key(|(_, count)| **count).map_or(0, |(replica, _)| replica)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(blocks: &[u64]) -> RoutedPrompt<'_> {
        let key = blocks.first().copied().unwrap_or_default();
        RoutedPrompt { blocks, tokens: 16 * u32::try_from(blocks.len()).unwrap(), block_size: 16, key }
    }

    fn chosen(policy: RouterPolicy, requests: &[(&[u64], &[u32])]) -> Vec<usize> {
        let balance = Balance { cache_threshold: 0.5, abs_threshold: 2, rel_threshold: 1.5 };
        let mut router = Router::new(policy, balance, 7);
        requests.iter().map(|(blocks, in_flight)| router.choose(prompt(blocks), in_flight)).collect()
    }

    #[test]
    fn each_in_turn_and_the_least_loaded() {
        let any: (&[u64], &[u32]) = (&[1], &[0, 0, 0]);
        assert_eq!(chosen(RouterPolicy::RoundRobin, &[any; 5]), [0, 1, 2, 0, 1]);
        let loads: [(&[u64], &[u32]); 3] = [(&[1], &[2, 1, 3]), (&[1], &[2, 2, 2]), (&[1], &[9, 8, 0])];
        assert_eq!(chosen(RouterPolicy::LeastLoaded, &loads), [1, 0, 2]);
        let drawn = chosen(RouterPolicy::Random, &[any; 200]);
        assert!((0..3).all(|replica| drawn.iter().filter(|chosen| **chosen == replica).count() > 30), "{drawn:?}");
        assert_eq!(drawn, chosen(RouterPolicy::Random, &[any; 200]));
    }

    #[test]
    fn of_two_drawn_replicas_the_one_with_fewer_requests_is_chosen() {
        let busy: (&[u64], &[u32]) = (&[1], &[9, 0, 9, 9]);
        let drawn = chosen(RouterPolicy::LeastRequest, &[busy; 4000]);
        // Neither of the two draws is the second replica in 9 of 16 cases.
        let idle = drawn.iter().filter(|chosen| **chosen == 1).count();
        assert!((1600..1900).contains(&idle), "{idle}");
        let any: (&[u64], &[u32]) = (&[1], &[2, 2, 2, 2]);
        let drawn = chosen(RouterPolicy::LeastRequest, &[any; 4000]);
        assert!((0..4).all(|replica| drawn.iter().filter(|chosen| **chosen == replica).count() > 900), "{drawn:?}");
    }

    #[test]
    fn a_consistent_hash_keeps_a_key_and_spreads_keys_whatever_the_load() {
        let keys: Vec<[u64; 1]> = (0..4000).map(|key| [key]).collect();
        let requests =
            |in_flight| keys.iter().map(|key| (key.as_slice(), in_flight)).collect::<Vec<(&[u64], &[u32])>>();
        let drawn = chosen(RouterPolicy::ConsistentHash, &requests(&[0, 0, 0, 0]));
        assert_eq!(drawn, chosen(RouterPolicy::ConsistentHash, &requests(&[9, 0, 3, 0])));
        assert!((0..4).all(|replica| drawn.iter().filter(|chosen| **chosen == replica).count() > 900), "{drawn:?}");
        // One replica more takes keys of others, and moves none between them.
        let grown = chosen(RouterPolicy::ConsistentHash, &requests(&[0; 5]));
        assert!(drawn.iter().zip(&grown).all(|(before, after)| before == after || *after == 4));
    }

    #[test]
    fn a_prompt_goes_where_enough_of_it_went_before() {
        let requests: [(&[u64], &[u32]); 5] = [
            (&[1, 2], &[1, 0]),
            (&[1, 2, 3], &[0, 1]),
            // A half of it is not more than a half.
            (&[1, 9], &[0, 1]),
            // Out of balance: 4 - 1 > 2, and 4 > 1.5.
            (&[1, 2, 3, 4], &[1, 4]),
            (&[1, 2, 3, 4], &[5, 3]),
        ];
        assert_eq!(chosen(RouterPolicy::Prefix, &requests), [1, 1, 0, 0, 0]);
    }
}
