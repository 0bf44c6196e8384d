//! Benchmark Report v0.2.1, the format in which llm-d's benchmarks compare tools.
//!
//! Source: `llmdbenchmark/analysis/benchmark_report/schema_v0_2_1.py` of llm-d/llm-d-benchmark. It allows no fields of its own, so that the verdict and the
//! commit are under `scenario.load.native`, which is free.
//!
//! Limits: the stack is not described: what serves is not known here. Throughputs are one number, as mean.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    distribution::{Distribution, Statistic},
    numbers::millis,
    peers::Measured,
    results::Sample,
};

const VERSION: &str = "0.2.1";

const STATISTICS: [(&str, Statistic); 14] = [
    ("mean", Statistic::Mean),
    ("stddev", Statistic::Deviation),
    ("min", Statistic::Least),
    ("p0p1", Statistic::Quantile(0.001)),
    ("p1", Statistic::Quantile(0.01)),
    ("p5", Statistic::Quantile(0.05)),
    ("p10", Statistic::Quantile(0.1)),
    ("p25", Statistic::Quantile(0.25)),
    ("p50", Statistic::Quantile(0.5)),
    ("p75", Statistic::Quantile(0.75)),
    ("p90", Statistic::Quantile(0.9)),
    ("p95", Statistic::Quantile(0.95)),
    ("p99", Statistic::Quantile(0.99)),
    ("p99p9", Statistic::Quantile(0.999)),
];

/// Parts of a report beside the figures.
#[derive(Debug, Clone)]
pub struct BenchmarkRun {
    /// Id of this report, which no other has.
    pub uid: String,
    /// When the run began.
    pub began: SystemTime,
    /// Version of the program.
    pub version: String,
    /// Requests that were to be on their way at once; `None` in an open loop.
    pub concurrency: Option<usize>,
    /// Requests were to be sent at this rate, a second; `None` where it is not one rate.
    pub rate: Option<f64>,
    /// Prompts were made up, not recorded.
    pub made_up: bool,
    /// Goes into `scenario.load.native.config` as it is.
    pub native: Value,
}

/// Builds the report.
#[must_use]
pub fn benchmark_report(run: &BenchmarkRun, measured: &Measured) -> Map<String, Value> {
    let seconds = measured.duration.as_secs_f64();
    let time = |at: SystemTime| OffsetDateTime::from(at).format(&Rfc3339).ok();
    let performance = json!({"aggregate": {
        "requests": requests(measured),
        "latency": latency(measured),
        "throughput": throughput(measured),
    }});
    let report = json!({
        "version": VERSION,
        "run": {
            "uid": run.uid,
            "time": {"start": time(run.began), "end": time(run.began + measured.duration), "duration": format!("PT{seconds:.6}S")},
        },
        "scenario": {"load": {
            "metadata": {"schema_version": "0.0.1"},
            "standardized": standardized(run, measured),
            "native": {"config": run.native},
        }},
        "results": {"request_performance": performance},
    });
    let Value::Object(report) = report else { return Map::new() };
    report
}

fn standardized(run: &BenchmarkRun, measured: &Measured) -> Value {
    let lengths = |of: fn(&Sample) -> u32| {
        let statistics = [("value", Statistic::Mean), ("min", Statistic::Least), ("max", Statistic::Most)];
        let values = measured.good.iter().map(|sample| f64::from(of(sample)));
        let mut length = Map::from_iter([("distribution".to_owned(), json!("other"))]);
        let known = Distribution::of(values).statistics(&statistics).unwrap_or_else(|| vec![("value", 0.0)]);
        // The largest length is at least 1 there, and both ends are whole numbers.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "lengths are 32 bits wide")]
        let whole = |name, value: f64| if name == "value" { json!(value) } else { json!(value as u32) };
        let fits = |(name, value): &(&str, f64)| *name != "max" || *value >= 1.0;
        length.extend(known.into_iter().filter(fits).map(|(name, value)| (name.to_owned(), whole(name, value))));
        length
    };
    let mut load = json!({
        "tool": "vllm-vcr replay",
        "tool_version": run.version,
        "source": if run.made_up { "random" } else { "sampled" },
        "input_seq_len": lengths(|sample| sample.prompt_tokens),
        "output_seq_len": lengths(|sample| sample.output_tokens),
    });
    if let Value::Object(load) = &mut load {
        load.extend(run.rate.map(|rate| ("rate_qps".to_owned(), json!(rate))));
        load.extend(run.concurrency.map(|places| ("concurrency".to_owned(), json!(places))));
    }
    load
}

fn requests(measured: &Measured) -> Value {
    let good = &measured.good;
    let total = u64::try_from(good.len()).unwrap_or(u64::MAX).saturating_add(measured.failed);
    let mut requests =
        Map::from_iter([("total".to_owned(), json!(total)), ("failures".to_owned(), json!(measured.failed))]);
    let lengths = |of: fn(&Sample) -> u32| Distribution::of(good.iter().map(|sample| f64::from(of(sample))));
    requests.extend(named("input_length", "count", &lengths(|sample| sample.prompt_tokens)));
    requests.extend(named("output_length", "count", &lengths(|sample| sample.output_tokens)));
    Value::Object(requests)
}

