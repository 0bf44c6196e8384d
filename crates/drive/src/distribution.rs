//! Distributions with the quantiles of other tools.

use base::stats::Durations;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Statistic {
    Mean,
    /// Standard deviation of all values; of plain ones only.
    Deviation,
    Least,
    Most,
    /// The value that this share is no larger than.
    Quantile(f64),
}

/// Values of a metric.
#[derive(Debug)]
pub(crate) enum Distribution {
    /// Quantiles between two values are interpolated, as numpy does by default.
    Interpolated(Vec<f64>),
    /// Values with weights; a quantile is the least value up to which there is that share of the weight.
    Weighted(Vec<(f64, f64)>),
    /// Milliseconds by a factor.
    Pooled(Durations, f64),
}

impl Distribution {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        Self::Interpolated(values)
    }

    /// A distribution of values with weights above 0.
    pub(crate) fn weighted(values: impl Iterator<Item = (f64, f64)>) -> Self {
        let mut values: Vec<(f64, f64)> = values.filter(|(_, weight)| *weight > 0.0).collect();
        values.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        Self::Weighted(values)
    }

    /// Its statistics under these names, those that exist; `None` without values.
    pub(crate) fn statistics(&self, named: &[(&'static str, Statistic)]) -> Option<Vec<(&'static str, f64)>> {
        let values = named.iter().filter_map(|(name, statistic)| Some((*name, self.statistic(*statistic)?)));
        Some(values.collect::<Vec<_>>()).filter(|values| !values.is_empty())
    }

    fn statistic(&self, statistic: Statistic) -> Option<f64> {
        match self {
            Self::Interpolated(values) => of_sorted(values, statistic),
            Self::Weighted(values) => of_weighted(values, statistic),
            Self::Pooled(gaps, factor) => of_gaps(gaps, statistic).map(|millis| millis * factor),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "indices of a list")]
fn of_sorted(values: &[f64], statistic: Statistic) -> Option<f64> {
    match statistic {
        Statistic::Mean => (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64),
        Statistic::Deviation => {
            let mean = of_sorted(values, Statistic::Mean)?;
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            Some((squares / values.len() as f64).sqrt())
        }
        Statistic::Least => values.first().copied(),
        Statistic::Most => values.last().copied(),
        Statistic::Quantile(share) => {
            let place = share * values.len().checked_sub(1)? as f64;
            let (below, part) = (place.floor() as usize, place.fract());
            let low = *values.get(below)?;
            Some(low + (values.get(below + 1).copied().unwrap_or(low) - low) * part)
        }
    }
}

fn of_weighted(values: &[(f64, f64)], statistic: Statistic) -> Option<f64> {
    let total: f64 = values.iter().map(|(_, weight)| weight).sum();
    match statistic {
        Statistic::Mean => {
            (total > 0.0).then(|| values.iter().map(|(value, weight)| value * weight).sum::<f64>() / total)
        }
        Statistic::Deviation => None,
        Statistic::Least => values.first().map(|(value, _)| *value),
        Statistic::Most => values.last().map(|(value, _)| *value),
        Statistic::Quantile(share) => {
            let mut sum = 0.0;
            let reached = values.iter().find(|(_, weight)| {
                sum += weight / total;
                sum >= share
            });
            // Rounding may leave the sum of all below a share of 1.
            reached.or(values.last()).map(|(value, _)| *value)
        }
    }
}

fn of_gaps(gaps: &Durations, statistic: Statistic) -> Option<f64> {
    let summary = gaps.summary()?;
    match statistic {
        Statistic::Mean => Some(summary.mean),
        Statistic::Deviation => None,
        Statistic::Least => Some(summary.min),
        Statistic::Most => Some(summary.max),
        Statistic::Quantile(share) => gaps.quantile(share),
    }
}
