//! What a request talks to.

use serde_json::Value;

/// Paths that ask a model.
const OF_MODELS: [&str; 22] = [
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
    "/v2/rerank",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/audio/speech",
    "/v1/images/generations",
    "/score",
    "/rerank",
    "/pooling",
    "/classify",
    "/tokenize",
    "/detokenize",
    "/invocations",
    "/inference/v1/generate",
];

/// `llm:<model>` for requests to a model, else `http:<METHOD path>`.
#[must_use]
pub fn boundary(method: &str, path: &str, body: &Value) -> String {
    if method == "POST" && OF_MODELS.contains(&path) {
        format!("llm:{}", body.get("model").and_then(Value::as_str).unwrap_or_default())
    } else {
        format!("http:{method} {path}")
    }
}
