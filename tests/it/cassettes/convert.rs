//! `vllm-vcr cassette convert`.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::{CHAT, Running, Shelf, agent, chat, engine, read, record, said, streamed, tape, vcr};
use crate::support::tokenizers::smollm2_json;

fn convert(arguments: &[&str]) -> (i32, String) {
    let output = vcr(&[&["cassette", "convert"], arguments].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap(), text)
}

#[test]
fn which_of_the_two_files_is_not_understood_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (har, text, cassette) = (at("x.har"), at("x.txt"), at("x.yaml"));
    fs::write(&har, "{\"log\": {\"entries\": []}}").unwrap();
    fs::write(&text, "text").unwrap();
    fs::write(&cassette, "vcr: 1\nrecords: []\n").unwrap();
    let (new, missing) = (at("o.yaml"), at("nope.har"));
    for (from, to, code, part) in [
        (&missing, &new, 3, "nope.har: no such file"),
        (&text, &new, 2, "x.txt: this is not a file that can be converted"),
        (&har, &text, 2, "x.txt: this is not a cassette"),
        (&cassette, &text, 2, "x.txt: this is not a trace"),
    ] {
        let (got, said) = convert(&[from, to]);
        assert_eq!((got, said.contains(part)), (code, true), "{said}");
    }
    let output = vcr(&["play", "--cassette", &har]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.contains("cassette convert FROM TO")), (Some(3), true), "{said}");
}

