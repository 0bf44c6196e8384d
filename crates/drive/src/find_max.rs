//! The most that a server does: a closed loop at one concurrency after the other.
//!
//! Each rung of the ladder keeps so many sessions on their way and is measured in a window: from when every place has come round once, or half of its
//! time, to when no session is begun any more, or the longer part of that where a latency changed within it. The concurrency is multiplied until
//! throughput no longer rises, or the limits of the latencies are broken; then the place of the bend is narrowed down. Below it throughput is
//! proportional to concurrency, so that the next guess is where that line meets the plateau, and every other guess is the middle.
//!
//! The check of a rung is Little's law (Little 1961, "A proof for the queuing formula: L = λW"): throughput times mean end-to-end latency is the
//! concurrency. Where it is not, the client did not keep the places filled, or sessions have pauses or branches.
//!
//! Limits: sessions begin again from the first where a rung needs more than there are, so that a server's cache may know them.

use std::{mem::discriminant, sync::Arc, time::Duration};

use replay::meter::Slo;
use serde::Serialize;
use tokio::{sync::watch, time::sleep};

use crate::{
    Ceiling, Drive, DriveError, Load, Plan, Results, Selection, Verdict, Workload, drive, numbers::float, rung::Rung,
    verdict::Reason,
};

/// Factor from one rung to the next.
const FACTOR: usize = 4;

const MOST_RUNGS: usize = 10;

/// Distance from the rung below, in percent, at which the bend is known.
const PRECISION: usize = 5;

/// A gain of throughput that counts as one, beside being outside of its interval.
const LEAST_GAIN: f64 = 1.02;

/// Share of the requests that have to keep the limits: the attainment of DistServe (Zhong et al. 2024).
const SLO_SHARE: f64 = 0.9;

/// By how much of the concurrency Little's law may be missed.
const LITTLE: f64 = 0.1;

/// Parameters of a search.
#[derive(Debug, Clone, Copy)]
pub struct Search {
    /// The highest concurrency.
    pub most: usize,
    /// How long sessions are begun at each; longer where a request takes longer than that.
    pub length: Duration,
    /// Limits of the latencies.
    pub slo: Slo,
    /// Share of the requests that may fail.
    pub allowed: f64,
}

/// Reason for the end of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClimbEnd {
    /// Throughput does not rise any more.
    Saturated,
    /// The limits are broken.
    SloBroken,
    /// There are no limits, and more requests failed than could have broken one.
    Failing,
    /// Throughput still rose at the highest concurrency.
    MostConcurrency,
    /// The bend is not known more closely after the last rung.
    MostRungs,
    /// Every request of a rung failed.
    Failed,
    /// It was stopped.
    Stopped,
}

/// Result of a search.
#[derive(Debug, Clone, Serialize)]
pub struct FoundMax {
    /// Why it ended.
    pub ended: ClimbEnd,
    /// The lowest concurrency with the highest throughput, as far as intervals show; `None` where throughput rose to the end.
    pub knee: Option<usize>,
    /// The highest concurrency at which the limits were kept; `None` where they never were, or there are none.
    pub slo_concurrency: Option<usize>,
    /// Concurrency of the rung with the largest goodput; of the largest throughput where there are no limits.
    pub best: Option<usize>,
    /// The rungs, by concurrency.
    pub rungs: Vec<Rung>,
}

/// A search, and what it sends where.
#[derive(Debug)]
pub struct Climb {
    /// What is searched.
    pub search: Search,
    /// The servers, and how they are reached.
    pub configuration: Drive,
    /// The requests.
    pub workload: Arc<Workload>,
    /// Which of them are sent.
    pub selection: Selection,
    /// Decides when to stop.
    pub stopped: watch::Receiver<bool>,
}

