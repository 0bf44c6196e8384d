//! LoRA adapters of `play`: models of further names, and places in the engine.

use std::{num::NonZeroU32, time::Duration};

use serde_json::{Value, json};
use tokio::time::sleep;
use vllm_vcr::{
    engine::scheduler::SchedulerConfig,
    play::{Config, EngineConfig, KvEventsConfig, LoraConfig, LoraModule, Player, ServerOptions, Source, Synthetic},
    recording::trace::{FinishReason, Record},
    replay::{
        account::{Access, Admin},
        matching::MatchBy,
    },
    text::prompt::{BlockHashAlgorithm, BlockHasher},
};

use crate::support::{
    client::{self, Answer, get, open, post},
    kv_subscriber::replayed,
    play_server::{Server, config, record, start},
    running::{Running, vcr},
    simulated::engine,
};

const MS: Duration = Duration::from_millis(1);
const LOAD: &str = "/v1/load_lora_adapter";
const UNLOAD: &str = "/v1/unload_lora_adapter";

fn module(name: &str, path: &str) -> LoraModule {
    LoraModule { name: name.to_owned(), path: path.to_owned(), base_model_name: None }
}

fn adapters(max_loras: usize, names: &[&str]) -> LoraConfig {
    let lora_modules = names.iter().map(|name| module(name, &format!("/l/{name}"))).collect();
    LoraConfig { max_loras, lora_modules }
}

/// A server of made-up tokens with adapters that clients may load.
fn synthetic(lora: LoraConfig) -> Config {
    Config {
        source: Source::Synthetic(Synthetic::Random),
        prompt_tokens_details: true,
        block_size: NonZeroU32::new(16),
        lora: Some(lora),
        max_model_len: Some(1024),
        admin: Admin::Here(Access::default()),
        server: ServerOptions { runtime_lora_updating: true, ..ServerOptions::default() },
        ..config(&[MatchBy::Next], Vec::new())
    }
}

/// The same behind an engine, whose steps take so long.
fn simulated(lora: LoraConfig, step: Duration) -> Config {
    let engine = EngineConfig {
        scheduler: SchedulerConfig { max_loras: lora.max_loras, ..SchedulerConfig::default() },
        ..engine(step)
    };
    Config { engine: Some(engine), ..synthetic(lora) }
}

fn ids(tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| 20 + at % 200).collect()
}

async fn send(server: &Server, path: &str, body: Value) -> Answer {
    client::send(server.address, &post(path, &body)).await
}