fn lines(path: &Path) -> Vec<Value> {
    read(path).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cassette_becomes_a_trace_and_the_same_cassette_again() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    let live = agent(&tap, "What is the weather?", json!(true)).await.unwrap();
    tap.send(CHAT, &chat(&["plain"])).await;
    tap.send("/v1/embeddings", &json!({"model": "m", "input": "text"})).await;
    tap.send(CHAT, &chat(&["status 400"])).await;
    tap.stop();
    let (trace, back) = (shelf.folder.path().join("t.jsonl"), shelf.folder.path().join("back.yaml"));
    let (trace_name, back_name) = (trace.to_str().unwrap(), back.to_str().unwrap());
    let (code, text) = convert(&[shelf.name(), trace_name]);
    assert_eq!((code, text.contains("5 records")), (0, true), "{text}");
    assert_eq!(vcr(&["inspect", "check", trace_name]).status.code(), Some(0));
    let made = lines(&trace);
    assert_eq!((made.len(), made[0]["meta"]["vllm_version"].as_str()), (6, Some("0.32.0")), "{}", made[0]);
    assert_eq!(crate::support::public_reader::load(&trace).unwrap().1.len(), 5);
    let stream = &made[2];
    assert_eq!((stream["output_tokens"].as_u64(), stream["stream"].as_bool()), (Some(4), Some(true)), "{stream}");
    assert_eq!(stream["text"].as_array().unwrap().len(), 4, "{stream}");
    assert_ne!(convert(&[shelf.name(), trace_name]).0, 0, "what is there stays");
    let (code, text) = convert(&[trace_name, back_name]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(records(&read(&back)), records(&shelf.text()));
    let play = Running::start(&["play", "--port", "0", "--instant", "--strict", "--cassette", back_name]);
    assert_eq!(agent(&play, "What is the weather?", json!(true)).await.unwrap(), live);
    assert_eq!(said(&play.send(CHAT, &chat(&["plain"])).await), "You said plain.");
}

/// A cassette without its top.
fn records(text: &str) -> &str {
    text.split_once("records:\n").unwrap().1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_with_texts_becomes_a_cassette_that_plays() {
    let upstream = engine().await;
    let folder = tempfile::tempdir().unwrap();
    let (trace, cassette) = (folder.path().join("t.jsonl"), folder.path().join("c.yaml"));
    let (trace_name, name) = (trace.to_str().unwrap(), cassette.to_str().unwrap());
    let url = format!("http://{}", upstream.address);
    let tap = Running::start(&[
        "tap",
        "--upstream",
        &url,
        "--listen",
        "127.0.0.1:0",
        "--trace-out",
        trace_name,
        "--record-text",
        "--record-requests",
        "--redact",
        "email",
    ]);
    let mut streaming = chat(&["one"]);
    (streaming["stream"], streaming["stream_options"]) = (json!(true), json!({"include_usage": true}));
    let live = streamed(&tap.send(CHAT, &streaming).await).0;
    tap.send(CHAT, &chat(&["two with jane.doe@mail.example.org"])).await;
    tap.stop();
    let (code, text) = convert(&[trace_name, name]);
    assert_eq!(code, 0, "{text}");
    assert!(!read(&cassette).contains("jane.doe"), "{}", read(&cassette));
    let play = Running::start(&["play", "--port", "0", "--instant", "--strict", "--cassette", name]);
    assert_eq!(streamed(&play.send(CHAT, &streaming).await).0, live);
    assert_eq!(play.send(CHAT, &chat(&["two with jane.doe@mail.example.org"])).await.status, 200);
    assert_eq!(play.stop().0, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_are_converted_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (trace, cassette, back) = (file("t.jsonl"), file("c.yaml"), file("b.jsonl"));
    let body = r#"{"error":{"message":"slow down","type":"rate_limit","param":null,"code":429}}"#;
    let refused = |body: Value, error: Value| {
        json!({"prompt_tokens": 0, "output_tokens": 0, "ttft_ms": 4.0, "e2e_ms": 4.0, "endpoint": "chat", "status": 429,
            "outcome": "error", "request": body, "error": error})
    };
    let headers = json!({"content-type": "application/json", "retry-after": "7"});
    let told = refused(chat(&["busy"]), json!({"headers": headers, "body": body}));
    let lines = [told, refused(chat(&["text"]), json!({"headers": {"content-type": "text/plain"}, "body": "no"}))];
    std::fs::write(&trace, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let (code, text) = convert(&[&trace, &cassette]);
    assert_eq!(code, 0, "{text}");
    let play = Running::start(&["play", "--port", "0", "--instant", "--strict", "--cassette", &cassette]);
    let busy = play.send(CHAT, &chat(&["busy"])).await;
    assert_eq!((busy.status, busy.header("retry-after"), busy.text().as_str()), (429, Some("7"), body));
    let plain = play.send(CHAT, &chat(&["text"])).await;
    assert_eq!((plain.status, plain.header("content-type"), plain.text().as_str()), (429, Some("text/plain"), "no"));
    let (code, text) = convert(&[&cassette, &back]);
    assert_eq!(code, 0, "{text}");
    let fixed = ["play", "--port", "0", "--instant", "--served-model-name", "m", "--replay-tokens", &back];
    let play = Running::start(&fixed);
    let busy = play.send(CHAT, &chat(&["busy"])).await;
    assert_eq!((busy.status, busy.header("retry-after"), busy.text().as_str()), (429, Some("7"), body));
    assert_eq!(busy.header("x-vcr-match"), Some("request"));
    let unknown = folder.path().join("u.jsonl");
    std::fs::write(&unknown, format!("{}\n", refused(chat(&["busy"]), json!({})))).unwrap();
    let (code, text) = convert(&[unknown.to_str().unwrap(), &file("u.yaml")]);
    assert_eq!((code, text.contains("status 429, and the answer is not recorded")), (3, true), "{text}");
}

#[tokio::test]
async fn ids_are_spelled_by_a_tokenizer_and_kept_in_the_sidecar() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(file("tokenizer.json"), smollm2_json()).unwrap();
    let (cassette, trace, back) = (file("a.yaml"), file("a.jsonl"), file("b.yaml"));
    std::fs::write(&cassette, tape(&[record(&["a"], "It is fifteen degrees.")])).unwrap();
    let tokenizer = folder.path().to_str().unwrap().to_owned();
    let (code, text) = convert(&[&cassette, &trace, "--tokenizer", &tokenizer]);
    assert_eq!(code, 0, "{text}");
    let mut made = lines(Path::new(&trace));
    let ids = made[1]["output_token_ids"].clone();
    assert!(
        ids.as_array().unwrap().len() > 2 && made[1]["output_tokens"] == ids.as_array().unwrap().len(),
        "{}",
        made[1]
    );
    for key in ["answer", "text"] {
        made[1].as_object_mut().unwrap().remove(key);
    }
    let without: String = made.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(&trace, without).unwrap();
    let (code, text) = convert(&[&trace, &back]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("a.jsonl, line 2: it holds ids and no text; --tokenizer"), "{text}");
    assert!(!Path::new(&back).exists(), "nothing is written then");
    let (code, text) = convert(&[&trace, &back, "--tokenizer", &tokenizer]);
    assert_eq!(code, 0, "{text}");
    assert!(read(Path::new(&back)).contains("It is fifteen degrees."), "{}", read(Path::new(&back)));
    let side: Value = serde_json::from_str(read(&folder.path().join("b.vcr/tokens.jsonl")).trim()).unwrap();
    assert_eq!(side["output"], json!([ids]));
    let again = file("again.jsonl");
    assert_eq!(convert(&[&back, &again]).0, 0);
    assert_eq!(lines(Path::new(&again))[1]["output_token_ids"], ids, "without a tokenizer they come from the sidecar");
    std::fs::write(&back, read(Path::new(&back)).replace("fifteen", "sixteen")).unwrap();
    let edited = file("edited.jsonl");
    assert_eq!(convert(&[&back, &edited]).0, 0);
    assert!(lines(Path::new(&edited))[1]["output_token_ids"].is_null(), "ids of an edited answer spell another one");
}

#[tokio::test]
async fn what_cannot_be_converted_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (cassette, trace) = (file("a.yaml"), file("a.jsonl"));
    let uncounted = record(&["b"], "B").replace(", usage: {prompt_tokens: 3, completion_tokens: 2}", "");
    let looks = "- request: GET /v1/models\n  answer: {status: 200, json: {data: []}}\n".to_owned();
    std::fs::write(&cassette, tape(&[record(&["a"], "A"), looks, uncounted])).unwrap();
    let (code, text) = convert(&[&cassette, &trace]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("a.yaml:6: a trace holds posted requests, not GET /v1/models"), "{text}");
    assert!(text.contains("a.yaml:8: it has no token counts") && text.contains("--skip"), "{text}");
    assert!(!Path::new(&trace).exists());
    let (code, text) = convert(&[&cassette, &trace, "--skip"]);
    assert_eq!((code, text.contains("1 record, 2 left out")), (0, true), "{text}");
    let shapes = file("shapes.jsonl");
    std::fs::write(&shapes, "{\"prompt_tokens\":3,\"output_tokens\":1,\"ttft_ms\":5.0}\n").unwrap();
    let (code, text) = convert(&[&shapes, &file("s.yaml")]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("shapes.jsonl, line 1: it holds no request; record with --record-requests"), "{text}");
    for (from, to, said) in [
        (&cassette, &file("x.yaml"), "x.yaml: this is not a trace"),
        (&trace, &file("x.jsonl"), "x.jsonl: this is not a cassette"),
        (&cassette, &file("x.txt"), "x.txt: this is not a trace"),
    ] {
        let (code, text) = convert(&[from, to]);
        assert_eq!((code, text.contains(said)), (2, true), "{text}");
    }
}

/// What vcrpy 9.4 wrote of the OpenAI SDK: a chat, a stream, the models, and an error.
const VCRPY: &str = include_str!("vcrpy.yaml");

#[tokio::test]
async fn a_cassette_of_vcrpy_is_played() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (theirs, ours) = (file("theirs.yaml"), file("ours.yaml"));
    std::fs::write(&theirs, VCRPY).unwrap();
    let (code, text) = convert(&[&theirs, &ours]);
    assert_eq!((code, text.contains("4 records")), (0, true), "{text}");
    assert!(VCRPY.contains("sk-test") && !read(Path::new(&ours)).contains("sk-test"));
    assert_ne!(convert(&[&theirs, &ours]).0, 0, "what is there stays");
    let play = Running::start(&["play", "--port", "0", "--instant", "--strict", "--cassette", &ours]);
    let ask = |text: &str| json!({"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": text}]});
    let long = "Why is the sky blue? It's “clear”: ünï 日本 🦀\n\n  indented   spaces and a long long long long long long long long long long long line";
    let whole = play.send(CHAT, &ask(long)).await;
    assert_eq!(whole.json()["usage"]["completion_tokens"], 20);
    assert!(said(&whole).starts_with("Sc vector dimensions turn"), "{}", whole.text());
    let mut stream = ask("stream it");
    stream["stream"] = json!(true);
    assert!(streamed(&play.send(CHAT, &stream).await).0.starts_with("tow eating Cong"));
    assert_eq!(play.get("/v1/models").await["data"][0]["id"], "m");
    let unknown = json!({"model": "nope", "messages": [{"role": "user", "content": "x"}]});
    assert_eq!(play.send(CHAT, &unknown).await.status, 404);
    assert_eq!(play.stop().0, 0);
    std::fs::write(&theirs, VCRPY.replace("method: GET", "methods: GET")).unwrap();
    let (code, text) = convert(&[&theirs, &file("other.yaml")]);
    assert!(code == 3 && text.contains("theirs.yaml, line ") && text.contains("`method` is missing"), "{text}");
    assert_eq!(convert(&[&theirs, &file("other.yaml"), "--skip"]).0, 0);
}

