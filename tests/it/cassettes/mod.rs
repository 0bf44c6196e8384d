//! Cassettes through the running program: recorded from a scripted engine, played to raw clients.

mod matching;
mod misses;
mod modes;
mod replay;
mod secrets;
mod tools;

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread::JoinHandle,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    client::{self, Answer, post},
    peer::{End, Script, Upstream, answer, event_stream},
};

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// A running `vllm-vcr`.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    child: Child,
    rest: Option<JoinHandle<String>>,
}

impl Running {
    /// Starts the program and waits for its address.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut before = String::new();
        let address = loop {
            let mut line = String::new();
            assert!(said.read_line(&mut line).unwrap() > 0, "it ended at once: {before}");
            if let Some(at) = line.split("http://").nth(1).filter(|_| line.contains(" on http://")) {
                break at.split_whitespace().next().unwrap().parse().unwrap();
            }
            before.push_str(&line);
        };
        let rest = std::thread::spawn(move || {
            let mut rest = before;
            said.read_to_string(&mut rest).unwrap();
            rest
        });
        Self { address, child, rest: Some(rest) }
    }

    /// Ends it as Ctrl-C would; tells its exit code and what it said.
    pub(crate) fn stop(mut self) -> (i32, String) {
        Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        let code = self.child.wait().unwrap().code().unwrap();
        (code, self.rest.take().unwrap().join().unwrap())
    }

    pub(crate) async fn send(&self, path: &str, body: &Value) -> Answer {
        client::send(self.address, &post(path, body)).await
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        client::send(self.address, &client::get(path)).await.json()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Runs the program to its end.
pub(crate) fn vcr(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vllm-vcr")).args(arguments).output().unwrap()
}

/// A folder with a cassette.
pub(crate) struct Shelf {
    pub(crate) folder: TempDir,
    pub(crate) file: PathBuf,
}

impl Shelf {
    pub(crate) fn empty() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tape.yaml");
        Self { folder, file }
    }

    pub(crate) fn with(text: &str) -> Self {
        let shelf = Self::empty();
        std::fs::write(&shelf.file, text).unwrap();
        shelf
    }

    pub(crate) fn name(&self) -> &str {
        self.file.to_str().unwrap()
    }

    pub(crate) fn text(&self) -> String {
        read(&self.file)
    }

    pub(crate) fn play(&self, flags: &[&str]) -> Running {
        let fixed = ["play", "--port", "0", "--instant", "--cassette", self.name()];
        Running::start(&[&fixed[..], flags].concat())
    }

    pub(crate) fn tap(&self, upstream: &Upstream, flags: &[&str]) -> Running {
        let url = format!("http://{}", upstream.address);
        let fixed = ["tap", "--upstream", &url, "--listen", "127.0.0.1:0", "--cassette", self.name()];
        Running::start(&[&fixed[..], flags].concat())
    }
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// A chat request of these words.
pub(crate) fn chat(words: &[&str]) -> Value {
    let roles = ["user", "assistant"].into_iter().cycle();
    let messages: Vec<Value> = words.iter().zip(roles).map(|(text, role)| json!({"role": role, "content": text})).collect();
    json!({"model": "m", "messages": messages})
}

/// A record that answers a chat of these words.
pub(crate) fn record(words: &[&str], said: &str) -> String {
    format!(
        "- request: POST {CHAT}\n  body: {}\n  answer: {{message: {{role: assistant, content: {}}}, finish_reason: stop, \
         usage: {{prompt_tokens: 3, completion_tokens: 2}}}}\n",
        chat(words),
        json!(said)
    )
}

/// A cassette of records.
pub(crate) fn tape(records: &[String]) -> String {
    format!("vcr: 1\nrecords:\n{}", records.concat())
}

/// What a chat answer says.
pub(crate) fn said(answer: &Answer) -> String {
    let body = answer.json();
    body["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned()
}

/// What the deltas of a chat stream say together, and how many there are.
pub(crate) fn streamed(answer: &Answer) -> (String, usize) {
    let events: Vec<Value> = answer
        .events()
        .iter()
        .filter_map(|event| serde_json::from_str(event.strip_prefix("data: ")?).ok())
        .collect();
    let words = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    (words.collect(), events.len())
}

/// An engine that counts its answers and says what it was asked, in words of two letters; tools are called once.
pub(crate) async fn engine() -> Upstream {
    let count = std::sync::atomic::AtomicU64::new(0);
    Upstream::start(move |request| engine_answer(request, count.fetch_add(1, std::sync::atomic::Ordering::Relaxed))).await
}

fn engine_answer(request: &[u8], count: u64) -> Script {
    let text = String::from_utf8_lossy(request).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let path = head.split(' ').nth(1).unwrap();
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    let whole = |status: &str, body: Value| Script { pieces: answer(status, &body.to_string()), end: End::KeepAlive };
    match path {
        "/version" => return whole("200 OK", json!({"version": "0.32.0"})),
        "/v1/embeddings" => {
            let vector = json!({"index": 0, "object": "embedding", "embedding": [0.5, -1.25e-7]});
            return whole("200 OK", json!({"id": format!("embd-{count}"), "object": "list", "created": count, "model": "m", "data": [vector]}));
        }
        CHAT => {}
        _ => return whole("404 Not Found", json!({"detail": "Not Found"})),
    }
    let last = body["messages"].as_array().and_then(|list| list.last()).cloned().unwrap_or_default();
    let words = last["content"].as_str().unwrap_or_default().to_owned();
    if let Some(status) = words.strip_prefix("status ") {
        return whole(&format!("{status} X"), json!({"error": {"message": words, "type": "x", "param": null, "code": 1}}));
    }
    let calls = body["tools"].is_array() && last["role"] == "user";
    let call = json!({"id": format!("chatcmpl-tool-{count:x}"), "type": "function",
        "function": {"name": "weather", "arguments": "{\"city\": \"London\"}"}});
    let text = format!("You said {words}.");
    let message = if calls {
        json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": [call]})
    } else {
        json!({"role": "assistant", "content": text, "refusal": null})
    };
    let finish = if calls { "tool_calls" } else { "stop" };
    let shared = json!({"id": format!("chatcmpl-{count}"), "created": 1000 + count, "model": "m"});
    let with = |fields: Value| {
        let mut answer = shared.as_object().unwrap().clone();
        answer.extend(fields.as_object().unwrap().clone());
        Value::Object(answer)
    };
    let usage = json!({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13});
    if body["stream"] != true {
        let choice = json!({"index": 0, "message": message, "logprobs": null, "finish_reason": finish});
        return whole("200 OK", with(json!({"object": "chat.completion", "choices": [choice], "usage": usage})));
    }
    let event = |delta: Value, finish: Value| {
        let choice = json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish});
        with(json!({"object": "chat.completion.chunk", "choices": [choice]})).to_string()
    };
    let mut events = vec![event(json!({"role": "assistant", "content": ""}), Value::Null)];
    if calls {
        let start = json!({"index": 0, "id": call["id"], "type": "function", "function": {"name": "weather"}});
        let part = |text: &str| json!({"tool_calls": [{"index": 0, "function": {"arguments": text}}]});
        events.push(event(json!({"tool_calls": [start]}), Value::Null));
        events.extend(["{\"city\": ", "\"London\"}"].map(|text| event(part(text), Value::Null)));
    } else {
        let chars: Vec<char> = text.chars().collect();
        let pieces = chars.chunks(2).map(|two| two.iter().collect::<String>());
        events.extend(pieces.map(|piece| event(json!({"content": piece}), Value::Null)));
    }
    events.push(event(json!({}), json!(finish)));
    if body["stream_options"]["include_usage"] == true {
        events.push(with(json!({"object": "chat.completion.chunk", "choices": [], "usage": usage})).to_string());
    }
    events.push("[DONE]".to_owned());
    Script { pieces: event_stream(&events.iter().map(String::as_str).collect::<Vec<_>>()), end: End::KeepAlive }
}

