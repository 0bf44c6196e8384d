//! The endpoints: every path with its methods, what a recorder calls it, whether it asks a model, and how requests to it are
//! counted. Everything that decides by path reads this table.

use serde::{Deserialize, Serialize};

/// The path of chats.
pub const CHAT: &str = "/v1/chat/completions";

base::named! {
    /// The kind of API that was called, as recordings name it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Endpoint {
        /// `/v1/chat/completions`
        Chat = "chat",
        /// `/v1/completions`
        Completions = "completions",
        /// `/v1/responses`
        Responses = "responses",
        /// `/v1/messages`
        Messages = "messages",
        /// `/v1/embeddings`
        Embeddings = "embeddings",
        /// Any other that takes posted JSON; a recording keeps its path.
        Other = "other",
    }
}

impl Endpoint {
    /// The endpoint that is called by this path, [`Endpoint::Other`] where there is none.
    #[must_use]
    pub fn of_path(path: &str) -> Self {
        let known = route(path).and_then(|route| route.endpoint);
        known.filter(|endpoint| endpoint.path() == Some(path)).unwrap_or(Self::Other)
    }

    /// The endpoint's own path, where it has one.
    #[must_use]
    pub fn path(self) -> Option<&'static str> {
        ROUTES.iter().find(|route| route.endpoint == Some(self)).map(|route| route.path)
    }

    /// Returns whether its responses are chat messages or completed text, token by token.
    #[must_use]
    pub fn generates(self) -> bool {
        !matches!(self, Self::Embeddings | Self::Other)
    }

    /// Returns whether its responses are lists of choices.
    #[must_use]
    pub fn has_choices(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }
}

/// The name under which the engine's server counts requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handler {
    /// The path itself.
    Path,
    /// `none`, as for paths that do not exist.
    Unnamed,
    /// Not counted.
    Uncounted,
}

/// A path and everything that follows from it.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    /// The path.
    pub path: &'static str,
    /// Methods that it takes, as an `allow` header lists them.
    pub methods: &'static str,
    /// The API as a recorder names it; the first path of the table is an endpoint's own.
    pub endpoint: Option<Endpoint>,
    /// True where a request is compared as one to a model (`llm:MODEL`), else as one to a server (`http:METHOD PATH`).
    pub asks_model: bool,
    /// Label under which requests are counted.
    pub handler: Handler,
    /// True where requests in progress count as load.
    pub is_load: bool,
    /// True where only a tokenizer is needed for the response.
    pub only_tokenizes: bool,
}

const fn on(methods: &'static str, path: &'static str) -> Route {
    Route {
        path,
        methods,
        endpoint: None,
        asks_model: false,
        handler: Handler::Path,
        is_load: false,
        only_tokenizes: false,
    }
}

const fn get(path: &'static str) -> Route {
    on("GET", path)
}

const fn post(path: &'static str) -> Route {
    on("POST", path)
}

const fn page(path: &'static str) -> Route {
    on("GET, HEAD", path)
}

const fn generating(path: &'static str, endpoint: Endpoint) -> Route {
    Route { is_load: true, ..recorded_as(endpoint, model(path)) }
}

const fn recorded_as(endpoint: Endpoint, route: Route) -> Route {
    Route { endpoint: Some(endpoint), ..route }
}

const fn model(path: &'static str) -> Route {
    Route { asks_model: true, ..post(path) }
}

const fn tokenizing(path: &'static str) -> Route {
    Route { only_tokenizes: true, ..model(path) }
}

const fn unnamed(route: Route) -> Route {
    Route { handler: Handler::Unnamed, ..route }
}

const fn uncounted(route: Route) -> Route {
    Route { handler: Handler::Uncounted, ..route }
}

