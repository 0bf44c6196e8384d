//! From a request's words to the ids that an engine sees, and back: tokenizer, chat template, block hashes over token ids.
//!
//! Everything here is meant to give vLLM's ids and vLLM's text deltas exactly; deviations are in the documentation of
//! modules. Nothing here logs: prompts are private.

mod config;
mod content_format;
mod conversation;
mod detokenizer;
mod error;
mod fast_load;
mod hash;
mod hub;
mod ids_only;
mod jinja;
mod key;
mod locate;
mod media;
mod permute;
mod pieces;
mod segments;
mod tables;
mod template;
mod to_json;
mod token_bytes;
mod token_text;
mod tokenizer;
mod window;
mod words;

pub use conversation::Conversation;
pub use detokenizer::{Detokenizer, SkipSpecial};
pub use error::PromptError;
pub use hash::{BlockHashAlgorithm, BlockHasher, PromptHashes};
pub use hub::Download;
pub use key::{HashKey, HashKeyError};
pub use media::{MediaHashes, may_hold_media, media_block};
pub use permute::IdPermutation;
pub use tables::KnownTokenizer;
pub use template::ChatTemplate;
pub use tokenizer::{SpecialTokens, Tokenizer, TokenizerParts};
pub use window::DecodeWindow;
pub use words::WordTokens;
