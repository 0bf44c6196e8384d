//! A hasher for maps whose keys are hashes themselves.

use std::hash::{BuildHasherDefault, Hasher};

/// Builds a [`HashIsKey`] for a map.
pub type BuildHashIsKey = BuildHasherDefault<HashIsKey>;

/// Takes a key, or a part of a longer one, as it is: hashes of blocks and prompts are spread evenly already.
#[derive(Debug, Default)]
pub struct HashIsKey(u64);

impl Hasher for HashIsKey {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
