//! The figures of each tool.

use std::time::Duration;

use super::{ClientFigure, Measured, Statistics};
use crate::{
    distribution::{Distribution, Statistic},
    numbers::float,
    results::Sample,
};

const MEAN: Statistic = Statistic::Mean;
const LEAST: Statistic = Statistic::Least;
const MOST: Statistic = Statistic::Most;
const P50: Statistic = Statistic::Quantile(0.5);
const P90: Statistic = Statistic::Quantile(0.9);
const P95: Statistic = Statistic::Quantile(0.95);
const P99: Statistic = Statistic::Quantile(0.99);

const OF_VLLM: &[(&str, Statistic)] = &[("mean", MEAN), ("median", P50), ("p99", P99)];
const OF_GUIDELLM: &[(&str, Statistic)] =
    &[("mean", MEAN), ("median", P50), ("p90", P90), ("p95", P95), ("p99", P99), ("max", MOST)];
const OF_AIPERF: &[(&str, Statistic)] =
    &[("avg", MEAN), ("min", LEAST), ("max", MOST), ("p99", P99), ("p90", P90), ("p50", P50)];
const OF_GENAI_BENCH: &[(&str, Statistic)] =
    &[("mean", MEAN), ("p50", P50), ("p90", P90), ("p95", P95), ("p99", P99), ("max", MOST)];
const OF_INFERENCE_PERF: &[(&str, Statistic)] =
    &[("mean", MEAN), ("min", LEAST), ("max", MOST), ("median", P50), ("p90", P90), ("p99", P99)];

