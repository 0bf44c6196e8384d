//! `inspect simulate`: a trace through simulated engines behind a router, in virtual time.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::running::vcr;

/// Ten conversations of four turns; each turn repeats what was before it, and conversations take turns with each other.
fn conversations(block: u64) -> String {
    let mut text = String::new();
    for number in 0..40_u64 {
        let (conversation, turn) = (number * 7 % 10, number / 10);
        let blocks = 4 + 2 * turn;
        let ids: Vec<u64> = (0..blocks).map(|at| 1 + conversation * 100 + at).collect();
        let row =
            json!({"timestamp": number * 100, "input_length": blocks * block, "output_length": 5, "hash_ids": ids});
        writeln!(text, "{row}").unwrap();
    }
    text
}

fn file(directory: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = directory.path().join(name);
    fs::write(&path, text).unwrap();
    path
}

fn simulated(path: &Path, more: &[&str]) -> Value {
    let mut arguments = vec!["inspect", "simulate", path.to_str().unwrap(), "--json"];
    arguments.extend(more);
    let output = vcr(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(arguments: &[&str]) -> (i32, String) {
    let output = vcr(&[&["inspect", "simulate"], arguments].concat());
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

const KNOBS: [&str; 4] = ["--time-to-first-token", "40", "--inter-token-latency", "10"];

#[test]
fn one_request_alone_takes_what_its_steps_take() {
    let directory = tempfile::tempdir().unwrap();
    let row = "{\"timestamp\":0,\"input_length\":600,\"output_length\":3,\"hash_ids\":[1,2]}\n";
    let path = file(&directory, "one.jsonl", row);
    let report = simulated(&path, &KNOBS);
    assert_eq!([&report["ttft_ms"]["mean"], &report["itl_ms"]["p99"], &report["e2e_ms"]["max"]], [40.0, 10.0, 60.0]);
    assert_eq!([&report["tpot_ms"]["mean"], &report["seconds"]], [10.0, 0.06]);
    assert_eq!(report["replicas"][0]["steps"], 3);
    assert_eq!(report["replicas"][0]["utilisation"], 1.0);
}

#[test]
fn the_front_end_delays_the_first_token_and_no_later_one() {
    let directory = tempfile::tempdir().unwrap();
    let row = "{\"timestamp\":0,\"input_length\":600,\"output_length\":3}\n";
    let path = file(&directory, "one.jsonl", row);
    let report = simulated(&path, &[&["--front-end-time", "3.5"], &KNOBS[..]].concat());
    assert_eq!([&report["ttft_ms"]["mean"], &report["itl_ms"]["p99"], &report["e2e_ms"]["max"]], [43.5, 10.0, 63.5]);
    // A request counts as in flight from its arrival on: the second one goes elsewhere, though the first one has not begun.
    let path = file(&directory, "two.jsonl", &format!("{row}{}", row.replace(":0,", ":1,")));
    let flags = ["--front-end-time", "3.5", "--replicas", "2", "--router", "least_loaded"];
    let report = simulated(&path, &[&flags, &KNOBS[..]].concat());
    assert_eq!([&report["replicas"][0]["requests"], &report["replicas"][1]["requests"]], [1, 1]);
}

#[test]
fn answers_come_back_verbatim_where_the_trace_shows_it_or_else_as_is_assumed() {
    let directory = tempfile::tempdir().unwrap();
    // A prompt of 100 tokens and an answer of 40; the next prompt shares 3 blocks of 32, and a fourth one if it has the answer.
    let turns = |cached: &str| {
        format!(
            "{{\"meta\":{{\"block_size\":32}}}}\n\
            {{\"prompt_tokens\":100,\"output_tokens\":40,\"ttft_ms\":5,\"itl_summary\":{{\"mean_ms\":1,\"count\":39}},\"arrival_ms\":0,\"cached_tokens\":0,\"block_hashes\":[1,2,3]}}\n\
            {{\"prompt_tokens\":200,\"output_tokens\":1,\"ttft_ms\":5,\"arrival_ms\":9000{cached},\"block_hashes\":[1,2,3,4,5,6]}}\n\
            {{\"prompt_tokens\":40,\"output_tokens\":1,\"ttft_ms\":5,\"arrival_ms\":9999,\"cached_tokens\":32,\"block_hashes\":[1]}}\n"
        )
    };
    for (cached, answers, shown, hits) in [
        ("", "verbatim", json!({"verbatim": 0, "changed": 0, "unknown": 1, "assumed": "verbatim"}), 128),
        ("", "changed", json!({"verbatim": 0, "changed": 0, "unknown": 1, "assumed": "changed"}), 96),
        (
            ",\"cached_tokens\":96",
            "verbatim",
            json!({"verbatim": 0, "changed": 1, "unknown": 0, "assumed": "verbatim"}),
            96,
        ),
        (
            ",\"cached_tokens\":128",
            "changed",
            json!({"verbatim": 1, "changed": 0, "unknown": 0, "assumed": "changed"}),
            128,
        ),
    ] {
        let path = file(&directory, "turns.jsonl", &turns(cached));
        let report = simulated(&path, &[&["--answers", answers], &KNOBS[..]].concat());
        assert_eq!((&report["answers"], &report["cached_tokens"]), (&shown, &json!(hits + 32)), "{cached} {answers}");
    }
    let path = file(&directory, "turns.jsonl", &turns(""));
    let text = String::from_utf8(vcr(&["inspect", "simulate", path.to_str().unwrap()]).stdout).unwrap();
    assert!(text.contains("answers       1 are assumed to come back verbatim in later prompts (--answers)"), "{text}");
}

#[test]
fn requests_of_a_session_or_with_the_same_first_block_go_to_one_replica() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory, "turns.jsonl", &conversations(512));
    let flags = ["--replicas", "3", "--router", "consistent_hash"];
    let report = simulated(&path, &flags);
    assert_eq!(
        (&report["router"], &report["cached_tokens"]),
        (&json!("consistent_hash"), &json!(10 * (4 + 6 + 8) * 512))
    );
    let mut text = String::new();
    for number in 0..40 {
        let row = json!({"prompt_tokens": 20, "output_tokens": 1, "ttft_ms": 5, "arrival_ms": number, "session": "one", "block_hashes": [number]});
        writeln!(text, "{row}").unwrap();
    }
    let path = file(&directory, "session.jsonl", &text);
    let requests = |text: &str| {
        let path = file(&directory, "session.jsonl", text);
        let report = simulated(&path, &flags);
        let replicas = report["replicas"].as_array().unwrap();
        replicas.iter().filter(|replica| replica["requests"] != 0).count()
    };
    assert_eq!(requests(&text), 1);
    assert_eq!(requests(&text.replace("\"session\":\"one\",", "")), 3, "{}", path.display());
}

#[test]
fn two_random_choices_are_worse_than_the_least_loaded_and_better_than_one() {
    let directory = tempfile::tempdir().unwrap();
    let mut text = String::new();
    for number in 0..2000 {
        let row = json!({"timestamp": number * 15, "input_length": 100, "output_length": 5});
        writeln!(text, "{row}").unwrap();
    }
    let path = file(&directory, "even.jsonl", &text);
    let mean = |router: &str| {
        let flags = ["--replicas", "8", "--max-num-seqs", "1", "--router", router];
        simulated(&path, &[&flags, &KNOBS[..]].concat())["ttft_ms"]["mean"].as_f64().unwrap()
    };
    let [best, two, one] = ["least_loaded", "least_request", "random"].map(mean);
    assert!(best < two && two < one, "{best} {two} {one}");
}

#[test]
fn every_figure_adds_up_and_a_seed_repeats_itself() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory, "many.jsonl", &conversations(512));
    let flags = ["--replicas", "3", "--router", "random", "--inter-token-latency-std-dev", "3", "--seed", "5"];
    let report = simulated(&path, &[&flags[..], &KNOBS].concat());
    assert_eq!(report, simulated(&path, &[&flags[..], &KNOBS].concat()));
    let other = [&flags[..7], &["6"], &KNOBS].concat();
    assert_ne!(report["e2e_ms"], simulated(&path, &other)["e2e_ms"]);
    assert_eq!([&report["requests"], &report["finished"], &report["output_tokens"]], [40, 40, 200]);
    assert_eq!([&report["ttft_ms"]["count"], &report["itl_ms"]["count"], &report["e2e_ms"]["count"]], [40, 160, 40]);
    assert_eq!(report["prompt_tokens"], 40 * 7 * 512);
    let replicas = report["replicas"].as_array().unwrap();
    let requests: u64 = replicas.iter().map(|replica| replica["requests"].as_u64().unwrap()).sum();
    assert_eq!((replicas.len(), requests), (3, 40));
}

