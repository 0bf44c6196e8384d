//! Configuration of a tap: required values ([`TapConfig`]) and optional ones ([`Setup`]).

use std::{fmt, num::NonZeroUsize, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use serde_json::json;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{
    Filter,
    filter::fits,
    mcp::{McpCommand, SharedPlayback},
};
use net::upstream::{NamedEndpoint, UpstreamOptions, UpstreamUrl, UrlError};
use recording::{
    recorder::Capacity,
    redaction::RedactionRules,
    trace::{CreateMode, IDS_PERMUTED, Meta, Record, RotationLimits, TokenizerId},
};
use replay::account::is_upstream_name;
use text::prompt::{BlockHashAlgorithm, BlockHasher, HashKey, IdPermutation, Tokenizer};

/// Looks at each record, and may add to it, before it is written. It runs on the recorder's thread, off every request's path.
#[derive(Clone)]
pub struct RecordHook(pub Arc<dyn Fn(&mut Record) + Send + Sync>);

impl fmt::Debug for RecordHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordHook")
    }
}

/// Required configuration of a tap.
#[derive(Debug, Clone)]
pub struct TapConfig {
    /// The server to record.
    pub upstream: UpstreamUrl,
    /// The trace to write (`-` is stdout).
    pub trace_out: PathBuf,
    /// Behaviour if the trace exists already.
    pub create: CreateMode,
    /// Output token ids are recorded. Prompts are recorded as block hashes only, either way.
    pub record_tokens: bool,
    /// Tokenizer for the prompts of engines that do not return their ids; `None` leaves such records without hashes.
    pub tokenizer: Option<Tokenizer>,
    /// Hash algorithm of prompt blocks; with a [`hash_key`](Setup::hash_key) the keyed one is used instead.
    pub block_hash: BlockHashAlgorithm,
    /// Prompt tokens per hashed block.
    pub block_size: u32,
    /// Longest time that requests in flight may go on after shutdown begins.
    pub drain: Duration,
}

/// Whole configuration of a tap.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Required configuration.
    pub config: TapConfig,
    /// Upstreams of some paths or models; all other requests go to the configuration's.
    pub routes: Vec<UpstreamRoute>,
    /// Connection options and timeouts of upstreams.
    pub reach: UpstreamOptions,
    /// Longest pause of a body, in either direction; `None` for no limit.
    pub idle: Option<Duration>,
    /// Selection of recorded requests.
    pub filter: Filter,
    /// Limits at which a trace file is full and the next one begins.
    pub limits: RotationLimits,
    /// Longest wait at the end for a disk that does not answer; after half of it the recording counts as stalled.
    pub disk_timeout: Duration,
    /// The tap starts even if the trace cannot be written: it forwards, and records once it can. Otherwise it fails.
    pub start_without_file: bool,
    /// Requests are amended with `return_token_ids` and `include_usage`, whose effects are removed from responses.
    pub amends: bool,
    /// Tokens are counted in the best way that an upstream knows: by their ids, else by `continuous_usage_stats`, else by its count at the end.
    /// What is added for it is not wholly removed from responses, so it is for clients of this program only.
    pub counts_tokens: bool,
    /// Content that is recorded.
    pub content: ContentRecording,
    /// Flags that the engine was started with.
    pub deployment: Deployment,
    /// Key of block hashes, without which they cannot be compared with those of guessed prompts.
    pub hash_key: Option<HashKey>,
    /// Permutation of output token ids, without which they cannot be decoded.
    pub permutation: Option<IdPermutation>,
    /// MCP servers beside the engine; recorded in a cassette only.
    pub mcp: Vec<NamedEndpoint>,
    /// The same, which are started for each session of a client.
    pub mcp_commands: Vec<McpCommand>,
    /// What answers in place of these servers, where a cassette is played.
    pub mcp_playback: SharedPlayback,
    /// Sees each record before it is written.
    pub hook: Option<RecordHook>,
    /// Records go to the hook only, and to no file.
    pub discards: bool,
    /// Commit that this program was built from, for the trace's first line; `None` to leave it out.
    pub commit: Option<String>,
    /// Start of the times to first tokens, for the trace's first line: `http`, or `engine_core`.
    pub timing_zero: &'static str,
    /// Number of own threads that serve connections; `None` for the runtime that the tap is started on.
    pub threads: Option<NonZeroUsize>,
}

