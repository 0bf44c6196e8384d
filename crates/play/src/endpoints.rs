//! How an endpoint is served: its methods and `allow`, versions that lack it, and paths with a `/` too much or too little at their end.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::MatchedPath,
    handler::Handler,
    response::Response,
    routing::{MethodFilter, any, get, on, post},
};
use futures_util::future::BoxFuture;
use http::{Extensions, HeaderMap, HeaderValue, Request, StatusCode, header};

use crate::{
    Player,
    dialect::Dialect,
    front::path::{SentPath, other_ending},
    http::{empty_with, header_text, json},
    metrics::NotServed,
};
use api::endpoints::route;
use net::server::OverTls;

/// A handler without its type: what axum builds around a handler is compiled once for all of them, and what a server holds is proven to go
/// from thread to thread less often. See docs/src/internals/performance.md.
#[derive(Clone)]
struct AnyHandler(Arc<dyn Fn(Request<Body>, Player) -> BoxFuture<'static, Response> + Send + Sync>);

impl AnyHandler {
    fn new<H, T>(handler: H) -> Self
    where
        H: Handler<T, Player, Future = BoxFuture<'static, Response>>,
    {
        Self(Arc::new(move |request, player| handler.clone().call(request, player)))
    }
}

impl Handler<(), Player> for AnyHandler {
    type Future = BoxFuture<'static, Response>;

    fn call(self, request: Request<Body>, player: Player) -> BoxFuture<'static, Response> {
        (self.0)(request, player)
    }
}

/// The endpoints of a server, as far as its options have them.
pub(super) struct Endpoints {
    pub(super) router: Router<Player>,
    pub(super) paths: Vec<&'static str>,
    pub(super) dialect: &'static Dialect,
}

impl Endpoints {
    pub(super) fn new(dialect: &'static Dialect) -> Self {
        Self { router: Router::new(), paths: Vec::new(), dialect }
    }

    /// Adds an endpoint, which takes the methods that the API's table has for its path.
    pub(super) fn serve<H, T>(self, path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Player, Future = BoxFuture<'static, Response>>,
    {
        let methods = route(path).map_or("", |route| route.methods);
        debug_assert!(!methods.is_empty(), "{path} is not in the table of endpoints");
        self.on(methods, path, handler)
    }

    /// Adds an endpoint that takes some methods; to others the answer is 405.
    pub(super) fn on<H, T>(self, methods: &'static str, path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Player, Future = BoxFuture<'static, Response>>,
    {
        self.on_any(methods, path, AnyHandler::new(handler))
    }

    fn on_any(mut self, methods: &'static str, path: &'static str, handler: AnyHandler) -> Self {
        // Where the engine has a route for each method, it names the first one.
        let allow = if methods == "GET, POST" { "GET" } else { methods };
        let refuse = move || async move { not_allowed(allow) };
        let endpoint = match methods {
            // A handler for GET would take HEAD too.
            "GET" => on(MethodFilter::GET, handler).head(refuse),
            "GET, HEAD" => get(handler),
            "GET, POST" => on(MethodFilter::GET.or(MethodFilter::POST), handler).head(refuse),
            _ => post(handler),
        };
        // The imitated version may lack it.
        if self.dialect.has(path) {
            let endpoint = endpoint.fallback(refuse);
            self.router = self.router.route(path, endpoint).route(&format!("{path}/"), any(redirect));
            self.paths.push(path);
        }
        self
    }

    pub(super) fn add(self, is_served: bool, endpoints: impl FnOnce(Self) -> Self) -> Self {
        if is_served { endpoints(self) } else { self }
    }
}

/// Checks whether an endpoint serves the path of a request, by whatever method.
pub(super) fn is_served(extensions: &Extensions) -> bool {
    is_routed(extensions) && !is_redirected(extensions)
}

/// Checks whether an endpoint serves the path of a request, or redirects it.
pub(super) fn is_routed(extensions: &Extensions) -> bool {
    extensions.get::<MatchedPath>().is_some()
}

/// Checks whether a request is redirected.
pub(super) fn is_redirected(extensions: &Extensions) -> bool {
    extensions.get::<MatchedPath>().is_some_and(|path| path.as_str().ends_with('/'))
}

pub(super) async fn not_found() -> Response {
    json(StatusCode::NOT_FOUND, r#"{"detail":"Not Found"}"#.to_owned(), HeaderMap::new())
}

fn not_allowed(allow: &'static str) -> Response {
    let allow = HeaderMap::from_iter([(header::ALLOW, HeaderValue::from_static(allow))]);
    let body = r#"{"detail":"Method Not Allowed"}"#.to_owned();
    let mut response = json(StatusCode::METHOD_NOT_ALLOWED, body, allow);
    response.extensions_mut().insert(NotServed);
    response
}

/// The way to the path that was meant, where only a `/` at its end is too much.
async fn redirect<B>(request: Request<B>) -> Response {
    let host = header_text(request.headers(), header::HOST);
    let Some(host) = host.or_else(|| request.uri().authority().map(|authority| authority.as_str())) else {
        return not_found().await;
    };
    let sent = request.extensions().get::<SentPath>().map_or(request.uri().path(), |SentPath(sent)| sent);
    let scheme = if request.extensions().get::<OverTls>().is_some() { "https" } else { "http" };
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    match HeaderValue::from_str(&format!("{scheme}://{host}{}{query}", other_ending(sent))) {
        Ok(location) => {
            empty_with(StatusCode::TEMPORARY_REDIRECT, HeaderMap::from_iter([(header::LOCATION, location)]))
        }
        Err(_) => not_found().await,
    }
}
