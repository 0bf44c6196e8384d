//! Calls of `/vcr/…` about the server: who may make them, and what is wrong with one.

use std::ops::ControlFlow;

use axum::{
    Router,
    extract::Request,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use super::{
    http::{json as json_page, read_body},
    middleware::{Layered, Middleware},
};
use replay::account::Access;

#[derive(Debug)]
pub(super) struct RefusedAdminCall(Box<Response>);

impl RefusedAdminCall {
    fn new(status: StatusCode, message: &str) -> Self {
        Self(Box::new(json_page(status, json!({"error": {"message": message}}).to_string(), HeaderMap::new())))
    }

    pub(super) fn wrong(message: impl AsRef<str>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message.as_ref())
    }
}

impl IntoResponse for RefusedAdminCall {
    fn into_response(self) -> Response {
        *self.0
    }
}

pub(super) type AdminResult = Result<Response, RefusedAdminCall>;

/// The pages for those who may call them.
pub(super) fn guarded(pages: Router, access: &Access) -> Router {
    pages.route_layer(Layered(CheckCaller(access.clone())))
}

/// The middleware that refuses calls which are not their callers' to make.
#[derive(Debug, Clone)]
struct CheckCaller(Access);

impl Middleware for CheckCaller {
    type Kept = ();

    fn before(&self, request: &mut Request) -> ControlFlow<Response> {
        let (parts, body) = std::mem::take(request).into_parts();
        let checked = self.0.check(&parts);
        *request = Request::from_parts(parts, body);
        match checked {
            Ok(()) => ControlFlow::Continue(()),
            Err((status, message)) => ControlFlow::Break(RefusedAdminCall::new(status, message).into_response()),
        }
    }
}

/// Reads a body of at most so many bytes.
pub(super) async fn body_of(request: Request, most: usize) -> Result<Bytes, RefusedAdminCall> {
    read_body(request.into_body(), most).await.map_err(|error| RefusedAdminCall::wrong(error.message))
}

/// Reads a body of JSON.
pub(super) async fn json_of(request: Request, most: usize) -> Result<Value, RefusedAdminCall> {
    let body = body_of(request, most).await?;
    serde_json::from_slice(&body).map_err(|error| RefusedAdminCall::wrong(format!("the body is no JSON: {error}")))
}

pub(super) fn shown(value: &Value) -> Response {
    json_page(StatusCode::OK, value.to_string(), HeaderMap::new())
}
