//! A short way through the common line: the three long arrays of numbers are read here, digits eight at a time, and only
//! the rest of the line goes through serde.
//!
//! It takes no decision of its own: whatever it does not expect (an escape in a key, a list given twice, a number that is
//! none of the usual ones) makes it give up, and the whole line takes the long way, which knows every rule and message.

use super::raw::RawRecord;

/// A record as the long way would read it, or `None` where the line is not of the common shape.
pub(super) fn scan(line: &[u8]) -> Option<RawRecord> {
    let mut cursor = Cursor { rest: line };
    let mut others = Vec::with_capacity(512);
    let (mut gaps, mut hashes, mut ids) = (None, None, None);
    cursor.expect(b'{')?;
    others.push(b'{');
    loop {
        let key = cursor.key()?;
        match key {
            b"itl_ms" if gaps.is_none() => gaps = Some(cursor.list(float)?),
            b"block_hashes" if hashes.is_none() => hashes = Some(cursor.list(integer)?),
            b"output_token_ids" if ids.is_none() => ids = Some(cursor.list(id)?),
            b"itl_ms" | b"block_hashes" | b"output_token_ids" => return None,
            _ => {
                if others.len() > 1 {
                    others.push(b',');
                }
                others.push(b'"');
                others.extend_from_slice(key);
                others.extend_from_slice(b"\":");
                others.extend_from_slice(cursor.value()?);
            }
        }
        match cursor.next_mark()? {
            b',' => {}
            b'}' => break,
            _ => return None,
        }
    }
    if !cursor.rest.trim_ascii().is_empty() {
        return None;
    }
    others.push(b'}');
    let raw: RawRecord = serde_json::from_slice(&others).ok()?;
    Some(RawRecord { itl_ms: gaps, block_hashes: hashes, output_token_ids: ids, ..raw })
}

/// The rest of a line.
struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// The next byte that is no blank.
    fn next_mark(&mut self) -> Option<u8> {
        while let [first, rest @ ..] = self.rest {
            self.rest = rest;
            if *first != b' ' {
                return Some(*first);
            }
        }
        None
    }

    fn expect(&mut self, mark: u8) -> Option<()> {
        (self.next_mark()? == mark).then_some(())
    }

    fn skip_blanks(&mut self) {
        while let [b' ', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    /// A key without escapes, and its colon.
    fn key(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let end = self.rest.iter().position(|byte| *byte == b'"')?;
        let key = self.take(end)?;
        self.rest = self.rest.get(1..)?;
        self.expect(b':')?;
        (!key.contains(&b'\\')).then_some(key)
    }

    /// A list of what `read` finds at the start of a text, with its length.
    fn list<T>(&mut self, read: impl Fn(&[u8]) -> Option<(T, usize)>) -> Option<Vec<T>> {
        self.expect(b'[')?;
        self.skip_blanks();
        let mut values = Vec::new();
        if let [b']', rest @ ..] = self.rest {
            self.rest = rest;
            return Some(values);
        }
        values.reserve(self.rest.len() / 16);
        loop {
            let (value, length) = read(self.rest)?;
            values.push(value);
            self.rest = self.rest.get(length..)?;
            if let [b',', b'0'..=b'9', ..] = self.rest {
                self.take(1)?;
                continue;
            }
            match self.next_mark()? {
                b',' => self.skip_blanks(),
                b']' => return Some(values),
                _ => return None,
            }
        }
    }

    /// The text of any value, not checked; parsing finds what is wrong with it.
    fn value(&mut self) -> Option<&'a [u8]> {
        self.skip_blanks();
        let (mut depth, mut in_string, mut escaped) = (0_u32, false, false);
        let mut length = None;
        for (at, byte) in self.rest.iter().enumerate() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if in_string => escaped = true,
                b'"' => in_string = !in_string,
                _ if in_string => {}
                b'[' | b'{' => depth += 1,
                b',' | b'}' if depth == 0 => {
                    length = Some(at);
                    break;
                }
                b']' | b'}' => depth = depth.checked_sub(1)?,
                _ => {}
            }
        }
        self.take(length?)
    }
}

