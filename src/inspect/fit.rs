//! A model of an engine's step times, fitted to traces and compared with another one.

use std::{fmt, path::PathBuf, time::Duration};

use serde::Serialize;

use crate::{
    base::stats::nearest_quantile,
    engine::{
        kv_cache::KvCacheConfig,
        offline::{self, Job, RequestTimeline},
        scheduler::{Request, Scheduler, SchedulerConfig, SchedulerConfigError},
        step_clock::{FitError, StepClock, StepFit, StepTimes},
    },
    recording::trace::{Record, Sources, TraceError},
    replay::steps::{StreamedRecords, first_streamed},
};

/// Tokens of a block of prompts whose trace has none.
const BLOCK_SIZE: usize = 16;

/// Longest request that a predicted engine takes.
const LONGEST: usize = 1 << 20;

/// A trace to predict, and the engine that it was recorded from.
#[derive(Debug, Clone)]
pub struct Predicted {
    /// The trace.
    pub path: PathBuf,
    /// Requests that the engine runs at once.
    pub max_num_seqs: usize,
    /// Tokens of one of its steps.
    pub max_num_batched_tokens: usize,
    /// Blocks of its cache.
    pub num_gpu_blocks: u32,
    /// Seed of the times that are drawn.
    pub seed: u64,
}

/// A model that was fitted to traces.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FitReport {
    /// The traces.
    pub path: String,
    /// Their requests whose tokens were streamed.
    pub requests: usize,
    /// Those whose steps were measured: an even sample of many.
    pub sampled_requests: usize,
    /// Steps that were measured.
    pub steps: usize,
    /// Milliseconds of every step.
    pub step_ms: f64,
    /// Of each request that decodes in it.
    pub decode_ms: f64,
    /// Of each prompt token.
    pub prefill_token_ms: f64,
    /// Of a thousand tokens of context.
    pub context_ktoken_ms: f64,
    /// Of each request, before its first step.
    pub request_ms: f64,
    /// Median relative error of a step.
    pub median_error: f64,
    /// 90th percentile of the same.
    pub p90_error: f64,
    /// The other trace, predicted.
    pub prediction: Option<Prediction>,
}

/// Latencies of a trace, recorded and predicted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// The trace.
    pub path: String,
    /// Its requests with arrivals and tokens.
    pub requests: usize,
    /// The number of all such requests, where these are the first ones only.
    pub first_of: Option<usize>,
    /// The figures.
    pub figures: Vec<Figure>,
}

/// One figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// Which.
    pub name: &'static str,
    /// As recorded, in milliseconds.
    pub recorded_ms: f64,
    /// As predicted.
    pub predicted_ms: f64,
}

/// Traces that nothing can be fitted to.
#[derive(Debug, thiserror::Error)]
pub enum InspectFitError {
    /// One cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// They show too few steps.
    #[error("{path}: {error}")]
    Fit {
        /// The traces.
        path: String,
        /// Why.
        error: FitError,
    },
    /// The predicted engine's limits contradict each other.
    #[error(transparent)]
    Engine(#[from] SchedulerConfigError),
    /// There is nothing to compare with.
    #[error("{0}: no record has an arrival and tokens")]
    NoArrivals(String),
}

/// Fits a model to traces, and predicts another one with it.
///
/// # Errors
/// When a trace cannot be read, or shows too few steps.
pub fn fit(sources: &Sources, predicted: Option<&Predicted>) -> Result<FitReport, InspectFitError> {
    let streamed = StreamedRecords::of(sources)?;
    let path = sources.name();
    let fit = StepFit::of(&streamed.measured());
    let fit = fit.map_err(|error| InspectFitError::Fit { path: path.clone(), error })?;
    let prediction = predicted.map(|predicted| predict(&fit, predicted)).transpose()?;
    let (model, (median_error, p90_error)) = (fit.model, fit.errors);
    Ok(FitReport {
        path,
        requests: streamed.count,
        sampled_requests: streamed.sampled(),
        steps: fit.steps,
        step_ms: model.step * 1e3,
        decode_ms: model.decode * 1e3,
        prefill_token_ms: model.prefill_token * 1e3,
        context_ktoken_ms: model.context_token * 1e6,
        request_ms: model.request * 1e3,
        median_error,
        p90_error,
        prediction,
    })
}

fn predict(fit: &StepFit, predicted: &Predicted) -> Result<Prediction, InspectFitError> {
    let sources = Sources::gather(std::slice::from_ref(&predicted.path))?;
    let (records, block_size, count) = first_streamed(&sources)?;
    let first_of = Some(count).filter(|count| *count > records.len());
    let path = sources.name();
    if records.is_empty() {
        return Err(InspectFitError::NoArrivals(path));
    }
    let block_size = block_size.and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0);
    let block_size = block_size.unwrap_or(BLOCK_SIZE);
    let jobs = records.iter().zip(0..).map(|(record, number)| job(record, number, block_size)).collect();
    let config = SchedulerConfig {
        max_num_seqs: predicted.max_num_seqs,
        max_num_batched_tokens: predicted.max_num_batched_tokens,
        max_model_len: LONGEST,
        ..SchedulerConfig::default()
    };
    let kv_cache = KvCacheConfig { block_size, num_gpu_blocks: predicted.num_gpu_blocks, ..KvCacheConfig::default() };
    let clock = StepClock::new(StepTimes::Fitted(fit.clone()), 1.0, predicted.seed);
    let timelines = offline::run(jobs, Scheduler::new(config, kv_cache)?, clock);
    let recorded: Vec<RequestTimeline> = records.iter().map(recorded).collect();
    let pairs: Vec<(&RequestTimeline, &RequestTimeline)> =
        recorded.iter().zip(&timelines).filter(|(_, timeline)| !timeline.tokens.is_empty()).collect();
    Ok(Prediction { path, requests: pairs.len(), first_of, figures: figures(&pairs) })
}

