//! `/metrics` and `/load`: the engine's families, and values that are true.

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use vllm_vcr::{
    engine::kv_cache::KvCacheConfig,
    play::{Config, EngineConfig, LoraConfig, ServerOptions},
    recording::trace::{FinishReason, Outcome, Record},
    replay::matching::MatchBy,
    replay::timing::Pacing,
    text::parsers::{Formats, ToolFormat},
    text::prompt::SpecialTokens,
};

use crate::support::{
    client::{self, get, post},
    play_server::{self, Server, config, record, start},
};

fn records() -> Vec<Record> {
    let mut first = record(&[20, 21, 22], Duration::from_millis(30), FinishReason::Stop);
    first.cached_tokens = Some(2);
    vec![first, record(&[23, 24, 25, 26], Duration::from_millis(30), FinishReason::Length)]
}

async fn server(options: ServerOptions) -> Server {
    serving(options, records()).await
}

async fn serving(options: ServerOptions, records: Vec<Record>) -> Server {
    let pacing = Pacing::Recorded { scale: vllm_vcr::base::units::TimeScale::REAL };
    start(Config { server: options, pacing, ..config(&[MatchBy::Next], records) }).await
}

/// Sample and value, without the engine's and the model's labels.
async fn samples(server: &Server) -> BTreeMap<String, f64> {
    let page = client::send(server.address, &get("/metrics")).await;
    assert_eq!(page.header("content-type"), Some("text/plain; version=1.0.0; charset=utf-8"));
    let text = page.text();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let split = lines.map(|line| line.rsplit_once(' ').unwrap());
    split
        .map(|(name, value)| {
            let name = name.replace("engine=\"0\",", "").replace("engine=\"0\"", "");
            let name = name
                .replace("model_name=\"m\",", "")
                .replace(",model_name=\"m\"", "")
                .replace("model_name=\"m\"", "")
                .replace("{}", "");
            (name, value.parse().unwrap())
        })
        .collect()
}

