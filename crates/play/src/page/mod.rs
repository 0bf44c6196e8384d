//! `/vcr`: a page with the requests as they come, and switches for faults, for people.
//!
//! The page itself is the same for everybody and holds nothing; what it shows it asks for as any program does, by the rules of
//! `/vcr/…`. It needs no other server.

use std::sync::Arc;

use axum::{Router, extract::State, response::Response, routing::get};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::json;

use crate::{
    admin_calls::{guarded, shown},
    http::body_of_type,
    metrics::Metrics,
};
use replay::account::Access;

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");

/// Content security policy of the page: its own script and answers of this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// `/vcr`, `/vcr/page.js` and `/vcr/live`.
pub(super) fn routes(metrics: Arc<Metrics>, access: &Access) -> Router {
    guarded(Router::new().route("/vcr/live", get(live)).with_state(metrics), access)
        .route("/vcr", get(|| async { file("text/html; charset=utf-8", PAGE) }))
        .route("/vcr/page.js", get(|| async { file("text/javascript; charset=utf-8", SCRIPT) }))
}

fn file(content_type: &'static str, text: &'static str) -> Response {
    let headers =
        [("content-security-policy", POLICY), ("x-content-type-options", "nosniff"), ("cache-control", "no-store")];
    let headers = headers.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    body_of_type(
        StatusCode::OK,
        Some(HeaderValue::from_static(content_type)),
        text.into(),
        HeaderMap::from_iter(headers),
    )
}

async fn live(State(metrics): State<Arc<Metrics>>) -> Response {
    shown(&json!({"requests": metrics.live.look()}))
}
