//! Makes a failure small: the fewest writes and edits with which the same check fails.
//!
//! First the stream in one write, then in two with each possible cut, then by delta debugging. A candidate counts as passing where it
//! passes [`TRIES`] times: what depends on when bytes are read does not fail each time.

use super::{
    cases::{CaseKind, ProveCase, delicate_places},
    checks::ProveCheck,
    prover::{CaseRun, Prover},
};
use crate::faults::FaultSyntaxError;

/// Times that a candidate runs before it counts as passing.
const TRIES: usize = 3;

/// Maximum number of single cuts that are tried.
const MOST_CUTS: usize = 600;

/// Maximum number of candidates of delta debugging.
const MOST_CANDIDATES: usize = 200;

/// A failure in its smallest form.
#[derive(Debug)]
pub(crate) struct Shrunk {
    /// The run that failed last.
    pub run: CaseRun,
    /// Whether the check failed again in a run of its own, without other cases beside it.
    pub(super) is_repeated: bool,
}

impl Prover {
    /// Shrinks a failure; the failure itself where nothing smaller fails.
    pub(crate) async fn shrink(&self, found: CaseRun, check: ProveCheck) -> Result<Shrunk, FaultSyntaxError> {
        if found.served.is_none() {
            return Ok(Shrunk { run: found, is_repeated: true });
        }
        let Some(found) = self.fails(&found.case, check).await? else {
            return Ok(Shrunk { run: found, is_repeated: false });
        };
        let whole = ProveCase { edits: found.case.edits_of_bytes(), cuts: Some(Vec::new()), ..found.case.clone() };
        let smaller = match self.fails(&whole, check).await? {
            Some(run) => Some(run),
            None if found.case.has_places() => None,
            None => self.with_cuts(&found, &whole, check).await?,
        };
        let mut run = smaller.unwrap_or(found);
        if run.case.kind == CaseKind::Recut {
            run = self.without_edits(run, check).await?;
        }
        run = self.with_shorter_line(run, check).await?;
        Ok(Shrunk { run, is_repeated: true })
    }

    /// Runs a case up to [`TRIES`] times; returns the run in which the check failed.
    async fn fails(&self, case: &ProveCase, check: ProveCheck) -> Result<Option<CaseRun>, FaultSyntaxError> {
        for _ in 0..TRIES {
            let runs = self.run(std::slice::from_ref(case)).await?;
            let failed = runs.into_iter().find(|run| run.served.is_some() && run.failure_of(check).is_some());
            if failed.is_some() {
                return Ok(failed);
            }
        }
        Ok(None)
    }

    /// Finds the fewest cuts with which a stream in one piece fails.
    async fn with_cuts(
        &self,
        found: &CaseRun,
        whole: &ProveCase,
        check: ProveCheck,
    ) -> Result<Option<CaseRun>, FaultSyntaxError> {
        let ends = found.chunk_ends();
        let bytes: Vec<u8> = found.writes().concat();
        let mut singles: Vec<u64> = ends.clone();
        if singles.len() > MOST_CUTS {
            let delicate = delicate_places(&bytes);
            singles.retain(|end| usize::try_from(*end).is_ok_and(|end| delicate.binary_search(&end).is_ok()));
            singles.truncate(MOST_CUTS);
        }
        let cut = |cuts: Vec<u64>| ProveCase { cuts: Some(cuts), ..whole.clone() };
        let cases: Vec<ProveCase> = singles.iter().map(|at| cut(vec![*at])).collect();
        for batch in cases.chunks(self.concurrency.max(1)) {
            for run in
                self.run(batch).await?.iter().filter(|run| run.served.is_some() && run.failure_of(check).is_some())
            {
                // Alone, since streams may also disturb each other.
                if let Some(run) = self.fails(&run.case, check).await? {
                    return Ok(Some(run));
                }
            }
        }
        match self.fails(&cut(ends), check).await? {
            Some(run) => Ok(Some(self.fewer_cuts(run, check).await?)),
            None => Ok(None),
        }
    }

    /// Delta debugging: takes out ever smaller parts of the cuts while the check fails.
    async fn fewer_cuts(&self, mut run: CaseRun, check: ProveCheck) -> Result<CaseRun, FaultSyntaxError> {
        let mut parts = 2;
        let mut left = MOST_CANDIDATES;
        loop {
            let cuts = run.case.cuts.clone().unwrap_or_default();
            if cuts.len() < 2 || parts > cuts.len() || left == 0 {
                return Ok(run);
            }
            let size = cuts.len().div_ceil(parts);
            let without = |part: usize| {
                let kept = cuts.iter().enumerate().filter(|(at, _)| at / size != part);
                ProveCase { cuts: Some(kept.map(|(_, cut)| *cut).collect()), ..run.case.clone() }
            };
            let mut smaller = None;
            for case in (0..cuts.len().div_ceil(size)).map(without).collect::<Vec<_>>() {
                left = left.saturating_sub(1);
                smaller = self.fails(&case, check).await?;
                if smaller.is_some() || left == 0 {
                    break;
                }
            }
            match smaller {
                Some(smaller) => (run, parts) = (smaller, parts.saturating_sub(1).max(2)),
                None => parts *= 2,
            }
        }
    }

    /// Leaves out the edits without which the check fails too.
    async fn without_edits(&self, mut run: CaseRun, check: ProveCheck) -> Result<CaseRun, FaultSyntaxError> {
        let mut place = 0;
        while place < run.case.edits.len() {
            let mut fewer = run.case.clone();
            fewer.edits.remove(place);
            match self.fails(&fewer, check).await? {
                Some(smaller) => run = smaller,
                None => place += 1,
            }
        }
        Ok(run)
    }

    /// Halves a line that is too long while the check fails.
    async fn with_shorter_line(&self, mut run: CaseRun, check: ProveCheck) -> Result<CaseRun, FaultSyntaxError> {
        loop {
            let mut shorter = run.case.clone();
            let line = shorter.edits.iter_mut().find_map(|edit| {
                let (bytes, place) = edit.strip_prefix("huge-line:")?.split_once(' ')?;
                let bytes = bytes.parse::<u64>().ok().filter(|bytes| *bytes > 64)?;
                let written = format!("huge-line:{} {place}", bytes / 2);
                Some((edit, written))
            });
            let Some((edit, written)) = line else { return Ok(run) };
            *edit = written;
            match self.fails(&shorter, check).await? {
                Some(smaller) => run = smaller,
                None => return Ok(run),
            }
        }
    }
}
