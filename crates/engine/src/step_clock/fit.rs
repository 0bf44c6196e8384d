//! Durations as a linear function of a step's work, and such a model of steps that were measured.
//!
//! Coefficients are those with the least squared relative errors among those that are not negative; so a step of 5 ms
//! counts as much as one of 500. Errors are relative to the model, not to the measurement: two tokens that were seen in one
//! moment, after a pause, are a long step and a short one, and their mean is right. A step that is far off counts less (Huber's
//! weights). What a step took beyond or below the model is kept as a factor and drawn again,
//! apart for steps with and without prefills, so that tails and means are those of the data.

use base::stats::nearest_quantile;
use rand::{Rng, RngExt};

use super::StepWork;

/// Fewest steps that a model is fitted to.
const FEWEST: usize = 8;

/// Maximum number of factors that are kept of each kind of step.
const MOST_FACTORS: usize = 4096;

/// Rounds of weighting by the model of the round before.
const ROUNDS: usize = 12;

/// Relative error from which on a step counts less.
const FAR: f64 = 2.0;

/// Shortest step that a round assumes, as a share of the mean.
const SHORTEST: f64 = 0.05;

/// Share of the largest pivot below which a term does not vary by itself.
const SINGULAR: f64 = 1e-9;

/// Seconds of a step: a constant, and so much for each of its parts; and those of a request outside of steps. None is negative.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LinearModel {
    /// Of every step.
    pub step: f64,
    /// Of each request that decodes.
    pub decode: f64,
    /// Of each token that is prefilled.
    pub prefill_token: f64,
    /// Of each token before the step.
    pub context_token: f64,
    /// Of each request, before its first step.
    pub request: f64,
}

/// Number of a model's coefficients.
const TERMS: usize = 5;

impl LinearModel {
    /// The seconds of a step.
    #[must_use]
    pub fn seconds(&self, work: &StepWork) -> f64 {
        let terms = terms(work, false);
        self.coefficients().iter().zip(terms).map(|(coefficient, term)| coefficient * term).sum()
    }

    /// The seconds that a measured step should have taken.
    fn predicted(&self, step: &MeasuredStep) -> f64 {
        self.seconds(&step.work) + if step.is_request { self.request } else { 0.0 }
    }

    fn of(coefficients: [f64; TERMS]) -> Self {
        let [step, decode, prefill_token, context_token, request] = coefficients;
        Self { step, decode, prefill_token, context_token, request }
    }

    fn coefficients(&self) -> [f64; TERMS] {
        [self.step, self.decode, self.prefill_token, self.context_token, self.request]
    }
}

/// What the coefficients are multiplied with.
fn terms(work: &StepWork, is_request: bool) -> [f64; TERMS] {
    let request = f64::from(u8::from(is_request));
    [1.0, f64::from(work.decodes), f64::from(work.prefill_tokens), work.context_tokens as f64, request]
}

/// A step with the time that it took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredStep {
    /// Its work.
    pub work: StepWork,
    /// Seconds.
    pub seconds: f64,
    /// Whether they are those of a whole request until its first token: of the step and of what came before it.
    pub is_request: bool,
}

/// A model with the factors by which measured steps differ from it.
#[derive(Debug, Clone, PartialEq)]
pub struct StepFit {
    /// The model.
    pub model: LinearModel,
    /// Steps that it was fitted to.
    pub steps: usize,
    /// Median and 90th percentile of the errors relative to the model, without their signs.
    pub errors: (f64, f64),
    /// Factors of steps without prefills, in order.
    decodes: Vec<f64>,
    prefills: Vec<f64>,
}

/// Steps that no model can be fitted to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// There are too few.
    #[error("{0} measured steps are too few to fit a model; it takes at least {FEWEST}")]
    TooFew(usize),
    /// They took no time.
    #[error("no measured step took any time")]
    NoTime,
}