/// Sends the two turns of an agent with a tool, streamed or not; tells what it saw.
pub(crate) async fn agent(server: &Running, prompt: &str, stream: Value) -> Result<Vec<Value>, Answer> {
    let tool = json!({"type": "function", "function": {"name": "weather", "description": "Tells the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "A city"}}}}});
    let mut messages = vec![json!({"role": "system", "content": "A weather bot."}), json!({"role": "user", "content": prompt})];
    let mut seen = Vec::new();
    for turn in 0..2 {
        let body = json!({"model": "m", "messages": messages, "tools": [tool], "stream": stream,
            "stream_options": if stream == true { json!({"include_usage": true}) } else { Value::Null }});
        let answer = server.send(CHAT, &body).await;
        if answer.status != 200 {
            return Err(answer);
        }
        let message = if stream == true { message_of(&answer) } else { answer.json()["choices"][0]["message"].clone() };
        let call = message["tool_calls"][0].clone();
        seen.push(json!({"content": message["content"], "call": call["function"]}));
        messages.push(message);
        if turn == 0 {
            messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "15 degrees"}));
        }
    }
    Ok(seen)
}

/// The message that a chat stream adds up to.
fn message_of(answer: &Answer) -> Value {
    let (mut content, mut call) = (String::new(), Value::Null);
    for event in answer.events() {
        let Ok(event) = serde_json::from_str::<Value>(event.trim_start_matches("data: ")) else { continue };
        let delta = &event["choices"][0]["delta"];
        content.push_str(delta["content"].as_str().unwrap_or_default());
        let Some(part) = delta["tool_calls"].get(0) else { continue };
        if part["id"].is_string() {
            call = json!({"id": part["id"], "type": "function", "function": {"name": part["function"]["name"], "arguments": ""}});
        }
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default().to_owned();
        call["function"]["arguments"] = json!(arguments + part["function"]["arguments"].as_str().unwrap_or_default());
    }
    if call.is_null() {
        json!({"role": "assistant", "content": content})
    } else {
        json!({"role": "assistant", "content": null, "tool_calls": [call]})
    }
}
