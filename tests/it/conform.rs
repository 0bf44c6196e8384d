//! `conform` against `play`, and against servers that are wrong in a known way.

use std::{
    io::{Read, Write},
    net::TcpListener,
    process::{Command, Output, Stdio},
    thread,
};

use serde_json::{Value, json};
use vllm_vcr::conform::{ShapeDifferences, compare, exchanges};

use crate::support::{
    client, goldens,
    running::{Running, vcr},
};

fn play(more: &[&str]) -> Running {
    let usual =
        ["play", "--port", "0", "--synthetic", "random", "--enable-request-id-headers", "--engine", "--instant"];
    Running::start(&[usual.as_slice(), more].concat())
}

async fn conform(running: &Running, more: &[&str]) -> Output {
    let target = format!("http://{}", running.address);
    let words: Vec<String> =
        ["conform", "--target", &target].iter().chain(more).map(|word| (*word).to_owned()).collect();
    tokio::task::spawn_blocking(move || vcr(&words.iter().map(String::as_str).collect::<Vec<_>>())).await.unwrap()
}

fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_exchanges_have_the_shapes_of_the_goldens() {
    let goldens: std::collections::HashMap<String, Value> = goldens::suite("plain").into_iter().collect();
    for exchange in exchanges() {
        let golden = &goldens[&exchange.case];
        assert_eq!(
            (golden["status"].as_u64(), golden["request"]["path"].as_str()),
            (Some(exchange.status.into()), Some(exchange.path.as_str()))
        );
        if exchange.events.is_empty() {
            let mut found = ShapeDifferences::default();
            compare("$", &exchange.response, &golden["json"], &mut found);
            assert_eq!(found, ShapeDifferences::default(), "{}", exchange.case);
        } else {
            let raw: Vec<&str> =
                golden["events"].as_array().unwrap().iter().map(|event| event["raw"].as_str().unwrap()).collect();
            // What --enable-prompt-tokens-details adds was recorded, and is null here.
            let details = ["\"prompt_tokens_details\":null", "\"cache_read_input_tokens\":null"];
            let known = |event: &String| {
                raw.iter().any(|raw| *raw == event) || details.iter().any(|field| event.contains(field))
            };
            assert!(exchange.events.iter().all(known), "{}", exchange.case);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn play_conforms() {
    let play =
        play(&["--kv-events-config", r#"{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:0"}"#]);
    let output = conform(&play, &["--profile", "vllm,picker"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    assert!(printed(&output).contains("\nconforms: "), "{}", printed(&output));
    let page = client::send(play.address, &client::get("/metrics")).await.text();
    let of_models = |line: &&str| line.starts_with("http_requests_total") && line.contains("\"/v1/models\"");
    let counts: Vec<&str> = page.lines().filter(of_models).collect();
    assert!(counts.len() == 1 && counts[0].ends_with(" 1.0"), "the models are asked for once: {counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kv_events_are_checked_where_they_are_published() {
    let play =
        play(&["--kv-events-config", r#"{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:0"}"#]);
    let endpoint =
        play.get("/vcr/engine").await["kv_events"]["endpoint"].as_str().unwrap().replace("0.0.0.0", "127.0.0.1");
    let output = conform(&play, &["--profile", "picker", "--kv-events", &endpoint]).await;
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    assert!(printed(&output).contains("KV events"), "{}", printed(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_of_kv_events_fit_a_short_context_and_a_refusal_is_named() {
    let events = r#"{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:0"}"#;
    for (more, code, part) in [
        (["--max-model-len", "512"], 0, "conforms: "),
        (["--fault", "400 where path=/v1/completions"], 1, "should fill blocks get status 400, application/json: {"),
    ] {
        let play = play(&[["--kv-events-config", events], more].concat());
        let endpoint =
            play.get("/vcr/engine").await["kv_events"]["endpoint"].as_str().unwrap().replace("0.0.0.0", "127.0.0.1");
        let time = if code == 0 { "60s" } else { "3s" };
        let output = conform(&play, &["--profile", "picker", "--kv-events", &endpoint, "--timeout", time]).await;
        assert_eq!((output.status.code(), printed(&output).contains(part)), (Some(code), true), "{}", printed(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_found_is_printed_when_it_is_stopped() {
    let play = play(&["--fault", "hang where path=/tokenize"]);
    let target = format!("http://{}", play.address);
    let mut program = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"));
    let running = program.args(["conform", "--target", &target]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let running = running.unwrap();
    while play.get("/vcr/faults").await["hits"] == json!([]) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    Command::new("kill").arg(running.id().to_string()).status().unwrap();
    let output = tokio::task::spawn_blocking(move || running.wait_with_output().unwrap()).await.unwrap();
    let text = printed(&output);
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains("\nchat  ") && text.contains("\nstopped: "), "{text}");
    assert!(text.contains("error: stopped before everything was checked"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_named() {
    let play = play(&[
        "--fault",
        "500 where path=/tokenize",
        "--fault",
        "no-done where path=/v1/completions",
        "--fault",
        "metrics-absent:vllm:num_requests_waiting",
    ]);
    let output = conform(&play, &["--profile", "vllm,picker", "--json"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", printed(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["conforms"], json!(false));
    let of = |name: &str| {
        let checks = report["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["name"] == name).unwrap();
        check["differences"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| format!("{} {}", one["place"].as_str().unwrap(), one["what"].as_str().unwrap()))
            .collect::<Vec<_>>()
    };
    assert!(of("chat").is_empty());
    let (checks, hold) = (report["checked"].as_u64().unwrap(), report["hold"].as_u64().unwrap());
    let all = report["checks"].as_array().unwrap();
    let failed = all.iter().filter(|check| check["differences"] != json!([])).count();
    let counted = (usize::try_from(checks).unwrap(), usize::try_from(checks - hold).unwrap());
    assert_eq!((report["profile"].clone(), counted), (json!(["vllm", "picker"]), (all.len(), failed)), "{report}");
    assert!(report["model"].is_string());
    assert!(of("tokenize")[0].starts_with("status is 500; 200 was recorded"), "{:?}", of("tokenize"));
    assert_eq!(of("vllm:num_requests_waiting"), ["vllm:num_requests_waiting is missing"]);
    let events = of("completion, streamed");
    assert!(events[0].contains("text, finish, [DONE] was recorded"), "{events:?}");
}

#[test]
fn a_server_that_is_not_there_is_no_verdict() {
    let output = vcr(&["conform", "--target", "http://127.0.0.1:9"]);
    assert_eq!(output.status.code(), Some(4), "{}", printed(&output));
    assert!(printed(&output).contains("cannot be reached"), "{}", printed(&output));
}

#[test]
fn a_header_that_is_refused_is_not_repeated() {
    let via = ["--via", "http://127.0.0.1:9", "--upstream-port", "0"];
    for (command, more) in [
        ("conform", &["--target", "http://127.0.0.1:9"][..]),
        ("prove", &via),
        ("sweep", &[via.as_slice(), &["--canary", "secret"]].concat()),
    ] {
        for (typed, part) in [("sk-1", "NAME: VALUE"), ("sk-1 b: c", "not a header name"), ("a: sk-1\n1", "value of a")]
        {
            let output = vcr(&[&[command, "--header", typed], more].concat());
            let said = printed(&output);
            assert_eq!((output.status.code(), said.contains("sk-1")), (Some(2), false), "{command}: {said}");
            assert!(said.contains(part), "{command}: {said}");
        }
    }
}

/// A server that has one answer, with or without an end.
fn canned(answer: &'static str, is_endless: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _read = stream.read(&mut [0; 4096]);
            let _written = stream.write_all(answer.as_bytes());
            while is_endless && stream.write_all(&[b' '; 1 << 16]).is_ok() {}
        }
    });
    format!("http://{address}")
}

#[test]
fn what_is_no_server_of_models_is_shown() {
    const PAGE: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n<html>\n<title>";
    const MOVED: &str = "HTTP/1.1 302 Found\r\nlocation: https://example.org/v1\r\ncontent-length: 0\r\n\r\n";
    const LOCKED: &str = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n";
    for (target, part) in [
        (canned(PAGE, false), "status 200, text/html: <html>"),
        (canned(MOVED, false), "status 302, which leads to https://example.org/v1"),
        (canned(LOCKED, false), "hint: --api-key names the key"),
        (canned(PAGE, true), "the answer has more than 16 MiB"),
        (canned(PAGE, false) + "/v1", "vLLM's URL has no /v1 at its end"),
    ] {
        let output = vcr(&["conform", "--target", &target]);
        assert_eq!((output.status.code(), printed(&output).contains(part)), (Some(4), true), "{}", printed(&output));
    }
}
