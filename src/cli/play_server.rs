//! `play`: what its server arguments and vLLM's own environment variables mean.

use std::env;

use super::args::{Secret, ServerArgs};
use crate::play::{ApiKeys, Cors, Credentials, LoadTracking, ServerOptions};

/// The options; vLLM's variables count where nothing was typed.
pub(super) fn options(args: ServerArgs) -> ServerOptions {
    ServerOptions {
        api_keys: api_keys(args.api_key),
        cors: Cors {
            origins: args.allowed_origins.0,
            methods: args.allowed_methods.0,
            headers: args.allowed_headers.0,
            credentials: args.allow_credentials.then_some(Credentials),
        },
        root_path: args.root_path,
        load_tracking: args.enable_server_load_tracking.then_some(LoadTracking),
    }
}

fn api_keys(typed: Vec<Secret>) -> ApiKeys {
    let keys = if typed.is_empty() {
        env::var("VLLM_API_KEY").into_iter().collect()
    } else {
        typed.into_iter().map(|secret| secret.0).collect()
    };
    ApiKeys::new(keys)
}
