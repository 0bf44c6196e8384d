//! The paths of the development endpoints.

/// An endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Endpoint {
    ResetPrefixCache,
    ResetMmCache,
    ResetEncoderCache,
    CollectiveRpc,
    ServerInfo,
    Sleep,
    ReleaseKvCacheMemory,
    WakeUp,
    IsSleeping,
    Pause,
    Resume,
    AbortRequests,
    IsPaused,
    GetWorldSize,
    Weights(Weights),
}

/// An endpoint about the model's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Weights {
    Init,
    Shutdown,
    Start,
    StartDraft,
    Update,
    Finish,
    SetVersion,
    Version,
    Check,
}

/// Whether the body of a request is read only where it is announced as JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum BodyOf {
    /// It is read as it is.
    Any,
    /// It does not count otherwise.
    Json,
}

impl Endpoint {
    /// What is served under a path.
    pub(in super::super) fn find(path: &str) -> Option<Self> {
        Some(match path {
            "/reset_prefix_cache" => Self::ResetPrefixCache,
            "/reset_mm_cache" => Self::ResetMmCache,
            "/reset_encoder_cache" => Self::ResetEncoderCache,
            "/collective_rpc" => Self::CollectiveRpc,
            "/server_info" => Self::ServerInfo,
            "/sleep" => Self::Sleep,
            "/release_kv_cache_memory" => Self::ReleaseKvCacheMemory,
            "/wake_up" => Self::WakeUp,
            "/is_sleeping" => Self::IsSleeping,
            "/pause" => Self::Pause,
            "/resume" => Self::Resume,
            "/abort_requests" => Self::AbortRequests,
            "/is_paused" => Self::IsPaused,
            "/get_world_size" => Self::GetWorldSize,
            "/init_weight_transfer_engine" => Self::Weights(Weights::Init),
            "/shutdown_weight_transfer_engine" => Self::Weights(Weights::Shutdown),
            "/start_weight_update" => Self::Weights(Weights::Start),
            "/start_draft_weight_update" => Self::Weights(Weights::StartDraft),
            "/update_weights" => Self::Weights(Weights::Update),
            "/finish_weight_update" => Self::Weights(Weights::Finish),
            "/update_weight_version" => Self::Weights(Weights::SetVersion),
            "/weight_info" => Self::Weights(Weights::Version),
            "/weight_checker" => Self::Weights(Weights::Check),
            _ => return None,
        })
    }

    /// The method that it takes.
    pub(in super::super) fn method(self) -> &'static str {
        match self {
            Self::ServerInfo
            | Self::IsSleeping
            | Self::IsPaused
            | Self::GetWorldSize
            | Self::Weights(Weights::Version) => "GET",
            _ => "POST",
        }
    }

    /// How its body is read.
    pub(in super::super) fn body(self) -> BodyOf {
        if matches!(self, Self::Weights(_)) { BodyOf::Json } else { BodyOf::Any }
    }
}
