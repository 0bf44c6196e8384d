//! Headers about limits of rates, as OpenAI's clients read them: `x-ratelimit-limit-requests`, `…-remaining-…` and `…-reset-…`, and the same
//! of tokens. See <https://platform.openai.com/docs/guides/rate-limits>.

use std::{fmt::Write, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue};

/// Adds the headers of a limit; `what` is `requests` or `tokens`, `reset` the time until all of it is there again, as [`go_duration`] writes it.
pub(crate) fn add(headers: &mut HeaderMap, what: &str, limit: u64, remaining: u64, reset: String) {
    let values = [("limit", limit.to_string()), ("remaining", remaining.to_string()), ("reset", reset)];
    for (name, value) in values {
        let name = HeaderName::try_from(format!("x-ratelimit-{name}-{what}"));
        if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
            headers.insert(name, value);
        }
    }
}

/// A duration as Go writes it, rounded up to whole milliseconds: `20ms`, `1.5s`, `6m0s`, `1h0m0s`.
pub(crate) fn go_duration(time: Duration) -> String {
    let millis = time.as_nanos().div_ceil(1_000_000);
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let (hours, minutes, millis) = (millis / 3_600_000, millis / 60_000 % 60, millis % 60_000);
    let mut text = String::new();
    if hours > 0 {
        let _ = write!(text, "{hours}h");
    }
    if hours > 0 || minutes > 0 {
        let _ = write!(text, "{minutes}m");
    }
    let rest = format!("{}.{:03}", millis / 1000, millis % 1000);
    let _ = write!(text, "{}s", rest.trim_end_matches('0').trim_end_matches('.'));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_openai_does() {
        for (millis, text) in [
            (0, "0ms"),
            (20, "20ms"),
            (120, "120ms"),
            (1000, "1s"),
            (1500, "1.5s"),
            (6500, "6.5s"),
            (60_000, "1m0s"),
            (61_250, "1m1.25s"),
            (360_000, "6m0s"),
            (3_600_000, "1h0m0s"),
        ] {
            assert_eq!(go_duration(Duration::from_millis(millis)), text);
        }
        assert_eq!(go_duration(Duration::from_nanos(1)), "1ms");
    }
}