#[test]
fn a_router_by_prefixes_keeps_conversations_where_their_blocks_are() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory, "turns.jsonl", &conversations(512));
    let hits = |router: &str| {
        let flags = ["--replicas", "3", "--router", router, "--prefill-time-per-token", "100us"];
        let report = simulated(&path, &flags);
        (report["cached_tokens"].as_u64().unwrap(), report["ttft_ms"]["mean"].as_f64().unwrap())
    };
    let [(by_prefix, fast), (in_turn, slow)] = ["prefix", "round_robin"].map(hits);
    // Each later turn finds all of the turn before it: 4, 6 and 8 blocks, but for what the last token needs.
    assert_eq!(by_prefix, 10 * (4 + 6 + 8) * 512);
    assert!(in_turn < by_prefix / 2, "{in_turn}");
    assert!(fast < slow, "{fast} {slow}");
    // Blocks of 16 tokens in place of the trace's of 512 share the same prefixes.
    let fine = simulated(&path, &["--replicas", "3", "--router", "prefix", "--block-size", "16"]);
    assert_eq!(fine["cached_tokens"], by_prefix);
    let off = simulated(&path, &["--no-enable-prefix-caching"]);
    assert_eq!(off["cached_tokens"], 0);
}

#[test]
fn load_makes_requests_wait_and_few_blocks_preempt() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory, "busy.jsonl", &conversations(512));
    let ttft = |speed: &str| {
        let flags = ["--speed", speed, "--max-num-seqs", "2", "--slo", "ttft=100ms,itl=50ms"];
        simulated(&path, &[&flags[..], &KNOBS].concat())
    };
    let (calm, busy) = (ttft("1"), ttft("50"));
    assert_eq!(calm["goodput"]["requests"], 40);
    assert_eq!(calm["ttft_ms"]["p50"], 40.0);
    assert!(busy["ttft_ms"]["p50"].as_f64().unwrap() > 200.0, "{busy}");
    assert!(busy["goodput"]["share"].as_f64().unwrap() < 0.5, "{busy}");
    // Each has a prompt of 14 blocks and fills further ones, of which there are not enough for all that were admitted.
    let mut text = String::new();
    for number in 0..6 {
        let row = json!({"timestamp": 0, "input_length": 224, "output_length": 100, "hash_ids": [number]});
        writeln!(text, "{row}").unwrap();
    }
    let path = file(&directory, "long.jsonl", &text);
    let flags = ["--hash-block-size", "224", "--block-size", "16", "--num-gpu-blocks-override", "60"];
    let report = simulated(&path, &[&flags[..], &KNOBS].concat());
    assert!(report["preemptions"].as_u64().unwrap() > 0, "{report}");
    assert_eq!([&report["finished"], &report["output_tokens"]], [6, 600]);
}

