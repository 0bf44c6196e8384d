//! InjectedFailures in the words of llm-d-inference-sim: a percentage of requests, and the kinds that they have.

use crate::faults::Fault;

/// Kinds of failures by their names in llm-d-inference-sim, which are kinds of faults too.
pub const FAILURE_TYPES: [&str; 6] =
    ["rate_limit", "invalid_api_key", "context_length", "server_error", "invalid_request", "model_not_found"];

/// Requests that fail, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InjectedFailures {
    /// Percentage of requests.
    pub percent: u8,
    /// Names of [`FAILURE_TYPES`], each as often as the others; empty for all.
    pub types: Vec<String>,
}

impl InjectedFailures {
    /// The lines that stand for them. Each kind has the same share of the requests: a line sees only those that no line before it took.
    ///
    /// # Errors
    /// A kind that is none.
    pub(crate) fn lines(&self) -> Result<Vec<Fault>, String> {
        let all = FAILURE_TYPES.map(str::to_owned);
        let types = if self.types.is_empty() { all.as_slice() } else { self.types.as_slice() };
        if let Some(other) = types.iter().find(|name| !all.contains(name)) {
            return Err(format!("{other} is no type of failure: there are {}", FAILURE_TYPES.join(", ")));
        }
        let share = f64::from(self.percent) / 100.0 / types.iter().map(|_| 1.0).sum::<f64>();
        let mut left = 1.0;
        let mut lines = Vec::new();
        for name in types.iter().filter(|_| self.percent > 0) {
            let line = format!("{name} where rate={}", (share / left).min(1.0));
            lines.push(line.parse::<Fault>().map_err(|error| error.to_string())?);
            left -= share;
        }
        Ok(lines)
    }
}
