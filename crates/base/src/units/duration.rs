//! Durations: `50` (milliseconds), `50ms`, `1.5s`, `200us`, `2m`; and milliseconds as traces write them.

use std::time::Duration;

use super::UnitError;

const EXPECTED: &str = "a duration such as 50ms, 1.5s, 200us or 2m";

/// The longest duration that is accepted: 30 days. Longer ones are typing errors.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// Units and their seconds.
const UNITS: [(&str, f64); 7] =
    [("", 1e-3), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("us", 1e-6), ("ns", 1e-9)];

/// Reads a duration as a person types it, or as Go writes one (`1m30s`); a bare number is milliseconds.
///
/// # Errors
/// When the text is not a sequence of finite, non-negative numbers, each with one of the units `ns`, `us`, `ms`, `s`, `m`, `h`, or is over
/// 30 days.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(vllm_vcr_base::units::parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let wrong = || UnitError::new(text.trim(), EXPECTED);
    let spelled = text.trim().replace('µ', "u");
    let mut rest = spelled.as_str();
    let mut total = Duration::ZERO;
    loop {
        let digits = rest.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        let is_alone = next.is_empty() && rest.len() == spelled.len();
        let seconds = UNITS.iter().find(|(name, _)| *name == unit && (is_alone || !name.is_empty()));
        let number = number.trim().parse::<f64>().ok();
        let part = number.zip(seconds).and_then(|(number, (_, unit))| Duration::try_from_secs_f64(number * unit).ok());
        total = part.and_then(|part| total.checked_add(part)).filter(|total| *total <= LONGEST).ok_or_else(wrong)?;
        rest = next;
        if rest.is_empty() {
            return Ok(total);
        }
    }
}

/// Writes a duration as [`parse_duration`] reads it, exactly: `4s`, `1.5ms`, `20us`.
#[must_use]
pub fn duration_text(time: Duration) -> String {
    if time.is_zero() { "0s".to_owned() } else { format!("{time:?}").replace('µ', "u") }
}

/// Milliseconds as a float, the unit of every time in a trace file, exact to the nanosecond.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Millis(pub f64);

impl From<Duration> for Millis {
    fn from(duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(nanos as f64 / 1e6)
    }
}

impl Millis {
    /// The duration, rounded to the nearest nanosecond; `None` when negative, not finite or beyond what a duration holds.
    #[must_use]
    pub fn duration(self) -> Option<Duration> {
        self.nanos().map(Duration::from_nanos)
    }

    /// Milliseconds, to the microsecond.
    #[must_use]
    pub fn rounded(self) -> f64 {
        (self.0 * 1e3).round() / 1e3
    }

    /// As [`duration`](Millis::duration), in nanoseconds.
    #[must_use]
    pub fn nanos(self) -> Option<u64> {
        let nanos = self.0 * 1e6;
        // Half away from zero, as `round` does it, without a call into the maths library.
        #[allow(clippy::cast_possible_truncation)] // in range, and the difference is exact
        (nanos > -0.5 && nanos < 9e18).then(|| {
            let whole = nanos as i64;
            (whole + i64::from(nanos - whole as f64 >= 0.5)).cast_unsigned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_unit() {
        for (text, micros) in [
            ("50", 50_000),
            ("50ms", 50_000),
            ("1.5s", 1_500_000),
            ("200us", 200),
            ("200µs", 200),
            ("2m", 120_000_000),
            ("1m30s", 90_000_000),
            ("1h0.5s", 3_600_500_000),
            ("1500ns", 1),
            (" 0 ", 0),
        ] {
            assert_eq!(parse_duration(text).map(|read| read.as_micros()), Ok(micros), "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_as_the_same() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_500, "1.5us"),
            (250_000_000, "250ms"),
            (4_000_000_000, "4s"),
            (2_591_999_000_000_001, "2591999.000000001s"),
        ] {
            let time = Duration::from_nanos(nanos);
            assert_eq!((duration_text(time).as_str(), parse_duration(text)), (text, Ok(time)));
        }
    }

    #[test]
    fn refuses_what_is_not_a_duration() {
        for text in
            ["", "ms", "-1", "nan", "inf", "5 parsecs", "1e30s", "1d", "0x10", "1m30", "721h", "1s-1s", "0s5", "s1s"]
        {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn milliseconds_are_exact_to_the_nanosecond() {
        for nanos in [0, 1, 999, 21_603_908, 14_564_635_134, 86_400_000_000_001] {
            let duration = Duration::from_nanos(nanos);
            assert_eq!(Millis::from(duration).duration(), Some(duration));
        }
        assert_eq!(Millis(-1.0).duration(), None);
        assert_eq!(Millis(f64::NAN).duration(), None);
    }

    #[test]
    #[allow(clippy::cast_possible_truncation)] // the range is checked
    fn milliseconds_are_rounded_as_floats_are() {
        let edges =
            [0.0, -0.0, 0.5, 1.5, 2.5, -0.4, -0.5, 0.499_999_999_999_999_94, 4_503_599_627_370_497.5, 8.9e18, 9e18];
        let more = (0..2000_u32).map(|at| f64::from(at).mul_add(0.037, -5.0).exp() * 1e-3);
        for nanos in edges.into_iter().chain(more).chain([f64::INFINITY, f64::NAN, f64::MIN]) {
            let millis = Millis(nanos / 1e6);
            let rounded = (millis.0 * 1e6).round();
            let expected = (0.0..9e18).contains(&rounded).then(|| Duration::from_nanos(rounded as u64));
            assert_eq!(millis.duration(), expected, "{nanos}");
        }
    }
}
