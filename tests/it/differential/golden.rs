//! The recorded exchanges of `tests/goldens/vllm-0.32.0`, one form for all suites.

use serde::Deserialize;
use serde_json::Value;

use crate::support::tree;

/// The suites, in the order of the page.
pub(super) const SUITES: &[&str] = &["plain", "options", "parsers", "tools", "turns", "drawn", "auth", "spec", "tails"];

/// One exchange with the engine.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Golden {
    pub(super) case: String,
    pub(super) request: Request,
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    /// Milliseconds since the request, and the event as it was sent, without its closing empty line.
    pub(super) events: Option<Vec<(f64, String)>>,
    pub(super) body: Option<String>,
    /// The recording ended before the stream did.
    #[serde(default)]
    pub(super) cut: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Value,
}

impl Request {
    /// The bytes of the body; text stands for itself, anything else is sent as compact JSON.
    pub(super) fn bytes(&self) -> Vec<u8> {
        match &self.body {
            Value::Null => Vec::new(),
            Value::String(text) => text.clone().into_bytes(),
            other => other.to_string().into_bytes(),
        }
    }
}

impl Golden {
    /// The JSON of a full answer; null where it is not JSON.
    pub(super) fn json(&self) -> Value {
        self.body.as_deref().and_then(|body| serde_json::from_str(body).ok()).unwrap_or_default()
    }

    /// The JSON of each event that carries some, with its time.
    pub(super) fn payloads(&self) -> Vec<(f64, Value)> {
        let events = self.events.as_deref().unwrap_or_default();
        events.iter().filter_map(|(at, event)| Some((*at, payload(event)?))).collect()
    }
}

/// The JSON in an event's `data` line.
pub(super) fn payload(event: &str) -> Option<Value> {
    let data = event.split('\n').find_map(|line| line.strip_prefix("data: "))?;
    serde_json::from_str(data).ok()
}

/// The exchanges of one suite, sorted by name.
pub(super) fn suite(name: &str) -> Vec<Golden> {
    let text = tree::read(format!("tests/goldens/vllm-0.32.0/{name}.jsonl"));
    text.split('\n').filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).unwrap()).collect()
}
