//! Flags of `play` about the server around the model, under vLLM's names, and what they and vLLM's own environment variables mean.

use std::{
    env,
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use clap::Args;
use serde_json::Value;

use crate::{
    base::units::parse_duration,
    cli::values::{Secret, within},
    net::server::{ClientCertificates, Tls, TlsError, TlsFiles},
    play::{ApiKeys, Cors, ServerOptions, SimulatorOptions},
};

/// How the server is reached and who may call.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(in crate::cli) struct ServerArgs {
    /// A key that clients must send as `Authorization: Bearer KEY`, for paths under /v1, /v2, /inference and /cohere; may be given several
    /// times. Default: VLLM_API_KEY. Other users can see arguments: prefer the variable.
    #[arg(long, value_name = "KEY", num_args = 1.., hide_default_value = true)]
    pub(in crate::cli) api_key: Vec<Secret>,
    /// Origins of web pages that may call the server, a JSON list; ["*"] for all.
    #[arg(long, help_heading = "Web pages", value_name = "JSON", default_value = "[]")]
    pub(in crate::cli) allowed_origins: JsonList,
    /// Methods that such pages may use, a JSON list.
    #[arg(long, help_heading = "Web pages", value_name = "JSON", default_value = r#"["*"]"#)]
    pub(in crate::cli) allowed_methods: JsonList,
    /// Headers that such pages may send, a JSON list.
    #[arg(long, help_heading = "Web pages", value_name = "JSON", default_value = r#"["*"]"#)]
    pub(in crate::cli) allowed_headers: JsonList,
    /// Lets such pages send credentials.
    #[arg(long, help_heading = "Web pages")]
    pub(in crate::cli) allow_credentials: bool,
    /// Answers 503 for this long after the start, as a server that loads its model; /health reports it.
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = parse_duration)]
    pub(in crate::cli) startup_duration: Duration,
    /// Serves the endpoints that llm-d-inference-sim has beside vLLM's, to everyone who reaches the server: /health/ready, /ready,
    /// /admin/config, /fake_metrics, and the header X-Inference-Pod and the like from POD_NAME and POD_NAMESPACE. On by default if the
    /// program has that name.
    #[arg(long)]
    pub(in crate::cli) simulator_endpoints: bool,
    /// Initial values of /metrics, in the form of llm-d-inference-sim: {"waiting-requests":"oscillate:0:10:5s","kv-cache-usage":0.4}.
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    pub(in crate::cli) fake_metrics: Option<Value>,
    /// Listens on this Unix socket instead of --host and --port.
    #[arg(long, value_name = "PATH")]
    pub(in crate::cli) uds: Option<PathBuf>,
    /// Serves HTTPS with this certificate, a PEM file with its chain.
    #[arg(long, help_heading = "TLS", value_name = "FILE")]
    pub(in crate::cli) ssl_certfile: Option<PathBuf>,
    /// The certificate's private key, a PEM file. Default: the certificate's file.
    #[arg(long, help_heading = "TLS", value_name = "FILE", requires = "ssl_certfile")]
    pub(in crate::cli) ssl_keyfile: Option<PathBuf>,
    /// CA certificate of client certificates, a PEM file.
    #[arg(long, help_heading = "TLS", value_name = "FILE", requires = "ssl_certfile")]
    pub(in crate::cli) ssl_ca_certs: Option<PathBuf>,
    /// Whether clients need a certificate: 0 no, 1 optional but valid, 2 yes.
    #[arg(long, help_heading = "TLS", value_name = "N", default_value = "0", value_parser = clap::value_parser!(u8).range(0..=2))]
    pub(in crate::cli) ssl_cert_reqs: u8,
    /// Reads the certificate's files again when they change.
    #[arg(long, help_heading = "TLS", requires = "ssl_certfile")]
    pub(in crate::cli) enable_ssl_refresh: bool,
    /// The path under which a proxy exposes this server, such as /llm.
    #[arg(long, value_name = "PATH", default_value = "")]
    pub(in crate::cli) root_path: String,
    /// Leaves out /openapi.json, /docs and /redoc.
    #[arg(long)]
    pub(in crate::cli) disable_fastapi_docs: bool,
    /// Reports the number of requests in progress at /load.
    #[arg(long, help_heading = "Metrics")]
    pub(in crate::cli) enable_server_load_tracking: bool,
    /// Sends usage on every event of every stream, even if a request does not ask for it.
    #[arg(long, help_heading = "Answers", group = "@answers")]
    pub(in crate::cli) enable_force_include_usage: bool,
    /// Sends a comment when a stream has been silent for this many seconds; 0 sends none.
    #[arg(long, help_heading = "Answers", value_name = "SECONDS", default_value = "0")]
    pub(in crate::cli) sse_keep_alive_interval: u32,
    /// Serves the metrics about single blocks of the KV cache; they stay zero without --engine.
    #[arg(long, help_heading = "Metrics")]
    pub(in crate::cli) kv_cache_metrics: bool,
    /// Share of the blocks that --kv-cache-metrics watches, above 0 and up to 1.
    #[arg(long, help_heading = "Metrics", value_name = "SHARE", default_value = "0.01",
        value_parser = within(f64::MIN_POSITIVE..=1.0, "a share above 0 and up to 1 is needed, such as 0.01"))]
    pub(in crate::cli) kv_cache_metrics_sample: f64,
    /// Threads that serve connections. Default: one per core. Half as many keep better time if the clients run on the same machine.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) threads: Option<NonZeroUsize>,
    /// Adds the lateness of events to /metrics, after the engine's metrics.
    #[arg(long, help_heading = "Metrics")]
    pub(in crate::cli) vcr_metrics: bool,
    /// Serves /tokenizer_info, the tokenizer's configuration.
    #[arg(long)]
    pub(in crate::cli) enable_tokenizer_info_endpoint: bool,
    /// Refuses a request with 503 if more than this many would be in progress; each of its choices counts.
    #[arg(long, value_name = "N")]
    pub(in crate::cli) max_num_queued_reqs: Option<u32>,
}

