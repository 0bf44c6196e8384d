//! KV events as vLLM sends them: a step's events in MessagePack, `[time, [events], data parallel rank]`.
//!
//! An event is a map with its `type`, or, as in versions of vLLM before that, an array of its type and values. Hashes are
//! numbers, the last 8 bytes of each, or whole (`VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0` there). Source:
//! `vllm/distributed/kv_events.py` of vLLM 0.32.0. Nothing is sent here; `play::engine` does that.

use serde::Deserialize;

use super::kv_cache::{BlockHash, BlockStored, HashAlgorithm, KvCacheEvent};
use engine_core::msgpack::MsgpackValue;

/// Form of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventEncoding {
    /// A map of its fields, `type` first.
    #[default]
    Map,
    /// An array: its type, then the values of its fields.
    Array,
}

/// Form of a block's hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventHashes {
    /// The number that its last 8 bytes are.
    #[default]
    Int,
    /// All of its bytes.
    Bytes,
}

/// Encoder of the events of an engine.
#[derive(Debug, Clone, Copy)]
pub struct EventEncoder {
    /// Form of events.
    pub encoding: EventEncoding,
    /// Form of hashes.
    pub hashes: EventHashes,
    /// The algorithm that the hashes are of.
    pub algorithm: HashAlgorithm,
    /// The engine's data parallel rank.
    pub rank: u32,
}

/// Medium of all events: the blocks are those of the GPU.
const MEDIUM: &str = "GPU";

/// The only group of blocks, and its kind.
const GROUP: u64 = 0;
const KIND: &str = "full_attention";

impl EventEncoder {
    /// Encodes the events of a step at a time in seconds since 1970; `None` where there are none.
    pub fn encode<'a>(&self, time: f64, events: impl Iterator<Item = KvCacheEvent<'a>>) -> Option<Vec<u8>> {
        let events: Vec<MsgpackValue> = events.map(|event| self.event(&event)).collect();
        if events.is_empty() {
            return None;
        }
        Some(MsgpackValue::Array(vec![time.into(), MsgpackValue::Array(events), self.rank.into()]).to_bytes())
    }

    fn event(&self, event: &KvCacheEvent<'_>) -> MsgpackValue {
        let mut fields: Vec<(&str, MsgpackValue)> = match event {
            KvCacheEvent::BlockStored(stored) => self.stored(stored),
            KvCacheEvent::BlockRemoved(hash) => vec![
                ("type", "BlockRemoved".into()),
                ("block_hashes", vec![self.hash(hash)].into()),
                ("medium", MEDIUM.into()),
                ("group_idx", GROUP.into()),
            ],
            KvCacheEvent::AllBlocksCleared => vec![("type", "AllBlocksCleared".into())],
        };
        if self.encoding == EventEncoding::Map {
            return MsgpackValue::map(fields);
        }
        // They are older than sessions.
        fields.retain(|(name, _)| *name != "session_id");
        MsgpackValue::Array(fields.into_iter().map(|(_, value)| value).collect())
    }

    fn stored(&self, stored: &BlockStored<'_>) -> Vec<(&'static str, MsgpackValue)> {
        let hashes: Vec<MsgpackValue> = stored.block_hashes.iter().map(|hash| self.hash(hash)).collect();
        let keys = |block| Some(stored.extra_keys(block).collect::<Vec<_>>()).filter(|keys| !keys.is_empty());
        let keys: Vec<Option<Vec<&str>>> = (0..hashes.len()).map(keys).collect();
        let mut fields = vec![
            ("type", "BlockStored".into()),
            ("block_hashes", hashes.into()),
            ("parent_block_hash", stored.parent_block_hash.map(|hash| self.hash(hash)).into()),
            ("token_ids", stored.token_ids.to_vec().into()),
            ("block_size", stored.block_size.into()),
            ("lora_id", stored.lora.map(|lora| lora.lora_int_id).into()),
            ("medium", MEDIUM.into()),
            ("lora_name", stored.lora.map(|lora| lora.lora_name.as_str()).into()),
            ("extra_keys", keys.into()),
            ("group_idx", GROUP.into()),
            ("kv_cache_spec_kind", KIND.into()),
        ];
        fields.extend(stored.session_id.map(|session| ("session_id", session.into())));
        fields
    }

    fn hash(&self, hash: &BlockHash) -> MsgpackValue {
        match self.hashes {
            EventHashes::Int => hash.external().into(),
            EventHashes::Bytes => MsgpackValue::Bytes(hash.digest(self.algorithm).to_vec()),
        }
    }
}
