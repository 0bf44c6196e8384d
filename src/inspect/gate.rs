//! Limits for metrics of a comparison, from a TOML file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ComparedMetric, MetricUnit, compare::unit_of};
use crate::base::units::parse_duration;

/// Result of a rule of a gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GateResult {
    /// The metric.
    pub metric: String,
    /// Why it does not pass; `None` where it does.
    pub failure: Option<String>,
}

/// Limits by metric, as in a file.
#[derive(Debug, Default)]
pub struct MetricGate(BTreeMap<String, MetricLimits>);

/// Limits of one metric: as they are written, or in its unit; of changes, in shares of the earlier value.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct MetricLimits<L = f64> {
    max: Option<L>,
    min: Option<L>,
    max_increase: Option<L>,
    max_decrease: Option<L>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "no limit: write a number, or a text such as \"500ms\" or \"10%\"")]
enum Limit {
    Number(f64),
    Text(String),
}

impl MetricGate {
    /// Reads a gate: a table for each metric with `max`, `min`, `max_increase` or `max_decrease`.
    /// Errors: with the line or the field, where the text is no such TOML or a limit cannot be read.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let written: BTreeMap<String, MetricLimits<Limit>> = toml::from_str(text).map_err(|error| error.to_string())?;
        if written.is_empty() {
            return Err("it has no table: write one for each metric, such as [ttft_p99]".to_owned());
        }
        let read = |(metric, written): (String, MetricLimits<Limit>)| {
            let limits = MetricLimits::read(&metric, &written)?;
            Ok((metric, limits))
        };
        Ok(Self(written.into_iter().map(read).collect::<Result<_, String>>()?))
    }

    /// Judges the metrics by the rules; a metric that is not there fails, for nothing shows that it is within its limits.
    pub(super) fn judge(&self, metrics: &[(String, ComparedMetric)]) -> Vec<GateResult> {
        let judged = self.0.iter().map(|(metric, limits)| {
            let compared = metrics.iter().find(|(name, _)| name == metric);
            let failure = match compared {
                Some((_, compared)) => limits.failure(compared),
                None => Some("there is no such metric".to_owned()),
            };
            GateResult { metric: metric.clone(), failure }
        });
        judged.collect()
    }
}

impl MetricLimits {
    fn read(metric: &str, written: &MetricLimits<Limit>) -> Result<Self, String> {
        let unit = unit_of(metric);
        let field = |name: &str, limit: &Option<Limit>, read: &dyn Fn(&Limit) -> Result<f64, String>| {
            let read = |limit| read(limit).map_err(|wrong| format!("[{metric}] {name}: {wrong}"));
            limit.as_ref().map(read).transpose()
        };
        let MetricLimits { max, min, max_increase, max_decrease } = written;
        let limits = Self {
            max: field("max", max, &|limit| limit.in_unit(unit))?,
            min: field("min", min, &|limit| limit.in_unit(unit))?,
            max_increase: field("max_increase", max_increase, &Limit::change)?,
            max_decrease: field("max_decrease", max_decrease, &Limit::change)?,
        };
        match limits {
            Self { max: None, min: None, max_increase: None, max_decrease: None } => {
                Err(format!("[{metric}] has no limit: write max, min, max_increase or max_decrease"))
            }
            Self { max: Some(max), min: Some(min), .. } if max < min => {
                Err(format!("[{metric}] max: it is below min, so nothing is within"))
            }
            limits => Ok(limits),
        }
    }

    /// Returns why the metric is not within the limits.
    fn failure(self, compared: &ComparedMetric) -> Option<String> {
        let ComparedMetric { unit, a, b, .. } = *compared;
        let Some(b) = b else { return Some("the later trace has no values of it".to_owned()) };
        if let Some(max) = self.max.filter(|max| b > *max) {
            return Some(format!("{} is above {}", shown(unit, b), shown(unit, max)));
        }
        if let Some(min) = self.min.filter(|min| b < *min) {
            return Some(format!("{} is below {}", shown(unit, b), shown(unit, min)));
        }
        if self.max_increase.is_none() && self.max_decrease.is_none() {
            return None;
        }
        let Some(a) = a else { return Some("the earlier trace has no values of it".to_owned()) };
        let over = |limit: Option<f64>, change: f64| limit.filter(|most| change > a * most);
        let (verb, most) = match (over(self.max_increase, b - a), over(self.max_decrease, a - b)) {
            (Some(most), _) => ("rose", most),
            (None, Some(most)) => ("fell", most),
            (None, None) => return None,
        };
        let by = if a > 0.0 { format!("by {:.1} %", (b - a).abs() / a * 100.0) } else { "from 0".to_owned() };
        Some(format!("it {verb} {by}, to {}, and may by {:.1} %", shown(unit, b), most * 100.0))
    }
}

impl Limit {
    /// Reads it as a value of a metric; of one that does not exist, in whatever unit.
    fn in_unit(&self, unit: Option<MetricUnit>) -> Result<f64, String> {
        let (given, text) = match self {
            Self::Number(value) => (is_amount(*value), ""),
            Self::Text(text) => (None, text.as_str()),
        };
        let time = || Some(parse_duration(text).ok()?.as_secs_f64() * 1000.0);
        let share = || given.or_else(|| percent(text)).or_else(|| number(text)).filter(|share| *share <= 1.0);
        let (expected, value) = match (unit, self) {
            (Some(MetricUnit::Ms), _) => ("a time: write \"500ms\"", given.or_else(time)),
            (Some(MetricUnit::Share), _) => ("a share: write \"10%\" or 0.1", share()),
            (None, Self::Text(text)) => {
                ("a limit: write \"500ms\", \"10%\" or a number", time().or_else(|| percent(text)))
            }
            _ => ("a number that is not negative", given.or_else(|| number(text))),
        };
        value.ok_or_else(|| format!("`{}` is not {expected}", self.text()))
    }