impl Climb {
    /// Climbs. `each` sees every rung when it has ended. Returns reasons not to believe what was found too.
    ///
    /// # Errors
    /// When the requests of a rung cannot be sent.
    pub async fn run(&self, mut each: impl FnMut(&Rung)) -> Result<(FoundMax, Vec<Reason>), DriveError> {
        let (mut rungs, mut reasons, mut done, mut all_sent) = (Vec::new(), Vec::new(), 0, 0);
        let ended = loop {
            let concurrency = match self.search.next(&rungs) {
                Ok(concurrency) => concurrency,
                Err(ended) => break ended,
            };
            let mut plan = Plan::of(&self.workload, Load::Closed(concurrency), &self.selection);
            let sessions = plan.sessions.len().max(1);
            plan.sessions.rotate_left(done % sessions);
            plan.repeats = true;
            let per_session = plan.requests().div_ceil(sessions).max(1);
            let (rung, seen, sent) = self.rung(plan, &rungs).await?;
            all_sent += sent;
            done += usize::try_from(sent).unwrap_or_default() / per_session;
            add(&mut reasons, seen, &rung);
            each(&rung);
            let failed = rung.requests == 0;
            rungs.push(rung);
            rungs.sort_by_key(|rung: &Rung| rung.concurrency);
            if *self.stopped.borrow() {
                reasons.push(Reason::Stopped { planned: None, sent: all_sent });
                break ClimbEnd::Stopped;
            }
            if failed {
                break ClimbEnd::Failed;
            }
        };
        Ok((FoundMax::of(rungs, ended, self.search.slo != Slo::default()), reasons))
    }

    /// Climbs one rung; returns it, reasons not to believe it, and the number of requests that were sent.
    async fn rung(&self, plan: Plan, before: &[Rung]) -> Result<(Rung, Vec<Reason>, u64), DriveError> {
        let concurrency = plan.at_once.unwrap_or(1);
        let length = self.search.length_at(concurrency, before);
        let planned = u64::try_from(plan.requests()).unwrap_or(u64::MAX);
        let results = Arc::new(Results::new(&self.workload, self.search.slo, Duration::ZERO, false));
        let configuration = Drive { duration: Some(length), out: None, ..self.configuration.clone() };
        let ((stop, over), mut stopped) = (watch::channel(false), self.stopped.clone());
        let timer = async {
            tokio::select! {
                // What has begun may end, within the same time again.
                () = sleep(length * 2) => {}
                _ = stopped.wait_for(|stopped| *stopped) => {}
                () = stop.closed() => {}
            }
            let _ended = stop.send(true);
        };
        let driving = drive(configuration, Arc::clone(&self.workload), plan, Arc::clone(&results), over);
        let (driven, ()) = tokio::join!(driving, timer);
        let driven = driven?;
        let rung = Rung::of(concurrency, &results.samples(), length);
        let verdict = Verdict::of(&results.report(), &driven, planned, self.search.allowed);
        Ok((rung, verdict.reasons, driven.sent))
    }
}

impl Search {
    /// How long a rung takes: requests have to come round a few times.
    fn length_at(&self, concurrency: usize, before: &[Rung]) -> Duration {
        let best = before.iter().map(|rung| rung.request_throughput).fold(0.0, f64::max);
        let round =
            if best > 0.0 { Duration::try_from_secs_f64(float(concurrency) / best) } else { Ok(Duration::ZERO) };
        self.length.max(round.unwrap_or(self.length).saturating_mul(3).min(self.length.saturating_mul(4)))
    }

    /// Returns the next concurrency after these rungs, in ascending order, or why there is none.
    fn next(&self, rungs: &[Rung]) -> Result<usize, ClimbEnd> {
        let Some(top) = rungs.last() else { return Ok(1) };
        let bend = Bend::of(rungs);
        let ended = match &bend {
            Some(bend) if bend.is_broken && self.slo == Slo::default() => ClimbEnd::Failing,
            Some(bend) if bend.is_broken => ClimbEnd::SloBroken,
            Some(_) => ClimbEnd::Saturated,
            None if top.concurrency >= self.most => return Err(ClimbEnd::MostConcurrency),
            None => ClimbEnd::MostRungs,
        };
        let next = match bend {
            Some(bend) => bend.between(rungs).ok_or(ended)?,
            None => top.concurrency.saturating_mul(FACTOR).min(self.most),
        };
        if rungs.len() < MOST_RUNGS { Ok(next) } else { Err(ClimbEnd::MostRungs) }
    }
}