impl StepFit {
    /// Fits a model to steps; those that took no time are left out.
    ///
    /// # Errors
    /// When there are too few of them.
    pub fn of(measured: &[MeasuredStep]) -> Result<Self, FitError> {
        if measured.len() < FEWEST {
            return Err(FitError::TooFew(measured.len()));
        }
        let timed: Vec<&MeasuredStep> = measured.iter().filter(|step| step.seconds > 0.0).collect();
        if timed.len() < FEWEST {
            return Err(FitError::NoTime);
        }
        let model = fitted(&timed);
        let factor = |step: &&MeasuredStep| {
            let predicted = model.predicted(step);
            (predicted > 0.0).then(|| step.seconds / predicted)
        };
        let factors = |has_prefills: bool| {
            let of_kind = timed.iter().filter(|step| (step.work.prefills > 0) == has_prefills);
            thinned(of_kind.filter_map(factor).collect())
        };
        let mut errors: Vec<f64> = timed.iter().filter_map(factor).map(|factor| (factor - 1.0).abs()).collect();
        errors.sort_by(f64::total_cmp);
        let error = |share| nearest_quantile(&errors, share).unwrap_or(0.0);
        let errors = (error(0.5), error(0.9));
        Ok(Self { model, steps: timed.len(), errors, decodes: factors(false), prefills: factors(true) })
    }

    pub(super) fn seconds(&self, work: &StepWork, generator: &mut impl Rng) -> f64 {
        let factors = if work.prefills > 0 { &self.prefills } else { &self.decodes };
        let drawn = if factors.is_empty() { None } else { factors.get(generator.random_range(0..factors.len())) };
        self.model.seconds(work) * drawn.copied().unwrap_or(1.0)
    }
}

/// Values in order, evenly thinned where they are many.
fn thinned(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    let every = values.len().div_ceil(MOST_FACTORS).max(1);
    values.into_iter().step_by(every).collect()
}

/// A measured step with the weight that its squared error has.
type Weighted<'a> = (&'a MeasuredStep, f64);

/// The coefficients with the least squared relative errors, found in rounds: weights come from the model of the round before.
fn fitted(measured: &[&MeasuredStep]) -> LinearModel {
    let mean = measured.iter().map(|step| step.seconds).sum::<f64>() / measured.len() as f64;
    let mut weighted: Vec<Weighted<'_>> = measured.iter().map(|step| (*step, 1.0 / (mean * mean))).collect();
    let mut model = least_squares(&weighted);
    for _ in 0..ROUNDS {
        for (step, weight) in &mut weighted {
            let predicted = model.predicted(step).max(mean * SHORTEST);
            let error = (step.seconds / predicted - 1.0).abs();
            *weight = (FAR / error).min(1.0) / (predicted * predicted);
        }
        model = least_squares(&weighted);
    }
    model
}

