//! Facts about the server for its pages.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::{
    State,
    metrics::{About, append_own, page},
};

/// The engine version that is imitated.
pub(super) const ENGINE_VERSION: &str = "0.32.0";

/// Tokens per cached block where no trace has it.
pub(super) const DEFAULT_BLOCK_SIZE: u32 = 16;

/// `/version`.
pub(super) fn version(state: &State) -> String {
    json!({"version": state.config.vllm_version.dialect().version}).to_string()
}

/// `/v1/models`: every served name.
pub(super) fn models(state: &State) -> String {
    let created = unix_seconds();
    let data: Vec<_> = state
        .models
        .iter()
        .map(|name| {
            let permission = json!({
                "id": format!("modelperm-{}", state.fresh_id()), "object": "model_permission", "created": created,
                "allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true,
                "allow_search_indices": false, "allow_view": true, "allow_fine_tuning": false,
                "organization": "*", "group": null, "is_blocking": false,
            });
            json!({
                "id": name, "object": "model", "created": created, "owned_by": "vllm", "root": state.root,
                "parent": null, "max_model_len": state.max_model_len, "permission": [permission],
            })
        })
        .collect();
    json!({"object": "list", "data": data}).to_string()
}

/// `/metrics`.
pub(super) fn metrics(state: &State) -> String {
    let about = About {
        model: state.models.first().map(String::as_str).unwrap_or_default(),
        block_size: state.block_size(),
        max_model_len: state.max_model_len,
        kv_cache_metrics: state.config.server.kv_cache_metrics,
    };
    let mut page = page(&state.metrics, about);
    if state.parsers.formats.tools.is_some() {
        state.metrics.append_tool_parser(&mut page, &state.parsers.tool_calls, about.model);
    }
    if state.config.server.vcr_metrics.is_some() {
        append_own(&mut page, &state.lateness, state.replay.as_deref());
    }
    page
}

/// `/load`: requests in progress, where they are tracked.
pub(super) fn load(state: &State) -> String {
    let load = state.config.server.load_tracking.map_or(0, |_| state.metrics.load());
    json!({"server_load": load}).to_string()
}

/// Wall-clock seconds since 1970.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