impl Setup {
    pub(super) fn hasher(&self) -> BlockHasher {
        match self.hash_key.clone() {
            Some(key) => BlockHasher::keyed(key, self.config.block_size),
            None => BlockHasher::new(self.config.block_hash, self.config.block_size),
        }
    }

    /// Builds the first line of the trace, without the engine's facts.
    pub(super) fn meta(&self) -> Meta {
        let config = &self.config;
        let mut meta = Meta {
            format: Some(recording::trace::FORMAT),
            block_size: Some(config.block_size),
            block_hash: Some(if self.hash_key.is_some() { BlockHashAlgorithm::SipHash24 } else { config.block_hash }),
            hash_key_id: self.hash_key.as_ref().map(HashKey::id),
            tokenizer: config.tokenizer.as_ref().map(|tokenizer| TokenizerId {
                name: tokenizer.name().to_owned(),
                fingerprint: tokenizer.fingerprint().to_owned(),
            }),
            recorder: Some(concat!("vllm-vcr ", env!("CARGO_PKG_VERSION")).to_owned()),
            started_at: OffsetDateTime::now_utc().format(&Rfc3339).ok(),
            timing_zero: Some(self.timing_zero.to_owned()),
            ..Meta::default()
        };
        let Deployment { gpu, tensor_parallel, max_num_seqs } = &self.deployment;
        for (key, value) in [
            ("gpu", gpu.as_ref().map(|name| json!(name))),
            ("tp", tensor_parallel.map(|count| json!(count))),
            ("max_num_seqs", max_num_seqs.map(|count| json!(count))),
        ] {
            meta.extra.extend(value.map(|value| (key.to_owned(), value)));
        }
        meta.extra.extend(self.commit.as_ref().map(|commit| ("recorder_commit".to_owned(), json!(commit))));
        if let Some(share) = self.filter.sample {
            meta.extra.insert("sample".to_owned(), json!(share));
        }
        if self.permutation.is_some() {
            meta.extra.insert(IDS_PERMUTED.to_owned(), json!(true));
        }
        meta
    }
}

impl From<TapConfig> for Setup {
    fn from(config: TapConfig) -> Self {
        Self {
            config,
            routes: Vec::new(),
            reach: UpstreamOptions::default(),
            idle: None,
            filter: Filter::default(),
            limits: RotationLimits::default(),
            disk_timeout: Capacity::default().disk_timeout,
            start_without_file: false,
            amends: true,
            counts_tokens: false,
            content: ContentRecording::default(),
            deployment: Deployment::default(),
            hash_key: None,
            permutation: None,
            mcp: Vec::new(),
            mcp_commands: Vec::new(),
            mcp_playback: None,
            hook: None,
            discards: false,
            commit: None,
            timing_zero: "http",
            threads: None,
        }
    }
}

/// Flags of the engine that none of its endpoints returns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deployment {
    /// The accelerator, such as `H100`.
    pub gpu: Option<String>,
    /// Number of accelerators over which each layer is split (vLLM's `--tensor-parallel-size`).
    pub tensor_parallel: Option<u32>,
    /// Maximum number of sequences that run at once (vLLM's `--max-num-seqs`).
    pub max_num_seqs: Option<u32>,
}

/// Content that is recorded, with its secrets redacted.
#[derive(Debug, Clone, Default)]
pub struct ContentRecording {
    /// Text of every chunk.
    pub text: bool,
    /// Bodies of requests.
    pub requests: bool,
    /// Messages of errors, which may quote the request; they come with texts and with requests too.
    pub errors: bool,
    /// Log probabilities of outputs and prompts, where clients asked for them.
    pub logprobs: bool,
    /// Token ids also where the engine counted another number of them: what is missing is to be found.
    pub incomplete_ids: bool,
    /// Rules for what is a secret.
    pub rules: RedactionRules,
}

