//! Cassettes through the running program: recorded from a scripted engine, played to raw clients.

mod across;
mod admin;
mod bodies;
mod cases;
mod chains;
mod convert;
mod counted;
mod damage;
mod drift;
mod engine;
mod hurry;
mod ids;
mod keep;
mod leaks;
mod matching;
mod misses;
mod modes;
mod planted;
mod replay;
mod scored;
mod secrets;
mod sessions;
mod through_tap;
mod tools;

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread::JoinHandle,
};

pub(crate) use engine::engine;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    client::{self, Answer, post},
    peer::Upstream,
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
    let messages: Vec<Value> =
        words.iter().zip(roles).map(|(text, role)| json!({"role": role, "content": text})).collect();
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
    let events: Vec<Value> =
        answer.events().iter().filter_map(|event| serde_json::from_str(event.strip_prefix("data: ")?).ok()).collect();
    let words = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    (words.collect(), events.len())
}

/// Sends the two turns of an agent with a tool, streamed or not; tells what it saw.
pub(crate) async fn agent(server: &Running, prompt: &str, stream: Value) -> Result<Vec<Value>, Answer> {
    let tool = json!({"type": "function", "function": {"name": "weather", "description": "Tells the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "A city"}}}}});
    let mut messages =
        vec![json!({"role": "system", "content": "A weather bot."}), json!({"role": "user", "content": prompt})];
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
