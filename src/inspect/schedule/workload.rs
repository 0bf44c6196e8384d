//! Workloads: a configuration and requests with the steps before which they arrive.

use std::{collections::HashSet, fs, io, io::Read, path::Path, sync::Arc};

use serde::Deserialize;

use crate::engine::{
    kv_cache::{HashAlgorithm, KvCacheConfig, LoraRequest},
    scheduler::{Request, RequestId, SchedulerConfig, SchedulerFinishReason, SchedulingPolicy, Speculation},
};

const MOST_TOKENS: usize = 100_000_000;
const MOST_BLOCKS: u32 = 1 << 22;
/// Tokens of a block, and bytes of a salt: what is hashed at once stays below 64 KiB.
const LARGEST: usize = 8192;
/// Steps of a workload without `max_steps`.
const MAX_STEPS: u64 = 100_000;

/// A workload that was read and can be run.
#[derive(Debug)]
pub struct ScheduleWorkload {
    config: WorkloadConfig,
    /// In the order of their arrival.
    pub(super) requests: Vec<ScheduledArrival>,
    /// Steps after which a run ends even if requests are left.
    pub(super) max_steps: u64,
}

/// Reason why a workload cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleWorkloadError {
    /// The file cannot be read.
    #[error("cannot read {file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// It is no JSON, or not that of a workload.
    #[error("{file}: {source}")]
    Json {
        /// The file.
        file: String,
        /// The place and what is expected there.
        source: serde_json::Error,
    },
    /// A value that cannot be.
    #[error("{file}: {place}: {reason}")]
    Value {
        /// The file.
        file: String,
        /// The request or field.
        place: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    config: WorkloadConfig,
    requests: Vec<ScheduledArrival>,
    max_steps: Option<u64>,
}

base::with_defaults! {
    #[derive(Debug, Clone, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct WorkloadConfig {
        max_num_seqs: usize = 8,
        max_num_batched_tokens: usize = 256,
        max_model_len: usize = 2048,
        block_size: usize = 16,
        num_blocks: u32 = 200,
        policy: SchedulingPolicy = SchedulingPolicy::Fcfs,
        enable_prefix_caching: bool = true,
        enable_chunked_prefill: bool = true,
        long_prefill_token_threshold: usize,
        hash: HashAlgorithm = HashAlgorithm::Sha256Cbor,
        max_loras: usize,
        speculative_method: String = "ngram".to_owned(),
        num_speculative_tokens: usize,
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScheduledArrival {
    pub(super) id: String,
    /// The step before which it arrives.
    #[serde(default)]
    pub(super) step: i64,
    /// The step before which it is aborted.
    pub(super) abort_step: Option<i64>,
    prompt: WorkloadPrompt,
    max_tokens: usize,
    output: Option<Vec<u32>>,
    seed: Option<i64>,
    #[serde(default)]
    priority: i64,
    cache_salt: Option<String>,
    stop_token_ids: Option<Vec<u32>>,
    lora: Option<u32>,
    /// Numbers of output tokens after which a step of speculative decoding ends.
    #[serde(default)]
    burst_ends: Vec<usize>,
}

/// Token ids, or what they are made from.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "a list of token ids, or {\"seed\": S, \"len\": N, \"prefix\": [[seed, length], …]}"
)]
enum WorkloadPrompt {
    Ids(Vec<u32>),
    Made {
        seed: i64,
        len: usize,
        #[serde(default)]
        prefix: Vec<(i64, usize)>,
    },
}

impl ScheduleWorkload {
    /// Reads a workload; `-` is stdin.
    pub(crate) fn read(path: &Path) -> Result<Self, ScheduleWorkloadError> {
        let file = path.display().to_string();
        let mut text = Vec::new();
        let read = match file.as_str() {
            "-" => io::stdin().lock().read_to_end(&mut text).map(drop),
            _ => fs::read(path).map(|bytes| text = bytes),
        };
        match read {
            Ok(()) => Self::parse(&text, &file),
            Err(source) => Err(ScheduleWorkloadError::Read { file, source }),
        }
    }

    fn parse(text: &[u8], file: &str) -> Result<Self, ScheduleWorkloadError> {
        let json = |source| ScheduleWorkloadError::Json { file: file.to_owned(), source };
        let File { config, mut requests, max_steps } = serde_json::from_slice(text).map_err(json)?;
        requests.sort_by_key(|request| request.step);
        let workload = Self { config, requests, max_steps: max_steps.unwrap_or(MAX_STEPS) };
        match workload.check() {
            Ok(()) => Ok(workload),
            Err((place, reason)) => Err(ScheduleWorkloadError::Value { file: file.to_owned(), place, reason }),
        }
    }

    /// The limits of a step.
    pub(super) fn scheduler(&self) -> SchedulerConfig {
        let config = &self.config;
        SchedulerConfig {
            max_num_seqs: config.max_num_seqs,
            max_num_batched_tokens: config.max_num_batched_tokens,
            max_model_len: config.max_model_len,
            long_prefill_token_threshold: config.long_prefill_token_threshold,
            enable_chunked_prefill: config.enable_chunked_prefill,
            policy: config.policy,
            max_loras: config.max_loras,
            max_num_queued_reqs: None,
            kv_connector: false,
            speculation: self.speculation(),
        }
    }

    /// Speculative decoding, where it drafts anything.
    fn speculation(&self) -> Option<Speculation> {
        let drafted = Some(self.config.num_speculative_tokens).filter(|drafted| *drafted > 0)?;
        Speculation::of_method(&self.config.speculative_method, drafted)
    }

