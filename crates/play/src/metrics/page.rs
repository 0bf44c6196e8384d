//! The page of `/metrics`: the tables of families in the engine's order.

use std::sync::Arc;

use super::{
    drafts,
    engine::{self, EngineMetrics},
    process::{self, ProcessFigures},
    tool_parser, transfers, vcr,
};
use crate::{DEFAULT_GPU_BLOCKS, ServerState};
use base::stats::{
    exposition::{Exposition, Labels, NumberFormat},
    histogram::{float, number},
};

pub(in super::super) const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

/// The type of the page under paths that only start like its own.
pub(in super::super) const MOUNTED_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Bytes of a page without own families, and some room.
const CAPACITY: usize = 96 * 1024;

const PYTHON: [(&str, &str); 5] =
    [("implementation", "CPython"), ("major", "3"), ("minor", "11"), ("patchlevel", "7"), ("version", "3.11.7")];

/// Facts of every cache, beside those of this server's.
const CACHE_CONFIG: &str = "_block_size_resolved=True cache_dtype=auto cache_hit_alignment_tokens=None \
    enable_mamba_shared_prefix_checkpoint=False gpu_memory_utilization=0.92 hash_block_size=None is_attention_free=False \
    kv_cache_dtype_skip_layers=[] kv_cache_layout=None kv_cache_memory_bytes=1073741824 kv_offloading_backend=native \
    kv_offloading_size=None kv_sharing_fast_prefill=False mamba_block_size=None mamba_cache_dtype=auto \
    mamba_cache_mode=none mamba_page_size_padded=None mamba_ssm_cache_dtype=float32 num_cpu_blocks=None \
    prefix_cache_retention_interval=0 prefix_match_unit=None replayssm_buffer_len=16 skip_page_size_padded=None \
    sliding_window=None swa_bounded_replay=True use_kda_recoverssm=False use_replayssm=False";

/// The page as it is now, without the values that were set from outside.
pub(in super::super) fn page(state: &ServerState) -> String {
    let (metrics, model, options) = (&*state.metrics, &state.model, &state.config.server);
    metrics.each().for_each(|engine| engine.steps.settle(&engine.step_tokens));
    let mut page = Exposition::new(NumberFormat::Python, CAPACITY);
    let process = ProcessFigures::now(metrics.started);
    page.families(&process::GARBAGE, &[(&[], &process)], None);
    page.family("python_info", "gauge", "Python platform information");
    page.sample("python_info", &PYTHON, 1.0);
    page.families(&process::FAMILIES, &[(&[], &process)], None);
    let numbers: Vec<String> = (0..metrics.ranks()).map(|rank| rank.to_string()).collect();
    let labels = |number| [("engine", number), ("model_name", model.first_name())];
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
    page.families(&engine::REJECTIONS, &[(&[("model_name", model.first_name())], &metrics.engine)], created);
    page.families(&engine::REQUESTS, &ranks, created);
    if options.kv_cache_metrics {
        page.families(&engine::BLOCKS, &ranks, created);
    }
    metrics.lora.iter().for_each(|lora| lora.append(&mut page));
    append_cache_config(state, &mut page, &numbers);
    metrics.http.append(&mut page, metrics.started);
    if model.parsers.formats.tools.is_some() {
        tool_parser::append(&mut page, &model.parsers.tool_calls, model.first_name(), metrics.started);
    }
    if state.config.engine.as_ref().is_some_and(|engine| engine.legacy_metrics) {
        page.families(&engine::LEGACY, &ranks, created);
    }
    if options.vcr_metrics {
        vcr::append(&mut page, state);
    }
    page.into_text()
}

fn parts<'a, S>(
    ranks: &[(Labels<'a>, &'a EngineMetrics)],
    part: fn(&EngineMetrics) -> Option<&S>,
) -> Vec<(Labels<'a>, &'a S)> {
    ranks.iter().filter_map(|(labels, engine)| Some((*labels, part(engine)?))).collect()
}

/// Appends the facts of each rank's cache.
fn append_cache_config(state: &ServerState, page: &mut Exposition, ranks: &[String]) {
    let (block_size, max_model_len) = (state.block_size, state.model.max_model_len);
    let overrides_blocks = state.config.engine.as_ref().is_some_and(|engine| engine.overrides_blocks);
    let python = |fact: bool| if fact { "True" } else { "False" };
    let (caches, blocks, algorithm) = state.engine.as_ref().map_or((true, DEFAULT_GPU_BLOCKS, "sha256"), |engine| {
        let cache = &engine.config.kv_cache;
        (cache.enable_prefix_caching, cache.num_gpu_blocks, cache.prefix_caching_hash_algo.name())
    });
    let kv_tokens = u64::from(blocks) * u64::from(block_size);
    let concurrency = number(float(kv_tokens) / f64::from(max_model_len.max(1)));
    let (block_size, kv_tokens, blocks) = (block_size.to_string(), kv_tokens.to_string(), blocks.to_string());
    page.family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
    for rank in ranks {
        let mut labels: Vec<(&str, &str)> = CACHE_CONFIG.split(' ').filter_map(|fact| fact.split_once('=')).collect();
        labels.extend([
            ("block_size", block_size.as_str()),
            ("effective_attention_block_size", &block_size),
            ("enable_prefix_caching", python(caches)),
            ("engine", rank),
            ("kv_cache_max_concurrency", &concurrency),
            ("kv_cache_size_tokens", &kv_tokens),
            ("num_gpu_blocks", &blocks),
            ("num_gpu_blocks_override", if overrides_blocks { &blocks } else { "None" }),
            ("prefix_caching_hash_algo", algorithm),
            ("user_specified_block_size", python(state.config.block_size.is_some())),
        ]);
        labels.sort_unstable();
        page.sample("vllm:cache_config_info", &labels, 1.0);
    }
}
