//! How an engine and a front end meet: HELLO, the addresses, the ready answer, READY.
//!
//! Everything is a superset that front ends of 0.20 to 0.33 read: they pass over what they do not know.

use crate::{MessageError, msgpack::MsgpackValue};

/// The frame that an engine sends on every output socket when it dies.
pub const ENGINE_CORE_DEAD: &[u8] = b"ENGINE_CORE_DEAD";

/// Number of addresses that a front end may name, for inputs and outputs each.
const MOST_ADDRESSES: usize = 1024;

/// An engine's identity on its sockets: its rank, two bytes, little-endian.
#[must_use]
pub fn identity(rank: u16) -> [u8; 2] {
    rank.to_le_bytes()
}

/// Where an engine connects to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EngineAddresses {
    /// One for each client of the engine, which sends requests from there.
    pub inputs: Vec<String>,
    /// One for each client, which reads outputs there.
    pub outputs: Vec<String>,
    /// Where the coordinator of several ranks publishes.
    pub coordinator_input: Option<String>,
    /// Where it reads figures.
    pub coordinator_output: Option<String>,
    /// Whether ranks are to agree on each step, as those of mixtures of experts; before 0.14 whether there are several.
    pub are_in_lock_step: bool,
}

impl EngineAddresses {
    /// Reads the front end's answer to HELLO.
    ///
    /// # Errors
    /// Where it is no such answer, or names no addresses, or not as many for outputs as for inputs.
    pub fn read(bytes: &[u8]) -> Result<Self, MessageError> {
        let message = "EngineHandshakeMetadata";
        let value = MsgpackValue::read(bytes).map_err(|source| MessageError::Msgpack(message, source))?;
        let addresses = value.get("addresses");
        let absent = |field, wanted| MessageError::Field { message, field, wanted };
        let addresses = addresses.ok_or(absent("addresses", "a map"))?;
        let list = |field| {
            let items = addresses.get(field).and_then(MsgpackValue::as_array).unwrap_or_default();
            let texts: Option<Vec<String>> = items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
            texts
                .filter(|texts| (1..=MOST_ADDRESSES).contains(&texts.len()))
                .ok_or(absent(field, "a list of 1 to 1024 addresses"))
        };
        let one = |field| addresses.get(field).and_then(MsgpackValue::as_str).map(str::to_owned);
        let (inputs, outputs) = (list("inputs")?, list("outputs")?);
        if inputs.len() != outputs.len() {
            return Err(absent("outputs", "as long as inputs"));
        }
        let (coordinator_input, coordinator_output) = (one("coordinator_input"), one("coordinator_output"));
        // Front ends before 0.14 send the map with one rank too.
        let ranks = value.get("parallel_config").and_then(|config| config.get("data_parallel_size"));
        let are_in_lock_step = ranks.and_then(MsgpackValue::as_u64).is_some_and(|ranks| ranks > 1);
        Ok(Self { inputs, outputs, coordinator_input, coordinator_output, are_in_lock_step })
    }
}

/// The status with which an engine greets: `HELLO`.
#[must_use]
pub fn hello() -> Vec<u8> {
    MsgpackValue::map([("status", "HELLO".into()), ("local", false.into()), ("headless", true.into())]).to_bytes()
}

/// What an engine says of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadyResponse {
    /// Tokens of a prompt and its output.
    pub max_model_len: u32,
    /// Blocks of the KV cache.
    pub num_gpu_blocks: u32,
    /// Tokens of a block.
    pub block_size: u32,
    /// Version that it stands for.
    pub vllm_version: String,
    /// Number of ranks, and its own.
    pub data_parallel: (u16, u16),
    /// Requests that run at once.
    pub max_num_seqs: usize,
    /// Tokens of a step.
    pub max_num_batched_tokens: usize,
    /// Name of the engine; vLLM's are decimal numbers.
    pub instance_id: String,
    /// Number of adapters that run at once; 0 without any.
    pub max_loras: u32,
    /// Whether it can sleep.
    pub enable_sleep_mode: bool,
    /// Configuration of its KV events.
    pub kv_events_config: MsgpackValue,
}