/// Selector of the requests that go to an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamSelector {
    /// Requests whose path begins with this, up to the end of a segment.
    Path(String),
    /// Requests for this model; a trailing `*` stands for any end.
    Model(String),
    /// Requests that name it, by `/vcr/u/NAME/…` or `x-vcr-upstream`; of cassettes only.
    Name(String),
}

/// An upstream with the selector of its requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamRoute {
    /// Its requests; `None` for the default upstream.
    pub selector: Option<UpstreamSelector>,
    /// Its URL.
    pub upstream: UpstreamUrl,
}

impl UpstreamSelector {
    /// Returns the name of an upstream that requests name.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        if let Self::Name(name) = self { Some(name) } else { None }
    }

    /// Returns the length of this prefix if the path is under it; `None` if not, or for a model's selector.
    pub(super) fn takes_path(&self, path: &str) -> Option<usize> {
        let Self::Path(prefix) = self else { return None };
        let rest = path.strip_prefix(prefix.as_str())?;
        (rest.is_empty() || rest.starts_with('/') || prefix.ends_with('/')).then_some(prefix.len())
    }

    /// Returns the length of this pattern if the model fits it; `None` if not, or for a path's selector.
    pub(super) fn takes_model(&self, model: &str) -> Option<usize> {
        let Self::Model(pattern) = self else { return None };
        fits(pattern, model).then_some(pattern.len())
    }
}

impl FromStr for UpstreamRoute {
    type Err = UrlError;

    /// `URL`, `/path=URL`, `model:NAME=URL` or `NAME=URL`.
    fn from_str(text: &str) -> Result<Self, UrlError> {
        // No URL has a name before its first `=`.
        let is_named = text.split_once('=').is_some_and(|(name, _)| is_upstream_name(name));
        let is_selected = is_named || text.starts_with('/') || text.starts_with("model:");
        let Some((selector, url)) = text.split_once('=').filter(|_| is_selected) else {
            return Ok(Self { selector: None, upstream: text.parse()? });
        };
        let selector = match selector.strip_prefix("model:") {
            Some("") => return Err(UrlError::of(text, "the model name is missing; write model:NAME=URL")),
            Some(model) => UpstreamSelector::Model(model.to_owned()),
            None if is_named => UpstreamSelector::Name(selector.to_owned()),
            None => UpstreamSelector::Path(selector.to_owned()),
        };
        Ok(Self { selector: Some(selector), upstream: url.parse()? })
    }
}

impl fmt::Display for UpstreamRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.selector {
            Some(UpstreamSelector::Path(path)) => write!(f, "{path}={}", self.upstream),
            Some(UpstreamSelector::Name(name)) => write!(f, "{name}={}", self.upstream),
            Some(UpstreamSelector::Model(model)) => write!(f, "model:{model}={}", self.upstream),
            None => self.upstream.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_written_as_they_are_read() {
        for text in ["http://h:1", "/v1/embeddings=http://h:2/e", "model:qwen*=unix:/run/q", "openai-2=https://h/v"] {
            assert_eq!(text.parse::<UpstreamRoute>().unwrap().to_string(), text);
        }
        for text in ["model:x=nonsense", "model:=http://h:1", "/v1=model:x=http://h:1"] {
            assert!(text.parse::<UpstreamRoute>().is_err(), "{text}");
        }
    }

    #[test]
    fn selectors_take_whole_segments_and_models() {
        let path = UpstreamSelector::Path("/v1/emb".to_owned());
        assert_eq!((path.takes_path("/v1/emb/x"), path.takes_path("/v1/embeddings")), (Some(7), None));
        let model = UpstreamSelector::Model("qwen*".to_owned());
        assert_eq!((model.takes_model("qwen3"), model.takes_model("llama")), (Some(5), None));
        assert_eq!((model.takes_path("/qwen"), path.takes_model("/v1/emb")), (None, None));
    }
}