/// The coefficients with the least weighted squares: terms whose coefficient would be negative are left out, the most
/// negative one first.
fn least_squares(weighted: &[Weighted<'_>]) -> LinearModel {
    let mut used = [true; TERMS];
    loop {
        let solved = solve(weighted, used);
        let worst = solved.iter().enumerate().min_by(|(_, one), (_, other)| one.total_cmp(other));
        match worst {
            Some((at, coefficient)) if *coefficient < 0.0 => {
                if let Some(used) = used.get_mut(at) {
                    *used = false;
                }
            }
            _ => return LinearModel::of(solved),
        }
    }
}

/// Rows of the normal equations, each with its right side.
type Equations = [[f64; TERMS + 1]; TERMS];

/// Solves the normal equations of the terms that are used; 0 for the others and for those that do not vary by themselves.
fn solve(weighted: &[Weighted<'_>], used: [bool; TERMS]) -> [f64; TERMS] {
    let mut equations: Equations = Default::default();
    for (step, weight) in weighted {
        let of_step = terms(&step.work, step.is_request);
        for (row, equation) in equations.iter_mut().enumerate().filter(|(row, _)| used.get(*row) == Some(&true)) {
            let weighted = of_step.get(row).copied().unwrap_or(0.0) * weight;
            let right = std::iter::once(step.seconds);
            let columns = of_step.iter().zip(used).map(|(term, used)| if used { *term } else { 0.0 });
            for (sum, value) in equation.iter_mut().zip(columns.chain(right)) {
                *sum += weighted * value;
            }
        }
    }
    eliminate(equations)
}

/// Gauss and Jordan's elimination with the diagonal as pivots, the largest relative one first.
fn eliminate(mut equations: Equations) -> [f64; TERMS] {
    let at = |equations: &Equations, row: usize, column: usize| {
        equations.get(row).and_then(|equation| equation.get(column)).copied().unwrap_or(0.0)
    };
    let scales: [f64; TERMS] = std::array::from_fn(|row| at(&equations, row, row));
    let mut left: Vec<usize> = (0..TERMS).collect();
    let mut solved = Vec::new();
    loop {
        let relative = |row: &usize| {
            let scale = scales.get(*row).copied().unwrap_or(0.0);
            if scale > 0.0 { at(&equations, *row, *row) / scale } else { 0.0 }
        };
        let best = left.iter().copied().max_by(|one, other| relative(one).total_cmp(&relative(other)));
        let Some(pivot) = best.filter(|row| relative(row) > SINGULAR) else { break };
        left.retain(|row| *row != pivot);
        solved.push(pivot);
        let Some(pivot_row) = equations.get(pivot).copied() else { break };
        let diagonal = at(&equations, pivot, pivot);
        for (_, equation) in equations.iter_mut().enumerate().filter(|(row, _)| *row != pivot) {
            let factor = equation.get(pivot).copied().unwrap_or(0.0) / diagonal;
            equation.iter_mut().zip(pivot_row).for_each(|(value, of_pivot)| *value -= factor * of_pivot);
        }
    }
    let value = |row: usize| {
        if solved.contains(&row) { at(&equations, row, TERMS) / at(&equations, row, row) } else { 0.0 }
    };
    std::array::from_fn(value)
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};

    use super::*;

    const TRUE: LinearModel =
        LinearModel { step: 0.004, decode: 1e-4, prefill_token: 3e-5, context_token: 2e-8, request: 0.002 };

    fn works() -> Vec<StepWork> {
        let mut generator = Xoshiro256PlusPlus::seed_from_u64(5);
        let mut works = Vec::new();
        for at in 0..400 {
            let decodes = generator.random_range(1..64);
            let context_tokens = u64::from(decodes) * generator.random_range(100..4000);
            let prefill_tokens = if at % 5 == 0 { generator.random_range(16..2048) } else { 0 };
            let prefills = u32::from(prefill_tokens > 0);
            works.push(StepWork {
                decodes,
                prefills,
                prefill_tokens,
                prefill_share: 1.0,
                context_tokens,
                ..StepWork::default()
            });
        }
        works
    }

    fn step(work: StepWork, seconds: f64) -> MeasuredStep {
        MeasuredStep { work, seconds, is_request: false }
    }

    #[test]
    fn what_a_request_takes_outside_of_steps_is_told_from_its_prefill() {
        let prompt = |tokens: u32| {
            let work = StepWork { prefills: 1, prefill_tokens: tokens, prefill_share: 1.0, ..StepWork::default() };
            MeasuredStep { work, seconds: TRUE.seconds(&work) + TRUE.request, is_request: true }
        };
        let decodes = (1..40).map(|decodes| StepWork { decodes, ..StepWork::default() });
        let decodes = decodes.map(|work| step(work, TRUE.seconds(&work)));
        let measured: Vec<MeasuredStep> = decodes.chain((1..40).map(|at| prompt(50 * at))).collect();
        let model = StepFit::of(&measured).unwrap().model;
        close(model.request, TRUE.request, 1e-3);
        close(model.prefill_token, TRUE.prefill_token, 1e-3);
    }

    fn close(found: f64, wanted: f64, within: f64) {
        assert!((found / wanted - 1.0).abs() < within, "{found} is not {wanted}");
    }

    #[test]
    fn exact_steps_give_their_own_coefficients() {
        let measured: Vec<MeasuredStep> = works().into_iter().map(|work| step(work, TRUE.seconds(&work))).collect();
        let fit = StepFit::of(&measured).unwrap();
        close(fit.model.step, TRUE.step, 1e-4);
        close(fit.model.decode, TRUE.decode, 1e-4);
        close(fit.model.prefill_token, TRUE.prefill_token, 1e-4);
        close(fit.model.context_token, TRUE.context_token, 1e-3);
        assert!(fit.errors.1 < 1e-4, "{:?}", fit.errors);
        assert_eq!(fit.steps, 400);
    }

    #[test]
    fn draws_have_the_spread_of_the_data() {
        let mut generator = Xoshiro256PlusPlus::seed_from_u64(9);
        let mut measure = |work: StepWork| {
            let factor = if generator.random_range(0..10) == 0 { 2.0 } else { 1.0 };
            step(work, TRUE.seconds(&work) * factor)
        };
        let measured: Vec<MeasuredStep> = works().into_iter().map(&mut measure).collect();
        let fit = StepFit::of(&measured).unwrap();
        let work = StepWork { decodes: 10, context_tokens: 10_000, ..StepWork::default() };
        let drawn: Vec<f64> = (0..4000).map(|_| fit.seconds(&work, &mut generator)).collect();
        let truth = TRUE.seconds(&work);
        let slow = drawn.iter().filter(|seconds| **seconds > 1.5 * truth).count();
        assert!((250..600).contains(&slow), "{slow} of 4000 are slow");
        close(drawn.iter().sum::<f64>() / 4000.0, truth * 1.1, 0.06);
    }

    #[test]
    fn tokens_that_were_seen_in_pairs_and_a_few_stalls_leave_the_model_as_it_is() {
        // Steps of 4 ms and 1 ms for each request, seen as pairs: nearly nothing, then nearly two steps.
        let steps = (0..600_u32).map(|at| {
            let decodes = 1 + (at / 2) % 6;
            let work = StepWork { decodes, ..StepWork::default() };
            let whole = 0.004 + 0.001 * f64::from(decodes);
            let seen = if at % 97 == 0 { 0.15 } else { whole * if at % 2 == 0 { 0.02 } else { 1.98 } };
            step(work, seen)
        });
        let fit = StepFit::of(&steps.collect::<Vec<_>>()).unwrap();
        close(fit.model.step, 0.004, 0.25);
        close(fit.model.decode, 0.001, 0.25);
    }

    #[test]
    fn a_term_that_never_varies_and_a_negative_one_are_left_out() {
        let work = |decodes| StepWork { decodes, ..StepWork::default() };
        let falling = (1..20).map(|at| step(work(at), 0.02 - 0.0005 * f64::from(at)));
        let model = StepFit::of(&falling.collect::<Vec<_>>()).unwrap().model;
        assert_eq!((model.decode, model.prefill_token, model.context_token), (0.0, 0.0, 0.0));
        close(model.step, 0.015, 0.2);
        let constant: Vec<MeasuredStep> = (0..20).map(|_| step(work(4), 0.01)).collect();
        close(StepFit::of(&constant).unwrap().model.seconds(&work(4)), 0.01, 1e-6);
    }

    #[test]
    fn too_few_steps_are_an_error() {
        let step = step(StepWork { decodes: 1, ..StepWork::default() }, 0.0);
        assert_eq!(StepFit::of(&[step; 3]), Err(FitError::TooFew(3)));
        assert_eq!(StepFit::of(&[step; 30]), Err(FitError::NoTime));
    }
}
