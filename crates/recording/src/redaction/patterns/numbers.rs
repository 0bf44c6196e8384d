//! Numbers that are secrets or personal data, by their digits.

use super::MatchedText;

/// Whether the digits have the check digit of a card's number and begin as those of a network do; decimal places are none.
pub(super) fn is_card(found: &MatchedText<'_>) -> bool {
    let is_decimal = matches!(found.before.as_bytes(), [.., b'0'..=b'9', b'.']);
    let digits: Vec<u32> = found.text.chars().filter_map(|c| c.to_digit(10)).collect();
    let weighed = digits.iter().rev().enumerate().map(|(at, digit)| match at % 2 {
        0 => *digit,
        _ => digit * 2 / 10 + digit * 2 % 10,
    });
    !is_decimal && weighed.sum::<u32>() % 10 == 0 && is_of_network(&digits)
}

/// Networks of cards: the first and the last of their beginnings, and how many digits they have.
const NETWORKS: &[(u32, u32, &[usize])] = &[
    (4000, 4999, &[13, 16, 19]),
    (5100, 5599, &[16]),
    (2221, 2720, &[16]),
    (3400, 3499, &[15]),
    (3700, 3799, &[15]),
    (6011, 6011, &[16, 19]),
    (6440, 6599, &[16, 19]),
    (3000, 3059, &[14]),
    (3095, 3095, &[14]),
    (3600, 3699, &[14]),
    (3800, 3999, &[14]),
    (3528, 3589, &[16]),
    (6200, 6299, &[16, 17, 18, 19]),
    (2200, 2204, &[16]),
    (5018, 5018, &[16, 18, 19]),
    (5020, 5020, &[16, 18, 19]),
    (5038, 5038, &[16, 18, 19]),
    (5893, 5893, &[16, 18, 19]),
    (6304, 6304, &[16, 18, 19]),
    (6759, 6763, &[16, 18, 19]),
    (6000, 6009, &[16]),
    (8100, 8299, &[16]),
    (9792, 9792, &[16]),
];

fn is_of_network(digits: &[u32]) -> bool {
    let begins = digits.iter().take(4).fold(0, |number, digit| number * 10 + digit);
    let fits =
        |(from, to, lengths): &(u32, u32, &[usize])| (*from..=*to).contains(&begins) && lengths.contains(&digits.len());
    NETWORKS.iter().any(fits)
}

/// Whether the check digits of an IBAN are right: as one number, its first four characters last and letters from 10 on, it leaves 1 of 97.
pub(super) fn is_iban(found: &MatchedText<'_>) -> bool {
    let digits = |part: &str, before: u32| {
        part.chars().filter_map(|c| c.to_digit(36)).fold(before, |left, digit| match digit {
            0..10 => (left * 10 + digit) % 97,
            _ => (left * 100 + digit) % 97,
        })
    };
    let (country, rest) = found.text.split_at_checked(4).unwrap_or_default();
    digits(country, digits(rest, 0)) == 1
}

/// Whether a number can be a phone's: it has as many digits, and is no part of a longer number.
pub(super) fn is_phone(found: &MatchedText<'_>) -> bool {
    let (before, after) = (found.before.as_bytes().last(), found.after.as_bytes());
    let digits = found.text.bytes().filter(u8::is_ascii_digit).count();
    let is_part = before.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(byte))
        || after.first().is_some_and(u8::is_ascii_digit)
        || matches!(after, [b'-' | b'.' | b'/', next, ..] if next.is_ascii_digit());
    (7..=15).contains(&digits) && !is_part
}

/// Whether a number can be a social security number: some were never given out.
pub(super) fn is_ssn(found: &MatchedText<'_>) -> bool {
    let is_part = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
    let number = found.text;
    let never = number.starts_with("000") || number.starts_with("666") || number.starts_with('9');
    let never = never || number.contains("-00-") || number.ends_with("0000");
    !never && !is_part(found.before.as_bytes().last()) && !is_part(found.after.as_bytes().first())
}
