//! Proves: runs all cases, counts what failed in them, and makes each sort of failure small.

use std::collections::BTreeMap;

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    cases::{CaseKind, ProveCase, RandomCuts, edit_kind, failures, pairs, recuts},
    checks::{FailedCheck, ProveCheck},
    client::ReceivedEnd,
    gateway::{FirstRequest, offered},
    ground_truth::ENDPOINTS,
    proof::{CheckResult, Proof, ProveError, ProvePlan, ProvenFailure},
    prover::{CaseRun, Prover},
    script::script,
    shrink::Shrunk,
};
use crate::api::Endpoint;

/// Faults that keep many streams open at once.
const TOGETHER: [&str; 2] = ["jitter:20ms", "stall:1s at event 1"];

/// The same with few writes.
const FEW_TOGETHER: [&str; 2] = ["merge:10000", "stall:200ms at event 1"];

/// Numbers of streams with which a failed isolation is tried again, the smallest first.
const FEWER_STREAMS: [usize; 7] = [2, 3, 4, 8, 16, 32, 64];

/// Maximum number of streams in a script.
const MOST_IN_SCRIPT: usize = 16;

/// Failures of one sort that are known so far: the first of them, and how many.
type FailureSorts = BTreeMap<(ProveCheck, &'static str, String), (CaseRun, u64)>;

struct Proving<'a> {
    prover: &'a mut Prover,
    plan: &'a ProvePlan,
    proof: Proof,
    sorts: FailureSorts,
}

impl Prover {
    /// Proves what a plan has, or as much of it as is done when `stop` completes.
    ///
    /// # Errors
    /// When the gateway passes nothing on.
    pub async fn prove(&mut self, plan: &ProvePlan, stop: impl Future<Output = ()>) -> Result<Proof, ProveError> {
        let checks = plan.only.iter().map(|check| CheckResult { check: *check, cases: 0, failed: 0 }).collect();
        let proof = Proof { checks, ..Proof::default() };
        let mut proving = Proving { prover: self, plan, proof, sorts: FailureSorts::new() };
        tokio::select! {
            done = proving.prove() => done?,
            () = stop => proving.stop(),
        }
        Ok(proving.proof)
    }

    /// Waits for the gateway, and asks which endpoints it has.
    async fn offered(&self, plan: &ProvePlan) -> Result<(Vec<Endpoint>, Vec<Endpoint>), ProveError> {
        let firsts: Vec<ProveCase> = ENDPOINTS
            .iter()
            .filter_map(|endpoint| {
                let pair = pairs(&self.streams).find(|(_, of)| of == endpoint)?;
                Some(ProveCase::new(pair, CaseKind::Recut, &[""; 0]))
            })
            .collect();
        let ask = async || -> Result<Vec<FirstRequest>, ProveError> {
            let runs = self.run(&firsts).await?;
            let first = |run: &CaseRun| FirstRequest {
                endpoint: run.case.endpoint,
                is_served: run.served.is_some(),
                status: run.received.status,
                what: run.failed.first().map(|failed| failed.what.clone()),
            };
            Ok(runs.iter().map(first).collect())
        };
        offered((&self.client, &self.behind), plan.wait, "no stream is known", ask).await
    }
}

