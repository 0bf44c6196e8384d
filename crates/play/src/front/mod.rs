//! Middleware before the routes: the API keys, the CORS policy, the path prefix and the request id.
//!
//! The order is the engine's: an answer to a refused key carries no CORS headers, a preflight needs no key, and every
//! answer carries the request id where answers do. Limits: paths whose decoded form is no URI path are matched as they were sent.

mod auth;
mod cors;
pub(super) mod path;
mod uvicorn;

use std::{ops::ControlFlow, sync::Arc};

use axum::{body::Body, extract::Request, response::Response};
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use hyper::body::Incoming;
use tower::{ServiceBuilder, util::MapRequestLayer};

pub(super) use self::uvicorn::connection_options;
pub use self::{auth::ApiKeys, cors::Cors};
use crate::{
    Player, ServerState,
    http::{empty, json as json_page},
    middleware::{Layered, Middleware, called},
    routes, simulator,
};
use net::server::UntilStopping;
use replay::{
    account::{self, NetworkBlock},
    delivery::Clock,
};
use serde_json::json;

/// The routes of a server behind its middleware, without the type, which has each layer twice for each optional layer above it.
pub(super) type App = Arc<dyn Fn(Request) -> BoxFuture<'static, Response> + Send + Sync>;

/// Builds the routes of a server behind its middleware.
pub(super) fn app(player: &Player) -> App {
    let state = &player.state;
    let options = &state.config.server;
    let root: Arc<str> = options.root_path.as_str().into();
    let adds_headers = state.config.request_id_headers || options.simulator.endpoints;
    let headers = adds_headers.then(|| Layered(AddHeaders(Arc::clone(state))));
    let has_sessions = state.config.cassette_player.is_some() || state.replay.is_some();
    let sessions = has_sessions.then(|| {
        MapRequestLayer::new(|mut request: Request| {
            account::enter(&mut request);
            request
        })
    });
    let starting = (!options.startup.is_zero()).then(|| Layered(Starting(Arc::clone(state))));
    let keys = (!options.api_keys.is_empty()).then(|| Arc::new(options.api_keys.clone()));
    let keys = keys.map(|keys| Layered(auth::RequireKey { keys, root: Arc::clone(&root) }));
    let service = ServiceBuilder::new()
        .option_layer(headers)
        .option_layer(sessions)
        .option_layer(keys)
        .layer(Layered(cors::Share(Arc::new(options.cors.clone()))))
        .map_request(move |request: Request| path::rewrite(request, &root))
        .option_layer(starting)
        .service(routes::router(player));
    Arc::new(move |request| Box::pin(called(service.clone(), request)))
}

/// Answers one request: one for another server with a refusal, else as the engine's HTTP server where that is enough, else by the app.
pub(super) async fn answer(
    app: App,
    clock: Clock,
    block: Option<Arc<NetworkBlock>>,
    mut request: hyper::Request<UntilStopping<Incoming>>,
) -> Response {
    if let Some(refusal) = block.and_then(|block| block.check(&mut request)) {
        return refusal.map(Body::new);
    }
    if let Some(response) = uvicorn::answer(&request) {
        return response;
    }
    let is_old = uvicorn::is_old(&request);
    request.extensions_mut().insert(clock);
    let mut response = app(request.map(Body::new)).await;
    if is_old {
        uvicorn::close(&mut response);
    }
    response
}

/// The middleware that adds a request's id and the pod's name to its answer, where answers have them.
#[derive(Debug, Clone)]
struct AddHeaders(Arc<ServerState>);

impl Middleware for AddHeaders {
    type Kept = (HeaderMap, Option<(HeaderName, HeaderValue)>);

    fn before(&self, request: &mut Request) -> ControlFlow<Response, Self::Kept> {
        ControlFlow::Continue((simulator::pod_headers(&self.0), self.0.request_id_header(request.headers())))
    }

    fn after((pod, id): Self::Kept, mut response: Response) -> Response {
        // The pod replaces a recorded one; an id is added to a recorded one.
        response.headers_mut().extend(pod);
        response.headers_mut().extend(id);
        response
    }
}

/// The middleware that refuses until the server is ready.
#[derive(Debug, Clone)]
pub(super) struct Starting(pub(super) Arc<ServerState>);

impl Middleware for Starting {
    type Kept = ();

    fn before(&self, request: &mut Request) -> ControlFlow<Response, ()> {
        let path = request.uri().path();
        if self.0.is_ready() || path.starts_with("/vcr/") || path.starts_with("/metrics") {
            return ControlFlow::Continue(());
        }
        let status = StatusCode::SERVICE_UNAVAILABLE;
        if ["/health", "/ping"].contains(&path) {
            return ControlFlow::Break(empty(status));
        }
        let message = "The model is still being loaded (--startup-duration).";
        let error = json!({"message": message, "type": "Service Unavailable", "param": null, "code": 503});
        ControlFlow::Break(json_page(status, json!({"error": error}).to_string(), HeaderMap::new()))
    }
}