#[test]
fn a_trace_is_simulated_too_and_what_is_no_request_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let text = "{\"meta\":{\"block_size\":16}}\n\
        {\"prompt_tokens\":40,\"output_tokens\":2,\"ttft_ms\":5,\"itl_ms\":[1],\"arrival_ms\":1000,\"block_hashes\":[7,8]}\n\
        {\"prompt_tokens\":40,\"output_tokens\":2,\"ttft_ms\":5,\"itl_ms\":[1],\"arrival_ms\":500,\"block_hashes\":[7,8]}\n\
        {\"prompt_tokens\":40,\"output_tokens\":2,\"ttft_ms\":5,\"itl_ms\":[1]}\n";
    let path = file(&directory, "trace.jsonl", text);
    let report = simulated(&path, &KNOBS);
    assert_eq!([&report["requests"], &report["left_out"], &report["cached_tokens"]], [2, 1, 32]);
    assert_eq!(report["seconds"], 0.55);
    let text = vcr(&["inspect", "simulate", path.to_str().unwrap(), "--replicas", "2", "--router", "least_loaded"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("2 requests in") && text.contains("1 record left out") && text.contains("TTFT"), "{text}");
}

#[test]
fn long_requests_are_refused_and_others_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let rows = "{\"timestamp\":0,\"input_length\":5000,\"output_length\":3}\n{\"timestamp\":1,\"input_length\":50,\"output_length\":3}\n";
    let path = file(&directory, "long.jsonl", rows);
    let report = simulated(&path, &["--num-gpu-blocks-override", "9", "--block-size", "512", "--instant"]);
    assert_eq!([&report["refused"], &report["finished"]], [1, 1]);
}

#[test]
fn mistakes_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let row = "{\"timestamp\":0,\"input_length\":600,\"output_length\":3,\"hash_ids\":[1,2]}\n";
    let good = file(&directory, "good.jsonl", row);
    let good = good.to_str().unwrap();
    let broken = file(&directory, "broken.jsonl", &format!("{row}{{\"timestamp\":0,\"input_length\":600}}\n"));
    let many = file(
        &directory,
        "many.jsonl",
        "{\"timestamp\":0,\"input_length\":600,\"output_length\":3,\"hash_ids\":[1,2,3]}\n",
    );
    let early = file(&directory, "early.jsonl", &row.replace("\"timestamp\":0", "\"timestamp\":-5"));
    let no_times = file(&directory, "times.jsonl", "{\"prompt_tokens\":4,\"output_tokens\":1,\"ttft_ms\":5}\n");
    for (arguments, code, part) in [
        (vec![broken.to_str().unwrap()], 3, "broken.jsonl:2: missing field `output_length`"),
        (vec![many.to_str().unwrap()], 3, "--hash-block-size"),
        (vec![early.to_str().unwrap()], 3, "`timestamp` -5 is no time"),
        (vec![no_times.to_str().unwrap()], 3, "no record has an arrival"),
        (vec!["/no/such.jsonl"], 3, "/no/such.jsonl"),
        (vec![good, "--block-size", "24"], 2, "must be a multiple of the other"),
        (
            vec![good, "--max-num-seqs", "64", "--max-num-batched-tokens", "8"],
            2,
            "--max-num-batched-tokens (8) must be",
        ),
        (vec![good, "--max-model-len", "1m", "--num-gpu-blocks-override", "4"], 2, "does not fit the KV cache"),
        (vec![good, "--slo", "ttft=2s,other=1"], 2, "`other` is no latency"),
        (vec![good, "--router", "best"], 2, "`best` is no router"),
    ] {
        let (found, text) = refused(&arguments);
        assert_eq!((found, text.contains(part)), (code, true), "{arguments:?}: {text}");
    }
}