#[tokio::test]
async fn fixtures_of_aimock_answer() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (theirs, ours) = (file("theirs.json"), file("ours.yaml"));
    let fixtures = json!({"fixtures": [
        {"match": {"userMessage": "joke", "sequenceIndex": 0}, "response": {"content": "one {{ x }} sk-proj-Ab3dEf6hIj9kLmN2pQrS5tUvW8xYz"}},
        {"match": {"userMessage": "joke", "sequenceIndex": 1}, "response": {"toolCalls": [{"name": "find", "arguments": {"a": 1}}]}},
        {"match": {"systemMessage": "be \"kind\""}, "response": {"content": "kind", "usage": {"prompt_tokens": 3, "completion_tokens": 4}}},
        {"match": {"userMessage": "limit"}, "response": {"error": {"message": "slow", "type": "rate_limit_error"}, "status": 429}},
        {"match": {}, "response": {"content": "rest"}}, {"match": {"endpoint": "video"}, "response": {"content": ""}},
        {"match": {"userMessage": "odd"}, "response": {"error": {"message": "odd"}, "status": 9999}}]});
    std::fs::write(&theirs, fixtures.to_string()).unwrap();
    let (code, text) = convert(&[&theirs, &ours]);
    assert!(code == 3 && text.contains("`match.endpoint: \"video\"`") && !Path::new(&ours).exists(), "{text}");
    assert!(text.contains("theirs.json, line 1, entry 7: `status` has to be"), "{text}");
    assert_eq!(convert(&[&theirs, &ours, "--skip"]).0, 0);
    let text = std::fs::read_to_string(&ours).unwrap();
    assert!(!text.contains("sk-proj-") && text.contains("kind"), "{text}");
    assert_eq!(convert(&[&theirs, &file("named.yaml"), "--skip", "--redact-pattern", "word=kind"]).0, 0);
    assert!(!std::fs::read_to_string(file("named.yaml")).unwrap().contains("content: kind"));
    let play = Running::start(&["play", "--port", "0", "--instant", "--cassette", &ours]);
    assert!(said(&play.send(CHAT, &chat(&["a joke"])).await).starts_with("one {{ x }} "));
    let called = play.send(CHAT, &chat(&["a joke"])).await.json();
    assert_eq!(called["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": 1}");
    assert_eq!(said(&play.send(CHAT, &chat(&["a joke"])).await), "rest");
    let kind = json!({"model": "m", "messages": [{"role": "system", "content": "be \"kind\", please"}, {"role": "user", "content": "hi"}]});
    let kind = play.send(CHAT, &kind).await;
    assert_eq!((said(&kind).as_str(), kind.json()["usage"]["completion_tokens"].as_u64()), ("kind", Some(4)));
    let refused = play.send(CHAT, &chat(&["limit"])).await;
    assert_eq!((refused.status, refused.json()["error"]["message"].as_str()), (429, Some("slow")));
}

