//! From a request's words to the ids that an engine sees, and back: block hashes over token ids.

mod hash;

pub use hash::{BlockHash, BlockHasher, PromptHashes};
