//! A cursor over MessagePack: what is wanted is read where it stands, everything else is skipped, and nothing takes more memory than the bytes
//! that are there.

use serde_json::{Map, Number, Value};

/// Depth of lists and maps within each other.
const MOST_DEEP: u32 = 64;

/// Reader of one message; each method returns `None` if something else stands there, or the bytes end.
#[derive(Debug, Clone, Copy)]
pub(super) struct MsgpackCursor<'a> {
    rest: &'a [u8],
}

impl<'a> MsgpackCursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the number of bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn bytes(&mut self, count: u64) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(usize::try_from(count).ok()?)?;
        self.rest = rest;
        Some(bytes)
    }

    /// Reads a number of so many bytes.
    fn number(&mut self, bytes: u64) -> Option<u64> {
        Some(self.bytes(bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Reads a length: within the marker, or in the bytes after it.
    fn length(&mut self, short: (u8, u8), long: &[(u8, u64)]) -> Option<u64> {
        let mut at = *self;
        let marker = at.byte()?;
        let (base, mask) = short;
        let length = match long.iter().find(|(own, _)| *own == marker) {
            Some((_, bytes)) => at.number(*bytes)?,
            None if mask > 0 && marker & !mask == base => u64::from(marker & mask),
            None => return None,
        };
        *self = at;
        Some(length)
    }

    /// Reads the head of an array.
    pub(super) fn array(&mut self) -> Option<u64> {
        self.length((0x90, 0x0f), &[(0xdc, 2), (0xdd, 4)])
    }

    /// Reads the head of a map.
    pub(super) fn map(&mut self) -> Option<u64> {
        self.length((0x80, 0x0f), &[(0xde, 2), (0xdf, 4)])
    }

    /// Reads a text.
    pub(super) fn text(&mut self) -> Option<&'a str> {
        let mut at = *self;
        let length = at.length((0xa0, 0x1f), &[(0xd9, 1), (0xda, 2), (0xdb, 4)])?;
        let text = std::str::from_utf8(at.bytes(length)?).ok()?;
        *self = at;
        Some(text)
    }

    /// Reads bytes: binary data, or those of an extension with their type.
    pub(super) fn data(&mut self) -> Option<&'a [u8]> {
        let mut at = *self;
        let data = if let Some(length) = at.length((0, 0), &[(0xc4, 1), (0xc5, 2), (0xc6, 4)]) {
            at.bytes(length)?
        } else {
            let length = match at.length((0, 0), &[(0xc7, 1), (0xc8, 2), (0xc9, 4)]) {
                Some(length) => length,
                None => 1 << at.byte()?.checked_sub(0xd4).filter(|power| *power < 5)?,
            };
            at.byte()?;
            at.bytes(length)?
        };
        *self = at;
        Some(data)
    }

    /// Reads nil.
    pub(super) fn nil(&mut self) -> Option<()> {
        (*self.rest.first()? == 0xc0).then(|| self.byte()).map(|_| ())
    }

    /// Reads an integer that is not negative.
    pub(super) fn uint(&mut self) -> Option<u64> {
        u64::try_from(self.integer()?).ok()
    }

    fn integer(&mut self) -> Option<i128> {
        let mut at = *self;
        let marker = at.byte()?;
        let value = match marker {
            0..=0x7f => marker.into(),
            0xe0.. => i128::from(marker) - 256,
            0xcc..=0xcf => at.number(1 << (marker - 0xcc))?.into(),
            0xd0..=0xd3 => {
                let bytes = 1_u64 << (marker - 0xd0);
                let (number, range) = (i128::from(at.number(bytes)?), 1_i128 << (8 * bytes));
                if number >= range / 2 { number - range } else { number }
            }
            _ => return None,
        };
        *self = at;
        Some(value)
    }

    /// Reads a number as a float.
    pub(super) fn float(&mut self) -> Option<f64> {
        let mut at = *self;
        let value = match at.byte()? {
            // A short float has the digits that it was written with, not those that widening adds.
            0xca => f32::from_bits(u32::try_from(at.number(4)?).ok()?).to_string().parse().ok()?,
            0xcb => f64::from_bits(at.number(8)?),
            #[allow(clippy::cast_precision_loss)] // counts and times
            _ => return self.integer().map(|number| number as f64),
        };
        *self = at;
        Some(value)
    }

    /// Reads true or false.
    pub(super) fn bool(&mut self) -> Option<bool> {
        let value = match self.rest.first()? {
            0xc2 => false,
            0xc3 => true,
            _ => return None,
        };
        self.byte()?;
        Some(value)
    }

    /// Reads a list of token ids.
    pub(super) fn ids(&mut self) -> Option<Vec<u32>> {
        let count = self.array()?;
        let mut ids = Vec::with_capacity(usize::try_from(count).ok()?.min(self.rest.len()));
        for _ in 0..count {
            ids.push(u32::try_from(self.uint()?).ok()?);
        }
        Some(ids)
    }

    /// Reads something with `read`; nil is `None` within.
    pub(super) fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        match self.nil() {
            Some(()) => Some(None),
            None => read(self).map(Some),
        }
    }

    /// Skips one value, however deep.
    pub(super) fn skip(&mut self) -> Option<()> {
        let mut due = 1_u64;
        while due > 0 {
            due -= 1;
            if let Some(items) = self.array() {
                due = due.checked_add(items)?;
            } else if let Some(members) = self.map() {
                due = due.checked_add(members.checked_mul(2)?)?;
            } else if self.text().is_none() && self.data().is_none() && self.scalar().is_none() {
                return None;
            }
        }
        Some(())
    }

    fn scalar(&mut self) -> Option<Value> {
        if self.nil().is_some() {
            return Some(Value::Null);
        }
        if let Some(value) = self.bool() {
            return Some(Value::Bool(value));
        }
        match self.integer() {
            Some(number) => match u64::try_from(number) {
                Ok(number) => Some(number.into()),
                Err(_) => i64::try_from(number).ok().map(Value::from),
            },
            None => self.float().map(|number| Number::from_f64(number).map_or(Value::Null, Value::Number)),
        }
    }

    /// Reads a value as JSON, as far as there is such a form; data is `null`.
    pub(super) fn json(&mut self) -> Option<Value> {
        self.json_within(MOST_DEEP)
    }

    fn json_within(&mut self, deep: u32) -> Option<Value> {
        let deeper = deep.checked_sub(1)?;
        if let Some(items) = self.array() {
            return (0..items).map(|_| self.json_within(deeper)).collect::<Option<Vec<Value>>>().map(Value::Array);
        }
        if let Some(members) = self.map() {
            let mut map = Map::new();
            for _ in 0..members {
                let name = self.text()?.to_owned();
                map.insert(name, self.json_within(deeper)?);
            }
            return Some(Value::Object(map));
        }
        if let Some(text) = self.text() {
            return Some(text.into());
        }
        if self.data().is_some() {
            return Some(Value::Null);
        }
        self.scalar()
    }
}