type Named = Vec<(&'static str, ClientFigure)>;

pub(super) fn vllm(run: &Measured) -> Named {
    let ttft = |sample: &Sample| sample.first_event.filter(|_| sample.is_chat).or(sample.ttft);
    let latency = |sample: &Sample| sample.last_token.unwrap_or(sample.e2e);
    let mut gaps = run.chunk_gaps.clone();
    for sample in run.good.iter().filter(|sample| sample.is_chat) {
        let after_role = sample.ttft.zip(sample.first_event).map(|(ttft, first)| ttft.saturating_sub(first));
        after_role.into_iter().filter(|gap| !gap.is_zero()).for_each(|gap| gaps.record(gap));
    }
    let tpot = |sample: &Sample| Some(seconds(latency(sample).saturating_sub(ttft(sample)?)) * 1000.0 / later(sample)?);
    let of = |values: &dyn Fn(&Sample) -> Option<f64>| statistics(OF_VLLM, &of_each(run, values));
    existing([
        ("completed", one(float(run.good.len()))),
        ("failed", one(float(run.failed))),
        ("duration", one(seconds(run.duration))),
        ("total_input_tokens", one(inputs(run))),
        ("total_output_tokens", one(outputs(run))),
        ("request_throughput", rate(run, float(run.good.len()))),
        ("output_throughput", rate(run, outputs(run))),
        ("total_token_throughput", rate(run, inputs(run) + outputs(run))),
        ("ttft_ms", of(&|sample| Some(seconds(ttft(sample)?) * 1000.0))),
        ("tpot_ms", of(&tpot)),
        ("itl_ms", statistics(OF_VLLM, &Distribution::Pooled(gaps, 1.0))),
        ("e2el_ms", of(&|sample| Some(seconds(latency(sample)) * 1000.0))),
    ])
}

pub(super) fn guidellm(run: &Measured) -> Named {
    let weighted = |values: &dyn Fn(&Sample) -> Option<(f64, f64)>| {
        statistics(OF_GUIDELLM, &Distribution::weighted(run.good.iter().filter_map(values)))
    };
    let each = |values: &dyn Fn(&Sample) -> Option<f64>| weighted(&|sample| Some((values(sample)?, 1.0)));
    let itl = |sample: &Sample| Some((between(sample)? * 1000.0 / later(sample)?, later(sample)?));
    let tpot = |sample: &Sample| {
        let tokens = f64::from(sample.output_tokens);
        (tokens > 0.0).then(|| (seconds(sample.last_token.unwrap_or(sample.e2e)) * 1000.0 / tokens, tokens))
    };
    existing([
        ("request_totals.successful", one(float(run.good.len()))),
        ("request_totals.errored", one(float(run.failed))),
        ("requests_per_second", rate(run, float(run.good.len()))),
        ("output_tokens_per_second", rate(run, outputs(run))),
        ("tokens_per_second", rate(run, inputs(run) + outputs(run))),
        ("request_latency", each(&|sample| Some(seconds(sample.e2e)))),
        ("time_to_first_token_ms", each(&|sample| Some(seconds(sample.ttft?) * 1000.0))),
        ("time_per_output_token_ms", weighted(&tpot)),
        ("inter_token_latency_ms", weighted(&itl)),
        ("prompt_token_count", each(&|sample| Some(f64::from(sample.prompt_tokens)))),
        ("output_token_count", each(&|sample| Some(f64::from(sample.output_tokens)))),
    ])
}

pub(super) fn aiperf(run: &Measured) -> Named {
    let of = |values: &dyn Fn(&Sample) -> Option<f64>| statistics(OF_AIPERF, &of_each(run, values));
    let itl = |sample: &Sample| Some(between(sample)? / later(sample)?);
    existing([
        ("time_to_first_token", of(&|sample| Some(seconds(sample.ttft?) * 1000.0))),
        ("inter_token_latency", of(&|sample| Some(itl(sample)? * 1000.0))),
        ("inter_chunk_latency", statistics(OF_AIPERF, &Distribution::Pooled(run.chunk_gaps.clone(), 1.0))),
        ("request_latency", of(&|sample| Some(seconds(sample.last_token.unwrap_or(sample.e2e)) * 1000.0))),
        ("output_token_throughput_per_user", of(&|sample| itl(sample).filter(|itl| *itl > 0.0).map(f64::recip))),
        ("output_sequence_length", of(&|sample| Some(f64::from(sample.output_tokens)))),
        ("input_sequence_length", of(&|sample| Some(f64::from(sample.prompt_tokens)))),
        ("output_token_throughput", rate(run, outputs(run))),
        ("request_throughput", rate(run, float(run.good.len()))),
        ("request_count", one(float(run.good.len()))),
        ("error_request_count", one(float(run.failed))),
        ("benchmark_duration", one(seconds(run.duration))),
    ])
}

pub(super) fn genai_bench(run: &Measured) -> Named {
    /// Below this the tool leaves a request out of TPOT and inference speed.
    const SHORTEST: f64 = 0.001;
    let of = |values: &dyn Fn(&Sample) -> Option<f64>| statistics(OF_GENAI_BENCH, &of_each(run, values));
    let decoding = |sample: &Sample| Some(seconds(sample.e2e.saturating_sub(sample.ttft?)));
    let tpot = |sample: &Sample| Some(decoding(sample).filter(|time| *time >= SHORTEST)? / later(sample)?);
    let all = float(run.good.len()) + float(run.failed);
    existing([
        ("num_completed_requests", one(float(run.good.len()))),
        ("num_error_requests", one(float(run.failed))),
        ("error_rate", (all > 0.0).then(|| ClientFigure::One(float(run.failed) / all))),
        ("run_duration", one(seconds(run.duration))),
        ("requests_per_second", rate(run, float(run.good.len()))),
        ("mean_input_throughput_tokens_per_s", rate(run, inputs(run))),
        ("mean_output_throughput_tokens_per_s", rate(run, outputs(run))),
        ("ttft", of(&|sample| Some(seconds(sample.ttft?)))),
        ("tpot", of(&tpot)),
        ("e2e_latency", of(&|sample| Some(seconds(sample.e2e)))),
        ("output_latency", of(&decoding)),
        ("output_inference_speed", of(&|sample| tpot(sample).map(f64::recip))),
        ("input_throughput", of(&|sample| Some(f64::from(sample.prompt_tokens) / positive(seconds(sample.ttft?))?))),
        ("num_input_tokens", of(&|sample| Some(f64::from(sample.prompt_tokens)))),
        ("num_output_tokens", of(&|sample| Some(f64::from(sample.output_tokens)))),
    ])
}

pub(super) fn inference_perf(run: &Measured) -> Named {
    let of = |values: &dyn Fn(&Sample) -> Option<f64>| statistics(OF_INFERENCE_PERF, &of_each(run, values));
    // It gives each token of an event the event's time.
    let mut gaps = run.chunk_gaps.clone();
    for sample in &run.good {
        gaps.record_many(Duration::ZERO, sample.output_tokens.saturating_sub(sample.chunks));
    }
    let several = |sample: &&Sample| sample.output_tokens > 1;
    existing([
        ("successes.count", one(float(run.good.len()))),
        ("failures.count", one(float(run.failed))),
        ("latency.request_latency", of(&|sample| Some(seconds(sample.e2e)))),
        (
            "latency.normalized_time_per_output_token",
            of(&|sample| {
                Some(positive(f64::from(sample.output_tokens)).map_or(0.0, |tokens| seconds(sample.e2e) / tokens))
            }),
        ),
        ("latency.time_per_output_token", of(&|sample| Some(between(sample)? / later(sample)?))),
        ("latency.time_to_first_token", of(&|sample| Some(seconds(Some(sample).filter(several)?.ttft?)))),
        ("latency.inter_token_latency", statistics(OF_INFERENCE_PERF, &Distribution::Pooled(gaps, 1e-3))),
        ("throughput.input_tokens_per_sec", rate(run, inputs(run))),
        ("throughput.output_tokens_per_sec", rate(run, outputs(run))),
        ("throughput.total_tokens_per_sec", rate(run, inputs(run) + outputs(run))),
        ("throughput.requests_per_sec", rate(run, float(run.good.len()))),
    ])
}

fn existing<const N: usize>(figures: [(&'static str, Option<ClientFigure>); N]) -> Named {
    figures.into_iter().filter_map(|(name, figure)| Some((name, figure?))).collect()
}

fn statistics(names: &[(&'static str, Statistic)], of: &Distribution) -> Option<ClientFigure> {
    of.statistics(names).map(|values| ClientFigure::Statistics(Statistics(values)))
}

fn of_each(run: &Measured, value: &dyn Fn(&Sample) -> Option<f64>) -> Distribution {
    Distribution::of(run.good.iter().filter_map(value))
}

fn one(value: f64) -> Option<ClientFigure> {
    Some(ClientFigure::One(value))
}

fn rate(run: &Measured, sum: f64) -> Option<ClientFigure> {
    positive(seconds(run.duration)).map(|seconds| ClientFigure::One(sum / seconds))
}

/// Seconds from a response's first token to its last.
fn between(sample: &Sample) -> Option<f64> {
    Some(seconds(sample.last_token?.saturating_sub(sample.ttft?)))
}

/// Number of tokens after the first, if there are any.
fn later(sample: &Sample) -> Option<f64> {
    positive(f64::from(sample.output_tokens) - 1.0)
}

fn positive(value: f64) -> Option<f64> {
    Some(value).filter(|value| *value > 0.0)
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

fn inputs(run: &Measured) -> f64 {
    run.good.iter().map(|sample| f64::from(sample.prompt_tokens)).sum()
}

fn outputs(run: &Measured) -> f64 {
    run.good.iter().map(|sample| f64::from(sample.output_tokens)).sum()
}
