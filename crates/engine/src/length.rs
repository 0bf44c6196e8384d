//! Lengths, in tokens, of generated responses that end by themselves.

use std::{f64::consts::TAU, ops::RangeInclusive, str::FromStr};

use rand::{Rng, RngExt};

/// A distribution of output lengths.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputTokens {
    /// Any of these, each as likely; from 1 on.
    Range(RangeInclusive<u32>),
    /// Log-normal.
    LogNormal {
        /// The mean, in tokens.
        mean: f64,
        /// The standard deviation of the length's natural logarithm.
        sigma: f64,
    },
    /// The output lengths of a trace, each record as likely.
    Trace,
}

/// A text that is no distribution of lengths.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no length: use 200, 50..400, lognormal:200,0.6 (mean tokens, sigma of the logarithm) or trace")]
pub struct LengthError(String);

impl OutputTokens {
    /// Draws a length, at least 1. `recorded` draws the length of a record.
    pub fn draw<R: Rng>(&self, generator: &mut R, recorded: impl FnOnce(&mut R) -> Option<u32>) -> u32 {
        let drawn = match self {
            Self::Range(range) => generator.random_range(range.clone()),
            Self::LogNormal { mean, sigma } => {
                let exponent = mean.ln() - sigma * sigma / 2.0 + sigma * normal(generator);
                #[allow(clippy::cast_possible_truncation)] // the cast stays within the type
                let tokens = exponent.exp().round() as u32;
                tokens
            }
            Self::Trace => recorded(generator).unwrap_or(1),
        };
        drawn.max(1)
    }
}

/// Draws from the standard normal distribution, by Box and Muller.
pub(crate) fn normal(generator: &mut impl Rng) -> f64 {
    let (radius, angle): (f64, f64) = (generator.random(), generator.random());
    (-2.0 * (1.0 - radius).ln()).sqrt() * (TAU * angle).cos()
}

impl FromStr for OutputTokens {
    type Err = LengthError;

    fn from_str(text: &str) -> Result<Self, LengthError> {
        parse(text).ok_or_else(|| LengthError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<OutputTokens> {
    if text == "trace" {
        return Some(OutputTokens::Trace);
    }
    if let Some(parameters) = text.strip_prefix("lognormal:") {
        let (mean, sigma) = parameters.split_once(',')?;
        let (mean, sigma): (f64, f64) = (mean.trim().parse().ok()?, sigma.trim().parse().ok()?);
        let fits = (1.0..=f64::from(u32::MAX)).contains(&mean) && (0.0..=10.0).contains(&sigma);
        return fits.then_some(OutputTokens::LogNormal { mean, sigma });
    }
    let (least, most) = match text.split_once("..") {
        Some((least, most)) => (least.parse().ok()?, most.parse().ok()?),
        None => (text.parse().ok()?, text.parse().ok()?),
    };
    (1 <= least && least <= most).then_some(OutputTokens::Range(least..=most))
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};

    use super::*;

    fn draws(text: &str) -> Vec<u32> {
        let mut generator = Xoshiro256PlusPlus::seed_from_u64(1);
        let lengths: OutputTokens = text.parse().unwrap();
        (0..4000).map(|_| lengths.draw(&mut generator, |_| Some(9))).collect()
    }

    #[test]
    fn lengths_are_drawn_from_what_was_asked_for() {
        assert!(draws("7").iter().all(|length| *length == 7));
        assert!(draws("trace").iter().all(|length| *length == 9));
        let range = draws("3..5");
        assert!((3..=5).all(|length| range.contains(&length)) && range.iter().all(|length| (3..=5).contains(length)));
    }

    #[test]
    fn a_log_normal_length_has_the_mean_and_the_spread_that_were_asked_for() {
        let drawn = draws("lognormal:200,0.5");
        let mean = drawn.iter().map(|length| f64::from(*length)).sum::<f64>() / 4000.0;
        assert!((mean - 200.0).abs() < 6.0, "{mean}");
        let logs: Vec<f64> = drawn.iter().map(|length| f64::from(*length).ln()).collect();
        let middle = logs.iter().sum::<f64>() / 4000.0;
        let variance = logs.iter().map(|log| (log - middle).powi(2)).sum::<f64>() / 4000.0;
        assert!((variance.sqrt() - 0.5).abs() < 0.02, "{variance}");
        assert!(draws("lognormal:1,3").iter().all(|length| *length >= 1));
    }

    #[test]
    fn what_is_no_length_is_refused() {
        for text in [
            "",
            "0",
            "-1",
            "5..3",
            "0..3",
            "1..",
            "lognormal:200",
            "lognormal:0,1",
            "lognormal:9,NaN",
            "lognormal:9,-1",
            "traces",
        ] {
            let error = text.parse::<OutputTokens>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("50..400"), "{error}");
        }
    }
}