/// A record as a request: prompts that share blocks have the same ids there.
fn job(record: &Record, number: u32, block_size: usize) -> Job {
    let tokens = (record.prompt_tokens as usize).clamp(1, LONGEST - 1);
    let shared = record.block_hashes.iter().flat_map(|hash| {
        #[allow(clippy::cast_possible_truncation)] // halves of a number
        let (low, high) = (*hash as u32, (*hash >> 32) as u32);
        (0_u32..).take(block_size).map(move |at| if at % 2 == 0 { low.wrapping_add(at) } else { high.wrapping_add(at) })
    });
    let own = (0_u32..).map(|at| number.wrapping_mul(0x9e37_79b1).wrapping_add(at));
    let prompt: Vec<u32> = shared.chain(own).take(tokens).collect();
    let output = vec![0; (record.output_tokens as usize).clamp(1, LONGEST)];
    Job { arrival: record.arrival.unwrap_or_default(), request: Request { prompt, output, ..Request::default() } }
}

/// The times of a record's tokens.
fn recorded(record: &Record) -> RequestTimeline {
    let mut at = Duration::ZERO;
    let mut tokens = Vec::new();
    for chunk in record.emissions() {
        at += chunk.gap;
        tokens.extend((0..chunk.tokens).map(|_| at));
    }
    RequestTimeline { tokens, cached_tokens: 0 }
}

fn figures(pairs: &[(&RequestTimeline, &RequestTimeline)]) -> Vec<Figure> {
    let (recorded, predicted): (Vec<&RequestTimeline>, Vec<&RequestTimeline>) = pairs.iter().copied().unzip();
    let (recorded, predicted) = (FitLatencies::of(&recorded), FitLatencies::of(&predicted));
    let figure =
        |name, of: fn(&FitLatencies) -> f64| Figure { name, recorded_ms: of(&recorded), predicted_ms: of(&predicted) };
    vec![
        figure("TTFT p50", |latencies| share(&latencies.ttft, 0.5)),
        figure("TTFT p90", |latencies| share(&latencies.ttft, 0.9)),
        figure("ITL p50", |latencies| share(&latencies.itl, 0.5)),
        figure("ITL p90", |latencies| share(&latencies.itl, 0.9)),
        figure("E2E mean", |latencies| mean(&latencies.e2e)),
    ]
}

/// Latencies in milliseconds, in order.
struct FitLatencies {
    ttft: Vec<f64>,
    itl: Vec<f64>,
    e2e: Vec<f64>,
}

impl FitLatencies {
    fn of(timelines: &[&RequestTimeline]) -> Self {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let sorted = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values
        };
        let tokens = || timelines.iter().map(|timeline| &timeline.tokens);
        let gaps =
            tokens().flat_map(|tokens| tokens.windows(2).filter_map(|pair| Some(*pair.last()? - *pair.first()?)));
        Self {
            ttft: sorted(tokens().filter_map(|tokens| tokens.first().copied().map(millis)).collect()),
            itl: sorted(gaps.map(millis).collect()),
            e2e: sorted(tokens().filter_map(|tokens| tokens.last().copied().map(millis)).collect()),
        }
    }
}

fn share(sorted: &[f64], share: f64) -> f64 {
    nearest_quantile(sorted, share).unwrap_or_default()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / (values.len().max(1) as f64)
}

impl fmt::Display for FitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sampled, all) = (self.sampled_requests, self.requests);
        let sample =
            if sampled < all { format!(" of {sampled} of {all} requests, an even sample") } else { String::new() };
        writeln!(f, "{}: {} steps{sample}", self.path, self.steps)?;
        writeln!(f, "every step            {:>10.4} ms", self.step_ms)?;
        writeln!(f, "each decode           {:>10.4} ms", self.decode_ms)?;
        writeln!(f, "each prompt token     {:>10.4} ms", self.prefill_token_ms)?;
        writeln!(f, "1000 tokens before it {:>10.4} ms", self.context_ktoken_ms)?;
        writeln!(f, "each request          {:>10.4} ms before its first step", self.request_ms)?;
        let percent = |share: f64| share * 100.0;
        writeln!(
            f,
            "error of a step       median {:.1} %, 90th percentile {:.1} %",
            percent(self.median_error),
            percent(self.p90_error)
        )?;
        let Some(Prediction { path, requests, first_of, figures }) = &self.prediction else { return Ok(()) };
        let first = first_of.map(|all| format!(" (the first of {all})")).unwrap_or_default();
        writeln!(f, "\n{path}: {requests} requests{first}, recorded and predicted")?;
        for Figure { name, recorded_ms, predicted_ms } in figures {
            let off = if *recorded_ms > 0.0 { (predicted_ms / recorded_ms - 1.0) * 100.0 } else { 0.0 };
            writeln!(f, "{name:<9} {recorded_ms:>10.2} ms {predicted_ms:>10.2} ms {off:>+7.1} %")?;
        }
        Ok(())
    }
}
