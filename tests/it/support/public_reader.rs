//! A second reader of traces, made from the published rules alone: whatever a tap writes has to load here.
//!
//! It shares no code with the project. It knows the keys of the public schema and passes over every other one, refuses a
//! whole file for one bad line, and pools gaps as a fit of latencies does.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
};

use flate2::bufread::MultiGzDecoder;
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Debug, Default, Deserialize)]
#[allow(dead_code)] // the types are what is checked
pub(crate) struct Meta {
    pub(crate) model: Option<String>,
    pub(crate) gpu: Option<String>,
    pub(crate) tp: Option<u32>,
    pub(crate) max_num_seqs: Option<u64>,
    source: Option<String>,
    block_size: Option<usize>,
    config_hash: Option<String>,
    pub(crate) vllm_version: Option<String>,
    ready_response_hex: Option<String>,
    #[serde(flatten)]
    pub(crate) extra: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
struct Summary {
    mean_ms: f64,
    count: usize,
}

#[derive(Debug, Deserialize)]
struct Context {
    num_running: Vec<u32>,
    prefill_tokens: Vec<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FinishReason {
    Stop,
    Length,
    Abort,
    Error,
    Repetition,
}

#[derive(Debug, Deserialize)]
#[allow(dead_code)] // the types are what is checked
pub(crate) struct Record {
    prompt_tokens: usize,
    #[serde(default)]
    cached_tokens: usize,
    pub(crate) output_tokens: usize,
    pub(crate) ttft_ms: f64,
    itl_ms: Option<Vec<f64>>,
    itl_tokens: Option<Vec<u32>>,
    itl_summary: Option<Summary>,
    #[serde(default = "one")]
    concurrency: u64,
    arrival_ms: Option<f64>,
    itl_ctx: Option<Context>,
    block_hashes: Option<Vec<u64>>,
    mm_hashes: Option<Vec<String>>,
    output_token_ids: Option<Vec<u32>>,
    finish_reason: Option<FinishReason>,
}

fn one() -> u64 {
    1
}

impl Record {
    /// The gaps that a fit of latencies takes from it.
    pub(crate) fn gaps(&self) -> Vec<f64> {
        match (&self.itl_ms, &self.itl_summary) {
            (Some(gaps), _) => gaps.clone(),
            (None, Some(summary)) => vec![summary.mean_ms; summary.count],
            (None, None) => Vec::new(),
        }
    }

    fn judge(&self) -> Result<(), String> {
        let gaps = self.itl_ms.as_ref().map_or(0, Vec::len);
        if self.output_tokens > 1 && self.itl_ms.is_none() && self.itl_summary.is_none() {
            return Err("several tokens and no gaps".to_owned());
        }
        if let Some(context) = &self.itl_ctx
            && (context.num_running.len() != gaps || context.prefill_tokens.len() != gaps)
        {
            return Err("itl_ctx is not parallel".to_owned());
        }
        if let Some(tokens) = &self.itl_tokens {
            let sum: u64 = tokens.iter().copied().map(u64::from).sum();
            if tokens.len() != gaps || tokens.contains(&0) || sum >= self.output_tokens as u64 {
                return Err(format!("itl_tokens {tokens:?} of {gaps} gaps and {} tokens", self.output_tokens));
            }
        }
        match &self.output_token_ids {
            Some(ids) if ids.len() != self.output_tokens => Err("not as many ids as tokens".to_owned()),
            _ => Ok(()),
        }
    }
}

/// Everything of a file, or the first thing that is wrong with it.
pub(crate) fn load(path: &Path) -> Result<(Meta, Vec<Record>), String> {
    let file = BufReader::new(File::open(path).map_err(|error| error.to_string())?);
    let packed = path.extension().is_some_and(|extension| extension == "gz");
    let input: Box<dyn Read> = if packed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    let (mut meta, mut records) = (Meta::default(), Vec::new());
    let lines = BufReader::new(input)
        .lines()
        .enumerate()
        .filter(|(_, line)| line.as_ref().map_or(true, |line| !line.trim().is_empty()));
    for (nth, (at, line)) in lines.enumerate() {
        let told = |error: &dyn std::fmt::Display| format!("{}:{}: {error}", path.display(), at + 1);
        let line = line.map_err(|error| told(&error))?;
        let value: Value = serde_json::from_str(&line).map_err(|error| told(&error))?;
        if let Some(found) = value.get("meta").filter(|_| nth == 0) {
            meta = Meta::deserialize(found).map_err(|error| told(&error))?;
            continue;
        }
        let record: Record = serde_json::from_str(&line).map_err(|error| told(&error))?;
        record.judge().map_err(|error| told(&error))?;
        records.push(record);
    }
    Ok((meta, records))
}
