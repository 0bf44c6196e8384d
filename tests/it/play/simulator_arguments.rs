//! llm-d-inference-sim's command lines, as public manifests have them, and what that simulator serves beside vLLM's endpoints.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use serde_json::{Value, json};

use crate::support::{
    client::{self, Answer, get, post},
    running::Running,
    tree,
};

/// An argument list of a manifest: whose it is, the list, the flags of it that have no effect, and the model that is served.
const MANIFESTS: &[(&str, &[&str], &[&str], &str)] = &[
    (
        "Gateway API inference extension and llm-d's scheduler: config/manifests/vllm/sim-deployment.yaml",
        &[
            "--model",
            "Qwen/Qwen3-32B",
            "--port",
            "8000",
            "--max-loras",
            "2",
            "--lora-modules",
            "{\"name\": \"food-review-1\"}",
        ],
        &[],
        "Qwen/Qwen3-32B",
    ),
    (
        "the same of older releases",
        &[
            "--model",
            "meta-llama/Llama-3.1-8B-Instruct",
            "--port",
            "8000",
            "--max-loras",
            "2",
            "--lora-modules",
            "{\"name\": \"food-review-0\"}",
            "{\"name\": \"food-review-1\"}",
        ],
        &[],
        "meta-llama/Llama-3.1-8B-Instruct",
    ),
    (
        "llm-d's scheduler: deploy/components/vllm-decode, without more arguments",
        &["--port=8200", "--model=TinyLlama/TinyLlama-1.1B-Chat-v1.0", "--data-parallel-size=1", ""],
        &[],
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    ),
    (
        "llm-d's scheduler: deploy/components/vllm-decode in its end-to-end tests",
        &["--port=8200", "--model=food-review", "--data-parallel-size=2", "--mode=echo"],
        &[],
        "food-review",
    ),
    (
        "llm-d's scheduler: deploy/components/vllm-encode",
        &[
            "--model=Qwen/Qwen2.5-VL-3B-Instruct",
            "--port=8000",
            "--data-parallel-size=1",
            "--no-enable-prefix-caching",
            "--mm-encoder-only",
            "--mm-processor-kwargs={}",
        ],
        &["--mm-encoder-only", "--mm-processor-kwargs"],
        "Qwen/Qwen2.5-VL-3B-Instruct",
    ),
    (
        "kthena: examples/kube-scheduler-pod-affinity",
        &[
            "--model=kthena-pod-affinity-sim",
            "--served-model-name=kthena-pod-affinity-sim",
            "--port=8000",
            "--mode=echo",
            "--time-to-first-token=0",
            "--inter-token-latency=0",
        ],
        &[],
        "kthena-pod-affinity-sim",
    ),
    (
        "kthena: test/e2e/router/router-plugins",
        &[
            "--model=kthena-plugin-mock",
            "--served-model-name=router-plugin-model",
            "--port=8000",
            "--mode=echo",
            "--enable-kvcache=true",
            "--force-dummy-tokenizer=true",
            "--kv-cache-size=8",
            "--block-size=8",
            "--max-num-seqs=2",
            "--time-to-first-token=20ms",
            "--inter-token-latency=5ms",
        ],
        &["--kv-cache-size 8"],
        "router-plugin-model",
    ),
    (
        "kthena: ModelServing-ds1.5b-pd-disaggregation.yaml, prefill",
        &[
            "--model=kthena-mock-1.5b-prefill",
            "--served-model-name=deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
            "--port=8000",
            "--mode=echo",
            "--time-to-first-token=0",
            "--inter-token-latency=0",
            "--prefill-time-per-token=1ms",
        ],
        &[],
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    ),
    (
        "kthena: ModelServing-ds1.5b-pd-disaggregation.yaml, decode",
        &[
            "--model=kthena-mock-1.5b-decode",
            "--served-model-name=deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
            "--port=8000",
            "--mode=echo",
            "--time-to-first-token=0",
            "--inter-token-latency=0",
            "--kv-cache-transfer-latency=1ms",
        ],
        &[],
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    ),
    (
        "aibrix: samples/ai-gateway-integration/disaggregation",
        &["--v=4", "--port=8000", "--model=qwen2-7b", "--data-parallel-size=1"],
        &[],
        "qwen2-7b",
    ),
    (
        "batch-gateway: scripts/dev-deploy.sh",
        &[
            "--model",
            "sim-model",
            "--port",
            "8000",
            "--time-to-first-token=50ms",
            "--inter-token-latency=100ms",
            "--v=5",
        ],
        &[],
        "sim-model",
    ),
    (
        "the same, a server that refuses",
        &[
            "--model",
            "sim-model-always-fail",
            "--port",
            "8000",
            "--time-to-first-token=10ms",
            "--inter-token-latency=10ms",
            "--v=5",
            "--failure-injection-rate=100",
            "--failure-types=rate_limit",
        ],
        &[],
        "sim-model-always-fail",
    ),
    (
        "llm-d-inference-sim: manifests/deployment_kvcache.yaml",
        &[
            "--model",
            "Qwen/Qwen2.5-1.5B-Instruct",
            "--port",
            "8000",
            "--enable-kvcache",
            "true",
            "--v=5",
            "--render-url",
            "http://localhost:8082",
        ],
        &["--render-url"],
        "Qwen/Qwen2.5-1.5B-Instruct",
    ),
    (
        "llm-d-inference-sim: manifests/disaggregation, prefill",
        &[
            "--v=4",
            "--port=8000",
            "--model=Qwen/Qwen2.5-0.5B-Instruct",
            "--data-parallel-size=1",
            "--prefill-time-per-token=200ms",
            "--prefill-time-std-dev=3ms",
            "--render-url=http://localhost:8082",
        ],
        &["--render-url"],
        "Qwen/Qwen2.5-0.5B-Instruct",
    ),
    (
        "llm-d-inference-sim: manifests/zmq-listener",
        &[
            "--port=8000",
            "--model=Qwen/Qwen3-0.6B",
            "--enable-sleep-mode=true",
            "--enable-kvcache=true",
            "--block-size=8",
            "--zmq-endpoint=tcp://127.0.0.1:5557",
            "--event-batch-size=1",
            "--render-url=http://localhost:8082",
        ],
        &["--event-batch-size", "--render-url"],
        "Qwen/Qwen3-0.6B",
    ),
];

