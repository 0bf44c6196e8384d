//! A self-check of the engine: requests, blocks and tokens are added up and compared with what `/metrics` and answers show.

use serde::Serialize;

use super::EventCounts;
use crate::metrics::ShownValues;
use ::engine::scheduler::SchedulerStats;

#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct EngineTotals {
    /// Requests that were submitted.
    pub(super) submitted: u64,
    /// Requests that ended by themselves.
    pub(super) finished: u64,
    /// Requests that were aborted.
    pub(super) aborted: u64,
    /// Requests that ended by themselves before their answers, which had ended earlier, could abort them.
    pub(super) ended_late: u64,
    /// Tokens of prompts, and of those the cached ones, of requests with a first token.
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) generated_tokens: u64,
}

/// State of the engine between two steps.
#[derive(Debug, Clone, Default, Serialize)]
pub(in super::super) struct Snapshot {
    pub(super) totals: EngineTotals,
    /// Requests that run, wait, and have not reached the scheduler.
    pub(super) running: u64,
    pub(super) waiting: u64,
    pub(super) delayed: u64,
    /// Blocks in use, and different blocks that requests hold.
    pub(super) blocks_in_use: u64,
    pub(super) blocks_held: u64,
    /// Batches of KV events, where they are published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kv_events: Option<EventCounts>,
    /// Values of `/metrics`.
    pub(super) shown: ShownValues,
    /// Sums that are not what they should be; none in an engine that is sound.
    pub(super) differences: Vec<String>,
    /// Those of the ranks, where there are several. The rest is their sum then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) ranks: Vec<Self>,
}

impl EngineTotals {
    fn sum(all: Self, rank: &Self) -> Self {
        Self {
            submitted: all.submitted + rank.submitted,
            finished: all.finished + rank.finished,
            aborted: all.aborted + rank.aborted,
            ended_late: all.ended_late + rank.ended_late,
            prompt_tokens: all.prompt_tokens + rank.prompt_tokens,
            cached_tokens: all.cached_tokens + rank.cached_tokens,
            generated_tokens: all.generated_tokens + rank.generated_tokens,
        }
    }
}

impl Snapshot {
    /// Adds ranks up.
    pub(super) fn sum(ranks: Vec<Self>) -> Self {
        let mut all = Self::default();
        for (number, rank) in ranks.iter().enumerate() {
            all.totals = EngineTotals::sum(all.totals, &rank.totals);
            all.running += rank.running;
            all.waiting += rank.waiting;
            all.delayed += rank.delayed;
            all.blocks_in_use += rank.blocks_in_use;
            all.blocks_held += rank.blocks_held;
            all.shown = all.shown.with(&rank.shown);
            all.differences.extend(rank.differences.iter().map(|difference| format!("rank {number}: {difference}")));
        }
        Self { ranks, ..all }
    }

    pub(super) fn compared(mut self, stats: &SchedulerStats) -> Self {
        let EngineTotals { submitted, finished, aborted, ended_late, prompt_tokens, cached_tokens, generated_tokens } =
            self.totals;
        let here = self.running + self.waiting + self.delayed;
        let shown = self.shown;
        let mut differences = Vec::new();
        let mut equal = |what: &str, one: u64, other: u64| {
            if one != other {
                differences.push(format!("{what}: {one} and {other}"));
            }
        };
        equal("requests submitted, and all that became of them", submitted, finished + aborted + here);
        equal("blocks in use, and held by requests", self.blocks_in_use, self.blocks_held);
        equal("requests running, and shown", self.running, shown.running);
        equal("requests waiting, and shown", self.waiting, shown.waiting);
        equal("requests running and waiting of the scheduler", self.running, of(stats.num_running_reqs));
        let is_settled = here == 0 && aborted == 0 && ended_late == 0;
        let mut sent = |what: &str, handed_out: u64, counted: u64| {
            if shown.others > 0 {
                return;
            }
            if counted > handed_out || is_settled && shown.unfinished == 0 && counted != handed_out {
                differences.push(format!("{what} handed out, and counted in usage: {handed_out} and {counted}"));
            }
        };
        sent("prompt tokens", prompt_tokens, shown.prompt_tokens);
        sent("cached tokens", cached_tokens, shown.cached_tokens);
        sent("generated tokens", generated_tokens, shown.generated_tokens);
        self.differences = differences;
        self
    }
}

pub(super) fn of(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
