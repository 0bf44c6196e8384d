//! The captured exchanges with a real vLLM (`tests/goldens/vllm-0.32.0`), as plain JSON.

use serde_json::{Value, json};

use super::tree;

/// The goldens of one suite, as (name, exchange), sorted by name. A full answer's JSON is under `json`,
/// an event is `{t_ms, raw}`.
pub(crate) fn suite(name: &str) -> Vec<(String, Value)> {
    let text = tree::read(format!("tests/goldens/vllm-0.32.0/{name}.jsonl"));
    let lines = text.split('\n').filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let mut golden: Value = serde_json::from_str(line).unwrap();
            let json = golden["body"].as_str().and_then(|body| serde_json::from_str(body).ok());
            golden["json"] = json.unwrap_or_default();
            for event in golden["events"].as_array_mut().into_iter().flatten() {
                *event = json!({"t_ms": event[0], "raw": event[1]});
            }
            (golden["case"].as_str().unwrap().to_owned(), golden)
        })
        .collect()
}
