//! Reads MessagePack. A length that a peer announces reserves no memory: items are read before they are kept.

use super::MsgpackValue;

/// Depth of values within values.
pub const MOST_DEPTH: usize = 64;

/// Number of values in a message; each takes about 32 bytes.
pub const MOST_VALUES: usize = 4 << 20;

/// What is wrong with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MsgpackError {
    /// They end within a value.
    #[error("it ends at byte {0}, within a value")]
    Ended(usize),
    /// A byte begins no value.
    #[error("byte {0} begins no value of MessagePack")]
    Marker(usize),
    /// Values are within each other too often.
    #[error("values are nested more than {MOST_DEPTH} deep at byte {0}")]
    Deep(usize),
    /// There are too many values.
    #[error("it has more than {MOST_VALUES} values")]
    Many,
    /// Bytes follow after the value.
    #[error("bytes follow after the value that ends at byte {0}")]
    Trailing(usize),
}

impl MsgpackValue {
    /// Reads a value that takes all of the bytes.
    ///
    /// # Errors
    /// Where they are none, or more than is taken.
    pub fn read(bytes: &[u8]) -> Result<Self, MsgpackError> {
        let mut reader = MsgpackReader { bytes, at: 0, values: 0 };
        let value = reader.value(0)?;
        if reader.at == bytes.len() { Ok(value) } else { Err(MsgpackError::Trailing(reader.at)) }
    }
}

struct MsgpackReader<'a> {
    bytes: &'a [u8],
    at: usize,
    values: usize,
}

