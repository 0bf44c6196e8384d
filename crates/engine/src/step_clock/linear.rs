//! Durations as a linear function of a step's work.

use super::{MeasuredStep, StepWork};

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
pub(super) const TERMS: usize = 5;

impl LinearModel {
    /// The seconds of a step.
    #[must_use]
    pub fn seconds(&self, work: &StepWork) -> f64 {
        let terms = terms(work, false);
        self.coefficients().iter().zip(terms).map(|(coefficient, term)| coefficient * term).sum()
    }

    /// The seconds that a measured step should have taken.
    pub(super) fn predicted(&self, step: &MeasuredStep) -> f64 {
        self.seconds(&step.work) + if step.is_request { self.request } else { 0.0 }
    }

    pub(super) fn of(coefficients: [f64; TERMS]) -> Self {
        let [step, decode, prefill_token, context_token, request] = coefficients;
        Self { step, decode, prefill_token, context_token, request }
    }

    fn coefficients(&self) -> [f64; TERMS] {
        [self.step, self.decode, self.prefill_token, self.context_token, self.request]
    }
}

/// What the coefficients are multiplied with.
pub(super) fn terms(work: &StepWork, is_request: bool) -> [f64; TERMS] {
    let request = f64::from(u8::from(is_request));
    [1.0, f64::from(work.decodes), f64::from(work.prefill_tokens), work.context_tokens as f64, request]
}
