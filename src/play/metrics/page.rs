//! The page of `/metrics`, from the list of families.

use std::fmt::Write;

use super::{
    Metrics,
    drafts::DRAFT_POSITION,
    histogram::number,
    process::{Process, unix_time},
    tool_parser::{ToolParserCalls, append as append_tool_parser},
};
use crate::engine::kv_cache::KvCacheConfig;

/// The page's type.
pub(in super::super) const CONTENT_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";

/// The type of the page under paths that only start like its own.
pub(in super::super) const MOUNTED_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Every family with its help, its type and its samples without their values, in the engine's order.
const FAMILIES: &str = include_str!("families.txt");

/// Samples of facts that never change.
const FACTS: [&str; 2] = ["python_info", "vllm:cache_config_info"];

/// Values of the labels about the server.
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
}

/// Comment before which the family of adapters stands.
const AFTER_ADAPTERS: &str = "HELP vllm:cache_config_info ";

/// Prefix of families about single blocks of the cache.
const OF_BLOCKS: &str = "vllm:kv_block_";

/// Reported number of blocks of the engine's cache.
const BLOCKS: u32 = 16_384;

impl About<'_> {
    fn fill(&self, line: &str) -> String {
        let blocks = self.cache.map_or(BLOCKS, |cache| cache.num_gpu_blocks);
        let kv_tokens = u64::from(blocks) * u64::from(self.block_size);
        let concurrency = super::histogram::float(kv_tokens) / f64::from(self.max_model_len.max(1));
        let model = label(self.model);
        let line = match self.cache {
            Some(cache) => filled_by(cache, line),
            None => line.to_owned(),
        };
        let overrides = if self.overrides_blocks { blocks.to_string() } else { "None".to_owned() };
        line.replace("{block_size}", &self.block_size.to_string())
            .replace("{block_size_given}", if self.is_block_size_given { "True" } else { "False" })
            .replace("{blocks_override}", &overrides)
            .replace("{kv_tokens}", &kv_tokens.to_string())
            .replace("{kv_concurrency}", &number(concurrency))
            .replace("{model}", &model)
    }
}

/// A line with the facts of an engine's cache.
fn filled_by(cache: &KvCacheConfig, line: &str) -> String {
    let KvCacheConfig { enable_prefix_caching, num_gpu_blocks, prefix_caching_hash_algo, .. } = cache;
    let caches = if *enable_prefix_caching { "True" } else { "False" };
    line.replace("enable_prefix_caching=\"True\"", &format!("enable_prefix_caching=\"{caches}\""))
        .replace("num_gpu_blocks=\"16384\"", &format!("num_gpu_blocks=\"{num_gpu_blocks}\""))
        .replace("hash_algo=\"sha256\"", &format!("hash_algo=\"{}\"", prefix_caching_hash_algo.name()))
}

/// A text as the value of a label.
pub(super) fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}

/// The page as it is now.
pub(in super::super) fn page(metrics: &Metrics, about: About<'_>) -> String {
    let mut page = Page { text: String::with_capacity(2 * FAMILIES.len()), process: Process::now(), metrics, about };
    metrics.each().for_each(|engine| engine.steps.settle(&engine.step_tokens));
    let of_engine = |line: &str| metrics.engine.shows_transfers(line) && metrics.engine.shows_drafts(line);
    let is_shown = |line: &&str| (about.kv_cache_metrics || !line.contains(OF_BLOCKS)) && of_engine(line);
    let mut family = Vec::new();
    for line in FAMILIES.lines().filter(is_shown) {
        let Some(comment) = line.strip_prefix("# ") else {
            family.push(line);
            continue;
        };
        page.family(&family);
        family.clear();
        if comment.starts_with(AFTER_ADAPTERS) {
            metrics.lora.iter().for_each(|lora| lora.append(&mut page.text));
        }
        let _ = writeln!(page.text, "{line}");
        if let Some(family) = comment.strip_prefix("TYPE ").and_then(|rest| rest.split(' ').next()) {
            metrics.visits.write(family, &mut page.text);
        }
    }
    page.family(&family);
    page.text
}

/// A page that is written.
struct Page<'a> {
    text: String,
    process: Process,
    metrics: &'a Metrics,
    about: About<'a>,
}

/// Label of the first rank.
const FIRST: &str = "engine=\"0\"";

impl Page<'_> {
    /// Writes the samples of a family: those of each rank together where they are a histogram, else each sample of all ranks.
    fn family(&mut self, samples: &[&str]) {
        let is_of_ranks = samples.first().is_some_and(|sample| sample.contains(FIRST));
        let ranks = if is_of_ranks { self.metrics.ranks() } else { 1 };
        if samples.first().is_some_and(|sample| name_of(sample).ends_with("_bucket")) {
            for rank in 0..ranks {
                samples.iter().for_each(|sample| self.sample(sample, rank));
            }
        } else {
            for sample in samples {
                (0..ranks).for_each(|rank| self.sample(sample, rank));
            }
        }
    }

    fn sample(&mut self, line: &str, rank: usize) {
        let mut sample = self.about.fill(line);
        if rank > 0 {
            sample = sample.replace(FIRST, &format!("engine=\"{rank}\""));
        }
        if line.contains(DRAFT_POSITION) {
            return self.metrics.put_positions(&sample, rank, &mut self.text);
        }
        let name = name_of(line);
        match name.strip_suffix("_bucket").and_then(|family| self.metrics.histogram(family, rank)) {
            Some(histogram) => {
                for (bound, count) in histogram.cumulated() {
                    let _ = writeln!(self.text, "{} {}", sample.replace("{le}", &bound), number(count));
                }
            }
            None => {
                let value = self.metrics.value((name, line), rank, &self.process);
                let _ = writeln!(self.text, "{sample} {}", number(value));
            }
        }
    }
}

/// The name of a sample.
fn name_of(line: &str) -> &str {
    line.split('{').next().unwrap_or(line)
}

impl Metrics {
    fn histogram(&self, family: &str, rank: usize) -> Option<&super::histogram::Histogram> {
        if family == "http_request_duration_highr_seconds" {
            return Some(self.visits.fine());
        }
        self.of_rank(rank).histogram(family)
    }

    fn value(&self, (name, labels): (&str, &str), rank: usize, process: &Process) -> f64 {
        if name.ends_with("_created") || name == "process_start_time_seconds" {
            return self.started;
        }
        if FACTS.contains(&name) {
            return 1.0;
        }
        let of = |suffix: &str| name.strip_suffix(suffix).and_then(|family| self.histogram(family, rank));
        let count = of("_count").map(|found| found.total());
        let sum = || of("_sum").map(|found| found.sum());
        let counted = || self.of_rank(rank).value(name, labels).or_else(|| process.value(name));
        count.or_else(sum).or_else(counted).unwrap_or(0.0)
    }

    /// Appends how often the tools' parser ran, on a server with such a parser.
    pub(in super::super) fn append_tool_parser(&self, page: &mut String, calls: &ToolParserCalls, model: &str) {
        append_tool_parser(page, calls, &label(model), self.started);
    }

    /// Counters that start now.
    pub(in super::super) fn new(max_model_len: u32) -> Self {
        let engine = super::EngineMetrics::new(max_model_len).into();
        Self { engine, others: Vec::new(), visits: super::HttpRequests::default(), lora: None, started: unix_time() }
    }
}