impl<'a> MsgpackReader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], MsgpackError> {
        let end = self.at.checked_add(length).ok_or(MsgpackError::Ended(self.at))?;
        let taken = self.bytes.get(self.at..end).ok_or(MsgpackError::Ended(self.bytes.len()))?;
        self.at = end;
        Ok(taken)
    }

    /// A number of so many bytes, at most 8, big-endian.
    fn number(&mut self, width: usize) -> Result<u64, MsgpackError> {
        Ok(self.take(width)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn length(&mut self, width: usize) -> Result<usize, MsgpackError> {
        let at = self.at;
        usize::try_from(self.number(width)?).map_err(|_| MsgpackError::Ended(at))
    }

    /// A number with sign of so many bytes.
    fn signed(&mut self, width: usize) -> Result<MsgpackValue, MsgpackError> {
        let shift = 64_usize.saturating_sub(8 * width);
        let number = (self.number(width)? << shift).cast_signed() >> shift;
        Ok(u64::try_from(number).map_or(MsgpackValue::Int(number), MsgpackValue::Uint))
    }

    fn text(&mut self, length: usize) -> Result<MsgpackValue, MsgpackError> {
        Ok(MsgpackValue::Text(String::from_utf8_lossy(self.take(length)?).into_owned()))
    }

    fn blob(&mut self, width: usize) -> Result<MsgpackValue, MsgpackError> {
        let length = self.length(width)?;
        Ok(MsgpackValue::Bytes(self.take(length)?.to_vec()))
    }

    fn ext(&mut self, length: usize) -> Result<MsgpackValue, MsgpackError> {
        let [kind] = self.number(1)?.to_be_bytes().last_chunk::<1>().copied().unwrap_or_default();
        Ok(MsgpackValue::Ext(i8::from_be_bytes([kind]), self.take(length)?.to_vec()))
    }

    fn array(&mut self, length: usize, depth: usize) -> Result<MsgpackValue, MsgpackError> {
        let mut items = Vec::new();
        for _ in 0..length {
            items.push(self.value(depth + 1)?);
        }
        Ok(MsgpackValue::Array(items))
    }

    fn map(&mut self, length: usize, depth: usize) -> Result<MsgpackValue, MsgpackError> {
        let mut fields = Vec::new();
        for _ in 0..length {
            let key = self.value(depth + 1)?;
            fields.push((key, self.value(depth + 1)?));
        }
        Ok(MsgpackValue::Map(fields))
    }

    fn value(&mut self, depth: usize) -> Result<MsgpackValue, MsgpackError> {
        let at = self.at;
        if depth > MOST_DEPTH {
            return Err(MsgpackError::Deep(at));
        }
        self.values += 1;
        if self.values > MOST_VALUES {
            return Err(MsgpackError::Many);
        }
        let [.., marker] = self.number(1)?.to_be_bytes();
        let short = usize::from(marker & 0x0f);
        match marker {
            0x00..=0x7f => Ok(MsgpackValue::Uint(marker.into())),
            0x80..=0x8f => self.map(short, depth),
            0x90..=0x9f => self.array(short, depth),
            0xa0..=0xbf => self.text(usize::from(marker & 0x1f)),
            0xc0 => Ok(MsgpackValue::Nil),
            0xc1 => Err(MsgpackError::Marker(at)),
            0xc2 | 0xc3 => Ok(MsgpackValue::Bool(marker == 0xc3)),
            0xc4..=0xc6 => self.blob(1 << (marker - 0xc4)),
            0xc7..=0xc9 => {
                let length = self.length(1 << (marker - 0xc7))?;
                self.ext(length)
            }
            0xca => Ok(MsgpackValue::Float(f32::from_bits(u32::try_from(self.number(4)?).unwrap_or_default()).into())),
            0xcb => Ok(MsgpackValue::Float(f64::from_bits(self.number(8)?))),
            0xcc..=0xcf => Ok(MsgpackValue::Uint(self.number(1 << (marker - 0xcc))?)),
            0xd0..=0xd3 => self.signed(1 << (marker - 0xd0)),
            0xd4..=0xd8 => self.ext(1 << (marker - 0xd4)),
            0xd9..=0xdb => {
                let length = self.length(1 << (marker - 0xd9))?;
                self.text(length)
            }
            0xdc | 0xdd => {
                let length = self.length(2 << (marker - 0xdc))?;
                self.array(length, depth)
            }
            0xde | 0xdf => {
                let length = self.length(2 << (marker - 0xde))?;
                self.map(length, depth)
            }
            0xe0..=0xff => Ok(MsgpackValue::Int(i8::from_be_bytes([marker]).into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_kind_are_read_back_and_agree_with_another_reader() {
        let numbers = [0, 127, 128, 255, 256, 65_535, 65_536, u64::MAX].map(MsgpackValue::Uint);
        let below =
            [-1, -32, -33, -128, -129, -32_768, -32_769, i64::from(i32::MIN) - 1, i64::MIN].map(MsgpackValue::Int);
        let others = [MsgpackValue::Nil, true.into(), 1.5.into(), "é".into(), MsgpackValue::Bytes(vec![7; 300])];
        let exts = [1, 2, 3, 4, 8, 16, 300].map(|length| MsgpackValue::Ext(3, vec![7; length]));
        let lists = [15, 16, 70_000].map(|length| MsgpackValue::Array(vec![MsgpackValue::Nil; length]));
        let values = numbers.into_iter().chain(below).chain(others).chain(exts).chain(lists);
        let all = MsgpackValue::Map(values.enumerate().map(|(at, value)| (at.into(), value)).collect());
        let bytes = all.to_bytes();
        assert_eq!(MsgpackValue::read(&bytes), Ok(all));
        let mut again = Vec::new();
        rmpv::encode::write_value(&mut again, &rmpv::decode::read_value(&mut bytes.as_slice()).unwrap()).unwrap();
        assert_eq!(again, bytes);
    }

    #[test]
    fn what_is_no_value_is_an_error_and_reserves_nothing() {
        for (bytes, error) in [
            (&b""[..], MsgpackError::Ended(0)),
            (b"\xc1", MsgpackError::Marker(0)),
            (b"\xdd\xff\xff\xff\xff\x01", MsgpackError::Ended(6)),
            (b"\xdf\xff\xff\xff\xff", MsgpackError::Ended(5)),
            (b"\xc6\xff\xff\xff\xff", MsgpackError::Ended(5)),
            (b"\x01\x02", MsgpackError::Trailing(1)),
            (&[0x91; 100], MsgpackError::Deep(65)),
        ] {
            assert_eq!(MsgpackValue::read(bytes), Err(error));
        }
        let many = [b"\xdd\xff\xff\xff\xff".as_slice(), &vec![0xc0; MOST_VALUES + 1]].concat();
        assert_eq!(MsgpackValue::read(&many), Err(MsgpackError::Many));
    }
}
