//! Faults that no request gets: those of batches of KV events and of whole servers; and what a request takes from a quota.

use std::{sync::Arc, time::Duration};

use http::HeaderMap;
use tokio::time::Instant;

use crate::{
    fault::FaultPlace,
    hit::HitOf,
    kind::{FaultKind, RefusalFault},
    quota::{QuotaLimits, QuotaRefusal},
    set::{ChosenFault, FaultSet},
    signal::{BatchNumber, EventsFault, MetricsFault, ServerCondition},
    stage::FaultStage,
};

/// A request that was admitted by a quota, until this is dropped.
#[derive(Debug)]
pub struct QuotaTicket {
    set: Arc<FaultSet>,
    rule: usize,
    account: u64,
    limits: QuotaLimits,
    /// Tokens of prompt and output so far.
    pub tokens: u64,
}

/// What a request takes from a quota, and headers about what is left; or why it is refused, with the line that repeats that.
pub type QuotaOutcome = Result<(QuotaTicket, HeaderMap), (Box<QuotaRefusal>, String)>;

impl Drop for QuotaTicket {
    fn drop(&mut self) {
        if let Some(rule) = self.set.rules.get(self.rule) {
            rule.quota.end(&self.limits, self.account, self.tokens, Instant::now());
        }
    }
}

impl FaultSet {
    /// Takes a request from the quota that a chosen fault is; `None` where it is none.
    ///
    /// # Errors
    /// Where the request is beyond it, which is noted, with the line that repeats it.
    pub fn admit(self: &Arc<Self>, chosen: &ChosenFault) -> Option<QuotaOutcome> {
        let FaultKind::Quota(limits) = chosen.fault.kind else { return None };
        let ChosenFault { account, request, nth, replica, .. } = *chosen;
        let rule = chosen.rule?;
        match self.rules.get(rule)?.quota.admit(&limits, account, Instant::now()) {
            Ok(headers) => Some(Ok((QuotaTicket { set: Arc::clone(self), rule, account, limits, tokens: 0 }, headers))),
            Err(refusal) => {
                let line = self.note(rule, HitOf::Refused { request, nth, replica, retry_after: refusal.retry_after });
                Some(Err((refusal, line.unwrap_or_default())))
            }
        }
    }

    /// The faults of a batch that is about to be published, with their lines; they are noted.
    #[must_use]
    pub fn of_batch(&self, batch: BatchNumber) -> Vec<(EventsFault, String)> {
        if !self.has_events {
            return Vec::new();
        }
        let chosen = (0..self.rules.len()).filter_map(|number| Some((number, self.event_fault(number, batch)?)));
        let chosen: Vec<_> = chosen.collect();
        let is_dropped = chosen.iter().any(|(_, fault)| *fault == EventsFault::Drop);
        let happens = |fault: EventsFault| match fault {
            EventsFault::ReplayCut(_) => false,
            EventsFault::Double | EventsFault::Reorder => !is_dropped,
            _ => true,
        };
        let noted = chosen.into_iter().filter(|(_, fault)| happens(*fault));
        noted.filter_map(|(number, fault)| Some((fault, self.note(number, HitOf::Batch(batch))?))).collect()
    }

    /// How many batches may be kept for replay once this one is published; `None` for as many as otherwise.
    #[must_use]
    pub fn replay_cut(&self, batch: BatchNumber) -> Option<usize> {
        if !self.has_events {
            return None;
        }
        let cuts = (0..self.rules.len()).filter_map(|number| match self.event_fault(number, batch)? {
            EventsFault::ReplayCut(most) => Some((number, most)),
            _ => None,
        });
        let (number, most) = cuts.min_by_key(|(_, most)| *most)?;
        // Noted once: it goes on.
        let rule = self.rules.get(number)?;
        if rule.happened() == 0 {
            self.note(number, HitOf::Batch(batch));
        }
        Some(most)
    }

    fn event_fault(&self, number: usize, batch: BatchNumber) -> Option<EventsFault> {
        let rule = self.rules.get(number)?;
        let FaultKind::Events(fault) = rule.fault.kind else { return None };
        let selection = &rule.fault.selection;
        let is_of = selection.is_of(batch.replica) && selection.rank.is_none_or(|rank| rank == batch.rank);
        if !is_of || !selection.is_in_time(self.start.elapsed()) {
            return None;
        }
        let first = match rule.fault.place {
            Some(FaultPlace::Event(first)) => first,
            _ => *rule.began.lock().entry((batch.replica, batch.rank)).or_insert(batch.number),
        };
        let since = batch.number.checked_sub(first)?;
        let count = match (rule.fault.count, fault) {
            (_, EventsFault::ReplayCut(_)) => u64::MAX,
            (Some(count), _) => count,
            (None, fault) if selection.rate.is_some() && !fault.is_point() => u64::MAX,
            (None, _) => 1,
        };
        let whose = (u64::from(batch.replica) << 32) | u64::from(batch.rank);
        let is_drawn = |rate| self.is_drawn(rate, number, (batch.number, whose));
        (since < count && selection.rate.is_none_or(is_drawn)).then_some(fault)
    }

