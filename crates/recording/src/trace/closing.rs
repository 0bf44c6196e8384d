//! The end marker of a packed trace whose capture was closed properly: an empty last member, whose header comment holds what
//! was counted.
//!
//! Unpacking the file yields nothing of it, so that every reader of the public format accepts the file. Limits: a file
//! that is unpacked or packed again loses it, and plain files have none.
//!
//! See docs/decisions/0009-end-marker-in-gzip.md.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::CaptureEnd;
use base::lock::Lock;

/// Bytes of a file that are looked at; no closing member is as long.
const MOST_BYTES: usize = 4096;
/// A gzip header with a comment and nothing else: no time, no flags of the compressor, no operating system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0x10, 0, 0, 0, 0, 0, 255];
/// The end of the comment, nothing compressed, its checksum and its length.
const NOTHING: [u8; 11] = [0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[derive(Serialize, Deserialize)]
struct Comment {
    end: CaptureEnd,
}

pub(super) fn member(end: CaptureEnd) -> io::Result<Vec<u8>> {
    let mut comment = Comment { end };
    let mut text = serde_json::to_string(&comment)?;
    if text.len() > MOST_BYTES / 2 {
        comment.end.extra = Map::new();
        text = serde_json::to_string(&comment)?;
    }
    Ok([&HEADER, text.as_bytes(), &NOTHING].concat())
}

/// Reads the counts of a closing member at the end of `bytes`.
fn find(bytes: &[u8]) -> Option<CaptureEnd> {
    let bytes = bytes.strip_suffix(&NOTHING)?;
    let start = bytes.windows(HEADER.len()).rposition(|window| window == HEADER)?;
    let comment: Comment = serde_json::from_slice(bytes.get(start + HEADER.len()..)?).ok()?;
    Some(comment.end)
}

/// The last bytes of a packed input, known once it was read.
#[derive(Debug, Clone, Default)]
pub(super) struct LastBytes(Arc<Lock<Vec<u8>>>);

impl LastBytes {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let tail = Self::default();
        tail.follow(bytes);
        tail
    }

    /// Of a file as it is now.
    pub(super) fn of_file(mut file: &File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(MOST_BYTES as u64)))?;
        let mut bytes = Vec::with_capacity(MOST_BYTES);
        file.take(MOST_BYTES as u64).read_to_end(&mut bytes)?;
        Ok(Self::of(&bytes))
    }

    pub(super) fn follow(&self, bytes: &[u8]) {
        let mut tail = self.0.lock();
        let added = bytes.get(bytes.len().saturating_sub(MOST_BYTES)..).unwrap_or_default();
        let surplus = (tail.len() + added.len()).saturating_sub(MOST_BYTES);
        tail.drain(..surplus);
        tail.extend_from_slice(added);
    }

    /// Returns the counts of the closing member, if there is one.
    pub(super) fn end(&self) -> Option<CaptureEnd> {
        find(&self.0.lock())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, bufread::MultiGzDecoder, write::GzEncoder};
    use serde_json::json;

    use super::*;

    fn end() -> CaptureEnd {
        let extra = json!({"ids_incomplete": 2, "é": "\u{0}\""}).as_object().unwrap().clone();
        CaptureEnd { records: 7, dropped: 1, extra }
    }

    #[test]
    fn it_unpacks_to_nothing_and_is_found_again() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&[b'x'; 9000]).unwrap();
        let mut bytes = encoder.finish().unwrap();
        assert_eq!(LastBytes::of(&bytes).end(), None);
        bytes.extend(member(end()).unwrap());
        let mut unpacked = Vec::new();
        MultiGzDecoder::new(&*bytes).read_to_end(&mut unpacked).unwrap();
        assert_eq!(unpacked, [b'x'; 9000]);
        let tail = LastBytes::default();
        bytes.chunks(7).for_each(|piece| tail.follow(piece));
        assert_eq!((tail.end(), LastBytes::of(&bytes).end()), (Some(end()), Some(end())));
        for length in 0..bytes.len() {
            assert_eq!(LastBytes::of(&bytes[..length]).end(), None, "{length}");
        }
    }

    #[test]
    fn it_is_never_longer_than_what_is_looked_at() {
        let mut long = end();
        long.extra.insert("x".to_owned(), "y".repeat(MOST_BYTES).into());
        let found = LastBytes::of(&member(long).unwrap()).end();
        assert_eq!(found, Some(CaptureEnd { extra: Map::new(), ..end() }));
    }
}
