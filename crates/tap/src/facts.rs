//! Facts about an upstream from its own endpoints: version, models, cache settings. Never on a request's path.
//!
//! Limits: of a server without vLLM's `/version` nothing else is requested. Flags of the engine that no endpoint
//! returns come from the command line ([`super::Deployment`]).

use bytes::Bytes;
use http::{Request, Uri};
use serde_json::{Map, Value, json};

use net::upstream::{FetchError, OutgoingBody, Upstream, UpstreamError, UpstreamOptions, UpstreamUrl};
use recording::trace::Meta;

/// Maximum size of such a response, in bytes; a page of metrics is the longest.
const LARGEST: usize = 8 << 20;

/// Cache settings of the engine that a trace keeps.
pub(super) const CACHE_SETTINGS: [&str; 6] = [
    "block_size",
    "cache_dtype",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "kv_cache_size_tokens",
    "num_gpu_blocks",
];

/// Version, models and settings of an engine, from its own endpoints.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct EngineSettings {
    pub(super) version: String,
    /// Names of its models, the base model first.
    pub(super) models: Vec<String>,
    pub(super) max_model_len: Option<u64>,
    pub(super) cache: Map<String, Value>,
}

impl EngineSettings {
    /// Requests the facts of an upstream; `None` if it answers without a version.
    pub(super) async fn of(upstream: &Upstream) -> Result<Option<Self>, UpstreamError> {
        let answer = json_of(&get(upstream, "/version").await?);
        let Some(version) = answer.get("version").and_then(Value::as_str).map(str::to_owned) else { return Ok(None) };
        let mut facts = Self { version, ..Self::default() };
        // vLLM's `/version` needs no API key, the other endpoints may.
        if let Ok(models) = get(upstream, "/v1/models").await {
            facts.take_models(&json_of(&models));
        }
        if let Ok(page) = get(upstream, "/metrics").await {
            facts.cache = cache_settings(&String::from_utf8_lossy(&page));
        }
        Ok(Some(facts))
    }

    fn take_models(&mut self, answer: &Value) {
        let listed = answer.get("data").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let is_base = |model: &&Value| model.get("parent").is_none_or(Value::is_null);
        let name = |model: &Value| model.get("id").and_then(Value::as_str).map(str::to_owned);
        let adapters = listed.iter().filter(|model| !is_base(model));
        self.models = listed.iter().filter(is_base).chain(adapters).filter_map(name).collect();
        self.max_model_len = listed.iter().find(is_base).and_then(|model| model.get("max_model_len")?.as_u64());
    }

    /// Adds them to the first line of a trace.
    pub(super) fn complete(&self, meta: &mut Meta) {
        meta.vllm_version = Some(self.version.clone());
        meta.model = self.models.first().cloned();
        let mut upstream = Map::new();
        if !self.models.is_empty() {
            upstream.insert("models".to_owned(), json!(self.models));
        }
        upstream.extend(self.max_model_len.map(|length| ("max_model_len".to_owned(), json!(length))));
        if !self.cache.is_empty() {
            upstream.insert("cache".to_owned(), Value::Object(self.cache.clone()));
        }
        if !upstream.is_empty() {
            meta.extra.insert("upstream".to_owned(), Value::Object(upstream));
        }
    }
}

/// Requests version, models and cache settings of the engine at a URL, as the first line of a trace has them; `None` if it answers without a version of
/// vLLM.
///
/// # Errors
/// When it cannot be reached.
pub async fn engine_meta(url: &UpstreamUrl, reach: &UpstreamOptions) -> Result<Option<Meta>, UpstreamError> {
    let settings = EngineSettings::of(&Upstream::new(url.clone(), reach)).await?;
    Ok(settings.map(|settings| {
        let mut meta = Meta::default();
        settings.complete(&mut meta);
        meta
    }))
}

/// Reads a page; an empty one if it is refused or not whole.
async fn get(upstream: &Upstream, path: &'static str) -> Result<Bytes, UpstreamError> {
    let mut request = Request::new(OutgoingBody::whole(Bytes::new()));
    *request.uri_mut() = Uri::from_static(path);
    match upstream.fetch(request, LARGEST).await {
        Ok(response) if response.status.is_success() => Ok(response.body),
        Err(FetchError::Unanswered(error)) => Err(error),
        Ok(_) | Err(FetchError::Incomplete(_)) => Ok(Bytes::new()),
    }
}

fn json_of(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap_or_default()
}

/// Reads the labels of `vllm:cache_config_info` that a trace keeps.
fn cache_settings(page: &str) -> Map<String, Value> {
    let labels = page.lines().find_map(|line| line.strip_prefix("vllm:cache_config_info{")).unwrap_or_default();
    let mut settings = Map::new();
    for (name, value) in labels.split("\",").filter_map(|label| label.split_once("=\"")) {
        let value = value.split('"').next().unwrap_or(value);
        if CACHE_SETTINGS.contains(&name) && value != "None" {
            let typed = serde_json::from_str(&value.to_ascii_lowercase()).unwrap_or_else(|_| json!(value));
            settings.insert(name.to_owned(), typed);
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_meta() {
        let mut facts = EngineSettings { version: "0.32.0".to_owned(), ..EngineSettings::default() };
        facts.take_models(&json!({"data": [
            {"id": "adapter", "parent": "m", "max_model_len": 1},
            {"id": "m", "parent": null, "max_model_len": 4096},
        ]}));
        facts.cache = cache_settings(
            "# HELP x\nvllm:cache_config_info{block_size=\"128\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",\
             gpu_memory_utilization=\"0.92\",num_cpu_blocks=\"None\",num_gpu_blocks=\"16384\",x=\"a\"} 1.0\n",
        );
        let mut meta = Meta::default();
        facts.complete(&mut meta);
        assert_eq!((meta.model.as_deref(), meta.vllm_version.as_deref()), (Some("m"), Some("0.32.0")));
        let cache = json!({"block_size": 128, "cache_dtype": "auto", "enable_prefix_caching": true,
            "gpu_memory_utilization": 0.92, "num_gpu_blocks": 16384});
        assert_eq!(meta.extra["upstream"], json!({"models": ["m", "adapter"], "max_model_len": 4096, "cache": cache}));
    }

    #[test]
    fn missing_answers_leave_no_keys() {
        assert!(cache_settings("vllm:cache_config_info").is_empty() && json_of(b"<html>").is_null());
        let mut meta = Meta::default();
        EngineSettings { version: "1".to_owned(), ..EngineSettings::default() }.complete(&mut meta);
        assert!(meta.model.is_none() && meta.extra.is_empty());
    }
}