    /// The age of the oldest page of metrics that a fault wants; `None` where none does.
    #[must_use]
    pub fn oldest_page(&self) -> Option<Duration> {
        let age = |fault: &FaultKind| match fault {
            FaultKind::Metrics(MetricsFault::Stale(age)) => Some(*age),
            _ => None,
        };
        self.rules.iter().filter_map(|rule| age(&rule.fault.kind)).max()
    }

    /// What is the matter with a replica at a time, and the numbers of the faults that make it so.
    #[must_use]
    pub fn of_server(&self, replica: u32, at: Instant) -> (ServerCondition, Vec<usize>) {
        let elapsed = at.saturating_duration_since(self.start);
        let (mut condition, mut active) = (ServerCondition::default(), Vec::new());
        for (number, rule) in self.rules.iter().enumerate() {
            let selection = &rule.fault.selection;
            if let FaultKind::Server(fault) = rule.fault.kind
                && selection.is_of(replica)
                && selection.is_in_time(elapsed)
            {
                condition = condition.with(fault);
                active.push(number);
            }
        }
        (condition, active)
    }

    /// Notes that a fault of a whole server began, and returns its line.
    pub fn began(&self, number: usize, replica: u32) -> String {
        self.note(number, HitOf::Replica(replica)).unwrap_or_default()
    }

    /// When the next fault of a whole server begins or ends after a time; `None` where none does.
    #[must_use]
    pub fn next_change(&self, after: Instant) -> Option<Instant> {
        let elapsed = after.saturating_duration_since(self.start);
        let of_servers = self.rules.iter().filter(|rule| rule.fault.row.stage == FaultStage::Server);
        let ends = of_servers.flat_map(|rule| [rule.fault.selection.from, rule.fault.selection.until]);
        ends.flatten().filter(|time| *time > elapsed).min().and_then(|time| self.start.checked_add(time))
    }
}

