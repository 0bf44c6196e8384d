use super::*;

const MS: Duration = Duration::from_millis(1);

/// A chat of 9 tokens: the role after 10 ms, then events of 1, 4 and 4 tokens at 50, 90 and 130 ms, and the end at 140 ms; and a shorter one.
fn run() -> Measured {
    let sample = |tokens, last: u32, end: u32, chunks| Sample {
        ttft: Some(MS * 50),
        first_event: Some(MS * 10),
        last_token: Some(MS * last),
        e2e: MS * end,
        output_tokens: tokens,
        prompt_tokens: 100,
        chunks,
        is_chat: true,
        is_good: true,
        ..Sample::default()
    };
    let mut chunk_gaps = Durations::default();
    chunk_gaps.record_many(MS * 40, 2);
    Measured {
        good: vec![sample(9, 130, 140, 3), sample(1, 50, 60, 1)],
        failed: 1,
        duration: MS * 500,
        chunk_gaps,
        itl: Durations::default(),
    }
}

fn figure(tool: LoadClient, name: &str, statistic: &str) -> f64 {
    let report = PeerReport::of(tool, &run());
    let figure = report.figures.0.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name}"));
    match &figure.1 {
        ClientFigure::One(value) => *value,
        ClientFigure::Statistics(Statistics(values)) => values.iter().find(|(known, _)| *known == statistic).unwrap().1,
    }
}

fn assert_close(tool: LoadClient, expected: &[(&str, &str, f64)]) {
    for (name, statistic, value) in expected {
        let is = figure(tool, name, statistic);
        assert!((is - value).abs() <= value.abs() * 1e-3, "{tool:?} {name} {statistic}: {is}, not {value}");
    }
}

#[test]
fn vllm_counts_from_the_role_and_pools_gaps_between_events() {
    assert_close(
        LoadClient::Vllm,
        &[
            ("completed", "", 2.0),
            ("failed", "", 1.0),
            ("ttft_ms", "mean", 10.0),
            ("tpot_ms", "mean", 15.0),
            ("itl_ms", "mean", 40.0),
            ("e2el_ms", "median", 90.0),
            ("e2el_ms", "p99", 129.2),
            ("output_throughput", "", 20.0),
            ("total_token_throughput", "", 420.0),
        ],
    );
}

#[test]
fn guidellm_weighs_by_tokens_and_includes_the_first_in_tpot() {
    assert_close(
        LoadClient::Guidellm,
        &[
            ("inter_token_latency_ms", "mean", 10.0),
            ("time_per_output_token_ms", "mean", (130.0 + 50.0) / 10.0),
            ("time_per_output_token_ms", "median", 130.0 / 9.0),
            ("time_per_output_token_ms", "p95", 50.0),
            ("request_latency", "max", 0.14),
            ("request_latency", "median", 0.06),
        ],
    );
}

#[test]
fn aiperf_ends_at_the_last_content() {
    assert_close(
        LoadClient::Aiperf,
        &[
            ("time_to_first_token", "avg", 50.0),
            ("inter_token_latency", "avg", 10.0),
            ("inter_chunk_latency", "p50", 40.0),
            ("request_latency", "max", 130.0),
            ("request_latency", "p50", 90.0),
            ("output_token_throughput_per_user", "avg", 100.0),
        ],
    );
}

#[test]
fn genai_bench_ends_with_the_stream_and_counts_in_seconds() {
    assert_close(
        LoadClient::GenaiBench,
        &[("tpot", "mean", 0.01125), ("output_inference_speed", "mean", 1.0 / 0.01125), ("error_rate", "", 1.0 / 3.0)],
    );
}

#[test]
fn inference_perf_has_no_time_within_an_event() {
    assert_close(
        LoadClient::InferencePerf,
        &[
            ("latency.inter_token_latency", "mean", 0.01),
            ("latency.inter_token_latency", "median", 0.0),
            ("latency.inter_token_latency", "max", 0.04),
            ("latency.time_per_output_token", "mean", 0.01),
            ("latency.normalized_time_per_output_token", "mean", (0.14 / 9.0 + 0.06) / 2.0),
        ],
    );
}

#[test]
fn a_run_without_responses_has_counts_only() {
    for tool in
        [LoadClient::Vllm, LoadClient::Guidellm, LoadClient::Aiperf, LoadClient::GenaiBench, LoadClient::InferencePerf]
    {
        let nothing = Measured {
            good: Vec::new(),
            failed: 3,
            duration: Duration::ZERO,
            chunk_gaps: Durations::default(),
            itl: Durations::default(),
        };
        let report = PeerReport::of(tool, &nothing);
        assert!(
            report.figures.0.iter().all(|(_, figure)| matches!(figure, ClientFigure::One(value) if value.is_finite()))
        );
        assert!(serde_json::to_value(&report).unwrap()["tool"].is_string());
    }
}