/// The arguments with a free port, so that tests do not meet.
fn on_a_free_port(arguments: &[&str]) -> Vec<String> {
    let mut words: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
    for at in 0..words.len() {
        if words[at].starts_with("--port=") {
            words[at] = "--port=0".to_owned();
        } else if words[at] == "--port" {
            words[at + 1] = "0".to_owned();
        }
    }
    words
}

fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

async fn model_of(running: &Running) -> Value {
    running.get("/v1/models").await["data"][0]["id"].clone()
}

async fn chat(running: &Running) -> Answer {
    let body = json!({"messages": [{"role": "user", "content": "say it again"}], "max_tokens": 4});
    running.send("/v1/chat/completions", &body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn argument_lists_of_public_manifests_start_play_unchanged() {
    for (manifest, arguments, without_effect, model) in MANIFESTS {
        let words = on_a_free_port(arguments);
        let running = Running::start(&[&["play"], borrowed(&words).as_slice()].concat());
        assert_eq!(model_of(&running).await, *model, "{manifest}");
        let answer = chat(&running).await;
        let status = if arguments.contains(&"--failure-injection-rate=100") { 429 } else { 200 };
        assert_eq!(answer.status, status, "{manifest}: {}", answer.text());
        let (_, said) = running.stop();
        let named: Vec<&str> = said.lines().filter(|line| line.starts_with("--")).collect();
        for flag in *without_effect {
            assert_eq!(named.iter().filter(|line| line.starts_with(flag)).count(), 1, "{manifest} {flag}: {said}");
        }
        let has_other =
            |line: &&&str| !without_effect.iter().any(|flag| line.starts_with(flag)) && line.contains("no effect");
        // Without a flag that is the simulator's alone these are vLLM's, some of which need an engine.
        let is_the_simulators = said.contains("llm-d-inference-sim's arguments");
        assert!(!is_the_simulators || !named.iter().any(|line| has_other(&line)), "{manifest}: {said}");
    }
}

/// The program under the simulator's name.
fn named(folder: &Path) -> std::path::PathBuf {
    let link = folder.join("llm-d-inference-sim");
    symlink(env!("CARGO_BIN_EXE_vllm-vcr"), &link).unwrap();
    link
}

#[test]
fn under_its_name_help_is_a_screen_of_its_flags() {
    let folder = tempfile::tempdir().unwrap();
    let program = named(folder.path());
    for arguments in [&["-h"][..], &["--help"], &["--model", "m", "-h"]] {
        let output = std::process::Command::new(&program).args(arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}");
        assert!(text.starts_with("vllm-vcr under the name of llm-d-inference-sim"), "{text}");
        for part in [
            "--time-to-first-token ",
            "--max-loras ",
            " more flags of the simulator are taken",
            "llm-d-inference-sim --help-all",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.lines().count() <= 40 && text.lines().all(|line| line.len() <= 100), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn under_its_name_it_serves_what_the_simulator_serves() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.yaml");
    fs::write(
        &config,
        "port: 0\nmodel: a-model\nserved-model-name:\n- one\n- two\nmode: echo\nmax-loras: 2\nlora-modules:\n\
         - '{\"name\":\"lora1\",\"path\":\"/l\"}'\ntime-to-first-token: \"1ms\"\nseed: 100100100\nrender-timeout: 30s\n\
         fake-metrics:\n  waiting-requests: 7\n  loras:\n  - '{\"running\":\"lora1\",\"waiting\":\"\",\"timestamp\":5}'\n",
    )
    .unwrap();
    let program = named(folder.path());
    let arguments = ["--config", config.to_str().unwrap(), "--failure-types", "rate_limit", "server_error"];
    let running = Running::of(&program, &arguments, &[("POD_NAME", "pod-1"), ("POD_NAMESPACE", "ns")]);
    assert_eq!(model_of(&running).await, "one");
    let answer = chat(&running).await;
    assert_eq!(
        (answer.status, answer.header("x-inference-pod"), answer.header("x-inference-namespace")),
        (200, Some("pod-1"), Some("ns"))
    );
    assert_eq!(answer.header("x-inference-port"), Some(running.address.port().to_string().as_str()));
    assert!(answer.text().contains("say it again"), "{}", answer.text());
    for path in ["/health", "/health/ready", "/ready"] {
        assert_eq!(client::send(running.address, &get(path)).await.status, 200, "{path}");
    }
    let page = client::send(running.address, &get("/metrics")).await.text();
    assert!(page.contains("running_lora_adapters=\"lora1\",waiting_lora_adapters=\"\"} 5.0"), "{page}");
    let config = running.get("/admin/config").await;
    assert_eq!(
        (&config["max-num-seqs"], &config["max-model-len"], &config["mode"]),
        (&json!(5), &json!(1024), &json!("echo"))
    );
    assert_eq!((&config["time-to-first-token"], &config["seed"]), (&json!("1ms"), &json!(100_100_100)));
    assert_eq!(config["failure-types"], json!(["rate_limit", "server_error"]));
    let change = json!({"failure-injection-rate": 100, "failure-types": ["rate_limit"], "inter-token-latency": "2ms", "fake-metrics": {"waiting-requests": 9}});
    let changed = running.send("/admin/config", &change).await;
    assert_eq!((changed.status, &changed.json()["inter-token-latency"]), (200, &json!("2ms")));
    assert_eq!(chat(&running).await.status, 429);
    assert_eq!(running.send("/admin/config", &json!({"failure-injection-rate": 0})).await.status, 200);
    assert_eq!(chat(&running).await.status, 200);
    for wrong in [
        json!({"port": 1}),
        json!({"failure-injection-rate": 101}),
        json!({"failure-types": ["fire"]}),
        json!({"time-to-first-token": "soon"}),
        json!({"fake-metrics": {"runing-requests": 1}, "inter-token-latency": "1s"}),
        json!({"latency-calculator": "quick"}),
        json!({"latency-calculator": 5}),
        json!({"time-to-first-token": u64::MAX}),
        json!([]),
    ] {
        let refused = running.send("/admin/config", &wrong).await;
        assert_eq!(refused.status, 400, "{wrong}");
    }
    assert_eq!(running.get("/admin/config").await["inter-token-latency"], "2ms");
    let (_, said) = running.stop();
    assert!(said.contains("--render-timeout has no effect"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn times_of_transfers_change_while_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--model", "m", "--port", "0", "--data-parallel-size", "2", "--kv-cache-transfer-latency", "5s"];
    let running = Running::of(&named(folder.path()), &arguments, &[]);
    let shown = running.get("/admin/config").await;
    assert_eq!((&shown["kv-cache-transfer-latency"], &shown["data-parallel-size"]), (&json!("5s"), &json!(2)));
    let change = json!({"kv-cache-transfer-time-per-token": "1ms", "kv-cache-transfer-time-std-dev": 0, "latency-calculator": "per-token"});
    let changed = running.send("/admin/config", &change).await;
    assert_eq!(changed.status, 200, "{}", changed.text());
    let changed = changed.json();
    let times = ["latency", "latency-std-dev", "time-per-token", "time-std-dev"]
        .map(|name| changed[format!("kv-cache-transfer-{name}")].as_str().unwrap().to_owned());
    assert_eq!(times, ["0s", "0s", "1ms", "0s"]);
    let params = json!({"do_remote_prefill": true, "remote_block_ids": [[1, 2]], "remote_engine_id": "none",
        "remote_request_id": "r", "remote_host": "127.0.0.1", "remote_port": 9});
    let body = json!({"prompt": vec![7; 20], "max_tokens": 2, "kv_transfer_params": params});
    let answer = running.send("/v1/completions", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let page = client::send(running.address, &get("/metrics")).await.text();
    let took = page.lines().find(|line| line.starts_with("vllm:nixl_xfer_time_seconds_sum")).unwrap();
    let took: f64 = took.rsplit(' ').next().unwrap().parse().unwrap();
    assert!((0.01..0.03).contains(&took), "{took} s for 20 tokens");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_connector_no_transfer_has_a_time() {
    let running = Running::start(&[
        "play",
        "--port",
        "0",
        "--synthetic",
        "random",
        "--engine",
        "--instant",
        "--data-parallel-size",
        "2",
    ]);
    let shown = running.get("/admin/config").await;
    assert_eq!((&shown["data-parallel-size"], &shown["kv-cache-transfer-latency"]), (&json!(2), &Value::Null));
    let refused = running.send("/admin/config", &json!({"kv-cache-transfer-latency": "1ms"})).await;
    assert!(refused.status == 400 && refused.text().contains("no KV connector"), "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn play_keeps_the_simulators_endpoints_to_this_machine() {
    let running =
        Running::start(&["play", "--port", "0", "--synthetic", "random", "--engine", "--time-to-first-token", "5"]);
    assert_eq!(client::send(running.address, &get("/health/ready")).await.status, 404);
    let foreign = client::Request { headers: vec![("host", "sim.default.svc")], ..get("/admin/config") };
    assert_eq!(client::send(running.address, &foreign).await.status, 403);
    assert_eq!(running.get("/admin/config").await["time-to-first-token"], "5ms");
    let off = Running::start(&["play", "--port", "0", "--no-admin"]);
    assert_eq!(client::send(off.address, &get("/admin/config")).await.status, 404);
    assert_eq!(client::send(off.address, &post("/fake_metrics", &json!({}))).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_takes_too_long_ends_with_new_times() {
    let running = Running::start(&["play", "--port", "0", "--mode", "echo", "--time-to-first-token", "12h"]);
    let address = running.address;
    let body = json!({"messages": [{"role": "user", "content": "say it again"}]});
    let waiting = tokio::spawn(async move { client::send(address, &post("/v1/chat/completions", &body)).await });
    // The step begins within it; figures are told between steps only.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(running.send("/admin/config", &json!({"time-to-first-token": 0})).await.status, 200);
    assert_eq!((waiting.await.unwrap().status, chat(&running).await.status), (200, 200));
}

#[test]
fn what_the_simulator_refuses_is_a_usage_error() {
    for (arguments, part) in [
        (&["--mode", "loud"][..], "loud"),
        (&["--mode", "echo", "--latency-calculator", "quick"], "constant or per-token"),
        (&["--enable-kvcache=perhaps"], "true or false"),
        (&["--config", "/nowhere.yaml"], "/nowhere.yaml"),
        (&["--fake-metrics", "[1]"], "a JSON object is needed"),
        (&["--modle", "echo"], "--modle"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"))
            .arg("play")
            .args(arguments)
            .args(["--port", "0"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
}

const PAGE: &str = "docs/src/reference/llm-d-inference-sim.md";

const HEAD: &str = "\
# llm-d-inference-sim's flags

What becomes of each flag of [llm-d-inference-sim](https://github.com/llm-d/llm-d-inference-sim) (0.11, and those of older versions) in `play`, and under
that name; see the [guide](../guides/from-llm-d-inference-sim.md). Flags without an effect are named at the start, and none is refused. This page is
written from the table by `tests/it/play/simulator_arguments.rs`.

| flag | becomes | note |
|---|---|---|
";

#[test]
fn the_page_tells_the_table() {
    let mut page = HEAD.to_owned();
    for line in tree::read("src/cli/simulator/table.tsv").lines().filter(|line| !line.starts_with('#')) {
        let [name, _, becomes, note] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
        let becomes = match becomes {
            "=" => format!("`--{name}`"),
            "none" => "no effect, named".to_owned(),
            "default" => "so anyway".to_owned(),
            "some" => "several flags".to_owned(),
            flag => format!("`{flag}`"),
        };
        page.push_str(&format!("| `--{name}` | {becomes} | {note} |\n"));
    }
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(tree::root().join(PAGE), &page).unwrap();
    }
    let fresh = page == tree::read(PAGE);
    assert!(fresh, "{PAGE} is stale; run `UPDATE_REFERENCE=1 cargo test --test it simulator_arguments` and commit it");
}