/// Adds what was not seen before, of the reasons that hold for a rung too, and Little's law.
fn add(reasons: &mut Vec<Reason>, seen: Vec<Reason>, rung: &Rung) {
    let misses = (rung.in_flight - float(rung.concurrency)).abs() > float(rung.concurrency) * LITTLE;
    let law = (misses && rung.requests > 0)
        .then_some(Reason::LittlesLaw { concurrency: rung.concurrency, in_flight: rung.in_flight });
    // It begins empty and is cut, and has a steady window of its own.
    let holds = |reason: &Reason| !matches!(reason, Reason::NotStationary { .. } | Reason::Stopped { .. });
    for reason in seen.into_iter().filter(holds).chain(law) {
        if reasons.iter().all(|other| discriminant(other) != discriminant(&reason)) {
            reasons.push(reason);
        }
    }
}

/// The place at which throughput stops to rise, or the limits are broken.
struct Bend<'a> {
    /// The highest rung before it.
    below: Option<&'a Rung>,
    /// The lowest one at or after it.
    at: &'a Rung,
    /// The rung with the highest throughput.
    plateau: &'a Rung,
    is_broken: bool,
}

impl<'a> Bend<'a> {
    /// Finds it in rungs in ascending order.
    fn of(rungs: &'a [Rung]) -> Option<Self> {
        let top = rungs.last()?;
        let kept = rungs.iter().filter(|rung| !is_broken(rung));
        let highest = |one: &&Rung, other: &&Rung| one.output_throughput.total_cmp(&other.output_throughput);
        let plateau = kept.max_by(highest).or(rungs.first())?;
        let lower = |rung: &&Rung| rung.concurrency < top.concurrency;
        let is_flat = !is_broken(top) && rungs.iter().filter(lower).any(|rung| !rises(rung, top));
        let is_after = |rung: &&Rung| is_broken(rung) || (is_flat && !rises(rung, plateau));
        let at = rungs.iter().find(is_after)?;
        let below = rungs.iter().rfind(|rung| rung.concurrency < at.concurrency);
        Some(Self { below, at, plateau, is_broken: is_broken(at) })
    }

    /// Returns a concurrency between the rungs on both sides; `None` where they are near enough.
    fn between(&self, rungs: &[Rung]) -> Option<usize> {
        let (low, high) = (self.below.map_or(0, |rung| rung.concurrency), self.at.concurrency);
        if high - low <= (high * PRECISION / 100).max(1) {
            return None;
        }
        let step = (high * (PRECISION - 1) / 100).max(1);
        let middle = low.midpoint(high);
        // Rungs that are no power of the factor were guessed.
        let guessed = rungs.iter().filter(|rung| !is_of_ladder(rung.concurrency)).count();
        let guess = match self.below {
            Some(below) if !self.is_broken && guessed.is_multiple_of(2) && below.output_throughput > 0.0 => {
                rounded(float(low) * self.plateau.output_throughput / below.output_throughput)
            }
            _ => middle,
        };
        Some(if low + step > high - step { middle } else { guess.clamp(low + step, high - step) })
    }
}

fn is_of_ladder(concurrency: usize) -> bool {
    concurrency.is_power_of_two() && concurrency.ilog2().is_multiple_of(FACTOR.ilog2())
}

fn is_broken(rung: &Rung) -> bool {
    rung.slo_share.is_some_and(|share| share < SLO_SHARE)
}

/// Throughput is higher, by more than its interval and enough to matter.
fn rises(lower: &Rung, higher: &Rung) -> bool {
    let is_outside = lower.interval_to(higher).is_none_or(|interval| interval.low > 0.0);
    is_outside && higher.output_throughput > lower.output_throughput * LEAST_GAIN
}

impl FoundMax {
    /// Sums up rungs in ascending order.
    fn of(mut rungs: Vec<Rung>, ended: ClimbEnd, has_slo: bool) -> Self {
        if !has_slo {
            rungs.iter_mut().for_each(Rung::forget_slo);
        }
        let knee = Bend::of(&rungs).filter(|bend| !bend.is_broken).map(|bend| bend.at.concurrency);
        let keeps = rungs.iter().filter(|rung| rung.slo_share.is_some() && !is_broken(rung));
        let good = |rung: &&Rung| rung.goodput.unwrap_or(rung.request_throughput);
        let best = rungs.iter().max_by(|one, other| good(one).total_cmp(&good(other)));
        Self {
            ended,
            knee,
            slo_concurrency: keeps.map(|rung| rung.concurrency).max(),
            best: best.filter(|best| good(best) > 0.0).map(|best| best.concurrency),
            rungs,
        }
    }

