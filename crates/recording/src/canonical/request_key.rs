//! The key by which a trace knows a request that has no prompt of tokens, or whose prompt was not rendered.

use std::sync::LazyLock;

use serde_json::Value;

use super::{CanonicalKey, CanonicalRules, RequestParts};
use net::wire::json_as_utf8;

/// A trace's record has its model beside the key, and traces are played under other models' names. Keys are stored in traces, in
/// which descriptions of tools have always counted.
static RULES: LazyLock<CanonicalRules> = LazyLock::new(|| CanonicalRules {
    ignored: "$.model".parse().into_iter().collect(),
    counts_tool_descriptions: true,
    ..CanonicalRules::default()
});

/// The key of a posted request: path with query, and body. Fields that change nothing of the content, as `stream`, and the
/// model's name do not count.
#[must_use]
pub fn request_key(target: &str, body: &[u8]) -> CanonicalKey {
    let body = json_as_utf8(body);
    let body =
        serde_json::from_slice(&body).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned()));
    RULES.identify(&RequestParts { method: "POST", path: target, headers: &[], body: &body.into() }).key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_content_has_an_equal_key() {
        let key = |target: &str, body: &str| request_key(target, body.as_bytes());
        let known = key("/v1/embeddings", r#"{"model":"a","input":"x"}"#);
        assert_eq!(key("/v1/embeddings", r#"{ "input": "x", "model": "b", "user": "u" }"#), known);
        for (target, body) in [
            ("/v1/embeddings", r#"{"model":"a","input":"y"}"#),
            ("/v1/embeddings", r#"{"model":"a","input":"x","dimensions":8}"#),
            ("/pooling", r#"{"model":"a","input":"x"}"#),
            ("/v1/embeddings", "no json"),
        ] {
            assert_ne!(key(target, body), known, "{target} {body}");
        }
    }
}
