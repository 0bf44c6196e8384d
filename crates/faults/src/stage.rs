//! When a fault happens, and which requests and conditions can be of it.

base::named! {
    /// Stage at which a fault happens.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum FaultStage {
        /// Before the first byte of the response.
        Before = "before",
        /// In its body.
        Body = "body",
        /// In the model's response.
        Reply = "reply",
        /// In the page of metrics.
        Metrics = "metrics",
        /// In the endpoints that report readiness.
        Health = "health",
        /// In published KV events.
        Events = "kv-events",
        /// In the whole server.
        Server = "server",
    }
}

/// Conditions that hold for requests with a body.
const OF_BODIES: &[&str] = &["model", "prompt", "turn", "record"];

/// Paths that rule the server and ask for no work, as vLLM and llm-d's simulator have them; with `*`, what begins so.
const OF_CONTROL: &[&str] = &[
    "/abort_requests",
    "/admin/*",
    "/collective_rpc",
    "/fake_metrics",
    "/finish_weight_update",
    "/inference/v1/abort_requests",
    "/init_weight_transfer_engine",
    "/is_*",
    "/pause",
    "/release_kv_cache_memory",
    "/reset_*",
    "/resume",
    "/scale_elastic_ep",
    "/shutdown_weight_transfer_engine",
    "/sleep",
    "/start_*",
    "/stop_profile",
    "/update_weight*",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/wake_up",
    "/weight_*",
];

/// Returns true if a named path, which may end with `*`, is that of a request.
pub(crate) fn is_path(named: &str, path: &str) -> bool {
    named.strip_suffix('*').map_or(named == path, |start| path.starts_with(start))
}

impl FaultStage {
    /// In words.
    #[must_use]
    pub fn when(self) -> &'static str {
        match self {
            Self::Before => "before the answer",
            Self::Body => "in the body",
            Self::Reply => "in what the model says",
            Self::Metrics => "on /metrics",
            Self::Health => "on /health",
            Self::Events => "in KV events",
            Self::Server => "in the whole server",
        }
    }

    /// Returns true if it is about answers to requests.
    #[must_use]
    pub fn is_of_answers(self) -> bool {
        matches!(self, Self::Before | Self::Body | Self::Reply)
    }

    /// Returns true if it is about requests of this path; `is_named` if a condition names a path. Without one, faults of answers leave
    /// out what rules the server.
    pub(crate) fn concerns(self, path: &str, is_named: bool) -> bool {
        let (is_metrics, is_health) = (path == "/metrics", ["/health", "/ping"].contains(&path));
        match self {
            Self::Before | Self::Body | Self::Reply => {
                is_named || !(is_metrics || is_health || OF_CONTROL.iter().any(|control| is_path(control, path)))
            }
            Self::Metrics => is_metrics,
            Self::Health => is_health,
            Self::Events | Self::Server => false,
        }
    }

    /// Returns true if a condition can be one of its faults.
    pub(crate) fn takes_condition(self, name: &str) -> bool {
        match self {
            Self::Before | Self::Body | Self::Reply => name != "rank",
            Self::Metrics | Self::Health => name != "rank" && !OF_BODIES.contains(&name),
            Self::Events => ["rate", "from", "until", "replica", "rank"].contains(&name),
            Self::Server => ["from", "until", "replica"].contains(&name),
        }
    }
}