/// All of them; those with an id in their path are not here.
static ROUTES: [Route; 70] = [
    generating(CHAT, Endpoint::Chat),
    generating("/v1/completions", Endpoint::Completions),
    generating("/v1/responses", Endpoint::Responses),
    generating("/v1/messages", Endpoint::Messages),
    unnamed(recorded_as(Endpoint::Embeddings, model("/v1/embeddings"))),
    recorded_as(Endpoint::Completions, model("/inference/v1/generate")),
    tokenizing("/v1/messages/count_tokens"),
    tokenizing("/tokenize"),
    tokenizing("/detokenize"),
    model("/v1/chat/completions/batch"),
    model("/invocations"),
    // Served by engines and never by `play`.
    unnamed(model("/v1/score")),
    unnamed(model("/v1/rerank")),
    unnamed(model("/v2/rerank")),
    unnamed(model("/v1/audio/transcriptions")),
    unnamed(model("/v1/audio/translations")),
    unnamed(model("/v1/audio/speech")),
    unnamed(model("/v1/images/generations")),
    unnamed(model("/score")),
    unnamed(model("/rerank")),
    unnamed(model("/pooling")),
    unnamed(model("/classify")),
    post("/generative_scoring"),
    post("/v1/systemone"),
    // For routers.
    post("/v1/chat/completions/render"),
    post("/v1/completions/render"),
    post("/v1/messages/render"),
    post("/v1/responses/render"),
    post("/v1/chat/completions/derender"),
    post("/v1/completions/derender"),
    post("/inference/v1/abort_requests"),
    post("/scale_elastic_ep"),
    post("/is_scaling_elastic_ep"),
    get("/kv_event_sources"),
    // About the server.
    get("/v1/models"),
    // Its path has the one of `/load` in it, by which the engine leaves it out too.
    uncounted(post("/v1/load_lora_adapter")),
    post("/v1/unload_lora_adapter"),
    get("/tokenizer_info"),
    uncounted(get("/health")),
    uncounted(on("GET, POST", "/ping")),
    uncounted(get("/version")),
    uncounted(get("/metrics")),
    uncounted(get("/load")),
    page("/openapi.json"),
    page("/docs"),
    page("/redoc"),
    page("/docs/oauth2-redirect"),
    // Of the development mode.
    uncounted(get("/server_info")),
    post("/reset_prefix_cache"),
    post("/reset_mm_cache"),
    post("/reset_encoder_cache"),
    post("/collective_rpc"),
    post("/sleep"),
    post("/release_kv_cache_memory"),
    post("/wake_up"),
    get("/is_sleeping"),
    post("/pause"),
    post("/resume"),
    post("/abort_requests"),
    get("/is_paused"),
    get("/get_world_size"),
    post("/init_weight_transfer_engine"),
    post("/shutdown_weight_transfer_engine"),
    post("/start_weight_update"),
    post("/start_draft_weight_update"),
    post("/update_weights"),
    post("/finish_weight_update"),
    post("/update_weight_version"),
    get("/weight_info"),
    post("/weight_checker"),
];

/// The route of a path.
#[must_use]
pub fn route(path: &str) -> Option<&'static Route> {
    ROUTES.iter().find(|route| route.path == path)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_path_stands_once() {
        let paths: HashSet<&str> = ROUTES.iter().map(|route| route.path).collect();
        assert_eq!(paths.len(), ROUTES.len());
    }

    #[test]
    fn an_endpoint_is_found_by_its_own_path_only() {
        for endpoint in
            [Endpoint::Chat, Endpoint::Completions, Endpoint::Responses, Endpoint::Messages, Endpoint::Embeddings]
        {
            assert_eq!(Endpoint::of_path(endpoint.path().unwrap()), endpoint);
        }
        assert_eq!(route("/inference/v1/generate").unwrap().endpoint, Some(Endpoint::Completions));
        for other in ["/inference/v1/generate", "/v1/models", "/nothing"] {
            assert_eq!(Endpoint::of_path(other), Endpoint::Other);
        }
        assert_eq!(Endpoint::Other.path(), None);
    }
}