#[tokio::test]
async fn a_har_of_a_browser_and_old_cassettes_of_httpx_are_converted() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (har, vcrpy, ours) = (file("browser.har"), file("old.yaml"), file("ours.yaml"));
    let entry = |method: &str, status: u16, text: &str| {
        json!({"request": {"method": method, "url": "https://api.example.org/v1/models", "headers": []},
            "response": {"status": status, "headers": [{"name": "content-type", "value": "application/json"}], "content": {"text": text}}})
    };
    let page = "{\"object\": \"list\", \"data\": [{\"id\": \"m\"}]}";
    let log = |entries: Value| json!({"log": {"entries": entries}}).to_string();
    fs::write(&har, log(json!([entry("OPTIONS", 204, ""), entry("GET", 200, page), entry("GET", 0, "")]))).unwrap();
    let (code, text) = convert(&[&har, &ours]);
    assert!(code == 3 && text.contains("browser.har, line 1, entry 3: /v1/models has no response"), "{text}");
    let (code, text) = convert(&[&har, &ours, "--skip"]);
    assert!(code == 0 && text.contains("1 record\n  1 CORS preflight (OPTIONS) left out"), "{text}");
    fs::write(&har, log(json!([entry("OPTIONS", 204, "")]))).unwrap();
    let (code, text) = convert(&[&har, &file("none.yaml")]);
    assert!(code == 1 && text.contains("1 CORS preflight"), "{text}");
    let old = format!(
        "interactions:\n- request: {{body: '', headers: {{}}, method: GET, uri: 'https://h/v1/models'}}\n  response:\n    content: '{page}'\n    headers: {{Content-Type: [application/json]}}\n    http_version: HTTP/1.1\n    status_code: 200\nversion: 1\n"
    );
    fs::write(&vcrpy, old).unwrap();
    let from_vcrpy = file("httpx.yaml");
    assert_eq!(convert(&[&vcrpy, &from_vcrpy]).0, 0);
    for cassette in [ours, from_vcrpy] {
        let play = Running::start(&["play", "--port", "0", "--instant", "--strict", "--cassette", &cassette]);
        assert_eq!(play.get("/v1/models").await["data"][0]["id"], "m", "{cassette}");
        assert_eq!(play.stop().0, 0);
    }
}
