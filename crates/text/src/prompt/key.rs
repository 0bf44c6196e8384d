//! The key of keyed hashes and of permuted ids.
//!
//! See docs/decisions/0029-keyed-hashes-are-siphash.md.

use std::{fmt, hash::Hasher, io, path::Path};

use siphasher::sip::SipHasher24;

/// The least that a key file holds, in bytes: as many as there are in the key.
const SHORTEST_FILE: usize = 16;

/// A secret of 128 bits, made of a file's bytes. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct HashKey {
    halves: (u64, u64),
}

/// A key that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum HashKeyError {
    /// The file cannot be read.
    #[error("cannot read the key file {path}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The file holds too little to be a secret.
    #[error("the key file {0} holds fewer than 16 bytes; make one with: head -c 32 /dev/urandom > {0}")]
    Short(String),
}

impl HashKey {
    /// The key that belongs to these bytes. They should hold 16 random bytes or more.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let half = |which| hash(which, which, &[bytes]);
        Self { halves: (half(1), half(2)) }
    }

    /// Reads a key file; white space at its end does not count.
    ///
    /// # Errors
    /// When it cannot be read, or holds fewer than 16 bytes.
    pub fn read(path: &Path) -> Result<Self, HashKeyError> {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|source| HashKeyError::Unreadable { path: name.clone(), source })?;
        let bytes = bytes.trim_ascii_end();
        if bytes.len() < SHORTEST_FILE { Err(HashKeyError::Short(name)) } else { Ok(Self::new(bytes)) }
    }

    /// Names the key without giving it away: equal for equal keys.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{:016x}", self.hash(b"id", &[]))
    }

    /// Hashes bytes for one purpose.
    pub(super) fn hash(&self, purpose: &[u8], bytes: &[u8]) -> u64 {
        hash(self.halves.0, self.halves.1, &[purpose, &[0], bytes])
    }
}

fn hash(one: u64, other: u64, parts: &[&[u8]]) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(one, other);
    parts.iter().for_each(|part| hasher.write(part));
    hasher.finish()
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HashKey({})", self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_has_to_hold_a_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        assert!(matches!(HashKey::read(&path), Err(HashKeyError::Unreadable { .. })));
        std::fs::write(&path, "short\n\n\n\n\n\n\n\n\n\n\n\n").unwrap();
        assert!(matches!(HashKey::read(&path), Err(HashKeyError::Short(_))));
        std::fs::write(&path, "a key that is long enough\n").unwrap();
        let key = HashKey::read(&path).unwrap();
        assert_eq!(key, HashKey::new(b"a key that is long enough"));
        assert_ne!(key.id(), HashKey::new(b"a key that is long enougi").id());
        assert_eq!(format!("{key:?}"), format!("HashKey({})", key.id()));
    }
}
