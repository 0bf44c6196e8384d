//! A limit of bytes that several holders share.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Bytes that several holders have: a limit for all of them together.
#[derive(Debug, Clone)]
pub struct HeldBytes {
    held: Arc<AtomicU64>,
    most: u64,
}

/// The bytes that one holder has of them; given back when it is dropped.
#[derive(Debug)]
pub struct HeldShare {
    of: HeldBytes,
    bytes: u64,
}

impl HeldBytes {
    /// A limit of so many bytes.
    #[must_use]
    pub fn new(most: u64) -> Self {
        Self { held: Arc::default(), most }
    }

    /// A share that holds nothing yet.
    #[must_use]
    pub fn share(&self) -> HeldShare {
        HeldShare { of: self.clone(), bytes: 0 }
    }

    /// Bytes of all holders.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }
}

impl HeldShare {
    /// Adds bytes; false where all holders have too many together. They count either way.
    #[must_use]
    pub fn add(&mut self, bytes: u64) -> bool {
        self.bytes += bytes;
        self.of.held.fetch_add(bytes, Relaxed).saturating_add(bytes) <= self.of.most
    }

    /// Bytes of this holder.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives all of them back.
    pub fn clear(&mut self) {
        self.of.held.fetch_sub(std::mem::take(&mut self.bytes), Relaxed);
    }
}

impl Drop for HeldShare {
    fn drop(&mut self) {
        self.clear();
    }
}