/// Appends a text.
pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    let length = text.len();
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short), _) if short < 32 => out.push(0xa0 | short),
        (Ok(short), _) => out.extend([0xd9, short]),
        (_, Ok(word)) => {
            out.push(0xda);
            out.extend(word.to_be_bytes());
        }
        _ => {
            out.push(0xdb);
            out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        }
    }
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_where_they_stand() {
        let bytes = [
            0x98, 0xc0, 0x2a, 0xcd, 1, 0, 0xff, 0xd1, 0xff, 0, 0xca, 0x3f, 0x19, 0x99, 0x9a, 0xa1, b'x', 0xd5, 3, 1, 2,
        ];
        let mut cursor = MsgpackCursor::new(&bytes);
        assert_eq!(cursor.array(), Some(8));
        assert_eq!((cursor.uint(), cursor.nil(), cursor.uint(), cursor.uint()), (None, Some(()), Some(42), Some(256)));
        assert_eq!((cursor.uint(), cursor.integer(), cursor.integer()), (None, Some(-1), Some(-256)));
        assert_eq!((cursor.float(), cursor.text(), cursor.data()), (Some(0.6), Some("x"), Some(&[1, 2][..])));
        assert_eq!((cursor.left(), cursor.byte()), (0, None));
        let mut whole = MsgpackCursor::new(&bytes);
        assert_eq!((whole.skip(), whole.left()), (Some(()), 0));
    }

    #[test]
    fn damaged_bytes_are_no_value() {
        for bytes in [
            &[][..],
            &[0xdd, 0xff, 0xff, 0xff, 0xff, 1],
            &[0xdb, 0xff, 0xff, 0xff, 0xff, b'a'],
            &[0xc1],
            &[0xd9, 5, 0xff],
        ] {
            let mut cursor = MsgpackCursor::new(bytes);
            assert_eq!(
                (cursor.skip(), MsgpackCursor::new(bytes).ids(), MsgpackCursor::new(bytes).json()),
                (None, None, None),
                "{bytes:?}"
            );
        }
        let deep = vec![0x91; 100_000];
        assert_eq!((MsgpackCursor::new(&deep).skip(), MsgpackCursor::new(&deep).json()), (None, None));
    }
}
