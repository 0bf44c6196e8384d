//! Cassettes as what is sent: before the server that plays them, everything comes back as it was recorded.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::server::Server;
use crate::support::{
    cassettes::Shelf,
    running::{Running, vcr},
    tree,
};

/// Drives a cassette at a server; the printed object and what was said beside it.
fn drive(file: &Path, server: &Running, flags: &[&str]) -> (Value, String) {
    let target = format!("http://{}", server.address);
    let fixed = ["replay", file.to_str().unwrap(), "--target", &target, "--json"];
    let output = vcr(&[&fixed[..], flags].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}")), said)
}

/// A cassette of chats, completions, responses and messages, streamed and whole, with an MCP message and a hand-written record.
const ALL: &str = r#"
vcr: 1
key: 1
records:
- request: POST /v1/chat/completions
  body: {model: m, stream: true, messages: [{role: user, content: one}]}
  answer: {message: {role: assistant, content: first}, finish_reason: stop}
- request: POST /v1/completions
  body: {model: m, prompt: two}
  answer: {text: second, finish_reason: length, usage: {prompt_tokens: 3, completion_tokens: 5, total_tokens: 8}}
- like: 0
  body: {messages+: [{role: user, content: more}]}
  answer:
    message: {role: assistant, tool_calls: [{id: call_1, type: function, function: {name: look, arguments: '{"at": 1}'}}]}
    finish_reason: tool_calls
- like: 2
  body: {messages+: [{role: tool, tool_call_id: call_1, content: seen}]}
  answer: {message: {role: assistant, reasoning: hm, content: done}, finish_reason: stop}
- request: POST /v1/responses
  body: {model: m, input: ask}
  answer: {json: {object: response, status: completed, output: [{type: message, role: assistant, content: [{type: output_text, text: yes}]}],
    usage: {input_tokens: 4, output_tokens: 2, total_tokens: 6}}}
- request: POST /v1/messages
  body: {model: m, max_tokens: 9, messages: [{role: user, content: ask}]}
  answer: {json: {type: message, role: assistant, content: [{type: text, text: yes}], stop_reason: end_turn,
    usage: {input_tokens: 4, output_tokens: 2}}}
- request: POST /tokenize
  body: {model: m, prompt: ab}
  answer: {json: {count: 2, tokens: [1, 2]}}
- request: POST /mcp/time
  body: {method: tools/list}
  answer: {json: {result: {tools: []}}}
- match: {contains: by hand}
  answer: never sent
"#;

#[test]
fn what_a_cassette_holds_is_sent_and_comes_back() {
    let shelf = Shelf::with(ALL);
    let server = shelf.play(&["--on-exhausted", "last"]);
    let (printed, said) = drive(&shelf.file, &server, &["--check", "--arrivals", "burst"]);
    assert_eq!(printed["results"]["check"], json!({"compared": 7, "differ": 0, "differences": []}), "{said}");
    assert_eq!(printed["results"]["by_status"], json!({"200": 7}), "{said}");
    assert!(said.contains("7 requests in 5 sessions"), "{said}");
    assert!(said.contains("1 left out: messages to MCP servers"), "{said}");
    assert!(said.contains("1 left out: hand-written records"), "{said}");
    // Another answer than the recorded one is seen.
    let played = Shelf::with(ALL);
    let server = played.play(&[]);
    fs::write(&shelf.file, ALL.replace("second", "altered").replace("content: done", "content: gone")).unwrap();
    let (printed, said) = drive(&shelf.file, &server, &["--check", "--arrivals", "burst"]);
    assert_eq!(printed["results"]["check"]["differ"], 2, "{said}");
    assert_eq!(printed["verdict"]["valid"], false);
}

#[test]
fn recorded_tool_calls_and_reasoning_come_back_as_they_were() {
    for name in ["streamed", "whole"] {
        let file = tree::root().join(format!("tests/cassettes/real/{name}.yaml"));
        let server = Running::start(&["play", "--port", "0", "--instant", "--cassette", file.to_str().unwrap()]);
        let (printed, said) = drive(&file, &server, &["--check", "--arrivals", "burst"]);
        assert_eq!(
            printed["results"]["check"],
            json!({"compared": 3, "differ": 0, "differences": []}),
            "{name}: {said}"
        );
        assert!(said.contains("3 requests in 1 session"), "{said}");
    }
}

#[test]
fn placeholders_have_their_values_again_and_no_output_shows_them() {
    let record = "- request: POST /v1/chat/completions\n  body: {model: m, messages: [{role: user, content: 'to [REDACTED:email:1]'}]}\n  \
                  answer: {message: {role: assistant, content: sent}, finish_reason: stop}\n";
    let shelf = Shelf::with(&format!("vcr: 1\nkey: 1\nrecords:\n{record}"));
    let answer = json!({"id": "c", "object": "chat.completion", "choices": [{"index": 0, "finish_reason": "stop",
        "message": {"role": "assistant", "content": "sent to jane@example.org"}}]});
    let server = Server::start(move |_, body| if body.is_null() { Value::Null } else { answer.clone() });
    let (values, out) = (shelf.folder.path().join("values.txt"), shelf.folder.path().join("out.jsonl"));
    fs::write(&values, "email:1 = jane@example.org\n").unwrap();
    let run = |flags: &[&str]| {
        let fixed = ["replay", shelf.name(), "--target", &server.url(), "--check"];
        let output = vcr(&[&fixed[..], flags].concat());
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let said = run(&["--secrets", values.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert_eq!(server.sent()[0].body["messages"][0]["content"], "to jane@example.org", "{said}");
    assert!(!said.contains("jane@") && !said.contains("sent as it is"), "{said}");
    assert!(!fs::read_to_string(&out).unwrap().contains("jane@"));
    let said = run(&[]);
    assert_eq!(server.sent()[1].body["messages"][0]["content"], "to [REDACTED:email:1]", "{said}");
    assert!(said.contains("record 0: [REDACTED:email:1] is sent as it is; give it with --secrets FILE"), "{said}");
    let trace = shelf.folder.path().join("redacted.jsonl");
    let body = json!({"model": "m", "prompt": "to [REDACTED:email:1]"});
    let line = json!({"prompt_tokens": 4, "output_tokens": 1, "ttft_ms": 1.0, "itl_ms": [], "endpoint": "completions", "request": body});
    fs::write(&trace, format!("{line}\n")).unwrap();
    let sent = vcr(&["replay", trace.to_str().unwrap(), "--target", &server.url()]);
    let said = String::from_utf8(sent.stderr).unwrap();
    assert!(said.contains("1 request with placeholders of secrets, sent as they are"), "{said}");
    let mixed = vcr(&["replay", shelf.name(), "traces/builtin.jsonl.gz", "--target", &server.url()]);
    assert_eq!(mixed.status.code(), Some(2));
}
