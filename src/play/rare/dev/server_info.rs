//! `/server_info`: the configuration, as far as a server without a model has one.
//!
//! Deviation: the engine prints hundreds of settings of its machine and its model there, as text or as JSON; here are
//! those that this server has, as an object in both cases.

use serde_json::{Value, json};

use crate::play::{ServerState, dialect::ENGINE_VERSION};

/// The body of the response.
pub(super) fn page(state: &ServerState) -> Value {
    json!({
        "vllm_config": {
            "model_config": {
                "model": state.model.first_name(),
                "served_model_name": state.model.names,
                "tokenizer": state.model.tokenizer.name(),
                "max_model_len": state.model.max_model_len,
                "seed": state.config.seed,
            },
            "cache_config": {"block_size": state.block_size},
            "parallel_config": {"world_size": 1},
        },
        "vllm_env": {"VLLM_SERVER_DEV_MODE": true},
        "system_env": {"vllm_version": ENGINE_VERSION, "os": std::env::consts::OS},
    })
}