impl ReadyResponse {
    /// The first frame on each input socket.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (ranks, rank) = self.data_parallel;
        let tokens = u64::from(self.num_gpu_blocks) * u64::from(self.block_size);
        let concurrency = tokens as f64 / f64::from(self.max_model_len.max(1));
        let nil = MsgpackValue::Nil;
        MsgpackValue::map([
            ("max_model_len", self.max_model_len.into()),
            ("num_gpu_blocks", self.num_gpu_blocks.into()),
            ("block_size", self.block_size.into()),
            ("dp_stats_address", nil.clone()),
            ("dtype", "bfloat16".into()),
            ("vllm_version", self.vllm_version.as_str().into()),
            ("world_size", 1_u32.into()),
            ("data_parallel_size", u32::from(ranks).into()),
            ("tensor_parallel_size", 1_u32.into()),
            ("pipeline_parallel_size", 1_u32.into()),
            ("decode_context_parallel_size", 1_u32.into()),
            ("data_parallel_rank", u32::from(rank).into()),
            ("max_num_seqs", self.max_num_seqs.into()),
            ("max_num_batched_tokens", self.max_num_batched_tokens.into()),
            ("instance_id", self.instance_id.as_str().into()),
            ("supports_lora", (self.max_loras > 0).into()),
            ("max_loras", self.max_loras.into()),
            ("mamba_block_size", nil.clone()),
            ("kv_cache_size_tokens", tokens.into()),
            ("kv_cache_max_concurrency", concurrency.into()),
            ("kv_events_config", self.kv_events_config.clone()),
            ("weight_transfer_backend", nil.clone()),
            ("enable_sleep_mode", self.enable_sleep_mode.into()),
            ("supports_draft_weight_updates", false.into()),
            ("effective_attention_block_size", nil),
        ])
        .to_bytes()
    }

    /// The status that ends the handshake: `READY`, with what versions before 0.20 read there.
    pub(crate) fn status(&self) -> Vec<u8> {
        MsgpackValue::map([
            ("status", "READY".into()),
            ("local", false.into()),
            ("headless", true.into()),
            ("num_gpu_blocks", self.num_gpu_blocks.into()),
            ("dp_stats_address", MsgpackValue::Nil),
        ])
        .to_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hello_is_what_vllm_writes() {
        assert_eq!(hello(), b"\x83\xa6status\xa5HELLO\xa5local\xc2\xa8headless\xc3");
        assert_eq!(identity(1), [1, 0]);
    }

    #[test]
    fn addresses_are_read_and_others_refused() {
        let list = |name: &str, count| (name.to_owned(), vec!["tcp://127.0.0.1:1"; count]);
        let init = |lists: &[(String, Vec<&str>)]| {
            let lists = lists.iter().map(|(name, list)| (name.as_str(), list.clone().into()));
            let all = lists.chain([("coordinator_input", MsgpackValue::Nil)]);
            let addresses = MsgpackValue::map(all);
            EngineAddresses::read(&MsgpackValue::map([("addresses", addresses)]).to_bytes())
        };
        let read = init(&[list("inputs", 2), list("outputs", 2)]).unwrap();
        assert_eq!((read.inputs.len(), read.outputs.len(), read.coordinator_input), (2, 2, None));
        assert!(!read.are_in_lock_step);
        let uneven = init(&[list("inputs", 2), list("outputs", 1)]).unwrap_err();
        assert_eq!(uneven.to_string(), "EngineHandshakeMetadata.outputs is not as long as inputs");
        // What 0.10 to 0.13 send of any model.
        for (ranks, expected) in [(1_u32, false), (2, true)] {
            let places = ["inputs", "outputs"].map(|name| (name, vec!["tcp://127.0.0.1:1"].into()));
            let parallel_config = MsgpackValue::map([
                ("data_parallel_master_ip", "127.0.0.1".into()),
                ("data_parallel_master_port", 29_500_u32.into()),
                ("_data_parallel_master_port_list", MsgpackValue::Array(Vec::new())),
                ("data_parallel_size", ranks.into()),
            ]);
            let init = [("addresses", MsgpackValue::map(places)), ("parallel_config", parallel_config)];
            let read = EngineAddresses::read(&MsgpackValue::map(init).to_bytes()).unwrap();
            assert_eq!(read.are_in_lock_step, expected, "{ranks}");
        }
        assert!(init(&[list("inputs", 0), list("outputs", 0)]).is_err());
        assert!(EngineAddresses::read(b"\x80").is_err() && EngineAddresses::read(b"").is_err());
    }
}
