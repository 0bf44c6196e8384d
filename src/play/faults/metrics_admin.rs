//! `/vcr/metrics`: values that `/metrics` has in place of the server's own.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    response::Response,
    routing::get,
};

use super::PageSource;
use crate::play::{
    admin_calls::{AdminResult, RefusedAdminCall, json_of, shown},
    metrics::MetricOverrides,
};

/// Maximum size of values, in bytes.
const LARGEST: usize = 4 << 20;

/// State of the routes.
#[derive(Clone)]
struct MetricsDesk {
    overrides: Arc<MetricOverrides>,
    /// The page without them.
    page: PageSource,
}

/// `/vcr/metrics`; `page` is that of the server without the values that are set.
pub(in crate::play) fn metrics_routes(overrides: Arc<MetricOverrides>, page: PageSource) -> Router {
    let desk = MetricsDesk { overrides, page };
    Router::new().route("/vcr/metrics", get(show).put(replace).delete(clear)).with_state(desk)
}

async fn show(State(desk): State<MetricsDesk>) -> Response {
    shown(&desk.overrides.shown())
}

async fn clear(State(desk): State<MetricsDesk>) -> Response {
    desk.overrides.clear();
    shown(&desk.overrides.shown())
}

async fn replace(State(desk): State<MetricsDesk>, request: Request) -> AdminResult {
    let values = json_of(request, LARGEST).await?;
    desk.overrides.set(&values, &(desk.page)().unwrap_or_default(), false).map_err(RefusedAdminCall::wrong)?;
    Ok(shown(&desk.overrides.shown()))
}
