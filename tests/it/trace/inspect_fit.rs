//! `inspect fit`: a model of an engine's steps from one capture, held against another one that it has not seen.

use std::{fmt::Write, fs, path::Path, time::Duration};

use serde_json::{Value, json};
use vllm_vcr::engine::{
    kv_cache::KvCacheConfig,
    offline::{self, Job},
    scheduler::{Request, Scheduler, SchedulerConfig},
    step_clock::{LinearModel, MeasuredStep, StepClock, StepFit, StepTimes, StepWork},
};

use crate::support::running::vcr;

/// Times of an engine: linear in the work of a step, and up to 10 % off that.
fn times() -> StepTimes {
    let truth = LinearModel { step: 0.006, decode: 2e-4, prefill_token: 3e-5, context_token: 2e-8, request: 0.002 };
    let measured = (0..600_u32).map(|at| {
        let (decodes, is_prefill) = (at % 17, at % 5 == 0);
        let prefill_tokens = if is_prefill { 100 + at * 37 % 900 } else { 0 };
        let context_tokens = u64::from(decodes * (200 + at * 13 % 800));
        let work = StepWork {
            decodes,
            draft_tokens: 0,
            prefills: u32::from(is_prefill),
            prefill_tokens,
            prefill_share: 1.0,
            context_tokens,
        };
        let is_request = at % 35 == 0;
        let exactly = truth.seconds(&work) + if is_request { truth.request } else { 0.0 };
        let factor = [0.9, 0.95, 1.0, 1.0, 1.0, 1.05, 1.1][usize::try_from(at % 7).unwrap()];
        MeasuredStep { work, seconds: exactly * if is_request { 1.0 } else { factor }, is_request }
    });
    StepTimes::Fitted(StepFit::of(&measured.collect::<Vec<_>>()).unwrap())
}

/// A capture of so many requests, each so many milliseconds after the one before it on average.
fn capture(path: &Path, requests: u64, apart: u64, seed: u64) {
    let draw = |at: u64, salt: u64| (at * 2_654_435_761 + salt * 40_503 + seed * 97) % 1000;
    let mut arrival = Duration::ZERO;
    let mut jobs = Vec::new();
    for at in 0..requests {
        arrival += Duration::from_micros(apart * 2 * draw(at, 1));
        let (prompt, output) = (100 + draw(at, 2), 20 + draw(at, 3) / 10);
        let prompt: Vec<u32> =
            (0..u32::try_from(prompt).unwrap()).map(|token| token + 5000 * u32::try_from(at).unwrap()).collect();
        let request = Request { prompt, output: vec![1; usize::try_from(output).unwrap()], ..Request::default() };
        jobs.push(Job { arrival, request });
    }
    let scheduler = SchedulerConfig { max_num_seqs: 16, ..SchedulerConfig::default() };
    let scheduler = Scheduler::new(scheduler, KvCacheConfig { num_gpu_blocks: 9000, ..KvCacheConfig::default() });
    let timelines = offline::run(jobs.clone(), scheduler.unwrap(), StepClock::new(times(), 1.0, seed));
    let mut text = String::new();
    for (job, timeline) in jobs.iter().zip(&timelines) {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let gaps: Vec<f64> = timeline.tokens.windows(2).map(|pair| millis(pair[1] - pair[0])).collect();
        let record = json!({
            "prompt_tokens": job.request.prompt.len(), "output_tokens": timeline.tokens.len(), "ttft_ms": millis(timeline.tokens[0]),
            "itl_ms": gaps, "arrival_ms": millis(job.arrival), "finish_reason": "length",
        });
        writeln!(text, "{record}").unwrap();
    }
    fs::write(path, text).unwrap();
}

#[test]
fn a_capture_at_low_load_predicts_one_at_three_times_the_load() {
    let directory = tempfile::tempdir().unwrap();
    let (low, high) = (directory.path().join("low.jsonl"), directory.path().join("high.jsonl"));
    capture(&low, 300, 360, 1);
    capture(&high, 300, 120, 2);
    let report = predicts(&low, &high, "16");
    assert!(report["median_error"].as_f64().unwrap() < 0.12, "{report}");
    assert_eq!(report["prediction"]["requests"], 300);
    let text = vcr(&["inspect", "fit", low.to_str().unwrap()]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("each prompt token") && text.contains("median"), "{text}");
}

#[test]
fn a_real_engine_at_three_times_the_load_is_predicted() {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/vllm-0.32.0/captures");
    let report = predicts(&captures.join("low.jsonl.gz"), &captures.join("high.jsonl.gz"), "64");
    assert_eq!(report["prediction"]["requests"], 240);
}

/// Predicts a capture from another one, as well as is promised.
fn predicts(low: &Path, high: &Path, max_num_seqs: &str) -> Value {
    let [low, high] = [low, high].map(|path| path.to_str().unwrap());
    let output = vcr(&["inspect", "fit", low, "--predict", high, "--max-num-seqs", max_num_seqs, "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let figures = report["prediction"]["figures"].as_array().unwrap();
    for (name, within) in [("TTFT p50", 0.1), ("TTFT p90", 0.2), ("ITL p50", 0.1), ("ITL p90", 0.2), ("E2E mean", 0.05)]
    {
        let figure = figures.iter().find(|figure| figure["name"] == name).unwrap();
        let millis = |key: &str| figure[key].as_f64().unwrap();
        let off = (millis("predicted_ms") / millis("recorded_ms") - 1.0).abs();
        assert!(off < within, "{name}: {figure}");
    }
    report
}

#[test]
fn all_of_a_long_trace_is_sampled_and_what_was_used_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("two.jsonl");
    let mut text = String::new();
    for at in 0..20_000_u32 {
        let step = if at < 9000 { 5 } else { 50 };
        let record = json!({"prompt_tokens": 32, "output_tokens": 3, "ttft_ms": 2 * step, "itl_ms": [step, step], "arrival_ms": 500 * at});
        writeln!(text, "{record}").unwrap();
    }
    fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let output = vcr(&["inspect", "fit", path, "--predict", path]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("steps of 5000 of 20000 requests, an even sample"), "{text}");
    assert!(text.contains("8192 requests (the first of 20000), recorded and predicted"), "{text}");
    assert!(!text.contains("median 0.0 %, 90th percentile 0.0 %"), "{text}");
    let noted = String::from_utf8(vcr(&["inspect", "simulate", path, "--latency-trace", path]).stderr).unwrap();
    assert!(noted.contains("5000 of 20000 requests"), "{noted}");
}

#[test]
fn a_trace_without_steps_is_no_fit() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("short.jsonl");
    fs::write(&path, "{\"prompt_tokens\":4,\"output_tokens\":1,\"ttft_ms\":50.0,\"itl_ms\":[]}\n").unwrap();
    let output = vcr(&["inspect", "fit", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("too few to fit") && text.contains("short.jsonl"), "{text}");
    fs::write(&path, "{\"prompt_tokens\":4,\"output_tokens\":1,\"ttft_ms\":-5,\"arrival_ms\":1,\"itl_ms\":[]}\n")
        .unwrap();
    for command in ["fit", "simulate"] {
        let output = vcr(&["inspect", command, path.to_str().unwrap()]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(3) && text.contains("short.jsonl:1: ttft_ms: "), "{command}: {text}");
    }
}
