//! Unpacks gzip data, every member of it.
//!
//! Each byte before a damage is handed out before the damage is reported, however the data is cut into reads: so what is
//! still readable of a file does not depend on buffers.

use std::io::{self, BufRead, Read};

use flate2::{Decompress, FlushDecompress, Status};

use super::TraceError;

const BUFFER: usize = 128 * 1024;
/// The largest window that gzip knows, as a power of two.
const WINDOW: u8 = 15;

/// Unpacks gzip data; `name` stands for the file in messages.
///
/// # Errors
/// [`TraceError::Io`] where the data is damaged or cut.
pub fn gunzip(name: &str, packed: &[u8]) -> Result<Vec<u8>, TraceError> {
    let mut whole = Vec::with_capacity(packed.len().saturating_mul(4));
    Gunzip::new(packed).read_to_end(&mut whole).map_err(|source| TraceError::Io {
        path: name.into(),
        doing: "unpack",
        source,
    })?;
    Ok(whole)
}

/// Unpacks gzip data; `None` if it is not gzip, or unpacks to more than `most` bytes.
#[must_use]
pub fn gunzip_within(packed: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    let more = most as u64 + 1;
    Gunzip::new(packed).take(more).read_to_end(&mut whole).ok()?;
    (whole.len() <= most).then_some(whole)
}

/// Reader of gzip data. Data that ends inside a member is [`io::ErrorKind::UnexpectedEof`], and damaged data
/// [`io::ErrorKind::InvalidData`].
pub(super) struct Gunzip<R> {
    packed: R,
    member: Decompress,
    /// A member has begun and not ended; there is at least one.
    is_within: bool,
    buffer: Box<[u8]>,
    given: usize,
    filled: usize,
    damage: Option<io::Error>,
}

impl<R: BufRead> Gunzip<R> {
    pub(super) fn new(packed: R) -> Self {
        let buffer = vec![0; BUFFER].into_boxed_slice();
        Self { packed, member: new_member(), is_within: true, buffer, given: 0, filled: 0, damage: None }
    }

    /// Unpacks some bytes into the buffer, none at the end of the data.
    fn advance(&mut self) -> io::Result<()> {
        (self.given, self.filled) = (0, 0);
        while self.filled == 0 {
            if let Some(damage) = self.damage.take() {
                return Err(damage);
            }
            if !self.is_within && self.packed.fill_buf()?.is_empty() {
                return Ok(());
            }
            let (made, state) = inflate(&mut self.member, &mut self.packed, &mut self.buffer)?;
            (self.filled, self.is_within) = (made, true);
            match state {
                Ok(MemberState::Within) => {}
                Ok(MemberState::Ended) => (self.member, self.is_within) = (new_member(), false),
                Ok(MemberState::Cut) => {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the gzip data ends inside a member"));
                }
                Err(damage) => self.damage = Some(damage),
            }
        }
        Ok(())
    }
}

/// State of a gzip member after some bytes of it.
pub(super) enum MemberState {
    Within,
    Ended,
    /// The data ends inside it.
    Cut,
}

pub(super) fn new_member() -> Decompress {
    Decompress::new_gzip(WINDOW)
}

/// Unpacks some bytes of a member. Returns how many they are, and the member's state after them, or its damage.
pub(super) fn inflate(
    member: &mut Decompress,
    packed: &mut impl BufRead,
    into: &mut [u8],
) -> io::Result<(usize, io::Result<MemberState>)> {
    let bytes = packed.fill_buf()?;
    let is_over = bytes.is_empty();
    let (taken, made) = (member.total_in(), member.total_out());
    let status = member.decompress(bytes, into, FlushDecompress::None);
    let made = size(member.total_out() - made);
    packed.consume(size(member.total_in() - taken));
    let state = match status {
        Ok(Status::StreamEnd) => Ok(MemberState::Ended),
        Ok(Status::Ok | Status::BufError) if is_over && made == 0 => Ok(MemberState::Cut),
        Ok(Status::Ok | Status::BufError) => Ok(MemberState::Within),
        Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
    };
    Ok((made, state))
}

fn size(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

impl<R: BufRead> BufRead for Gunzip<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.given == self.filled {
            self.advance()?;
        }
        Ok(self.buffer.get(self.given..self.filled).unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        self.given = self.filled.min(self.given + count);
    }
}

impl<R: BufRead> Read for Gunzip<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(into)?;
        self.consume(read);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Write};

    use flate2::{Compression, bufread::MultiGzDecoder, write::GzEncoder};
    use proptest::prelude::*;

    use super::*;

    fn packed(parts: &[&[u8]]) -> Vec<u8> {
        let pack = |part: &&[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(part).unwrap();
            encoder.finish().unwrap()
        };
        parts.iter().flat_map(pack).collect()
    }

    fn text() -> Vec<u8> {
        (0..4000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_string().into_bytes()).collect()
    }

    fn unpacked(packed: impl BufRead) -> (Vec<u8>, Option<io::ErrorKind>) {
        let mut bytes = Vec::new();
        let error = Gunzip::new(packed).read_to_end(&mut bytes).err();
        (bytes, error.map(|error| error.kind()))
    }

    #[test]
    fn members_are_joined() {
        assert_eq!(unpacked(&*packed(&[b"one,", b"", b"two"])), (b"one,two".to_vec(), None));
        assert_eq!(unpacked(&*packed(&[b""])), (Vec::new(), None));
        assert_eq!(unpacked(&[][..]), (Vec::new(), Some(io::ErrorKind::UnexpectedEof)));
        assert_eq!(unpacked(&*packed(&[&vec![b' '; 5 << 20]])).0.len(), 5 << 20);
    }

    #[test]
    fn a_checksum_is_checked_and_what_it_is_of_comes_first() {
        let mut bytes = packed(&[b"one,", b"two"]);
        let checksum = bytes.len() - 8;
        bytes[checksum] ^= 1;
        assert_eq!(unpacked(&*bytes), (b"one,two".to_vec(), Some(io::ErrorKind::InvalidData)));
        bytes[checksum] ^= 1;
        bytes.extend_from_slice(b"more");
        assert_eq!(unpacked(&*bytes), (b"one,two".to_vec(), Some(io::ErrorKind::InvalidData)));
    }

    #[test]
    fn a_cut_gives_what_is_before_it() {
        let text = text();
        let bytes = packed(&[&text, b"more"]);
        for length in (0..bytes.len()).step_by(97) {
            let (read, error) = unpacked(&bytes[..length]);
            assert!(text.starts_with(&read));
            assert_eq!(error, Some(io::ErrorKind::UnexpectedEof), "{length}");
        }
    }

    proptest! {
        #[test]
        fn damage_is_the_same_however_it_is_read(at in any::<prop::sample::Index>(), with in 1..=255_u8, buffer in 1..5000_usize) {
            let mut bytes = packed(&[b"one,", &text(), &text()]);
            let at = at.index(bytes.len());
            bytes[at] ^= with;
            let whole = unpacked(&*bytes);
            prop_assert_eq!(&unpacked(BufReader::with_capacity(buffer, &*bytes)), &whole);
            let mut other = Vec::new();
            let other_error = MultiGzDecoder::new(&*bytes).read_to_end(&mut other).err();
            prop_assert!(whole.0.starts_with(&other), "at least as much as the usual decoder gives");
            prop_assert_eq!(whole.1.is_some(), other_error.is_some());
        }
    }
}
