//! KV events as vLLM sends them: a step's events in MessagePack, `[time, [events], data parallel rank]`.
//!
//! An event is a map with its `type`, or, as in versions of vLLM before that, an array of its type and values. Hashes are
//! numbers, the last 8 bytes of each, or whole (`VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0` there). Source:
//! `vllm/distributed/kv_events.py` of vLLM 0.32.0. Nothing is sent here; `play::engine` does that.

use serde::Deserialize;

use super::kv_cache::{BlockHash, BlockStored, HashAlgorithm, KvCacheEvent};
use engine_core::msgpack::write::{array, bytes, float, map, nil, text, uint};

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
        let events: Vec<KvCacheEvent<'a>> = events.collect();
        if events.is_empty() {
            return None;
        }
        let mut out = Vec::with_capacity(256);
        array(&mut out, 3);
        float(&mut out, time);
        array(&mut out, events.len());
        for event in &events {
            self.event(&mut out, event);
        }
        uint(&mut out, u64::from(self.rank));
        Some(out)
    }

    fn event(&self, out: &mut Vec<u8>, event: &KvCacheEvent<'_>) {
        match event {
            KvCacheEvent::BlockStored(stored) => self.stored(out, stored),
            KvCacheEvent::BlockRemoved(hash) => {
                self.begin(out, "BlockRemoved", 3);
                self.field(out, "block_hashes");
                array(out, 1);
                self.hash(out, hash);
                self.field(out, "medium");
                text(out, MEDIUM);
                self.field(out, "group_idx");
                uint(out, GROUP);
            }
            KvCacheEvent::AllBlocksCleared => self.begin(out, "AllBlocksCleared", 0),
        }
    }

    fn stored(&self, out: &mut Vec<u8>, stored: &BlockStored<'_>) {
        // Events as arrays are older than sessions.
        let session_id = stored.session_id.filter(|_| self.encoding == EventEncoding::Map);
        self.begin(out, "BlockStored", 10 + usize::from(session_id.is_some()));
        self.field(out, "block_hashes");
        array(out, stored.block_hashes.len());
        stored.block_hashes.iter().for_each(|hash| self.hash(out, hash));
        self.field(out, "parent_block_hash");
        or_nil(out, stored.parent_block_hash, |out, hash| self.hash(out, hash));
        self.field(out, "token_ids");
        array(out, stored.token_ids.len());
        stored.token_ids.iter().for_each(|token| uint(out, u64::from(*token)));
        self.field(out, "block_size");
        uint(out, stored.block_size as u64);
        self.field(out, "lora_id");
        or_nil(out, stored.lora, |out, lora| uint(out, u64::from(lora.lora_int_id)));
        self.field(out, "medium");
        text(out, MEDIUM);
        self.field(out, "lora_name");
        or_nil(out, stored.lora, |out, lora| text(out, &lora.lora_name));
        self.field(out, "extra_keys");
        array(out, stored.block_hashes.len());
        for block in 0..stored.block_hashes.len() {
            match stored.extra_keys(block).count() {
                0 => nil(out),
                count => {
                    array(out, count);
                    stored.extra_keys(block).for_each(|key| text(out, key));
                }
            }
        }
        self.field(out, "group_idx");
        uint(out, GROUP);
        self.field(out, "kv_cache_spec_kind");
        text(out, KIND);
        if let Some(session_id) = session_id {
            self.field(out, "session_id");
            text(out, session_id);
        }
    }

    fn begin(&self, out: &mut Vec<u8>, name: &str, fields: usize) {
        match self.encoding {
            EventEncoding::Map => {
                map(out, fields + 1);
                text(out, "type");
            }
            EventEncoding::Array => array(out, fields + 1),
        }
        text(out, name);
    }

    /// Names the field whose value follows.
    fn field(&self, out: &mut Vec<u8>, name: &str) {
        if self.encoding == EventEncoding::Map {
            text(out, name);
        }
    }

    fn hash(&self, out: &mut Vec<u8>, hash: &BlockHash) {
        match self.hashes {
            EventHashes::Int => uint(out, hash.external()),
            EventHashes::Bytes => bytes(out, hash.digest(self.algorithm)),
        }
    }
}

fn or_nil<T>(out: &mut Vec<u8>, value: Option<T>, write: impl FnOnce(&mut Vec<u8>, T)) {
    match value {
        Some(value) => write(out, value),
        None => nil(out),
    }
}
