//! The time in which a model would be loaded: everything but the account and the metrics is refused.

use std::{ops::ControlFlow, sync::Arc};

use axum::{extract::Request, response::Response};
use http::{HeaderMap, StatusCode};
use serde_json::json;

use super::super::{
    State,
    http::{empty, json as json_page},
    middleware::Middleware,
};

/// The middleware that refuses until the server is ready.
#[derive(Debug, Clone)]
pub(super) struct Starting(pub(super) Arc<State>);

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

    fn after((): (), response: Response) -> Response {
        response
    }
}
