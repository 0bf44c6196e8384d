//! Integers that no number here holds: they are kept as text, so that two of them are equal only where every digit is.

use std::borrow::Cow;

use crate::children::{number_length, string_length};

/// Fewer digits always fit.
const SAFE: usize = 18;

/// JSON with every integer beyond 64 bits in quotes. Other text is given back in some form that is no JSON either.
#[must_use]
pub fn with_exact_integers(json: &str) -> Cow<'_, str> {
    let (mut exact, mut kept) = (String::new(), 0);
    let (mut at, bytes) = (0, json.as_bytes());
    while let Some(byte) = bytes.get(at) {
        let rest = bytes.get(at..).unwrap_or_default();
        let length = match byte {
            b'"' => string_length(rest).unwrap_or(rest.len()),
            b'-' | b'0'..=b'9' => {
                let length = number_length(rest);
                let number = json.get(at..at + length).unwrap_or_default();
                if is_too_long(number) {
                    exact.push_str(json.get(kept..at).unwrap_or_default());
                    exact.push_str(&format!("\"{number}\""));
                    kept = at + length;
                }
                length
            }
            _ => 1,
        };
        at += length;
    }
    if kept == 0 {
        return Cow::Borrowed(json);
    }
    exact.push_str(json.get(kept..).unwrap_or_default());
    Cow::Owned(exact)
}

fn is_too_long(number: &str) -> bool {
    let digits = number.strip_prefix('-').unwrap_or(number);
    let is_integer = digits.len() > SAFE && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_integer && number.parse::<u64>().is_err() && number.parse::<i64>().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_integers_that_do_not_fit_are_quoted() {
        for same in [
            "",
            "{\"a\": 18446744073709551615, \"b\": -9223372036854775808, \"c\": 1234567890123456789012.5e3}",
            "{\"a\": \"123456789012345678901234\"}",
            "\"\\\"123456789012345678901234",
            "no json é",
        ] {
            assert!(matches!(with_exact_integers(same), Cow::Borrowed(_)), "{same}");
        }
        let exact = with_exact_integers("{\"é\\\\\":18446744073709551616,\"b\":[-9223372036854775809]}");
        assert_eq!(exact, "{\"é\\\\\":\"18446744073709551616\",\"b\":[\"-9223372036854775809\"]}");
    }
}
