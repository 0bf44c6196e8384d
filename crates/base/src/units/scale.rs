//! Speed factors.

use std::{fmt, str::FromStr, time::Duration};

use super::UnitError;

/// Factor by which a trace is replayed faster than recorded: 1 is real time, 100 a hundred times faster, 0.5 half as fast.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeScale(f64);

impl TimeScale {
    /// Recorded time, as it was.
    pub const REAL: Self = Self(1.0);

    /// The factor.
    #[must_use]
    pub fn factor(self) -> f64 {
        self.0
    }

    /// Scales a recorded duration; [`Duration::MAX`] if that overflows.
    #[must_use]
    pub fn apply(self, recorded: Duration) -> Duration {
        if self == Self::REAL {
            return recorded;
        }
        Duration::try_from_secs_f64(recorded.as_secs_f64() / self.0).unwrap_or(Duration::MAX)
    }
}

impl FromStr for TimeScale {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let digits = text.trim().trim_start_matches(['x', 'X']);
        digits
            .parse()
            .ok()
            .filter(|factor| (1e-3..=1e6).contains(factor))
            .map(Self)
            .ok_or_else(|| UnitError::new(text, "a speed factor from 0.001 to 1000000, such as 1, 0.5 or 100"))
    }
}

impl fmt::Display for TimeScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faster_means_shorter() {
        let scale: TimeScale = "100".parse().unwrap();
        assert_eq!(scale.apply(Duration::from_secs(1)), Duration::from_millis(10));
        assert_eq!(TimeScale::REAL.apply(Duration::from_nanos(7)), Duration::from_nanos(7));
    }

    #[test]
    fn refuses_zero_negative_and_nonsense() {
        for text in ["0", "-1", "nan", "inf", "fast", ""] {
            assert!(text.parse::<TimeScale>().is_err(), "{text}");
        }
    }
}
