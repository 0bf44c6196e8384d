//! Unpacking the members of a large gzip file on several threads.
//!
//! A file has no index of its members, so it is cut where a header seems to be, and each piece is
//! unpacked by itself. A piece that holds whole members with right checksums ends where a member ends, so by induction
//! the next one starts where a member starts. From the first piece that does not (its cut was no header, it is damaged or
//! cut short, it unpacks to very much, no header came for long) the rest of the file is unpacked in one go on one thread,
//! as if nothing had been tried: errors and the bytes before them are the same.
//!
//! Limits: files only, for it goes back. Some megabytes per core are held at a time.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Cursor, Read, Seek, SeekFrom},
    iter,
    sync::Arc,
};

use super::{LoadProgress, gunzip::Gunzip, pipeline::Pipeline};
use base::lock::Lock;

/// A packed file of fewer bytes is not worth the threads.
pub(super) const WORTHWHILE: u64 = 4 << 20;
/// Bytes of a piece at least, and at the most.
const PIECE: (usize, usize) = (512 << 10, 8 << 20);
/// Bytes that a piece may unpack to; more is unpacked bit by bit.
const MOST_UNPACKED: u64 = 64 << 20;
const BUFFER: usize = 256 << 10;
const HEADER: usize = 10;

pub(super) struct GzipMembers {
    file: Arc<Lock<File>>,
    progress: Arc<LoadProgress>,
    blocks: Pipeline<MemberBlock>,
    current: Cursor<Vec<u8>>,
}

/// Block of a file that the reader gets at a time.
enum MemberBlock {
    /// Of a piece that ends here in the file.
    Unpacked(Vec<u8>, u64),
    /// Of the rest, after which comes its error.
    Rest(io::Result<Vec<u8>>),
    /// From here on the file cannot be cut.
    RestFrom(u64),
}

impl GzipMembers {
    pub(super) fn new(file: File, progress: Arc<LoadProgress>) -> io::Result<Self> {
        let file = Arc::new(Lock::new(file));
        let cutter = Cutter { input: SharedFile::new(&file, 0), at: 0, kept: Vec::new(), over: false };
        let work = |FilePart { from, packed }| match packed {
            Some(packed) => unpack(&packed).map_or(MemberBlock::RestFrom(from), |unpacked| {
                MemberBlock::Unpacked(unpacked, from + packed.len() as u64)
            }),
            None => MemberBlock::RestFrom(from),
        };
        let blocks = Pipeline::start("trace-unpack", cutter, work)?;
        Ok(Self { file, progress, blocks, current: Cursor::default() })
    }

    /// Starts to unpack the rest, on a thread of its own.
    fn rest(&self, from: u64) -> io::Result<Pipeline<MemberBlock>> {
        let rest = SharedFile { progress: Some(Arc::clone(&self.progress)), ..SharedFile::new(&self.file, from) };
        let mut rest = Gunzip::new(BufReader::with_capacity(BUFFER, rest));
        let mut is_over = false;
        let next = move || {
            let block = rest.fill_buf().map(<[u8]>::to_vec);
            rest.consume(block.as_ref().map_or(0, Vec::len));
            let was_over = std::mem::replace(&mut is_over, block.as_ref().map_or(true, Vec::is_empty));
            (!was_over).then_some(block)
        };
        Pipeline::start("trace-unpack", iter::from_fn(next), MemberBlock::Rest)
    }
}

impl BufRead for GzipMembers {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.current.fill_buf()?.is_empty() {
            match self.blocks.next()? {
                None => break,
                Some(MemberBlock::Unpacked(bytes, to)) => {
                    self.progress.has_read(to);
                    self.current = Cursor::new(bytes);
                }
                Some(MemberBlock::Rest(bytes)) => self.current = Cursor::new(bytes?),
                Some(MemberBlock::RestFrom(from)) => self.blocks = self.rest(from)?,
            }
        }
        self.current.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.current.consume(count);
    }
}

impl Read for GzipMembers {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(into)?;
        self.consume(read);
        Ok(read)
    }
}

/// The members that a piece holds; `None` where it is not whole members, or unpacks to very much.
fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    let mut unpacked = Vec::with_capacity(packed.len().saturating_mul(3));
    let read = Gunzip::new(packed).take(MOST_UNPACKED).read_to_end(&mut unpacked).ok()?;
    ((read as u64) < MOST_UNPACKED).then_some(unpacked)
}

/// A part of a file, where it begins; without bytes it stands for the rest, which cannot be cut.
struct FilePart {
    from: u64,
    packed: Option<Vec<u8>>,
}

/// Cuts a file where members seem to start.
struct Cutter {
    input: SharedFile,
    at: u64,
    /// Bytes that were read and belong to the next piece.
    kept: Vec<u8>,
    over: bool,
}

impl Iterator for Cutter {
    type Item = FilePart;

    fn next(&mut self) -> Option<FilePart> {
        if self.over {
            return None;
        }
        let from = self.at;
        let packed = self.cut();
        match &packed {
            Some(packed) if packed.is_empty() => return None,
            Some(packed) => self.at += packed.len() as u64,
            None => self.over = true,
        }
        Some(FilePart { from, packed })
    }
}

