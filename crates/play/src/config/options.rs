//! Options by what they are about, each under the name of vLLM's flag where there is one.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use serde_json::{Map, Value};

use crate::front::{ApiKeys, Cors};
use ::engine::OutputTokens;

/// Options of the server around the model, as vLLM's flags of the same names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerOptions {
    /// Keys of which a client needs one; empty for no check.
    pub api_keys: ApiKeys,
    /// Which web pages of other origins may call.
    pub cors: Cors,
    /// Path under which a proxy shows this server, such as `/llm`; empty for none.
    pub root_path: String,
    /// True where `/load` counts requests (vLLM's `--enable-server-load-tracking`); else it is zero.
    pub load_tracking: bool,
    /// True where every stream ends with usage and every event has it, requested or not.
    pub force_usage: bool,
    /// Time that a stream may be silent before a comment keeps its connection alive; `None` for ever.
    pub keep_alive: Option<Duration>,
    /// Time that a connection may be idle between requests (vLLM's `VLLM_HTTP_TIMEOUT_KEEP_ALIVE`); `None` for 5 s.
    pub idle: Option<Duration>,
    /// Choices that may be in progress at a time; a request that would make more of them is refused with 503.
    pub max_queued: Option<u32>,
    /// True where the development endpoints are served (vLLM's `VLLM_SERVER_DEV_MODE`).
    pub dev_mode: bool,
    /// True where clients may load and unload adapters (vLLM's `VLLM_ALLOW_RUNTIME_LORA_UPDATING`).
    pub runtime_lora_updating: bool,
    /// True where `/metrics` has the families about single blocks of the cache (vLLM's `--kv-cache-metrics`).
    pub kv_cache_metrics: bool,
    /// True where `/metrics` has families of this program's own after the engine's.
    pub vcr_metrics: bool,
    /// True where there is `/tokenizer_info`.
    pub tokenizer_info: bool,
    /// True where the pages about the API are left out (vLLM's `--disable-fastapi-docs`).
    pub no_docs: bool,
    /// True where responses are kept (vLLM's `VLLM_ENABLE_RESPONSES_API_STORE`).
    pub responses_store: bool,
    /// Time for which requests are refused with 503 from the start, as if a model were loaded.
    pub startup: Duration,
    /// What llm-d-inference-sim serves beside vLLM's endpoints.
    pub simulator: SimulatorOptions,
}

base::with_defaults! {
    /// Parts of llm-d-inference-sim that are served, and their values.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SimulatorOptions {
        /// True where its endpoints are there for everyone who reaches the server, and its headers.
        pub endpoints: bool,
        /// Name of the pod, for `x-inference-pod`.
        pub pod: Option<String>,
        /// Namespace of the pod, for `x-inference-namespace`.
        pub namespace: Option<String>,
        /// Servers of the process, of which this is one; that simulator has a rank behind each.
        pub servers: NonZeroU32 = NonZeroU32::MIN,
        /// Values of metrics from the start on, in its words.
        pub fake_metrics: Option<Value>,
    }
}

/// Optional parts of answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerOptions {
    /// True where an answer of one choice has its times.
    pub request_metrics: bool,
    /// The value of `system_fingerprint`.
    pub fingerprint: Fingerprint,
    /// The engine's model: a Hub id or a directory. Without it, that of the trace or the tokenizer.
    pub model: Option<String>,
}

/// The value of `system_fingerprint` (vLLM's `--fingerprint-mode`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Fingerprint {
    /// The engine's version, and a hash that is the same for the same tokenizer and seed. One engine alone has no
    /// parallelism to report, so the engine's modes `full` and `hash` are both this.
    #[default]
    Hash,
    /// This text, or nothing.
    Custom(Option<String>),
}

impl Fingerprint {
    /// The text; `None` where there is to be none.
    pub(crate) fn text(&self, version: &str, hash: u64) -> Option<String> {
        match self {
            Self::Hash => Some(format!("vllm-{version}-{:08x}", hash >> 32)),
            Self::Custom(text) => text.clone(),
        }
    }
}

base::with_defaults! {
    /// Options of random answers.
    #[derive(Debug, Clone, PartialEq)]
    pub struct SyntheticOptions {
        /// Tokens of an answer that ends by itself; without it, as many as fit its limit.
        pub output_tokens: Option<OutputTokens>,
        /// The share of answers that end by themselves, from 0 to 1. Without it all where `output_tokens` is set or the request
        /// has no `max_tokens`, else none.
        pub stop_rate: Option<f64>,
        /// The share of an answer's tokens that is reasoning, from 0 to 1, where the server parses any. With 1 it never ends.
        pub reasoning_share: f64 = 0.5,
    }
}

/// Configuration of adapters, by the names of vLLM's flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoraConfig {
    /// Adapters that may be in one step of an engine.
    pub max_loras: usize,
    /// The adapters from the start on.
    pub lora_modules: Vec<LoraModule>,
}

/// An adapter that is loaded at the start (vLLM's `--lora-modules`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoraModule {
    /// The name by which requests ask for it.
    pub name: String,
    /// Where its weights are; nothing has to be there.
    pub path: String,
    /// The served name of the model that it belongs to, where that is not the first one.
    pub base_model_name: Option<String>,
}

/// Source of the times of a response to an unmatched request (`--unmatched-pace`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnmatchedPace {
    /// From the trace: its median TTFT, then its median gap for each token.
    #[default]
    Trace,
    /// Everything is due at once.
    Instant,
}

/// Source of the defaults (vLLM's `--generation-config` and `--override-generation-config`).
#[derive(Debug, Clone, Default)]
pub struct GenerationConfig {
    /// The file.
    pub source: GenerationSource,
    /// Overrides, by the file's names.
    pub overrides: Map<String, Value>,
}

/// Which file the defaults come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum GenerationSource {
    /// The one beside the tokenizer.
    #[default]
    Auto,
    /// None: the engine's neutral defaults.
    Neutral,
    /// `generation_config.json` in this directory.
    Directory(PathBuf),
}