fn json_object(text: &str) -> Result<Value, String> {
    let wrong = |why: String| format!("a JSON object is needed, such as {{\"running-requests\":16}}: {why}");
    let value: Value = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    if value.is_object() { Ok(value) } else { Err(wrong(format!("this is {value}"))) }
}

/// Strings in JSON, as vLLM takes lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct JsonList(pub(in crate::cli) Vec<String>);

impl FromStr for JsonList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let list = serde_json::from_str(text).map(Self);
        list.map_err(|_| r#"a JSON list of strings is needed, such as ["https://example.org"]"#.to_owned())
    }
}

impl ServerArgs {
    /// TLS, where a certificate was named.
    pub(in crate::cli) fn tls(&self) -> Result<Option<Tls>, TlsError> {
        let Some(certificate) = self.ssl_certfile.clone() else { return Ok(None) };
        let files = TlsFiles {
            certificate,
            key: self.ssl_keyfile.clone(),
            authorities: self.ssl_ca_certs.clone(),
            clients: match self.ssl_cert_reqs {
                0 => ClientCertificates::None,
                1 => ClientCertificates::Optional,
                _ => ClientCertificates::Required,
            },
            refresh: self.enable_ssl_refresh,
        };
        Tls::load(files).map(Some)
    }

    /// The keys that clients may send, in their order; none where no key is needed.
    pub(in crate::cli) fn keys(&self) -> Vec<String> {
        let keys: Vec<String> = if self.api_key.is_empty() {
            env::var("VLLM_API_KEY").into_iter().collect()
        } else {
            self.api_key.iter().map(|secret| secret.0.clone()).collect()
        };
        keys.into_iter().filter(|key| !key.is_empty()).collect()
    }
}

impl From<ServerArgs> for ServerOptions {
    /// vLLM's variables count where nothing was typed.
    fn from(args: ServerArgs) -> Self {
        Self {
            api_keys: ApiKeys::new(args.keys()),
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
            idle: env::var("VLLM_HTTP_TIMEOUT_KEEP_ALIVE")
                .ok()
                .and_then(|idle| idle.trim().parse().ok())
                .map(Duration::from_secs),
            dev_mode: is_set("VLLM_SERVER_DEV_MODE"),
            runtime_lora_updating: args.simulator_endpoints || is_set("VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
            kv_cache_metrics: args.kv_cache_metrics,
            vcr_metrics: args.vcr_metrics,
            tokenizer_info: args.enable_tokenizer_info_endpoint,
            no_docs: args.disable_fastapi_docs,
            responses_store: is_set("VLLM_ENABLE_RESPONSES_API_STORE"),
            startup: args.startup_duration,
            simulator: SimulatorOptions {
                endpoints: args.simulator_endpoints,
                pod: env::var("POD_NAME").ok().filter(|name| args.simulator_endpoints && !name.is_empty()),
                namespace: env::var("POD_NAMESPACE").ok().filter(|name| args.simulator_endpoints && !name.is_empty()),
                servers: NonZeroU32::MIN,
                fake_metrics: args.fake_metrics,
            },
        }
    }
}

/// vLLM asks for a number other than zero.
fn is_set(variable: &str) -> bool {
    env::var(variable).is_ok_and(|value| value.trim().parse::<i64>().is_ok_and(|number| number != 0))
}
