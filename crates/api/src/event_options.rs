//! What a request asks of KV events about its blocks.

use serde_json::{Map, Value};

use super::body::ValidBody;

/// Options of KV events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventOptions {
    session_id: Option<String>,
    /// The one among `vllm_xargs`.
    extra_session_id: Option<String>,
    /// Whether blocks that it finds cached are events, too: `kv_cache_report_mode` is `full` among its `vllm_xargs`.
    pub reports_cached_blocks: bool,
}

impl EventOptions {
    /// Reads a body that was not checked.
    #[must_use]
    pub fn of_body(body: &Map<String, Value>) -> Self {
        Self::read(&ValidBody(body))
    }

    pub(super) fn read(body: &ValidBody<'_>) -> Self {
        let extra = |name: &str| body.get("vllm_xargs")?.get(name)?.as_str().map(str::to_owned);
        Self {
            session_id: body.get("session_id").and_then(Value::as_str).map(str::to_owned),
            extra_session_id: extra("session_id"),
            reports_cached_blocks: extra("kv_cache_report_mode").is_some_and(|mode| mode == "full"),
        }
    }

    /// The request's session: the one that it names, else that of its header `x-session-id`, else of its `vllm_xargs`.
    #[must_use]
    pub fn session_id(&self, header: Option<&str>) -> Option<String> {
        let named = [self.session_id.as_deref(), header, self.extra_session_id.as_deref()];
        named.into_iter().flatten().find(|name| !name.is_empty()).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_body_names_its_session_before_the_header_and_the_arguments() {
        let read = |body: Value| EventOptions::read(&ValidBody(body.as_object().unwrap()));
        let all = read(json!({"session_id": "a", "vllm_xargs": {"session_id": "c", "kv_cache_report_mode": "full"}}));
        assert_eq!((all.session_id(Some("b")).as_deref(), all.reports_cached_blocks), (Some("a"), true));
        let extra = read(json!({"session_id": "", "vllm_xargs": {"session_id": "c", "kv_cache_report_mode": 1}}));
        assert_eq!((extra.session_id(Some("b")).as_deref(), extra.reports_cached_blocks), (Some("b"), false));
        assert_eq!(extra.session_id(Some("")).as_deref(), Some("c"));
        assert_eq!(read(json!({"session_id": null, "vllm_xargs": null})).session_id(None), None);
    }
}
