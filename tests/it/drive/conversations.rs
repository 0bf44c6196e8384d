//! Conversations that go on with what the server says, and what comes before and around a run.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::server::{Sent, Server};
use crate::support::{running::vcr, traces::Trace};

fn drive(trace: &Trace, url: &str, flags: &[&str]) -> (Option<i32>, Value, String) {
    let fixed = ["replay", trace.file.to_str().unwrap(), "--target", url, "--json"];
    let output = vcr(&[&fixed[..], flags].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default(), said)
}

/// A line of a trace with a request, of one session.
fn turn(number: usize, endpoint: &str, request: &Value) -> Value {
    json!({"prompt_tokens": 9, "output_tokens": 3, "ttft_ms": 1.0, "itl_ms": [1.0, 1.0], "arrival_ms": 20 * number, "e2e_ms": 3.0,
        "endpoint": endpoint, "stream": false, "status": 200, "outcome": "finished", "session": "s",
        "request_id": format!("recorded_{number}"), "request": request})
}

fn call(id: &str, arguments: &str) -> Value {
    json!([{"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}}])
}

/// A chat whose first answer calls a tool, and whose second one is text.
fn chat() -> Trace {
    let mut messages = vec![json!({"role": "system", "content": "s"}), json!({"role": "user", "content": "ask"})];
    let request = |messages: &[Value]| json!({"model": "m", "stream": true, "messages": messages});
    let mut lines = vec![turn(0, "chat", &request(&messages))];
    messages.push(json!({"role": "assistant", "content": null, "tool_calls": call("old", "{}")}));
    messages.push(json!({"role": "tool", "tool_call_id": "old", "content": "seen"}));
    lines.push(turn(1, "chat", &request(&messages)));
    messages.push(json!({"role": "assistant", "content": "recorded words"}));
    messages.push(json!({"role": "user", "content": "more"}));
    lines.push(turn(2, "chat", &request(&messages)));
    Trace::of(&lines)
}

fn stream(deltas: &[Value], finish: &str) -> Value {
    let event = |delta: &Value, finish: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        format!("data: {}\n\n", json!({"id": "live", "object": "chat.completion.chunk", "choices": [choice]}))
    };
    let events: String = deltas.iter().map(|delta| event(delta, Value::Null)).collect();
    json!(events + &event(&json!({}), json!(finish)) + "data: [DONE]\n\n")
}

/// It calls the tool `calls` times, and then speaks.
fn agent(calls: usize) -> Server {
    Server::start(move |path, body| {
        let Some(messages) = body["messages"].as_array().filter(|_| path == "/v1/chat/completions") else {
            return Value::Null;
        };
        let role = json!({"role": "assistant", "content": ""});
        match messages.len() {
            2 => {
                let call = |at: usize| {
                    json!({"index": at, "id": format!("new_{at}"), "type": "function",
                    "function": {"name": "look", "arguments": "{\"now\":1}"}})
                };
                stream(&[role, json!({"tool_calls": (0..calls).map(call).collect::<Vec<_>>()})], "tool_calls")
            }
            _ => stream(&[role, json!({"content": "live "}), json!({"content": "words"})], "stop"),
        }
    })
}

fn messages(sent: &Sent) -> &[Value] {
    sent.body["messages"].as_array().unwrap()
}

#[test]
fn later_turns_repeat_what_the_server_has_said() {
    let (trace, server) = (chat(), agent(1));
    let (_, printed, said) = drive(&trace, &server.url(), &["--history", "live", "--speed", "10"]);
    assert_eq!(printed["history"], json!({"live": 3, "recorded": 0}), "{said}{printed:#}");
    let sent = server.sent();
    assert_eq!(sent.len(), 3);
    let last = messages(&sent[2]);
    assert_eq!(messages(&sent[1]), &last[..4]);
    assert_eq!(last[2]["tool_calls"], call("new_0", "{\"now\":1}"));
    assert_eq!(last[3], json!({"role": "tool", "tool_call_id": "new_0", "content": "seen"}));
    assert_eq!(last[4]["content"], "live words");
    assert_eq!(last[5], json!({"role": "user", "content": "more"}));
}

#[test]
fn recorded_history_is_sent_as_it_was() {
    let (trace, server) = (chat(), agent(1));
    let (_, printed, _) = drive(&trace, &server.url(), &["--speed", "10"]);
    assert_eq!(printed.get("history"), None);
    let sent = server.sent();
    assert_eq!(messages(&sent[2])[2]["tool_calls"], call("old", "{}"));
    assert_eq!(messages(&sent[2])[4]["content"], "recorded words");
}

#[test]
fn an_answer_with_other_calls_leaves_the_recorded_one_in_place() {
    let (trace, server) = (chat(), agent(2));
    let (_, printed, _) = drive(&trace, &server.url(), &["--history", "live", "--speed", "10"]);
    // The first answer in both later turns; the second one is repeated.
    assert_eq!(printed["history"], json!({"live": 1, "recorded": 2}), "{printed:#}");
    let last = &server.sent()[2];
    assert_eq!(messages(last)[3]["tool_call_id"], "old");
    assert_eq!(messages(last)[4]["content"], "live words");
}

#[test]
fn stored_responses_have_the_ids_of_this_run() {
    let first = json!({"model": "m", "input": "ask"});
    let second = json!({"model": "m", "input": "more", "previous_response_id": "recorded_0"});
    let items = json!([{"role": "user", "content": "ask"}, {"type": "function_call", "call_id": "old", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "old", "output": "seen"}]);
    let third = json!({"model": "m", "input": items});
    let trace = Trace::of(&[turn(0, "responses", &first), turn(1, "responses", &second), turn(2, "responses", &third)]);
    let server = Server::start(|path, body| {
        if body.is_null() || path != "/v1/responses" {
            return Value::Null;
        }
        let output = json!([{"type": "function_call", "id": "fc", "status": "completed", "call_id": "new", "name": "look",
            "arguments": "{\"now\":1}"}]);
        json!({"id": "resp_live", "object": "response", "status": "completed", "model": "m", "output": output,
            "usage": {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}})
    });
    let (_, _, said) = drive(&trace, &server.url(), &["--speed", "10"]);
    let sent = server.sent();
    assert_eq!(sent[1].body["previous_response_id"], "resp_live", "{said}");
    assert_eq!(sent[2].body["input"], items, "recorded history");
    let (_, printed, _) = drive(&trace, &server.url(), &["--speed", "10", "--history", "live"]);
    let sent = server.sent();
    assert_eq!(printed["history"], json!({"live": 1, "recorded": 0}), "{printed:#}");
    let call = json!({"type": "function_call", "call_id": "new", "name": "look", "arguments": "{\"now\":1}"});
    assert_eq!(sent[5].body["input"][1], call);
    assert_eq!(sent[5].body["input"][2], json!({"type": "function_call_output", "call_id": "new", "output": "seen"}));
}

#[test]
fn caches_are_primed_before_the_run() {
    let (trace, server) = (chat(), agent(1));
    let (_, printed, said) = drive(&trace, &server.url(), &["--prime", "--cache-salt", "run", "--speed", "10"]);
    assert!(said.contains("primed with 1 request, of which 0 failed"), "{said}");
    assert_eq!(printed["results"]["requests"], 3);
    let sent = server.sent();
    assert_eq!(sent.len(), 4);
    assert_eq!(sent[0].body["messages"], json!([{"role": "system", "content": "s"}]));
    assert_eq!((&sent[0].body["max_tokens"], &sent[0].body["stream"]), (&json!(1), &json!(false)));
    assert_eq!(sent[1].body["messages"].as_array().unwrap().len(), 2);
    let salt = sent[0].body["cache_salt"].as_str().unwrap();
    assert!(salt.len() == 16 && said.contains(&format!("--cache-salt {salt}")), "{said}");
    assert!(sent.iter().all(|sent| sent.body["cache_salt"] == salt));
    // Of prompts that are rebuilt, the tokens that were cached, and the blocks that sessions share.
    let line = |number: u64, session: &str, cached: Value| {
        json!({"prompt_tokens": 70, "output_tokens": 3, "ttft_ms": 1.0, "itl_ms": [1.0, 1.0], "arrival_ms": number, "session": session,
            "block_hashes": [1, 2, 10 + number, 20 + number], "cached_tokens": cached, "endpoint": "completions", "status": 200})
    };
    let lines = [line(0, "a", json!(48)), line(1, "b", Value::Null), line(2, "c", json!(0))];
    let (trace, server) = (Trace::of(&lines), Server::start(|_, _| Value::Null));
    drive(&trace, &server.url(), &["--prime", "--arrivals", "burst"]);
    let sent = server.sent();
    let is_prefix = |sent: &&Sent| !sent.head.contains("x-request-id: replay-");
    let prompt = |sent: &Sent| sent.body["prompt"].as_array().unwrap().clone();
    let mut prefixes: Vec<Vec<Value>> = sent.iter().filter(is_prefix).map(prompt).collect();
    prefixes.sort_by_key(Vec::len);
    assert_eq!(prefixes.iter().map(Vec::len).collect::<Vec<_>>(), [32, 48]);
    let prompts: Vec<Vec<Value>> = sent.iter().filter(|sent| !is_prefix(sent)).map(prompt).collect();
    assert_eq!(prompts.len(), 3);
    assert!(prefixes.iter().all(|prefix| prompts.iter().any(|prompt| prompt.starts_with(prefix))));
}

#[test]
fn machines_start_together() {
    let (trace, server) = (chat(), agent(1));
    // A busy machine gets ready in more than two seconds: it is told so, and names a later time.
    let starts = [2, 10, 60].into_iter().map(Duration::from_secs);
    let started = starts.map(|time| SystemTime::now() + time).find(|start| {
        let seconds = start.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64().to_string();
        drive(&trace, &server.url(), &["--start-at", &seconds, "--speed", "10"]).0 != Some(2)
    });
    let (start, first) = (started.unwrap(), server.sent()[0].at);
    assert!(first + Duration::from_millis(5) >= start, "{:?}", start.duration_since(first));
    let (code, _, said) = drive(&trace, &server.url(), &["--start-at", "2026-01-31T12:00:00Z"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("the run was to start") && said.contains(" s ago"), "{said}");
    assert_eq!(drive(&trace, &server.url(), &["--start-at", "tomorrow"]).0, Some(2));
}
