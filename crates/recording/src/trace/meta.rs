//! The first line of a trace file, and what is counted when it is closed.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use text::prompt::BlockHashAlgorithm;

/// The capture as a whole: engine, hashing, clock. Every field is optional, unknown keys are kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// Version of this project's additions to the public schema; absent in public files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<u32>,
    /// Name of the model that was served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Tokens per hashed prompt block; absent when the records carry no hashes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// Algorithm of block hashes; absent means [`BlockHashAlgorithm::Fnv1a64`], the public one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_hash: Option<BlockHashAlgorithm>,
    /// Names the key of keyed hashes (never the key itself); absent when hashes are not keyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash_key_id: Option<String>,
    /// The tokenizer that token ids belong to, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<TokenizerId>,
    /// Version of the engine, from its `/version`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vllm_version: Option<String>,
    /// The program that recorded, with its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorder: Option<String>,
    /// Wall-clock time of the capture's zero, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// Start of TTFT: `http` if it includes the front end's time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing_zero: Option<String>,
    /// Every other key (`gpu`, `tp`, `max_num_seqs`, `source`, `config_hash`, `upstream`, …), in file order.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Tokenizer of a trace's ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizerId {
    /// A name for people: a directory's or a model's.
    pub name: String,
    /// Fingerprint of the vocabulary (see [`text::prompt`]); equal fingerprints mean equal ids.
    pub fingerprint: String,
}

/// Counts of a capture that was closed properly.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CaptureEnd {
    /// Records written.
    pub records: u64,
    /// Records that could not be written or had to be dropped.
    #[serde(default)]
    pub dropped: u64,
    /// Every other key, in file order.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl CaptureEnd {
    /// This and another one counted together.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.records += other.records;
        self.dropped += other.dropped;
        self
    }
}