    /// Reads it as a change. A bare number could be percent or a share, so that it is none.
    fn change(&self) -> Result<f64, String> {
        let change = match self {
            Self::Number(_) => None,
            Self::Text(text) => percent(text),
        };
        change.ok_or_else(|| format!("`{}` is not a change: write \"10%\"", self.text()))
    }

    fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

fn percent(text: &str) -> Option<f64> {
    Some(number(text.strip_suffix('%')?)? / 100.0)
}

fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok().and_then(is_amount)
}

fn is_amount(value: f64) -> Option<f64> {
    (value.is_finite() && value >= 0.0).then_some(value)
}

fn shown(unit: MetricUnit, value: f64) -> String {
    match unit {
        MetricUnit::Ms => format!("{value:.2} ms"),
        MetricUnit::Share => format!("{:.2} %", value * 100.0),
        MetricUnit::Tokens => format!("{value:.2} tokens"),
        MetricUnit::PerSecond => format!("{value:.2} a second"),
        MetricUnit::Requests => format!("{value} requests"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(gate: &str, unit: MetricUnit, a: Option<f64>, b: Option<f64>) -> Option<String> {
        let gate = MetricGate::read(gate).unwrap();
        let compared = ComparedMetric { unit, a, b, change_percent: None, interval: None, judgement: None };
        let metrics: Vec<_> = gate.0.keys().map(|metric| (metric.clone(), compared)).collect();
        gate.judge(&metrics)[0].failure.clone()
    }

    #[test]
    fn a_gate_names_what_is_over_its_limit() {
        for (gate, unit, a, b, failure) in [
            ("[ttft_p99]\nmax_increase = '10%'", MetricUnit::Ms, 100.0, 109.0, None),
            (
                "[ttft_p99]\nmax_increase = '10%'",
                MetricUnit::Ms,
                100.0,
                120.0,
                Some("it rose by 20.0 %, to 120.00 ms, and may by 10.0 %"),
            ),
            ("[ttft_p99]\nmax = '0.5s'", MetricUnit::Ms, 499.0, 501.0, Some("501.00 ms is above 500.00 ms")),
            ("[ttft_p99]\nmax = 500", MetricUnit::Ms, 501.0, 499.0, None),
            (
                "[request_throughput]\nmin = 9.5",
                MetricUnit::PerSecond,
                0.0,
                9.0,
                Some("9.00 a second is below 9.50 a second"),
            ),
            (
                "[request_throughput]\nmax_decrease = '5%'",
                MetricUnit::PerSecond,
                10.0,
                9.0,
                Some("it fell by 10.0 %, to 9.00 a second, and may by 5.0 %"),
            ),
            ("[error_share]\nmax = '1%'", MetricUnit::Share, 0.0, 0.02, Some("2.00 % is above 1.00 %")),
            (
                "[error_share]\nmax_increase = '10%'",
                MetricUnit::Share,
                0.0,
                0.02,
                Some("it rose from 0, to 2.00 %, and may by 10.0 %"),
            ),
            ("[error_share]\nmax_increase = '0%'", MetricUnit::Share, 0.0, 0.0, None),
        ] {
            assert_eq!(judged(gate, unit, Some(a), Some(b)).as_deref(), failure, "{gate}: {a} {b}");
        }
    }

    #[test]
    fn a_metric_that_is_missing_fails() {
        let gate = "[ttft_p99]\nmax_increase = '10%'";
        assert!(judged(gate, MetricUnit::Ms, Some(1.0), None).is_some());
        assert!(judged(gate, MetricUnit::Ms, None, Some(1.0)).is_some());
        assert_eq!(judged("[ttft_p99]\nmax = '10ms'", MetricUnit::Ms, None, Some(1.0)), None, "needs no earlier value");
        let unknown = MetricGate::read("[goodness]\nmin = '1s'").unwrap().judge(&[]);
        assert_eq!(unknown[0].failure.as_deref(), Some("there is no such metric"));
    }

    #[test]
    fn a_gate_that_cannot_be_read_says_where() {
        for (text, part) in [
            ("", "no table"),
            ("[ttft_p99]\nmaximum = '1s'", "maximum"),
            ("[ttft_p99]\nmax = true", "no limit: write a number"),
            ("[ttft_p99]", "[ttft_p99] has no limit"),
            ("[ttft_p99]\nmax = 'soon'", "[ttft_p99] max: `soon` is not a time"),
            ("[ttft_p99]\nmax = '10%'", "[ttft_p99] max: `10%` is not a time"),
            ("[ttft_p99]\nmin = -1", "[ttft_p99] min: `-1` is not a time"),
            ("[ttft_p99]\nmax = nan", "[ttft_p99] max: `NaN` is not a time"),
            ("[ttft_p99]\nmax = '1s'\nmin = '2s'", "[ttft_p99] max: it is below min"),
            ("[ttft_p99]\nmax_increase = '50ms'", "[ttft_p99] max_increase: `50ms` is not a change"),
            ("[ttft_p99]\nmax_increase = 10", "[ttft_p99] max_increase: `10` is not a change"),
            ("[ttft_p99]\nmax_decrease = 'nan%'", "[ttft_p99] max_decrease: `nan%` is not a change"),
            ("[error_share]\nmax = 5", "[error_share] max: `5` is not a share"),
            ("[requests]\nmin = '1s'", "[requests] min: `1s` is not a number"),
            ("[goodness]\nmin = 'much'", "[goodness] min: `much` is not a limit"),
            ("ttft_p99 = 4", "ttft_p99"),
        ] {
            let error = MetricGate::read(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