fn latency(measured: &Measured) -> Value {
    let of = |value: &dyn Fn(&Sample) -> Option<Duration>| {
        Distribution::of(measured.good.iter().filter_map(value).map(millis))
    };
    let normalized = |sample: &Sample| sample.e2e.checked_div(sample.output_tokens);
    let latencies = [
        named("time_to_first_token", "ms", &of(&|sample| sample.ttft)),
        named("normalized_time_per_output_token", "ms/token", &of(&normalized)),
        named("time_per_output_token", "ms/token", &of(&|sample| sample.tpot)),
        named("inter_token_latency", "ms/token", &Distribution::Pooled(measured.itl.clone(), 1.0)),
        named("request_latency", "ms", &of(&|sample| Some(sample.e2e))),
    ];
    Value::Object(latencies.into_iter().flatten().collect())
}

/// Statistics under a name; `None` without values.
fn named(name: &str, units: &str, distribution: &Distribution) -> Option<(String, Value)> {
    let mut statistics = Map::from_iter([("units".to_owned(), json!(units))]);
    let values =
        distribution.statistics(&STATISTICS)?.into_iter().chain(distribution.statistics(&[("max", Statistic::Most)])?);
    statistics.extend(values.map(|(name, value)| (name.to_owned(), json!(value))));
    Some((name.to_owned(), Value::Object(statistics)))
}

fn throughput(measured: &Measured) -> Value {
    let seconds = measured.duration.as_secs_f64();
    let sum = |of: fn(&Sample) -> u32| measured.good.iter().map(|sample| f64::from(of(sample))).sum::<f64>();
    let (input, output) = (sum(|sample| sample.prompt_tokens), sum(|sample| sample.output_tokens));
    let requests = measured.good.iter().map(|_| 1.0).sum::<f64>();
    let rates = [
        ("input_token_rate", "tokens/s", input),
        ("output_token_rate", "tokens/s", output),
        ("total_token_rate", "tokens/s", input + output),
        ("request_rate", "queries/s", requests),
    ];
    let known = rates.into_iter().filter(|_| seconds > 0.0);
    known.map(|(name, units, sum)| (name.to_owned(), json!({"units": units, "mean": sum / seconds}))).collect()
}

#[cfg(test)]
mod tests {
    use base::stats::Durations;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn report(good: Vec<Sample>) -> Value {
        let run = BenchmarkRun {
            uid: "u".to_owned(),
            began: SystemTime::UNIX_EPOCH,
            version: "1".to_owned(),
            concurrency: Some(4),
            rate: None,
            made_up: true,
            native: json!({"valid": true}),
        };
        let mut itl = Durations::default();
        itl.record_many(MS * 10, u32::try_from(good.len()).unwrap());
        let measured = Measured { good, failed: 1, duration: MS * 2000, chunk_gaps: Durations::default(), itl };
        Value::Object(benchmark_report(&run, &measured))
    }

    #[test]
    fn figures_are_in_the_units_of_the_format() {
        let sample = |ttft: u32| Sample {
            ttft: Some(MS * ttft),
            tpot: Some(MS * 10),
            e2e: MS * (ttft + 30),
            prompt_tokens: 100,
            output_tokens: 4,
            ..Sample::default()
        };
        let report = report(vec![sample(50), sample(70)]);
        let aggregate = &report["results"]["request_performance"]["aggregate"];
        let ttft = &aggregate["latency"]["time_to_first_token"];
        assert_eq!(
            [&ttft["units"], &ttft["mean"], &ttft["stddev"], &ttft["max"]],
            [&json!("ms"), &json!(60.0), &json!(10.0), &json!(70.0)]
        );
        assert_eq!(aggregate["latency"]["inter_token_latency"]["units"], "ms/token");
        assert_eq!(aggregate["requests"]["total"], 3);
        assert_eq!(aggregate["throughput"]["output_token_rate"], json!({"units": "tokens/s", "mean": 4.0}));
        let load = &report["scenario"]["load"]["standardized"];
        assert_eq!(load["input_seq_len"], json!({"distribution": "other", "value": 100.0, "min": 100, "max": 100}));
        assert_eq!(report["run"]["time"]["duration"], "PT2.000000S");
        assert_eq!(report["run"]["time"]["end"], "1970-01-01T00:00:02Z");
    }

    #[test]
    fn without_responses_there_are_counts_only() {
        let report = report(Vec::new());
        let aggregate = &report["results"]["request_performance"]["aggregate"];
        assert_eq!((&aggregate["requests"], &aggregate["latency"]), (&json!({"total": 1, "failures": 1}), &json!({})));
        assert_eq!(
            report["scenario"]["load"]["standardized"]["input_seq_len"],
            json!({"distribution": "other", "value": 0.0})
        );
    }
}