async fn until(server: &Server, sample: &str, value: f64) {
    for _ in 0..2000 {
        if samples(server).await[sample] == value {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{sample} is {} and not {value}", samples(server).await[sample]);
}

#[tokio::test]
async fn every_family_of_the_engine_is_there_in_its_order() {
    let server = server(ServerOptions::default()).await;
    let text = client::send(server.address, &get("/metrics")).await.text();
    let families: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    assert_eq!(families.len(), 92);
    assert_eq!(families[0], "python_gc_objects_collected_total counter");
    assert_eq!(families[16], "vllm:num_requests_running gauge");
    assert_eq!(families[91], "http_request_duration_seconds_created gauge");
    let sample = r#"vllm:request_success_total{engine="0",finished_reason="repetition",model_name="m"} 0.0"#;
    assert!(text.lines().any(|line| line == sample));
    // The longest bucket follows --max-model-len, which is 4096 here.
    let bucket = r#"vllm:request_prompt_tokens_bucket{engine="0",le="2000.0",model_name="m"} 0.0"#;
    assert!(text.lines().any(|line| line == bucket));
    assert!(!text.contains(r#"le="5000.0""#));
    assert!(text.contains(r#",num_gpu_blocks="16384","#) && text.contains(r#",block_size="4","#));
}

#[tokio::test]
async fn values_are_those_of_the_requests() {
    let server = server(ServerOptions::default()).await;
    let both = json!({"prompt": [5, 6, 7, 8, 9], "max_tokens": 3, "n": 2});
    assert_eq!(client::send(server.address, &post("/v1/completions", &both)).await.status, 200);
    assert_eq!(client::send(server.address, &get("/v1/nope")).await.status, 404);
    assert_eq!(client::send(server.address, &get("/v1/completions")).await.status, 405);
    until(&server, r#"http_requests_total{handler="none",method="GET",status="4xx"}"#, 2.0).await;
    let found = samples(&server).await;
    for (sample, value) in [
        ("vllm:num_requests_running", 0.0),
        ("vllm:num_requests_waiting", 0.0),
        ("vllm:prompt_tokens_total", 10.0),
        ("vllm:prompt_tokens_cached_total", 4.0),
        ("vllm:prefix_cache_hits_total", 4.0),
        (r#"vllm:prompt_tokens_by_source_total{source="local_compute"}"#, 6.0),
        ("vllm:generation_tokens_total", 6.0),
        (r#"vllm:request_success_total{finished_reason="stop"}"#, 1.0),
        (r#"vllm:request_success_total{finished_reason="length"}"#, 1.0),
        ("vllm:time_to_first_token_seconds_count", 2.0),
        (r#"vllm:time_to_first_token_seconds_bucket{le="0.02"}"#, 0.0),
        (r#"vllm:time_to_first_token_seconds_bucket{le="+Inf"}"#, 2.0),
        ("vllm:inter_token_latency_seconds_count", 4.0),
        ("vllm:e2e_request_latency_seconds_count", 2.0),
        ("vllm:request_params_n_sum", 2.0),
        ("vllm:request_params_max_tokens_sum", 6.0),
        ("vllm:request_max_num_generation_tokens_sum", 3.0),
        ("vllm:request_max_num_generation_tokens_count", 1.0),
        ("vllm:request_generation_tokens_sum", 6.0),
        ("vllm:request_prefill_kv_computed_tokens_sum", 6.0),
        (r#"http_requests_total{handler="/v1/completions",method="POST",status="2xx"}"#, 1.0),
        (r#"http_request_duration_seconds_bucket{handler="/v1/completions",le="+Inf",method="POST"}"#, 1.0),
        (r#"http_response_size_bytes_sum{handler="none"}"#, 53.0),
        ("http_request_duration_highr_seconds_count", 3.0),
    ] {
        assert_eq!(found.get(sample), Some(&value), "{sample}");
    }
    // Three tokens 30 ms apart, the first after 30 ms, on two choices: nothing comes early, however slow the machine is.
    let whole = found["vllm:e2e_request_latency_seconds_sum"];
    let (first, gaps) = (found["vllm:time_to_first_token_seconds_sum"], found["vllm:inter_token_latency_seconds_sum"]);
    assert!(whole >= 0.12 - 1e-6 && first > 0.0 && gaps > 0.0);
    assert!(first + gaps <= whole + 1e-6, "{first} and {gaps} in {whole}");
    assert!(found["process_resident_memory_bytes"] > 1e6);
    assert!(!found.keys().any(|sample| sample.contains("handler=\"/metrics\"")));
}

#[tokio::test]
async fn a_path_counts_as_its_own_endpoint_and_not_as_an_id() {
    const PATHS: [&str; 3] = ["/v1/responses/render", "/v1/messages/render", "/v1/chat/completions/render"];
    let options = ServerOptions { runtime_lora_updating: true, ..ServerOptions::default() };
    let lora = Some(LoraConfig { max_loras: 1, lora_modules: Vec::new() });
    let config = Config { scale_out: true, server: options, lora, ..config(&[MatchBy::Next], records()) };
    let server = start(config).await;
    let adapter = json!({"lora_name": "a", "lora_path": "/a"});
    assert_eq!(client::send(server.address, &post("/v1/load_lora_adapter", &adapter)).await.status, 200);
    for path in PATHS {
        let body = json!({"model": "m", "input": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1});
        assert_eq!(client::send(server.address, &post(path, &body)).await.status, 200, "{path}");
    }
    assert_eq!(client::send(server.address, &get("/v1/responses/resp%5F1")).await.status, 404);
    until(&server, r#"http_requests_total{handler="/v1/responses/{response_id}",method="GET",status="4xx"}"#, 1.0)
        .await;
    let found = samples(&server).await;
    let requests =
        |handler: &str| found.get(&format!(r#"http_requests_total{{handler="{handler}",method="POST",status="2xx"}}"#));
    for path in PATHS {
        assert_eq!(requests(path), Some(&1.0), "{path}: {found:?}");
    }
    // The engine leaves out what has `/load` in its path.
    for handler in ["/v1/responses/{response_id}", "/v1/load_lora_adapter", "none"] {
        assert_eq!(requests(handler), None, "{handler}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_runs_no_more_and_finished_in_no_way() {
    let options = ServerOptions { load_tracking: true, ..ServerOptions::default() };
    let slow = record(&[20, 21], Duration::from_secs(30), FinishReason::Stop);
    let server = serving(options, vec![slow]).await;
    let body = json!({"prompt": "x", "stream": true});
    let mut stream = client::open(server.address, &post("/v1/completions", &body)).await;
    stream.read_u8().await.unwrap();
    until(&server, "vllm:num_requests_running", 1.0).await;
    let load = client::send(server.address, &get("/load")).await;
    assert_eq!(load.text(), r#"{"server_load":1}"#);
    drop(stream);
    until(&server, "vllm:num_requests_running", 0.0).await;
    let found = samples(&server).await;
    let finished = found.iter().filter(|(sample, _)| sample.starts_with("vllm:request_success_total"));
    assert_eq!(finished.map(|(_, count)| count).sum::<f64>(), 0.0);
    assert_eq!(client::send(server.address, &get("/load")).await.text(), r#"{"server_load":0}"#);
}

#[tokio::test]
async fn a_whole_request_whose_client_leaves_counts_as_the_engine_counts_it() {
    let slow = record(&[20, 21], Duration::from_secs(30), FinishReason::Stop);
    let server = serving(ServerOptions::default(), vec![slow]).await;
    let whole = client::open(server.address, &post("/v1/completions", &json!({"prompt": "x"}))).await;
    until(&server, "vllm:num_requests_running", 1.0).await;
    drop(whole);
    // vLLM makes an answer of nothing, `null`.
    until(&server, r#"http_requests_total{handler="/v1/completions",method="POST",status="2xx"}"#, 1.0).await;
    let found = samples(&server).await;
    assert_eq!(found[r#"http_response_size_bytes_sum{handler="/v1/completions"}"#], 4.0);
    assert_eq!(found["http_request_duration_highr_seconds_count"], 1.0);
    // One that leaves in the middle of its body is a bad request.
    let mut leaving = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{\"pro";
    leaving.write_all(head.as_bytes()).await.unwrap();
    drop(leaving);
    until(&server, r#"http_requests_total{handler="/v1/completions",method="POST",status="4xx"}"#, 1.0).await;
    // `{"detail":"There was an error parsing the body"}`.
    assert_eq!(samples(&server).await[r#"http_response_size_bytes_sum{handler="/v1/completions"}"#], 4.0 + 48.0);
}

#[tokio::test]
async fn a_record_whose_client_left_ends_with_abort_and_counts_as_none_that_finished() {
    let whole = record(&[20, 21], Duration::ZERO, FinishReason::Stop);
    let left = Record { finish_reason: None, outcome: Some(Outcome::ClientGone), ..whole.clone() };
    let server = serving(ServerOptions::default(), vec![left.clone(), left, whole]).await;
    for stream in [false, true] {
        let body = json!({"prompt": "x", "max_tokens": 9, "stream": stream});
        let answer = client::send(server.address, &post("/v1/completions", &body)).await.text();
        assert!(answer.contains(r#""finish_reason":"abort""#), "{answer}");
    }
    let finished = client::send(server.address, &post("/v1/completions", &json!({"prompt": "x"}))).await;
    assert_eq!(finished.json()["choices"][0]["finish_reason"], "stop");
    let found = samples(&server).await;
    let count = |reason: &str| found[&format!(r#"vllm:request_success_total{{finished_reason="{reason}"}}"#)];
    assert_eq!([count("abort"), count("stop")], [0.0, 1.0]);
    assert_eq!(found["vllm:e2e_request_latency_seconds_count"], 1.0);
    assert_eq!(found["vllm:request_params_n_count"], 1.0);
    // Their tokens were generated all the same.
    assert_eq!(found["vllm:generation_tokens_total"], 6.0);
}

#[tokio::test]
async fn facts_of_the_cache_say_which_of_them_were_given() {
    let facts = async |config: Config| {
        let page = client::send(start(config).await.address, &get("/metrics")).await.text();
        page.lines().find(|line| line.starts_with("vllm:cache_config_info{")).unwrap().to_owned()
    };
    let usual = || config(&[MatchBy::Next], records());
    let line = facts(usual()).await;
    assert!(line.contains(r#"num_gpu_blocks_override="None""#), "{line}");
    assert!(line.contains(r#"user_specified_block_size="False""#), "{line}");
    let kv_cache = KvCacheConfig { num_gpu_blocks: 600, ..KvCacheConfig::default() };
    let engine = Some(EngineConfig { kv_cache, overrides_blocks: true, ..EngineConfig::default() });
    let line = facts(Config { engine, block_size: NonZeroU32::new(16), ..usual() }).await;
    assert!(line.contains(r#"num_gpu_blocks="600",num_gpu_blocks_override="600""#), "{line}");
    assert!(line.contains(r#"user_specified_block_size="True""#), "{line}");
}

#[tokio::test]
async fn load_is_zero_unless_it_is_tracked() {
    let server = server(ServerOptions::default()).await;
    let body = json!({"prompt": "x", "stream": true});
    let mut stream = client::open(server.address, &post("/v1/completions", &body)).await;
    stream.read_u8().await.unwrap();
    assert_eq!(client::send(server.address, &get("/load")).await.text(), r#"{"server_load":0}"#);
}

#[tokio::test]
async fn choices_that_run_together_share_the_engines_steps() {
    let twelve: Vec<u32> = (20..32).collect();
    let records = (0..8).map(|_| record(&twelve, Duration::ZERO, FinishReason::Length)).collect();
    let server = serving(ServerOptions::default(), records).await;
    let body = json!({"prompt": [5, 6, 7, 8], "max_tokens": 12, "n": 8});
    assert_eq!(client::send(server.address, &post("/v1/completions", &body)).await.status, 200);
    let found = samples(&server).await;
    // As an engine does: one of them is alone in its first step.
    assert_eq!(found["vllm:iteration_tokens_total_count"], 13.0);
    assert_eq!(found["vllm:iteration_tokens_total_sum"], 8.0 * (12.0 + 4.0));
    assert_eq!(found["vllm:generation_tokens_total"], 96.0);
}

#[tokio::test]
async fn runs_of_the_tools_parser_are_counted_behind_all_other_families() {
    let said = "<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>";
    let ids = play_server::tokenizer().encode(said, SpecialTokens::Skip).unwrap();
    let records =
        vec![record(&ids, Duration::ZERO, FinishReason::Stop), record(&[20, 21], Duration::ZERO, FinishReason::Stop)];
    let parsers = Formats { reasoning: None, tools: Some(ToolFormat::Hermes) };
    let server = start(Config { parsers, ..config(&[MatchBy::Next], records) }).await;
    let family = "vllm:tool_call_parser_invocations";
    let tools = json!([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]);
    let body =
        |stream: bool| json!({"messages": [{"role": "user", "content": "Hi"}], "tools": tools, "stream": stream});
    for stream in [false, true] {
        assert_eq!(client::send(server.address, &post("/v1/chat/completions", &body(stream))).await.status, 200);
    }
    let plain = json!({"messages": [{"role": "user", "content": "Hi"}]});
    assert_eq!(client::send(server.address, &post("/v1/chat/completions", &plain)).await.status, 200);
    let found = samples(&server).await;
    let count = |mode: &str, outcome: &str| {
        found[&format!("{family}_total{{mode=\"{mode}\",outcome=\"{outcome}\",request_type=\"chat_completions\"}}")]
    };
    // Once for a whole answer, once for each delta of a stream; a request without tools has nothing to find.
    assert_eq!([count("non_streaming", "tool_call"), count("non_streaming", "no_tool_call")], [1.0, 0.0]);
    assert_eq!([count("streaming", "tool_call"), count("streaming", "no_tool_call")], [0.0, 2.0]);
    let page = client::send(server.address, &get("/metrics")).await.text();
    let families: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    assert_eq!(families[92..], [format!("{family}_total counter"), format!("{family}_created gauge")]);
    assert_eq!(page.matches(&format!("{family}_total{{")).count(), 12);
}