    /// The cache. The seed of its hashes is that of `PYTHONHASHSEED=0`, with which the steps of vLLM were made.
    pub(super) fn kv_cache(&self) -> KvCacheConfig {
        KvCacheConfig {
            block_size: self.config.block_size,
            num_gpu_blocks: self.config.num_blocks,
            enable_prefix_caching: self.config.enable_prefix_caching,
            prefix_caching_hash_algo: self.config.hash,
            none_hash_seed: "0".to_owned(),
            enable_kv_cache_events: true,
            ..KvCacheConfig::default()
        }
    }

    /// Gives a place and what is wrong there.
    fn check(&self) -> Result<(), (String, String)> {
        let config = &self.config;
        if let Err(error) = self.scheduler().check(&self.kv_cache()) {
            return Err(("config".to_owned(), error.text(field)));
        }
        if config.block_size > LARGEST || config.num_blocks > MOST_BLOCKS {
            return Err(("config".to_owned(), format!("block_size is at most {LARGEST}, num_blocks {MOST_BLOCKS}")));
        }
        if config.num_speculative_tokens > LARGEST || Speculation::of_method(&config.speculative_method, 1).is_none() {
            let known: Vec<&str> = Speculation::methods().collect();
            let reason =
                format!("num_speculative_tokens is at most {LARGEST}, speculative_method one of {}", known.join(", "));
            return Err(("config".to_owned(), reason));
        }
        let (mut ids, mut tokens) = (HashSet::new(), 0_usize);
        for request in &self.requests {
            let fault = |reason: String| Err((format!("request {:?}", request.id), reason));
            let length = request.prompt.len();
            tokens = tokens.saturating_add(length).saturating_add(request.planned(config.max_model_len));
            if !ids.insert(&request.id) {
                return fault("another request has this id".to_owned());
            }
            if length == 0 {
                return fault("the prompt is empty".to_owned());
            }
            if length >= config.max_model_len {
                return fault(format!("the prompt has {length} tokens, max_model_len is {}", config.max_model_len));
            }
            if request.max_tokens == 0 {
                return fault("max_tokens is at least 1".to_owned());
            }
            if request.cache_salt.as_ref().is_some_and(|salt| salt.len() > LARGEST) {
                return fault(format!("cache_salt has at most {LARGEST} bytes"));
            }
            if tokens > MOST_TOKENS {
                return fault(format!("more than {MOST_TOKENS} tokens up to here"));
            }
        }
        Ok(())
    }

    /// The request at a place in the order of arrival; the place is its number.
    pub(super) fn request(&self, at: usize) -> Option<Request> {
        let arrival = self.requests.get(at)?;
        Some(Request {
            id: at as RequestId,
            prompt: arrival.prompt.ids(),
            output: arrival.output(at, arrival.planned(self.config.max_model_len)),
            ends_with: Some(SchedulerFinishReason::Length),
            stop_token_ids: arrival.stop_token_ids.clone().unwrap_or_default(),
            priority: arrival.priority,
            cache_salt: arrival.cache_salt.clone(),
            burst_ends: arrival.burst_ends.clone(),
            lora: arrival.lora.filter(|number| *number > 0).map(|number| {
                let lora_name = format!("adapter-{number}");
                Arc::new(LoraRequest { lora_int_id: number, lora_name, lora_path: "/none".to_owned() })
            }),
            ..Request::default()
        })
    }
}

impl ScheduledArrival {
    /// Tokens that it samples at most.
    fn planned(&self, max_model_len: usize) -> usize {
        self.max_tokens.min(max_model_len.saturating_sub(self.prompt.len()))
    }

    /// The tokens that it samples: its `output` and then 10s, or ids made from its seed.
    fn output(&self, at: usize, length: usize) -> Vec<u32> {
        if let Some(given) = self.output.as_ref().filter(|given| !given.is_empty()) {
            return given.iter().copied().chain(std::iter::repeat(10)).take(length).collect();
        }
        let seed = self.seed.map_or(at as i128, i128::from);
        (0..length).map(|k| remainder(seed + k as i128, 1000) + 10).collect()
    }
}

impl WorkloadPrompt {
    fn len(&self) -> usize {
        match self {
            Self::Ids(ids) => ids.len(),
            Self::Made { len, prefix, .. } => prefix.iter().fold(*len, |sum, (_, length)| sum.saturating_add(*length)),
        }
    }

    fn ids(&self) -> Vec<u32> {
        match self {
            Self::Ids(ids) => ids.clone(),
            Self::Made { seed, len, prefix } => {
                let parts = prefix.iter().copied().chain([(*seed, *len)]);
                parts.flat_map(|(seed, length)| made(seed, length)).collect()
            }
        }
    }
}

fn made(seed: i64, length: usize) -> impl Iterator<Item = u32> {
    (0..length as i128).map(move |k| remainder(i128::from(seed) * 7919 + k * 31 + (k * k) % 97, 50_000) + 100)
}

/// Python's `%`: never negative.
fn remainder(number: i128, by: i128) -> u32 {
    u32::try_from(number.rem_euclid(by)).unwrap_or_default()
}

/// The name that a workload has for a field of the scheduler or the cache.
fn field(name: &str) -> String {
    match name {
        "num_gpu_blocks" => "num_blocks",
        "enable_chunked_prefill" => "enable_chunked_prefill off",
        name => name,
    }
    .to_owned()
}
