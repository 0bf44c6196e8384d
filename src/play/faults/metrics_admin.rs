//! `/vcr/metrics`: values that `/metrics` has in place of the server's own.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    response::Response,
    routing::get,
};
use serde_json::Value;

use super::PageSource;
use crate::{
    play::{
        admin_calls::{AdminResult, RefusedAdminCall, body_of, checked, shown},
        metrics::MetricOverrides,
    },
    replay::account::Access,
};

/// Maximum size of values, in bytes.
const LARGEST: usize = 4 << 20;

/// State of the routes.
#[derive(Clone)]
struct MetricsDesk {
    overrides: Arc<MetricOverrides>,
    /// The page without them.
    page: PageSource,
    access: Access,
}

/// `/vcr/metrics`; `page` is that of the server without the values that are set.
pub(in crate::play) fn metrics_routes(overrides: Arc<MetricOverrides>, page: PageSource, access: Access) -> Router {
    Router::new().route("/vcr/metrics", get(show).put(replace).delete(clear)).with_state(MetricsDesk {
        overrides,
        page,
        access,
    })
}

impl MetricsDesk {
    fn shown(&self) -> Response {
        shown(&self.overrides.shown())
    }

    async fn values(&self, request: Request) -> Result<Value, RefusedAdminCall> {
        let body = body_of(&self.access, request, LARGEST).await?;
        serde_json::from_slice(&body).map_err(|error| RefusedAdminCall::wrong(format!("the body is no JSON: {error}")))
    }

    fn set(&self, values: &Value, keeps: bool) -> Result<(), RefusedAdminCall> {
        let page = (self.page)().unwrap_or_default();
        self.overrides.set(values, &page, keeps).map_err(RefusedAdminCall::wrong)
    }
}

async fn show(State(desk): State<MetricsDesk>, request: Request) -> AdminResult {
    checked(&desk.access, request)?;
    Ok(desk.shown())
}

async fn clear(State(desk): State<MetricsDesk>, request: Request) -> AdminResult {
    checked(&desk.access, request)?;
    desk.overrides.clear();
    Ok(desk.shown())
}

async fn replace(State(desk): State<MetricsDesk>, request: Request) -> AdminResult {
    desk.set(&desk.values(request).await?, false)?;
    Ok(desk.shown())
}
