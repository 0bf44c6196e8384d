//! The scripted engine.

use serde_json::{Value, json};

use super::{
    CHAT,
    peer::{End, Script, Upstream, answer, event_stream},
};

/// An engine that counts its answers and says what it was asked, in words of two letters; tools are called once.
pub(crate) async fn engine() -> Upstream {
    let count = std::sync::atomic::AtomicU64::new(0);
    Upstream::start(move |request| engine_answer(request, count.fetch_add(1, std::sync::atomic::Ordering::Relaxed)))
        .await
}

fn engine_answer(request: &[u8], count: u64) -> Script {
    let text = String::from_utf8_lossy(request).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let path = head.split([' ', '?']).nth(1).unwrap();
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    let whole = |status: &str, body: Value| Script { pieces: answer(status, &body.to_string()), end: End::KeepAlive };
    match path {
        "/version" => return whole("200 OK", json!({"version": "0.32.0"})),
        "/v1/embeddings" => {
            let vector = json!({"index": 0, "object": "embedding", "embedding": [0.5, -1.25e-7]});
            return whole(
                "200 OK",
                json!({"id": format!("embd-{count}"), "object": "list", "created": count, "model": "m", "data": [vector]}),
            );
        }
        CHAT => {}
        _ => return whole("404 Not Found", json!({"detail": "Not Found"})),
    }
    let last = body["messages"].as_array().and_then(|list| list.last()).cloned().unwrap_or_default();
    let words = last["content"].as_str().unwrap_or_default().to_owned();
    if let Some(status) = words.strip_prefix("status ") {
        return whole(
            &format!("{status} X"),
            json!({"error": {"message": words, "type": "x", "param": null, "code": 1}}),
        );
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
    let usage = json!({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13});
    let scores = body["logprobs"] == true;
    let reply = ChatReply { count, finish, usage, scores };
    if body["stream"] == true {
        let usage = body["stream_options"]["include_usage"] == true;
        let content = if calls { ReplyContent::Call(call) } else { ReplyContent::Text(text) };
        return reply.stream(&content, usage);
    }
    let choice = json!({"index": 0, "message": message, "logprobs": null, "finish_reason": finish});
    whole("200 OK", reply.with(&json!({"object": "chat.completion", "choices": [choice], "usage": reply.usage})))
}

enum ReplyContent {
    Call(Value),
    Text(String),
}

struct ChatReply {
    count: u64,
    finish: &'static str,
    usage: Value,
    /// Streams have log probabilities.
    scores: bool,
}

impl ChatReply {
    fn with(&self, fields: &Value) -> Value {
        let mut answer = json!({"id": format!("chatcmpl-{}", self.count), "created": 1000 + self.count, "model": "m"});
        answer.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        answer
    }

    fn stream(&self, content: &ReplyContent, counted: bool) -> Script {
        let event = |delta: Value, finish: Value| {
            let text = delta["content"].as_str().filter(|text| self.scores && !text.is_empty());
            let logprobs = text.map(|text| json!({"content": [{"token": text, "logprob": -0.5}]}));
            let choice = json!({"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish});
            self.with(&json!({"object": "chat.completion.chunk", "choices": [choice]})).to_string()
        };
        let mut events = vec![event(json!({"role": "assistant", "content": ""}), Value::Null)];
        match content {
            ReplyContent::Call(call) => {
                let start = json!({"index": 0, "id": call["id"], "type": "function", "function": {"name": "weather"}});
                let part = |text: &str| json!({"tool_calls": [{"index": 0, "function": {"arguments": text}}]});
                events.push(event(json!({"tool_calls": [start]}), Value::Null));
                events.extend(["{\"city\": ", "\"London\"}"].map(|text| event(part(text), Value::Null)));
            }
            ReplyContent::Text(text) => {
                let chars: Vec<char> = text.chars().collect();
                let pieces = chars.chunks(2).map(|two| two.iter().collect::<String>());
                events.extend(pieces.map(|piece| event(json!({"content": piece}), Value::Null)));
            }
        }
        events.push(event(json!({}), json!(self.finish)));
        if counted {
            let counts = json!({"object": "chat.completion.chunk", "choices": [], "usage": self.usage});
            events.push(self.with(&counts).to_string());
        }
        events.push("[DONE]".to_owned());
        Script { pieces: event_stream(&events.iter().map(String::as_str).collect::<Vec<_>>()), end: End::KeepAlive }
    }
}