async fn complete(server: &Server, model: &str, prompt: &[u32]) -> Value {
    let body = json!({"model": model, "prompt": prompt, "max_tokens": 4});
    let answer = send(server, "/v1/completions", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

async fn cached(server: &Server, model: &str) -> u64 {
    let usage = complete(server, model, &ids(100)).await["usage"].clone();
    usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

async fn metrics(server: &Server) -> String {
    client::send(server.address, &get("/metrics")).await.text()
}

/// Waits for a page of metrics with all of these beginnings of lines.
async fn until(server: &Server, wanted: &[&str]) -> String {
    let mut page = String::new();
    for _ in 0..3000 {
        page = metrics(server).await;
        if wanted.iter().all(|sample| page.lines().any(|line| line.starts_with(sample))) {
            return page;
        }
        sleep(10 * MS).await;
    }
    panic!("{wanted:?}\n{page}");
}

fn running(names: &str) -> String {
    format!(
        "vllm:lora_requests_info{{max_lora=\"1\",running_lora_adapters=\"{names}\",waiting_lora_adapters=\"{names}\"}} "
    )
}

#[tokio::test]
async fn an_invocation_names_its_model_in_a_header_only() {
    let server = start(synthetic(adapters(1, &["a"]))).await;
    let ask = async |name: &'static str, value: &'static str| {
        let mut request = post("/invocations", &json!({"model": 5, "prompt": "x", "max_tokens": 1}));
        request.headers.push((name, value));
        client::send(server.address, &request).await
    };
    assert_eq!(ask("x-other", "a").await.json()["model"], "m");
    assert_eq!(ask("x-amzn-sagemaker-adapter-identifier", "a").await.json()["model"], "a");
    assert_eq!(ask("x-amzn-sagemaker-adapter-identifier", "nope").await.status, 404);
    let refused = ask("x-amzn-sagemaker-session-id", "s").await;
    let message = refused.json()["error"]["message"].clone();
    assert!(refused.status == 400 && message.as_str().unwrap().starts_with("Invalid payload. stateful"), "{message}");
}

#[tokio::test]
async fn a_request_whose_adapter_has_no_place_waits() {
    let server = start(simulated(adapters(1, &["sql", "py"]), 20 * MS)).await;
    let long = |model: &str| json!({"model": model, "prompt": ids(20), "max_tokens": 900, "stream": true});
    let sql = open(server.address, &post("/v1/completions", &long("sql"))).await;
    until(&server, &[&running("sql")]).await;
    let py = open(server.address, &post("/v1/completions", &long("py"))).await;
    let base = open(server.address, &post("/v1/completions", &long("m"))).await;
    let labels = "engine=\"0\",model_name=\"m\"";
    let waiting = |reason: &str, count: u32| {
        format!("vllm:num_requests_waiting_by_reason{{{labels},reason=\"{reason}\"}} {count}.0")
    };
    let now_running = |count: u32| format!("vllm:num_requests_running{{{labels}}} {count}.0");
    until(&server, &[&waiting("deferred", 1), &waiting("capacity", 0), &now_running(2)]).await;
    assert!(!metrics(&server).await.contains(&running("sql,py")));
    drop(sql);
    until(&server, &[&waiting("deferred", 0), &now_running(2), &running("py"), &running("sql")]).await;
    drop((py, base));
    until(&server, &[&now_running(0), &running("")]).await;
}

#[tokio::test]
async fn adapters_share_no_blocks_and_a_new_path_begins_anew() {
    let server = start(simulated(adapters(2, &["sql", "py"]), Duration::ZERO)).await;
    let mut found = Vec::new();
    for model in ["m", "m", "sql", "sql", "py", "py"] {
        found.push(cached(&server, model).await);
    }
    assert_eq!(found, [0, 96, 0, 96, 0, 96]);
    for (path, expected) in [("/l/sql", 96), ("/l/other", 0), ("/l/sql", 96)] {
        let body = json!({"lora_name": "sql", "lora_path": path, "load_inplace": true});
        assert_eq!(send(&server, LOAD, body).await.status, 200);
        assert_eq!(cached(&server, "sql").await, expected, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_have_the_id_and_the_name_of_the_adapter() {
    let mut config = simulated(adapters(2, &["sql"]), Duration::ZERO);
    let any = || "tcp://*:0".to_owned();
    let events = KvEventsConfig { endpoint: any(), replay_endpoint: Some(any()), ..KvEventsConfig::default() };
    config.engine.as_mut().unwrap().kv_events = Some(events);
    let server = start(config).await;
    // A name that is looked for takes an id, as in vLLM.
    assert_eq!(send(&server, "/v1/completions", json!({"model": "no", "prompt": "a"})).await.status, 404);
    assert_eq!(send(&server, LOAD, json!({"lora_name": "py", "lora_path": "/l/py"})).await.status, 200);
    for model in ["m", "sql", "py"] {
        complete(&server, model, &ids(20)).await;
    }
    let snapshot = client::send(server.address, &get("/vcr/engine")).await.json();
    assert_eq!(snapshot["differences"], json!([]));
    let batches = replayed(snapshot["kv_events"]["replay_endpoint"].as_str().unwrap(), 0).await;
    let stored = batches.iter().map(|(_, payload)| {
        let batch = rmpv::decode::read_value(&mut &payload[..]).unwrap();
        let event = &batch[1][0];
        let key = event["extra_keys"][0][0].as_str().map(str::to_owned);
        (event["lora_id"].as_u64(), event["lora_name"].as_str().map(str::to_owned), key)
    });
    let named = |id, name: &str| (Some(id), Some(name.to_owned()), Some(name.to_owned()));
    assert_eq!(stored.collect::<Vec<_>>(), [(None, None, None), named(1, "sql"), named(3, "py")]);
}

/// What vLLM 0.32.0's own frontend answered to the same requests, with an engine that loads anything.
#[tokio::test]
async fn adapters_are_listed_loaded_and_unloaded_in_vllms_words() {
    let alias = LoraModule { base_model_name: Some("alias".to_owned()), ..module("sql", "/l/sql") };
    let other = LoraModule { base_model_name: Some("nope".to_owned()), ..module("py", "/l/py") };
    let lora = LoraConfig { max_loras: 1, lora_modules: vec![alias, other] };
    let names = vec!["base".to_owned(), "alias".to_owned()];
    let server = start(Config { served_model_names: names, ..synthetic(lora) }).await;
    let listed = async || {
        let list = client::send(server.address, &get("/v1/models")).await.json();
        let card = |card: &Value| {
            assert_eq!((&card["object"], &card["owned_by"]), (&json!("model"), &json!("vllm")));
            json!([card["id"], card["root"], card["parent"], card["max_model_len"]])
        };
        list["data"].as_array().unwrap().iter().skip(2).map(card).collect::<Value>()
    };
    assert_eq!(listed().await, json!([["sql", "/l/sql", "alias", null], ["py", "/l/py", "base", null]]));
    let refused = |status: u16, kind: &str, message: &str| {
        (status, json!({"error": {"message": message, "type": kind, "param": null, "code": status}}).to_string())
    };
    let invalid = |message: &str| refused(400, "InvalidUserInput", message);
    let done = |message: &str| (200, message.to_owned());
    let a = |path: &str| json!({"lora_name": "a", "lora_path": path});
    for (path, body, expected) in [
        (LOAD, a("/l/a"), done("Success: LoRA adapter 'a' added successfully.")),
        (
            LOAD,
            a("/l/a"),
            invalid(
                "The lora adapter 'a' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True.",
            ),
        ),
        (
            LOAD,
            json!({"lora_name": "a", "lora_path": "/l/a2", "load_inplace": true}),
            done("Success: LoRA adapter 'a' added successfully."),
        ),
        (
            LOAD,
            json!({"lora_name": "", "lora_path": "/l"}),
            invalid("Both 'lora_name' and 'lora_path' must be provided."),
        ),
        (
            LOAD,
            json!({"lora_name": "alias", "lora_path": "/l"}),
            invalid("The lora adapter 'alias' conflicts with a served base model."),
        ),
        (UNLOAD, json!({"lora_name": "zz"}), refused(404, "NotFoundError", "The lora adapter 'zz' cannot be found.")),
        (UNLOAD, json!({"lora_name": ""}), invalid("'lora_name' needs to be provided to unload a LoRA adapter.")),
        (UNLOAD, json!({"lora_name": "sql"}), done("Success: LoRA adapter 'sql' removed successfully.")),
    ] {
        let answer = send(&server, path, body.clone()).await;
        assert_eq!((answer.status, answer.text()), expected, "{body}");
        assert_eq!(answer.header("content-type").is_some(), answer.status != 200, "{body}");
    }
    for (path, body) in
        [(LOAD, json!({"lora_name": 5})), (UNLOAD, json!({})), (UNLOAD, json!({"lora_name": "py", "lora_int_id": "x"}))]
    {
        let answer = send(&server, path, body.clone()).await;
        assert_eq!((answer.status, &answer.json()["error"]["type"]), (400, &json!("Bad Request")), "{body}");
    }
    assert_eq!(listed().await, json!([["py", "/l/py", "base", null], ["a", "/l/a2", "base", null]]));
}

#[tokio::test]
async fn an_adapter_answers_by_its_name_until_it_is_unloaded() {
    let server = start(synthetic(adapters(1, &["sql"]))).await;
    let chat = json!({"model": "sql", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2});
    // Bodies that come again are not read again.
    for _ in 0..4 {
        let answer = send(&server, "/v1/chat/completions", chat.clone()).await;
        assert_eq!((answer.status, &answer.json()["model"]), (200, &json!("sql")));
    }
    let tokenized = async || send(&server, "/tokenize", json!({"model": "sql", "prompt": "hello"})).await.status;
    assert_eq!(tokenized().await, 200);
    assert_eq!(send(&server, UNLOAD, json!({"lora_name": "sql"})).await.status, 200);
    assert_eq!(tokenized().await, 404);
    let answer = send(&server, "/v1/chat/completions", chat).await;
    let message = "The model `sql` does not exist. Valid aliases: m.";
    assert_eq!((answer.status, &answer.json()["error"]["message"]), (404, &json!(message)));
    assert!(metrics(&server).await.contains("# TYPE vllm:lora_requests_info gauge\n"));
}

#[tokio::test]
async fn an_adapter_has_its_own_records_or_those_of_its_model() {
    let prompt = ids(8);
    let hashes = BlockHasher::new(BlockHashAlgorithm::Fnv1a64, 4).hash(&prompt);
    let of = |model: &str, id: u32| Record {
        model: Some(model.to_owned()),
        prompt_tokens: 8,
        block_hashes: hashes.blocks.clone().into(),
        prompt_hash: hashes.whole,
        ..record(&[id], Duration::ZERO, FinishReason::Stop)
    };
    let records = vec![of("m", 300), of("m", 300), of("sql", 301)];
    let lora = Some(adapters(1, &["sql", "other"]));
    let config = Config { served_model_names: Vec::new(), lora, ..config(&[MatchBy::Prefix], records) };
    let server = start(config).await;
    let list = client::send(server.address, &get("/v1/models")).await.json();
    let parents: Vec<(&Value, &Value)> =
        list["data"].as_array().unwrap().iter().map(|card| (&card["id"], &card["parent"])).collect();
    assert_eq!(parents, [(&json!("m"), &Value::Null), (&json!("sql"), &json!("m")), (&json!("other"), &json!("m"))]);
    let mut texts = Vec::new();
    for model in ["sql", "other", "m"] {
        let answer = complete(&server, model, &prompt).await;
        assert_eq!(answer["model"], model);
        texts.push(answer["choices"][0]["text"].clone());
    }
    assert!(texts[0] != texts[1] && texts[1] == texts[2], "{texts:?}");
}

#[tokio::test]
async fn without_the_variable_nobody_loads_adapters() {
    let config = Config { server: ServerOptions::default(), ..synthetic(adapters(1, &["sql"])) };
    let server = start(config).await;
    let answer = send(&server, LOAD, json!({"lora_name": "a", "lora_path": "/l/a"})).await;
    assert_eq!((answer.status, answer.text()), (404, r#"{"detail":"Not Found"}"#.to_owned()));
    let closed = Config { lora: None, ..synthetic(adapters(1, &[])) };
    let server = start(closed).await;
    let answer = send(&server, LOAD, json!({"lora_name": "a", "lora_path": "/l/a"})).await;
    assert_eq!(answer.status, 500);
    assert!(answer.text().contains("LoRA is not enabled. Use --enable-lora to enable LoRA."), "{}", answer.text());
    assert!(!metrics(&server).await.contains("lora_requests_info"));
}

#[test]
fn an_adapter_of_the_models_name_does_not_start() {
    let error = Player::load(synthetic(adapters(1, &["sql", "m"]))).unwrap_err().to_string();
    assert!(error.contains("conflicts with a served base model") && error.contains("--lora-modules"), "{error}");
}

#[tokio::test]
async fn flags_of_adapters_are_vllms() {
    let json = r#"{"name": "py", "path": "/l/py", "base_model_name": "m"}"#;
    let fixed = ["play", "--synthetic", "random", "--served-model-name", "m", "--engine", "--instant", "--port", "0"];
    let lora = ["--enable-lora", "--lora-modules", "sql=/l/sql", json, "--max-loras", "2", "--max-cpu-loras", "4"];
    let arguments = [&fixed[..], &lora, &["--max-lora-rank", "64"]].concat();
    let server = Running::start_with(&arguments, &[("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")]);
    let answer = server.send(LOAD, &json!({"lora_name": "a", "lora_path": "/l/a"})).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    for (name, path) in [("a\u{1b}[2J", "/l/a"), (&*"a".repeat(4097), "/l/a"), ("b", &*"/".repeat(4097))] {
        let refused = server.send(LOAD, &json!({"lora_name": name, "lora_path": path})).await;
        assert!(refused.status == 400 && refused.text().contains("at most 4096 bytes"), "{}", refused.text());
    }
    let models = server.get("/v1/models").await;
    let names: Vec<&Value> = models["data"].as_array().unwrap().iter().map(|card| &card["id"]).collect();
    assert_eq!(names, [&json!("m"), &json!("sql"), &json!("py"), &json!("a")]);
    let page = client::send(server.address, &get("/metrics")).await.text();
    assert!(page.contains("# HELP vllm:lora_requests_info Running stats on lora requests.\n"));
    let named = Running::start(&[&fixed[..], &["--lora-modules", "a=b"]].concat());
    assert_eq!(named.get("/v1/models").await["data"][1]["id"], "a");
    assert!(named.stop().1.contains("vLLM needs --enable-lora beside it"));
    for (flags, part) in [
        (&["--enable-lora", "--max-loras", "3", "--max-cpu-loras", "2"][..], "--max-cpu-loras (2) must be at least"),
        (&["--enable-lora", "--lora-modules", "a"], "NAME=PATH"),
        (&["--enable-lora", "--lora-modules", "a=b", "a=c"], "already been loaded"),
    ] {
        let output = vcr(&[&fixed[..], flags].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(part), "{flags:?}: {error}");
    }
}