impl QuotaRefusal {
    /// The refusal in the engine's words, with its headers.
    #[must_use]
    pub fn fault(&self) -> RefusalFault {
        let retry_after = Some(self.retry_after.max(Duration::from_nanos(1)));
        RefusalFault { status: 429, message: Some(self.message.clone()), retry_after, limits: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FaultRequest;

    fn set(lines: &[&str], seed: u64) -> Arc<FaultSet> {
        Arc::new(FaultSet::new(lines.iter().map(|line| line.parse().unwrap()).collect(), seed))
    }

    fn batches(set: &FaultSet, numbers: std::ops::Range<u64>) -> Vec<u64> {
        let hit = |number: &u64| !set.of_batch(BatchNumber { number: *number, replica: 0, rank: 0 }).is_empty();
        numbers.filter(hit).collect()
    }

    #[test]
    fn batches_are_chosen_by_their_numbers() {
        assert_eq!(batches(&set(&["kv-drop at event 3"], 0), 0..10), [3]);
        assert_eq!(batches(&set(&["kv-drop:4 at event 3"], 0), 0..10), [3, 4, 5, 6]);
        assert_eq!(batches(&set(&["kv-double:2"], 0), 7..20), [7, 8], "from the first one that is there");
        assert_eq!(batches(&set(&["kv-reset at event 5"], 0), 6..20), [0; 0], "that one has passed");
        assert_eq!(batches(&set(&["kv-drop where replica=1"], 0), 0..10), [0; 0]);
        let some = batches(&set(&["kv-drop where rate=0.3"], 7), 0..1000);
        assert!((250..350).contains(&some.len()), "{}", some.len());
        assert_eq!(some, batches(&set(&["kv-drop where rate=0.3"], 7), 0..1000));
    }

    #[test]
    fn a_batch_that_is_dropped_is_neither_doubled_nor_reordered() {
        let set = set(&["kv-double at event 1", "kv-drop at event 1", "kv-reorder:2 at event 1"], 0);
        let count = |number| set.of_batch(BatchNumber { number, replica: 0, rank: 0 }).len();
        assert_eq!([0, 1, 2].map(count), [0, 1, 1]);
        assert_eq!(set.hits(9).len(), 2);
    }

    #[test]
    fn a_listed_batch_is_repeated_alone() {
        let many = set(&["kv-late:by=1s,count=9 at event 2"], 0);
        assert_eq!(batches(&many, 0..5), [2, 3, 4]);
        let lines: Vec<String> = many.hits(9).into_iter().map(|hit| hit.line).collect();
        assert_eq!(lines[1], "kv-late:by=1s at event 3 where replica=0 rank=0");
        let alone = set(&[&lines[1]], 1);
        assert_eq!(batches(&alone, 0..9), [3]);
    }

    #[test]
    fn a_cut_of_the_replay_goes_on_and_is_listed_once() {
        let set = set(&["kv-replay-cut:5 at event 2", "kv-replay-cut:3 at event 4"], 0);
        let cut = |number| set.replay_cut(BatchNumber { number, replica: 0, rank: 0 });
        assert_eq!((0..6).map(cut).collect::<Vec<_>>(), [None, None, Some(5), Some(5), Some(3), Some(3)]);
        assert_eq!((set.hits(9).len(), batches(&set, 0..9)), (2, vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_has_its_faults_from_time_to_time() {
        let set = set(&["slower:3 where from=10s until=20s", "die where from=15s until=16s replica=1", "slower:2"], 0);
        let now = |replica| set.of_server(replica, Instant::now()).0;
        let next = || set.next_change(Instant::now()).map(|at| (at - set.start).as_secs());
        assert_eq!((now(0).slower, next()), (2.0, Some(10)));
        tokio::time::advance(Duration::from_secs(15)).await;
        assert_eq!((now(0).slower, now(0).is_dead, now(1).is_dead, next()), (6.0, false, true, Some(16)));
        assert_eq!(set.of_server(1, Instant::now()).1, [0, 1, 2]);
        assert_eq!(set.began(1, 1), "die where replica=1 from=15s until=16s");
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!((now(1), next()), (ServerCondition { slower: 2.0, ..ServerCondition::default() }, None));
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_comes_and_goes() {
        let set = set(&["not-ready:2s,up=3s where from=10s"], 0);
        let is_down = || {
            let headers = HeaderMap::new();
            let request = FaultRequest { path: "/health", headers: &headers, body: b"", session: None, replica: 0 };
            !set.choose(&request).is_empty()
        };
        let mut found = Vec::new();
        for second in 0..20 {
            if is_down() {
                found.push(second);
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(found, [10, 11, 15, 16]);
        assert!(set.concerns_path("/health") && !set.concerns_path("/metrics"));
    }

    #[tokio::test(start_paused = true)]
    async fn each_key_has_a_quota_and_a_refusal_is_listed_as_its_429() {
        let set = set(&["quota:requests=1,per=10s where per=key"], 0);
        let admit = |key: &str| {
            let headers = HeaderMap::from_iter([("x-api-key".parse().unwrap(), key.parse().unwrap())]);
            let path = "/v1/completions";
            let request = FaultRequest { path, headers: &headers, body: b"{}", session: None, replica: 0 };
            let chosen = set.choose(&request).pop().unwrap();
            set.admit(&chosen).unwrap().map(drop)
        };
        assert!(admit("a").is_ok() && admit("b").is_ok());
        tokio::time::advance(Duration::from_millis(2500)).await;
        let (refusal, line) = admit("a").unwrap_err();
        assert_eq!(refusal.fault().headers().get("retry-after").unwrap(), "8", "7.5 s in whole seconds");
        assert!(line.starts_with("429:retry-after=7.5s ") && line.ends_with(" nth=3"), "{line}");
        assert_eq!(set.hits(9)[0].line, line);
        assert!(line.parse::<crate::Fault>().is_ok());
    }

    #[test]
    fn faults_of_answers_leave_metrics_and_health_alone_unless_they_name_them() {
        let set = set(&["500", "503 where path=/health", "metrics-503"], 0);
        let chosen = |path| {
            let headers = HeaderMap::new();
            let request = FaultRequest { path, headers: &headers, body: b"", session: None, replica: 0 };
            set.choose(&request).iter().filter_map(|chosen| chosen.rule).collect::<Vec<_>>()
        };
        assert_eq!([chosen("/health"), chosen("/metrics"), chosen("/v1/chat/completions")], [[1], [2], [0]]);
    }
}
