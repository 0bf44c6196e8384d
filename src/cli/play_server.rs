//! `play`: what its server arguments and vLLM's own environment variables mean.

use std::{env, num::NonZeroU32, time::Duration};

use super::args::ServerArgs;
use crate::{
    net::server::{ClientCertificates, Tls, TlsError, TlsFiles},
    play::{ApiKeys, Cors, ServerOptions},
};

/// TLS, where a certificate was named.
///
/// # Errors
/// When its files cannot be used.
pub(super) fn tls(args: &ServerArgs) -> Result<Option<Tls>, TlsError> {
    let Some(certificate) = args.ssl_certfile.clone() else { return Ok(None) };
    let files = TlsFiles {
        certificate,
        key: args.ssl_keyfile.clone(),
        authorities: args.ssl_ca_certs.clone(),
        clients: match args.ssl_cert_reqs {
            0 => ClientCertificates::None,
            1 => ClientCertificates::Optional,
            _ => ClientCertificates::Required,
        },
        refresh: args.enable_ssl_refresh,
    };
    Tls::load(files).map(Some)
}

/// The options; vLLM's variables count where nothing was typed.
pub(super) fn options(args: ServerArgs) -> ServerOptions {
    ServerOptions {
        api_keys: ApiKeys::new(keys(&args)),
        cors: Cors {
            origins: args.allowed_origins.0,
            methods: args.allowed_methods.0,
            headers: args.allowed_headers.0,
            credentials: args.allow_credentials,
        },
        root_path: args.root_path,
        load_tracking: args.enable_server_load_tracking,
        force_usage: args.enable_force_include_usage,
        keep_alive: NonZeroU32::new(args.sse_keep_alive_interval)
            .map(|seconds| Duration::from_secs(seconds.get().into())),
        max_queued: args.max_num_queued_reqs,
        idle: idle(),
        dev_mode: is_set("VLLM_SERVER_DEV_MODE"),
        runtime_lora_updating: is_set("VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        kv_cache_metrics: args.kv_cache_metrics,
        vcr_metrics: args.vcr_metrics,
        tokenizer_info: args.enable_tokenizer_info_endpoint,
        no_docs: args.disable_fastapi_docs,
        responses_store: is_set("VLLM_ENABLE_RESPONSES_API_STORE"),
        startup: args.startup_duration,
    }
}

fn idle() -> Option<Duration> {
    env::var("VLLM_HTTP_TIMEOUT_KEEP_ALIVE").ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// vLLM asks for a number other than zero.
fn is_set(variable: &str) -> bool {
    env::var(variable).is_ok_and(|value| value.trim().parse::<i64>().is_ok_and(|number| number != 0))
}

/// The keys that clients may send, in their order; none where no key is needed.
pub(super) fn keys(args: &ServerArgs) -> Vec<String> {
    let keys: Vec<String> = if args.api_key.is_empty() {
        env::var("VLLM_API_KEY").into_iter().collect()
    } else {
        args.api_key.iter().map(|secret| secret.0.clone()).collect()
    };
    keys.into_iter().filter(|key| !key.is_empty()).collect()
}
