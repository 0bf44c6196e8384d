//! Stands in for `matching`, `timing` and `engine` until they are merged.

use std::{collections::HashSet, sync::Mutex, time::Duration};

use crate::{prompt::PromptHashes, trace::Record, units::TimeScale};

/// A way to find a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatchBy {
    /// By the number at the end of the request id.
    Index,
    /// By the longest shared prefix.
    Prefix,
    /// The next one in turn.
    Next,
}

impl MatchBy {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Prefix => "prefix",
            Self::Next => "next",
        }
    }
}

pub(super) struct Query<'a> {
    pub(super) request_id: Option<&'a str>,
    pub(super) hashes: &'a PromptHashes,
    pub(super) choices: usize,
}

pub(super) struct Selection {
    pub(super) records: Vec<usize>,
    pub(super) by: MatchBy,
}

#[derive(Debug)]
pub(super) struct Matcher {
    order: Vec<MatchBy>,
    hashes: Vec<Vec<u64>>,
    used: Mutex<HashSet<usize>>,
}

impl Matcher {
    pub(super) fn new(records: &[Record], order: &[MatchBy]) -> Self {
        let hashes = records.iter().map(|record| record.block_hashes.clone()).collect();
        Self { order: order.to_vec(), hashes, used: Mutex::default() }
    }

    pub(super) fn select(&self, query: &Query<'_>) -> Option<Selection> {
        let mut used = self.used.lock().ok()?;
        for by in &self.order {
            let found = match by {
                MatchBy::Index => query
                    .request_id
                    .and_then(|id| id.rsplit('-').next()?.parse().ok())
                    .filter(|at| *at < self.hashes.len()),
                MatchBy::Next => {
                    if used.len() >= self.hashes.len() {
                        used.clear();
                    }
                    (0..self.hashes.len()).find(|at| !used.contains(at))
                }
                MatchBy::Prefix => {
                    let score = |at: usize| {
                        let shared = self.hashes.get(at).map_or(0, |hashes| {
                            hashes.iter().zip(&query.hashes.blocks).take_while(|(a, b)| a == b).count()
                        });
                        (shared, !used.contains(&at))
                    };
                    (0..self.hashes.len()).rev().max_by_key(|at| score(*at)).filter(|at| score(*at).0 > 0)
                }
            };
            if let Some(first) = found {
                let records: Vec<usize> = (first..self.hashes.len()).take(query.choices).collect();
                used.extend(&records);
                return Some(Selection { records, by: *by });
            }
        }
        None
    }
}

/// When chunks are due.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pacing {
    /// As recorded.
    Recorded {
        /// How many times faster.
        scale: TimeScale,
    },
    /// At a fixed pace.
    Fixed {
        /// To the first token.
        ttft: Duration,
        /// Between tokens.
        itl: Duration,
    },
    /// At once.
    Instant,
}

impl Default for Pacing {
    fn default() -> Self {
        Self::Recorded { scale: TimeScale::REAL }
    }
}

impl Pacing {
    pub(super) fn schedule(self, record: &Record) -> impl Iterator<Item = (Duration, u32)> + '_ {
        let mut at = Duration::ZERO;
        record.emissions().enumerate().map(move |(index, chunk)| {
            at += match self {
                Self::Recorded { scale } => scale.apply(chunk.gap),
                Self::Fixed { ttft, .. } if index == 0 => ttft,
                Self::Fixed { itl, .. } => itl,
                Self::Instant => Duration::ZERO,
            };
            (at, chunk.tokens)
        })
    }
}

pub(super) async fn sleep_until(deadline: tokio::time::Instant) {
    tokio::time::sleep_until(deadline).await;
}

pub(super) struct RandomTokens<'a> {
    state: u64,
    ids: &'a [u32],
}

impl<'a> RandomTokens<'a> {
    pub(super) fn new(seed: u64, ids: &'a [u32]) -> Self {
        Self { state: seed, ids }
    }
}

impl Iterator for RandomTokens<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.state = xxhash_rust::xxh3::xxh3_64(&self.state.to_le_bytes());
        let at = self.state % u64::try_from(self.ids.len().max(1)).ok()?;
        self.ids.get(usize::try_from(at).ok()?).copied()
    }
}