/// A number, as `serde_json` reads it. The usual few digits are one exact division; others take the long way by themselves.
fn float(text: &[u8]) -> Option<(f64, usize)> {
    if let Some(number) = short_float(text) {
        return Some(number);
    }
    let length = text.iter().position(|byte| matches!(byte, b',' | b']' | b' '))?;
    Some((serde_json::from_slice(text.get(..length)?).ok()?, length))
}

/// A number of one to seven digits, perhaps a point and one to seven more; `None` for any other.
///
/// So many digits and such a power of ten are exact as `f64`, and the one division is rightly rounded.
#[inline(always)] // once per gap
fn short_float(text: &[u8]) -> Option<(f64, usize)> {
    let (whole, before) = leading_digits(eight(text)?);
    if !(1..8).contains(&before) || (before > 1 && text.first() == Some(&b'0')) {
        return None;
    }
    let (exact, scale, length) = match text.get(before..)? {
        [b'.', rest @ ..] => {
            let (fraction, after) = leading_digits(eight(rest)?);
            let scale = power_of_ten(after).filter(|_| (1..8).contains(&after))?;
            (whole * scale + fraction, scale, before + 1 + after)
        }
        _ => (whole, 1, before),
    };
    let is_over = matches!(text.get(length), Some(b',' | b']' | b' '));
    is_over.then(|| (exact.cast_signed() as f64 / scale.cast_signed() as f64, length))
}

fn id(text: &[u8]) -> Option<(u32, usize)> {
    let (value, length) = integer(text)?;
    Some((u32::try_from(value).ok()?, length))
}

/// A whole number of at least 0.
#[inline(always)] // once per id and hash
fn integer(text: &[u8]) -> Option<(u64, usize)> {
    let (value, length) = match eight(text).map(leading_digits) {
        Some((value, length)) if length < 8 => (value, length),
        Some((first, _)) => long_integer(first, text)?,
        None => last_integer(text)?,
    };
    let is_spelled_well = length > 0 && (length == 1 || text.first() != Some(&b'0'));
    is_spelled_well.then_some((value, length))
}

/// The number of at most 23 digits whose first eight are `first`.
fn long_integer(first: u64, text: &[u8]) -> Option<(u64, usize)> {
    let (second, count) = leading_digits(eight(text.get(8..)?)?);
    let value = first * power_of_ten(count)? + second;
    if count < 8 {
        return Some((value, 8 + count));
    }
    let (third, count) = leading_digits(eight(text.get(16..)?)?);
    let value = value.checked_mul(power_of_ten(count)?)?.checked_add(third)?;
    (count < 8).then_some((value, 16 + count))
}

