//! Sizes of files.

use super::UnitError;

const UNITS: [(&str, u64); 10] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("k", 1_000),
    ("m", 1_000_000),
    ("g", 1_000_000_000),
    ("b", 1),
];

/// Reads a size in bytes: `4096`, `64k`, `500MB`, `1.5GiB`.
///
/// # Errors
/// When it is no number with one of these units, or less than one byte.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let fail = || UnitError::new(text, "a size, such as 4096, 64k, 500MB or 1.5GiB");
    let typed = text.trim().to_ascii_lowercase();
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((typed.strip_suffix(unit)?, *bytes)));
    let (number, bytes) = unit.unwrap_or((&typed, 1));
    let number = number.trim();
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(bytes).filter(|bytes| *bytes > 0).ok_or_else(fail);
    }
    let (whole, tenths) = number.split_once('.').filter(|_| bytes > 1).ok_or_else(fail)?;
    let digits = tenths.parse::<u64>().ok().filter(|_| tenths.len() <= 3).ok_or_else(fail)?;
    let scale = 10_u64.pow(u32::try_from(tenths.len()).unwrap_or(0));
    let whole = whole.parse::<u64>().map_err(|_| fail())?.checked_mul(bytes).ok_or_else(fail)?;
    whole.checked_add(digits * bytes / scale).filter(|bytes| *bytes > 0).ok_or_else(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64k", 64_000),
            ("500MB", 500_000_000),
            ("1.5GiB", 1_610_612_736),
            (" 2 MiB", 2 << 20),
            ("0.25kb", 250),
            ("7b", 7),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "0", "x", "1.5", "-1k", "1e3", "9999999999999999999k", "1.2345g", "0.0b"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