    /// Returns the reason not to believe it where a rung came too close to what the client reaches.
    #[must_use]
    pub fn client_bound(&self, ceiling: Ceiling) -> Option<Reason> {
        let reasons = self.rungs.iter().map(|rung| ceiling.bounds(rung.request_throughput, rung.output_throughput));
        reasons.flatten().next()
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a concurrency")]
fn rounded(count: f64) -> usize {
    count.round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Climbs at a server of which throughput and share of good requests are known.
    fn climb(throughput: impl Fn(f64) -> f64, share: impl Fn(f64) -> f64, has_slo: bool) -> FoundMax {
        let slo = if has_slo { "ttft=1s".parse().unwrap() } else { Slo::default() };
        let search = Search { most: 4096, length: Duration::from_secs(1), slo, allowed: 0.0 };
        let mut rungs: Vec<Rung> = Vec::new();
        let ended = loop {
            match search.next(&rungs) {
                Ok(concurrency) => {
                    assert!(rungs.iter().all(|rung| rung.concurrency != concurrency), "{concurrency} twice");
                    let at = float(concurrency);
                    rungs.push(Rung::made_up(concurrency, throughput(at), Some(share(at))));
                    rungs.sort_by_key(|rung| rung.concurrency);
                }
                Err(ended) => break ended,
            }
        };
        FoundMax::of(rungs, ended, has_slo)
    }

    #[test]
    fn the_bend_is_found_within_five_percent_in_ten_rungs() {
        for knee in [1.0, 2.0, 3.0, 7.0, 24.0, 32.0, 33.0, 64.0, 100.0, 200.0, 256.0, 500.0, 777.0, 1000.0, 1023.0] {
            let found = climb(|at| at.min(knee) * 10.0, |_| 1.0, false);
            let at = float(found.knee.unwrap());
            assert!((at - knee).abs() <= (knee * 0.05).max(1.0), "{knee}: {at} {:?}", found.ended);
            assert!(found.rungs.len() <= 10 && found.ended == ClimbEnd::Saturated, "{knee}: {found:?}");
        }
    }

    #[test]
    fn a_bend_that_is_none_is_found_near_the_plateau() {
        // Each request slows all down, up to 64.
        let found = climb(|at| at.min(64.0) / (1.0 + at.min(64.0) / 50.0), |_| 1.0, false);
        assert!((60..=64).contains(&found.knee.unwrap()), "{found:?}");
        // More requests make less.
        let found = climb(|at| at.min(40.0) - (at - 40.0).max(0.0) * 0.03, |_| 1.0, false);
        assert!((38..=42).contains(&found.knee.unwrap()), "{found:?}");
        let found = climb(|at| at, |_| 1.0, false);
        assert_eq!((found.ended, found.knee, found.rungs.len()), (ClimbEnd::MostConcurrency, None, 7));
    }

    #[test]
    fn broken_limits_end_the_ladder_before_saturation() {
        let found = climb(|at| at.min(500.0), |at| if at > 50.0 { 0.2 } else { 0.99 }, true);
        assert_eq!((found.ended, found.knee), (ClimbEnd::SloBroken, None));
        assert!((48..=50).contains(&found.slo_concurrency.unwrap()), "{found:?}");
        assert_eq!(found.best, found.slo_concurrency);
        let found = climb(|at| at.min(4.0), |at| if at > 4.0 { 0.1 } else { 1.0 }, false);
        assert_eq!((found.ended, found.slo_concurrency), (ClimbEnd::Failing, None));
        let found = climb(|at| at, |_| 0.0, true);
        assert_eq!((found.ended, found.slo_concurrency, found.rungs.len()), (ClimbEnd::SloBroken, None, 1));
    }
}