/// A number in the last bytes of a line.
fn last_integer(text: &[u8]) -> Option<(u64, usize)> {
    let length = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = text.get(..length)?;
    Some((number.iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0')), length))
}

fn eight(text: &[u8]) -> Option<u64> {
    text.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Of eight bytes, the first one lowest: the number that the leading digits spell, and how many they are.
#[inline(always)] // once per eight digits
fn leading_digits(bytes: u64) -> (u64, usize) {
    const EACH: u64 = 0x0101_0101_0101_0101;
    // The high bit of every byte that is no digit; exact up to and with the first one, which is all that counts.
    let others = (bytes.wrapping_add(0x46 * EACH) | bytes.wrapping_sub(0x30 * EACH) | bytes) & (0x80 * EACH);
    let count = others.trailing_zeros() / 8;
    if count == 0 {
        return (0, 0);
    }
    // The digits move to the high bytes, and zeros before them count for nothing.
    let mut value = (bytes & (0x0f * EACH)) << (64 - 8 * count);
    value = value.wrapping_mul(10).wrapping_add(value >> 8);
    let pairs = 0x0000_00ff_0000_00ff;
    let high = (value & pairs).wrapping_mul(100 + (1_000_000 << 32));
    let low = ((value >> 16) & pairs).wrapping_mul(1 + (10_000 << 32));
    (high.wrapping_add(low) >> 32, count as usize)
}

/// Every power of ten that `u64` holds.
#[rustfmt::skip]
const POWERS_OF_TEN: [u64; 20] = [
    1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000,
    100_000_000_000, 1_000_000_000_000, 10_000_000_000_000, 100_000_000_000_000, 1_000_000_000_000_000,
    10_000_000_000_000_000, 100_000_000_000_000_000, 1_000_000_000_000_000_000, 10_000_000_000_000_000_000,
];

fn power_of_ten(exponent: usize) -> Option<u64> {
    POWERS_OF_TEN.get(exponent).copied()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn agrees(line: &[u8]) {
        let short = scan(line).map(|raw| format!("{raw:?}"));
        let long = serde_json::from_slice::<RawRecord>(line).ok().map(|raw| format!("{raw:?}"));
        assert!(short.is_none() || short == long, "{}\n{short:?}\n{long:?}", String::from_utf8_lossy(line));
    }

    const LINE: &str = r#"{"prompt_tokens":5, "ttft_ms": 1.25,"itl_ms":[1.5,0.001, 12345678.25,3],"block_hashes":[0,18446744073709551615],"output_token_ids":[1,4294967295,12345678],"params":{"stop":["]}","\"{"]},"x":"a\\"}"#;

    #[test]
    fn the_common_line_takes_the_short_way() {
        let raw = scan(LINE.as_bytes()).unwrap();
        assert_eq!(raw.block_hashes.as_deref(), Some(&[0, u64::MAX][..]));
        assert_eq!(raw.output_token_ids.as_deref(), Some(&[1, u32::MAX, 12_345_678][..]));
        assert_eq!(raw.itl_ms.as_deref(), Some(&[1.5, 0.001, 12_345_678.25, 3.0][..]));
        agrees(LINE.as_bytes());
    }

    #[test]
    fn what_is_odd_takes_the_long_way() {
        for odd in [
            r#"{"itl_ms":[1],"itl_ms":[2]}"#,
            r#"{"itl_ms":null}"#,
            r#"{"itl_ms":[01]}"#,
            r#"{"itl_ms":[1.]}"#,
            r#"{"itl_ms":[1,]}"#,
            r#"{"itl_ms":[-1]"#,
            r#"{"block_hashes":[18446744073709551616]}"#,
            r#"{"output_token_ids":[4294967296]}"#,
            r#"{"output_token_ids":[1] "a":1}"#,
            r#"{"a":1}}"#,
            r#"{"a":1,}"#,
            r#"{"a":[}}"#,
        ] {
            assert!(scan(odd.as_bytes()).is_none(), "{odd}");
        }
    }

    proptest! {
        #[test]
        fn both_ways_agree_on_damaged_lines(at in 0..LINE.len(), with in any::<u8>(), cut in 0..4_usize) {
            let mut line = LINE.as_bytes().to_vec();
            line.splice(at..(at + cut).min(LINE.len()), [with]);
            agrees(&line);
            let mut line = LINE.as_bytes().to_vec();
            line.splice(at..at, b"\",:[]{}.0e-"[usize::from(with) % 11..][..1].iter().copied());
            agrees(&line);
        }

        #[test]
        fn both_ways_agree_on_numbers(numbers in prop::collection::vec(any::<f64>(), 0..5), ids in any::<[u64; 3]>(), shift in 0..64) {
            let gaps = serde_json::to_string(&numbers.iter().map(|number| number.abs()).collect::<Vec<_>>()).unwrap();
            let ids = ids.map(|id| id >> shift);
            let milli = f64::from(u32::try_from(ids[0] >> 32).unwrap()) / 1e3;
            agrees(format!(r#"{{"itl_ms":{gaps},"ttft_ms":{milli},"block_hashes":{ids:?}}}"#).as_bytes());
            agrees(format!(r#"{{"itl_ms":[{milli}],"output_token_ids":{ids:?}}}"#).as_bytes());
        }
    }
}