impl Proving<'_> {
    async fn prove(&mut self) -> Result<(), ProveError> {
        let (endpoints, absent) = self.prover.offered(self.plan).await?;
        for stream in &mut self.prover.streams {
            stream.by_endpoint.retain(|(endpoint, _)| endpoints.contains(endpoint));
        }
        (self.proof.endpoints, self.proof.absent) = (endpoints, absent);
        self.recut().await?;
        // Failures come last: a gateway may stop passing requests on after some.
        self.isolate().await?;
        self.fail().await?;
        self.shrink().await
    }

    /// Adds the failures that were found so far, as they are.
    fn stop(&mut self) {
        self.proof.is_stopped = true;
        for (run, count, check) in self.found() {
            if self.proof.failures.len() < self.plan.shrink {
                self.add_shrunk(&Shrunk { run, is_repeated: true }, check, count);
            } else {
                self.proof.more_failures += 1;
            }
        }
    }

    /// Returns true if any of these checks is asked for.
    fn is_about(&self, checks: &[ProveCheck]) -> bool {
        checks.iter().any(|check| self.plan.only.contains(check))
    }

    /// The same streams in other writes: every recut, then random cuts.
    async fn recut(&mut self) -> Result<(), ProveError> {
        let about = [ProveCheck::Stream, ProveCheck::Usage, ProveCheck::Cost];
        if !self.is_about(&about) {
            return Ok(());
        }
        let mut served: Vec<((usize, Endpoint), Bytes)> = Vec::new();
        for batch in recuts(&self.prover.streams).chunks(self.prover.concurrency.max(1)) {
            let runs = self.prover.run(batch).await?;
            for run in runs.iter().filter(|run| run.case.edits.is_empty()) {
                let body = run.served.as_ref().map(|served| Bytes::from(served.body.concat()));
                served.extend(
                    body.filter(|body| body.len() > 1).map(|body| ((run.case.stream, run.case.endpoint), body)),
                );
            }
            self.add(runs, &about);
        }
        let mut random = RandomCuts::new(self.prover.seed);
        let (start, mut left) = (Instant::now(), self.plan.cases);
        while !served.is_empty() && (left > 0 || self.plan.duration.is_some_and(|time| start.elapsed() < time)) {
            let count = if left == 0 { self.prover.concurrency } else { left.min(self.prover.concurrency) };
            left = left.saturating_sub(count);
            let batch: Vec<ProveCase> = (0..count.max(1)).filter_map(|_| random.next(&served)).collect();
            let runs = self.prover.run(&batch).await?;
            self.add(runs, &about);
        }
        Ok(())
    }

    async fn fail(&mut self) -> Result<(), ProveError> {
        let about = [ProveCheck::Error];
        if !self.is_about(&about) {
            return Ok(());
        }
        let (stalls, others): (Vec<ProveCase>, Vec<ProveCase>) =
            failures(&self.prover.streams).into_iter().partition(ProveCase::stalls);
        let at_once = self.prover.concurrency.max(1);
        for batch in [others, stalls].iter().flat_map(|cases| cases.chunks(at_once)) {
            let runs = self.prover.run(batch).await?;
            self.add(runs, &about);
        }
        Ok(())
    }

    /// Many streams at once.
    async fn isolate(&mut self) -> Result<(), ProveError> {
        let about = [ProveCheck::Isolation];
        if !self.is_about(&about) {
            return Ok(());
        }
        let (runs, together) = self.prover.isolation(self.plan.isolation, &TOGETHER, &self.proof.endpoints).await?;
        self.proof.together = together;
        let is_mixed = runs.iter().any(|run| run.failure_of(ProveCheck::Isolation).is_some());
        let first = runs.iter().find(|run| !run.failed.is_empty()).and_then(|run| run.failed.first().cloned());
        let failed = runs.iter().filter(|run| !run.failed.is_empty()).count();
        self.count(ProveCheck::Isolation, runs.len(), failed);
        let Some(first) = first else { return Ok(()) };
        let check = if is_mixed { ProveCheck::Isolation } else { first.check };
        let (mut smallest, mut edits) = (runs, TOGETHER);
        for count in FEWER_STREAMS.into_iter().filter(|count| *count < self.plan.isolation) {
            let (runs, _) = self.prover.isolation(count, &FEW_TOGETHER, &self.proof.endpoints).await?;
            if runs.iter().any(|run| run.failure_of(check).is_some()) {
                (smallest, edits) = (runs, FEW_TOGETHER);
                break;
            }
        }
        let failure = smallest.iter().find(|run| run.failure_of(check).is_some());
        let Some(failure) = failure else { return Ok(()) };
        let what = failure.failure_of(check).map_or(first.what, |failed| failed.what.clone());
        let all: Vec<&CaseRun> = smallest.iter().collect();
        let failure = ProvenFailure {
            check: ProveCheck::Isolation,
            stream: "echo".to_owned(),
            endpoint: failure.case.endpoint,
            faults: edits.map(str::to_owned).to_vec(),
            writes: failure.writes().len(),
            streams: smallest.len(),
            what,
            cases: failed as u64,
            script: String::new(),
        };
        self.push(failure, check, &all);
        Ok(())
    }

    /// Counts runs, and keeps the first failure of each sort.
    fn add(&mut self, runs: Vec<CaseRun>, about: &[ProveCheck]) {
        for check in about.iter().filter(|check| self.plan.only.contains(check)) {
            let failed = runs.iter().filter(|run| run.failure_of(*check).is_some()).count();
            self.count(*check, runs.len(), failed);
        }
        // A failed stream whose events changed before the failure counts as a stream, where that is requested.
        if !about.contains(&ProveCheck::Stream) {
            let changed = runs.iter().filter(|run| run.failure_of(ProveCheck::Stream).is_some()).count();
            self.count(ProveCheck::Stream, 0, changed);
        }
        for run in runs {
            self.proof.silent_cuts += u64::from(run.is_silent_cut);
            let wanted = run.failed.iter().find(|failed| self.plan.only.contains(&failed.check));
            let Some(FailedCheck { check, .. }) = wanted.cloned() else { continue };
            let sort = (check, run.case.endpoint.name(), run.case.sort());
            self.sorts.entry(sort).or_insert_with(|| (run, 0)).1 += 1;
        }
    }

    fn count(&mut self, check: ProveCheck, cases: usize, failed: usize) {
        for result in self.proof.checks.iter_mut().filter(|result| result.check == check) {
            result.cases += cases as u64;
            result.failed += failed as u64;
        }
    }

    /// Makes the sorts of failures small. A sort that has all edits of a known failure is that one.
    async fn shrink(&mut self) -> Result<(), ProveError> {
        let sorts = self.found();
        // Until each is made small, should it be stopped.
        self.proof.more_failures = sorts.len();
        let mut known: Vec<(ProveCheck, ProveCase, usize)> = Vec::new();
        for (run, count, check) in sorts {
            let is_known = |(of, case, _): &&(ProveCheck, ProveCase, usize)| *of == check && explains(case, &run.case);
            if let Some((.., place)) = known.iter().find(is_known) {
                self.proof.failures.get_mut(*place).into_iter().for_each(|failure| failure.cases += count);
            } else if known.len() >= self.plan.shrink {
                continue;
            } else {
                let shrunk = self.prover.shrink(run, check).await?;
                let case = shrunk.run.case.clone();
                if self.add_shrunk(&shrunk, check, count) {
                    known.push((check, case, self.proof.failures.len() - 1));
                }
            }
            self.proof.more_failures -= 1;
        }
        Ok(())
    }

    /// Takes the sorts of failures, those with the fewest edits first.
    fn found(&mut self) -> Vec<(CaseRun, u64, ProveCheck)> {
        let sorts = std::mem::take(&mut self.sorts).into_iter();
        let mut sorts: Vec<_> = sorts.map(|((check, ..), (run, count))| (run, count, check)).collect();
        sorts.sort_by_key(|(run, ..)| (run.case.edits.len() + usize::from(run.case.cuts.is_some()), run.case.stream));
        sorts
    }

    /// Adds a failure in its smallest form; returns false if it is one that is there already.
    fn add_shrunk(&mut self, Shrunk { run, is_repeated }: &Shrunk, check: ProveCheck, count: u64) -> bool {
        let faults = run.case.lines(self.prover.pause_ms);
        let kinds = |lines: &[String]| lines.iter().map(|line| edit_kind(line).to_owned()).collect::<Vec<_>>();
        let is_same = |failure: &&mut ProvenFailure| {
            // What fails beside others only is one stream disturbing another.
            let is_mixed = !is_repeated && failure.check == ProveCheck::Isolation;
            let is_other = failure.check != check || failure.endpoint != run.case.endpoint;
            is_mixed || (!is_other && kinds(&failure.faults) == kinds(&faults))
        };
        if let Some(failure) = self.proof.failures.iter_mut().find(is_same) {
            failure.cases += count;
            return false;
        }
        let what = run.failure_of(check).map(|failed| failed.what.clone()).unwrap_or_default();
        let stream = self.prover.streams.get(run.case.stream).map(|stream| stream.name.clone());
        let failure = ProvenFailure {
            check,
            stream: stream.unwrap_or_default(),
            endpoint: run.case.endpoint,
            faults,
            writes: run.writes().len(),
            streams: 1,
            what: if *is_repeated { what } else { format!("only beside other streams: {what}") },
            cases: count,
            script: String::new(),
        };
        self.push(failure, check, &[run]);
        true
    }

    /// Adds a failure with its script.
    fn push(&mut self, mut failure: ProvenFailure, check: ProveCheck, runs: &[&CaseRun]) {
        let is_repeatable = runs.len() <= MOST_IN_SCRIPT
            && runs.iter().all(|run| run.served.is_some() && run.received.end != ReceivedEnd::TooLarge);
        if is_repeatable {
            let name = format!("prove-{}.py", self.proof.failures.len() + 1);
            failure.script = script(&name, check, runs, &self.prover.rules, &self.plan.places);
        }
        self.proof.failures.push(failure);
    }
}

/// Returns true if a case in its smallest form, in one write, has nothing that another one has not.
fn explains(small: &ProveCase, other: &ProveCase) -> bool {
    small.endpoint == other.endpoint
        && small.kind == other.kind
        && small.cuts.as_ref().is_none_or(Vec::is_empty)
        && small.edits.iter().all(|edit| other.edits.contains(edit))
}
