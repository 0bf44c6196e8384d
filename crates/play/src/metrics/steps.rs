//! The steps of an engine that runs all choices together: in each step every running choice may have one part, and a choice that
//! comes while a step runs takes part from the next one on. `vllm:iteration_tokens_total` counts them.
//!
//! Tokens sent at other times by different choices still is one step, as long as none of them had a part in it yet: recorded
//! choices keep their own rhythm, and an engine would have kept them in step.
//!
//! Limits: steps are counted when nothing runs any more, at a scrape, or after [`OPEN`] later ones. A choice that is sent all
//! at once has its parts in the latest steps that it may take part in.

use std::collections::VecDeque;

use base::lock::Lock;
use base::stats::histogram::Histogram;

/// Steps that may still get parts.
const OPEN: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct EngineSteps(Lock<StepsState>);

#[derive(Debug, Default)]
struct StepsState {
    /// Choices that run.
    running: u32,
    /// Steps so far.
    count: u64,
    /// Tokens of the last steps.
    open: VecDeque<u32>,
}

/// Position of a choice: it takes part in steps after this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct StepPosition(u64);

impl EngineSteps {
    /// A choice begins to run. While others run a step is on its way, which is too late for it.
    pub(super) fn enter(&self) -> StepPosition {
        let mut state = self.0.lock();
        let on_its_way = u64::from(state.running > 0);
        state.running += 1;
        StepPosition(state.count + on_its_way)
    }

    /// A choice ends.
    pub(super) fn leave(&self, counted: &Histogram) {
        let mut state = self.0.lock();
        state.running = state.running.saturating_sub(1);
        if state.running == 0 {
            state.close(0, counted);
        }
    }

    /// A choice has parts of so many tokens, one in each of several steps, all sent at one time.
    pub(super) fn take(&self, position: &mut StepPosition, parts: &[u32], counted: &Histogram) {
        let mut state = self.0.lock();
        let may = usize::try_from(state.count.saturating_sub(position.0)).unwrap_or(usize::MAX).min(state.open.len());
        let shared = may.min(parts.len());
        let first = state.open.len() - shared;
        for (step, tokens) in state.open.iter_mut().skip(first).zip(parts) {
            *step = step.saturating_add(*tokens);
        }
        let new = parts.get(shared..).unwrap_or_default();
        state.open.extend(new);
        state.count += u64::try_from(new.len()).unwrap_or(u64::MAX);
        position.0 = state.count;
        state.close(OPEN, counted);
    }

    /// Counts all steps so far.
    pub(super) fn settle(&self, counted: &Histogram) {
        self.0.lock().close(0, counted);
    }
}

impl StepsState {
    /// Counts all steps but the last so many.
    fn close(&mut self, keep: usize, counted: &Histogram) {
        let old = self.open.len().saturating_sub(keep);
        self.open.drain(..old).for_each(|tokens| counted.count(tokens));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram() -> Histogram {
        Histogram::counts(vec![1.0, 8.0])
    }

    fn counted(run: impl FnOnce(&EngineSteps, &Histogram)) -> (f64, f64) {
        let (steps, histogram) = (EngineSteps::default(), histogram());
        run(&steps, &histogram);
        steps.settle(&histogram);
        (histogram.total(), histogram.sum())
    }

    #[test]
    fn choices_that_run_together_share_their_steps() {
        // Eight prompts of five tokens at once, twelve tokens each: an engine counts 13 steps, since the first runs alone at first.
        let together = counted(|steps, histogram| {
            let mut choices: Vec<StepPosition> = (0..8).map(|_| steps.enter()).collect();
            for at in 0..12 {
                choices.iter_mut().for_each(|choice| steps.take(choice, &[if at == 0 { 6 } else { 1 }], histogram));
            }
            (0..8).for_each(|_| steps.leave(histogram));
        });
        assert_eq!(together, (13.0, 8.0 * 17.0));
        // All sent at once, one choice after the other.
        let at_once = counted(|steps, histogram| {
            let choices: Vec<StepPosition> = (0..8).map(|_| steps.enter()).collect();
            let parts: Vec<u32> = (0..12).map(|at| if at == 0 { 6 } else { 1 }).collect();
            choices.into_iter().for_each(|mut choice| steps.take(&mut choice, &parts, histogram));
            (0..8).for_each(|_| steps.leave(histogram));
        });
        assert_eq!(at_once, (13.0, 8.0 * 17.0));
    }

    #[test]
    fn choices_one_after_the_other_share_nothing() {
        let apart = counted(|steps, histogram| {
            for _ in 0..3 {
                let mut choice = steps.enter();
                (0..4).for_each(|_| steps.take(&mut choice, &[1], histogram));
                steps.leave(histogram);
            }
        });
        assert_eq!(apart, (12.0, 12.0));
    }

    #[test]
    fn a_slow_choice_takes_part_in_the_steps_that_run_when_it_is_counted() {
        let mixed = counted(|steps, histogram| {
            let (mut fast, mut slow) = (steps.enter(), steps.enter());
            for at in 0..100 {
                steps.take(&mut fast, &[1], histogram);
                if at % 10 == 9 {
                    steps.take(&mut slow, &[1], histogram);
                }
            }
        });
        assert_eq!(mixed, (100.0, 110.0));
    }

    #[test]
    fn what_was_looked_at_stays_as_it_is() {
        let (steps, histogram) = (EngineSteps::default(), histogram());
        let (mut one, mut other) = (steps.enter(), steps.enter());
        steps.take(&mut one, &[1; 5000], &histogram);
        assert_eq!(histogram.total(), 904.0);
        steps.settle(&histogram);
        steps.take(&mut other, &[1], &histogram);
        steps.settle(&histogram);
        assert_eq!((histogram.total(), histogram.sum()), (5001.0, 5001.0));
    }
}
