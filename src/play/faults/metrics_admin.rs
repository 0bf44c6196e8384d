//! `/vcr/metrics`: values that `/metrics` has in place of the server's own; and `/fake_metrics`, which sets them in the words of
//! llm-d-inference-sim.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    response::Response,
    routing::{get, post},
};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use super::PageSource;
use crate::{
    play::{
        http::{empty, json as json_page, read_body},
        metrics::{MetricOverrides, of_fake_metrics},
    },
    replay::account::Access,
};

/// Most bytes of values.
const LARGEST: usize = 4 << 20;

/// What the routes share.
#[derive(Clone)]
struct MetricsDesk {
    overrides: Arc<MetricOverrides>,
    /// The page without them.
    page: PageSource,
    access: Access,
}

/// `/vcr/metrics` and `/fake_metrics`; `page` is that of the server without the values that are set.
pub(in crate::play) fn metrics_routes(overrides: Arc<MetricOverrides>, page: PageSource, access: Access) -> Router {
    Router::new()
        .route("/vcr/metrics", get(show).put(replace).delete(clear))
        .route("/fake_metrics", post(fake))
        .with_state(MetricsDesk { overrides, page, access })
}

fn failed(status: StatusCode, message: &str) -> Response {
    json_page(status, json!({"error": {"message": message}}).to_string(), HeaderMap::new())
}

impl MetricsDesk {
    fn shown(&self) -> Response {
        json_page(StatusCode::OK, self.overrides.shown().to_string(), HeaderMap::new())
    }

    async fn values(&self, request: Request) -> Result<Value, Response> {
        let (parts, body) = request.into_parts();
        self.access.check(&parts).map_err(|(status, message)| failed(status, message))?;
        let body = read_body(body, LARGEST).await;
        let body = body.map_err(|error| failed(StatusCode::BAD_REQUEST, &error.message))?;
        serde_json::from_slice(&body)
            .map_err(|error| failed(StatusCode::BAD_REQUEST, &format!("the body is no JSON: {error}")))
    }

    fn set(&self, values: &Value, keeps: bool) -> Result<(), String> {
        let page = (self.page)().unwrap_or_default();
        self.overrides.set(values, &page, keeps)
    }
}

async fn show(State(desk): State<MetricsDesk>, request: Request) -> Response {
    match desk.access.check(&request.into_parts().0) {
        Ok(()) => desk.shown(),
        Err((status, message)) => failed(status, message),
    }
}

async fn clear(State(desk): State<MetricsDesk>, request: Request) -> Response {
    match desk.access.check(&request.into_parts().0) {
        Ok(()) => {
            desk.overrides.clear();
            desk.shown()
        }
        Err((status, message)) => failed(status, message),
    }
}

async fn replace(State(desk): State<MetricsDesk>, request: Request) -> Response {
    let set = async { Ok(desk.set(&desk.values(request).await?, false)) };
    match set.await {
        Ok(Ok(())) => desk.shown(),
        Ok(Err(message)) => failed(StatusCode::BAD_REQUEST, &message),
        Err(refused) => refused,
    }
}

async fn fake(State(desk): State<MetricsDesk>, request: Request) -> Response {
    let fields = match desk.values(request).await {
        Ok(fields) => fields,
        Err(refused) => return refused,
    };
    let page = (desk.page)().unwrap_or_default();
    match of_fake_metrics(&fields, &page).and_then(|values| desk.set(&values, true)) {
        Ok(()) => empty(StatusCode::NO_CONTENT),
        Err(message) => failed(StatusCode::BAD_REQUEST, &message),
    }
}