impl Cutter {
    /// The next piece, empty after the last one; `None` where it has no end in sight or cannot be read.
    fn cut(&mut self) -> Option<Vec<u8>> {
        let (least, most) = PIECE;
        let mut piece = std::mem::take(&mut self.kept);
        let mut looked = least;
        while piece.len() < most {
            let read = self.input.by_ref().take(BUFFER as u64).read_to_end(&mut piece).ok()?;
            if let Some(start) = piece.get(looked..).and_then(|unseen| unseen.windows(HEADER).position(may_be_header)) {
                self.kept = piece.split_off(looked + start);
                return Some(piece);
            }
            looked = looked.max((piece.len() + 1).saturating_sub(HEADER));
            if read == 0 {
                self.over = true;
                return Some(piece);
            }
        }
        None
    }
}

/// Returns true if a gzip member could start with these bytes.
pub(super) fn may_be_header(bytes: &[u8]) -> bool {
    matches!(bytes, [0x1f, 0x8b, 8, 0..=0x1f, _, _, _, _, 0 | 2 | 4, 0..=13 | 255, ..])
}

/// A file that others read too, from some place on.
pub(crate) struct SharedFile {
    file: Arc<Lock<File>>,
    at: u64,
    progress: Option<Arc<LoadProgress>>,
}

impl SharedFile {
    pub(crate) fn new(file: &Arc<Lock<File>>, at: u64) -> Self {
        Self { file: Arc::clone(file), at, progress: None }
    }
}

impl Read for SharedFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut file = self.file.lock();
        file.seek(SeekFrom::Start(self.at))?;
        let read = file.read(into)?;
        self.at += read as u64;
        if let Some(progress) = &self.progress {
            progress.has_read(self.at);
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    /// Bytes that do not pack well, in members of the given sizes.
    fn members(sizes: &[usize]) -> (Vec<u8>, Vec<u8>) {
        let (mut plain, mut packed, mut state) = (Vec::new(), Vec::new(), 1_u64);
        for size in sizes {
            let start = plain.len();
            while plain.len() < start + size {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                plain.extend_from_slice(&state.to_le_bytes()[2..]);
            }
            let mut encoder = GzEncoder::new(&mut packed, Compression::fast());
            encoder.write_all(&plain[start..]).unwrap();
            encoder.finish().unwrap();
        }
        (plain, packed)
    }

    /// The bytes up to the first error, and the error: by pieces, and in one go.
    fn both(packed: &[u8]) -> [(Vec<u8>, Option<String>); 2] {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(packed).unwrap();
        let mut by_pieces = GzipMembers::new(file, Arc::default()).unwrap();
        let mut in_one_go = Gunzip::new(packed);
        let inputs: [&mut dyn BufRead; 2] = [&mut by_pieces, &mut in_one_go];
        inputs.map(|input| {
            let mut bytes = Vec::new();
            let error = input.read_to_end(&mut bytes).err();
            (bytes, error.map(|error| format!("{:?} {error}", error.kind())))
        })
    }

    #[test]
    fn the_pieces_are_the_whole() {
        for sizes in [&[10, 20, 30][..], &[900_000, 900_000, 5], &[9_000_000, 100], &[0, 700_000, 0, 0, 700_000]] {
            let (plain, packed) = members(sizes);
            let [(by_pieces, error), _] = both(&packed);
            assert!(by_pieces == plain, "{sizes:?}");
            assert_eq!(error, None);
        }
    }

    #[test]
    fn a_header_in_the_data_does_not_mislead_the_reader() {
        let (_, header) = members(&[5]);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::none());
        (0..200_000).for_each(|_| encoder.write_all(&header).unwrap());
        let [by_pieces, in_one_go] = both(&encoder.finish().unwrap());
        assert!(by_pieces == in_one_go && in_one_go.1.is_none());
    }

    #[test]
    fn damage_is_found_where_it_is() {
        let (_, packed) = members(&[800_000; 5]);
        let changes: [fn(&mut Vec<u8>); 6] = [
            |packed| packed.truncate(packed.len() - 1),
            |packed| packed.truncate(2_000_000),
            |packed| packed[2_000_000] ^= 0x55,
            |packed| packed[0] = 0,
            |packed| packed.extend_from_slice(b"garbage"),
            |packed| packed.extend_from_slice(&[0; 100]),
        ];
        for (at, change) in changes.iter().enumerate() {
            let mut packed = packed.clone();
            change(&mut packed);
            let [by_pieces, in_one_go] = both(&packed);
            assert!(in_one_go.1.is_some(), "{at}");
            assert_eq!(by_pieces.1, in_one_go.1, "{at}");
            assert!(by_pieces.0 == in_one_go.0, "{at}: {} and {} bytes", by_pieces.0.len(), in_one_go.0.len());
        }
    }

    #[test]
    fn what_unpacks_to_very_much_is_not_held() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        io::copy(&mut io::repeat(b' ').take(MOST_UNPACKED + 1), &mut encoder).unwrap();
        let bomb = encoder.finish().unwrap();
        assert_eq!(unpack(&bomb), None);
        let [by_pieces, in_one_go] = both(&bomb);
        assert!(by_pieces == in_one_go);
    }
}
