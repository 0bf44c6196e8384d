//! Cassettes for tests: files, records, and an agent that is recorded and replayed.

use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{CHAT, client::Answer, peer::Upstream, read, running::Running};

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
