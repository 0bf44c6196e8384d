//! The page of `/metrics`: the tables of families in the engine's order.

use std::sync::Arc;

use super::{
    Metrics, drafts,
    engine::{self, EngineMetrics},
    process::{self, ProcessFigures},
    tool_parser::{self, ToolParserCalls},
    transfers,
    vcr::{self, OwnCounts},
};
use crate::{
    base::stats::{
        exposition::{Exposition, Labels, NumberFormat},
        histogram::{float, number},
    },
    engine::kv_cache::KvCacheConfig,
};

pub(in super::super) const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

/// The type of the page under paths that only start like its own.
pub(in super::super) const MOUNTED_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Description of the server on the page, and the page's options.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct About<'a> {
    pub(in super::super) model: &'a str,
    /// Tokens per cached block.
    pub(in super::super) block_size: u32,
    /// Whether a flag gives it, and whether one gives the number of blocks.
    pub(in super::super) is_block_size_given: bool,
    pub(in super::super) overrides_blocks: bool,
    pub(in super::super) max_model_len: u32,
    /// True where blocks of the cache are reported.
    pub(in super::super) kv_cache_metrics: bool,
    /// The simulated engine's cache, where there is one.
    pub(in super::super) cache: Option<&'a KvCacheConfig>,
    pub(in super::super) tool_calls: Option<&'a ToolParserCalls>,
    /// True where families are there under their earlier names too.
    pub(in super::super) legacy_metrics: bool,
    /// What no engine counts, where it was requested.
    pub(in super::super) own: Option<OwnCounts<'a>>,
}

/// Bytes of a page without own families, and some room.
const CAPACITY: usize = 96 * 1024;

/// Reported number of blocks of the engine's cache.
const BLOCKS: u32 = 16_384;

const PYTHON: [(&str, &str); 5] =
    [("implementation", "CPython"), ("major", "3"), ("minor", "11"), ("patchlevel", "7"), ("version", "3.11.7")];

/// Facts of every cache, beside those that [`About`] knows.
const CACHE_CONFIG: &str = "_block_size_resolved=True cache_dtype=auto cache_hit_alignment_tokens=None \
    enable_mamba_shared_prefix_checkpoint=False gpu_memory_utilization=0.92 hash_block_size=None is_attention_free=False \
    kv_cache_dtype_skip_layers=[] kv_cache_layout=None kv_cache_memory_bytes=1073741824 kv_offloading_backend=native \
    kv_offloading_size=None kv_sharing_fast_prefill=False mamba_block_size=None mamba_cache_dtype=auto \
    mamba_cache_mode=none mamba_page_size_padded=None mamba_ssm_cache_dtype=float32 num_cpu_blocks=None \
    prefix_cache_retention_interval=0 prefix_match_unit=None replayssm_buffer_len=16 skip_page_size_padded=None \
    sliding_window=None swa_bounded_replay=True use_kda_recoverssm=False use_replayssm=False";

/// The page as it is now.
pub(in super::super) fn page(metrics: &Metrics, about: About<'_>) -> String {
    metrics.each().for_each(|engine| engine.steps.settle(&engine.step_tokens));
    let mut page = Exposition::new(NumberFormat::Python, CAPACITY);
    let process = ProcessFigures::now(metrics.started);
    page.families(&process::GARBAGE, &[(&[], &process)], None);
    page.family("python_info", "gauge", "Python platform information");
    page.sample("python_info", &PYTHON, 1.0);
    page.families(&process::FAMILIES, &[(&[], &process)], None);
    let numbers: Vec<String> = (0..metrics.ranks()).map(|rank| rank.to_string()).collect();
    let labels = |number| [("engine", number), ("model_name", about.model)];
    let labels: Vec<_> = numbers.iter().map(|number| labels(number.as_str())).collect();
    let ranks: Vec<_> = labels.iter().map(|labels| labels.as_slice()).zip(metrics.each().map(Arc::as_ref)).collect();
    let created = Some(metrics.started);
    let transfers = parts(&ranks, |engine| engine.transfers.as_ref());
    page.families(&drafts::FAMILIES, &parts(&ranks, |engine| engine.drafts.as_ref()), created);
    page.families(&transfers::FAMILIES, &transfers, created);
    page.families(&engine::QUEUES, &ranks, created);
    let consumers: Vec<_> = transfers.iter().copied().filter(|(_, transfers)| transfers.is_consumer).collect();
    page.families(&transfers::FETCHES, &consumers, created);
    page.families(&engine::TOKENS, &ranks, created);
    page.families(&engine::REJECTIONS, &[(&[("model_name", about.model)], &metrics.engine)], created);
    page.families(&engine::REQUESTS, &ranks, created);
    if about.kv_cache_metrics {
        page.families(&engine::BLOCKS, &ranks, created);
    }
    metrics.lora.iter().for_each(|lora| lora.append(&mut page));
    about.append_cache_config(&mut page, &numbers);
    metrics.http.append(&mut page, metrics.started);
    if let Some(calls) = about.tool_calls {
        tool_parser::append(&mut page, calls, about.model, metrics.started);
    }
    if about.legacy_metrics {
        page.families(&engine::LEGACY, &ranks, created);
    }
    if let Some(own) = about.own {
        vcr::append(&mut page, own);
    }
    page.into_text()
}

fn parts<'a, S>(
    ranks: &[(Labels<'a>, &'a EngineMetrics)],
    part: fn(&EngineMetrics) -> Option<&S>,
) -> Vec<(Labels<'a>, &'a S)> {
    ranks.iter().filter_map(|(labels, engine)| Some((*labels, part(engine)?))).collect()
}

impl About<'_> {
    /// Appends the facts of each rank's cache.
    fn append_cache_config(&self, page: &mut Exposition, ranks: &[String]) {
        let python = |fact: bool| if fact { "True" } else { "False" };
        let (caches, blocks, algorithm) = self.cache.map_or((true, BLOCKS, "sha256"), |cache| {
            (cache.enable_prefix_caching, cache.num_gpu_blocks, cache.prefix_caching_hash_algo.name())
        });
        let kv_tokens = u64::from(blocks) * u64::from(self.block_size);
        let concurrency = number(float(kv_tokens) / f64::from(self.max_model_len.max(1)));
        let (block_size, kv_tokens, blocks) = (self.block_size.to_string(), kv_tokens.to_string(), blocks.to_string());
        page.family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
        for rank in ranks {
            let mut labels: Vec<(&str, &str)> =
                CACHE_CONFIG.split(' ').filter_map(|fact| fact.split_once('=')).collect();
            labels.extend([
                ("block_size", block_size.as_str()),
                ("effective_attention_block_size", &block_size),
                ("enable_prefix_caching", python(caches)),
                ("engine", rank),
                ("kv_cache_max_concurrency", &concurrency),
                ("kv_cache_size_tokens", &kv_tokens),
                ("num_gpu_blocks", &blocks),
                ("num_gpu_blocks_override", if self.overrides_blocks { &blocks } else { "None" }),
                ("prefix_caching_hash_algo", algorithm),
                ("user_specified_block_size", python(self.is_block_size_given)),
            ]);
            labels.sort_unstable();
            page.sample("vllm:cache_config_info", &labels, 1.0);
        }
    }
}
