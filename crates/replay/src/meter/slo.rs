//! Limits of latencies.

use std::{str::FromStr, time::Duration};

use base::units::parse_duration;

/// Limits of a request's latencies, such as `ttft=2s,itl=50ms`. A request that exceeds one of them is not good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slo {
    /// Of the time to its first token.
    pub ttft: Option<Duration>,
    /// Of its longest gap between two tokens.
    pub itl: Option<Duration>,
    /// Of the mean of its gaps.
    pub tpot: Option<Duration>,
    /// Of the time to its last token.
    pub e2e: Option<Duration>,
}

impl FromStr for Slo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut slo = Self::default();
        for part in text.split(',') {
            let (name, limit) =
                part.split_once('=').ok_or_else(|| format!("`{part}` has no `=`: write ttft=2s,itl=50ms"))?;
            let place = match name.trim() {
                "ttft" => &mut slo.ttft,
                "itl" => &mut slo.itl,
                "tpot" => &mut slo.tpot,
                "e2e" => &mut slo.e2e,
                other => return Err(format!("`{other}` is no latency: use ttft, itl, tpot or e2e")),
            };
            if place.replace(parse_duration(limit).map_err(|error| error.to_string())?).is_some() {
                return Err(format!("{} is there twice", name.trim()));
            }
        }
        Ok(slo)
    }
}

impl Slo {
    /// Returns true if these times are within the limits: TTFT, the longest gap between two tokens, TPOT and E2E. Without a TTFT no limit of tokens
    /// is kept: none came, or they came as a whole. A response of one event has no gaps that could exceed one.
    #[must_use]
    pub fn is_kept(&self, [ttft, longest_gap, tpot, e2e]: [Option<Duration>; 4]) -> bool {
        let within = |limit: Option<Duration>, time: Option<Duration>| {
            limit.is_none_or(|limit| time.is_none_or(|time| time <= limit))
        };
        let is_of_tokens = self.ttft.or(self.itl).or(self.tpot).is_some();
        (ttft.is_some() || !is_of_tokens)
            && within(self.ttft, ttft)
            && within(self.itl, longest_gap)
            && within(self.tpot, tpot)
            && within(self.e2e, e2e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_tokens_are_not_kept_without_a_token() {
        let slo = |text: &str| text.parse::<Slo>().unwrap();
        let ms = |count| Some(Duration::from_millis(count));
        for limits in ["ttft=1s", "itl=1s", "tpot=1s", "ttft=1s,e2e=1s"] {
            assert!(!slo(limits).is_kept([None, None, None, ms(1)]), "{limits}");
            assert!(slo(limits).is_kept([ms(1), None, None, ms(1)]), "{limits}");
            assert!(!slo(limits).is_kept([ms(1001), ms(1001), ms(1001), ms(1001)]), "{limits}");
        }
        assert!(slo("e2e=1s").is_kept([None, None, None, ms(1)]));
    }
}
