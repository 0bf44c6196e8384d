//! Calls of `/vcr/…` about the server: who may make them, and what is wrong with one.

use axum::{
    extract::Request,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, request::Parts};
use serde_json::{Value, json};

use super::http::{json as json_page, read_body};
use crate::replay::account::Access;

#[derive(Debug)]
pub(super) struct RefusedAdminCall(Box<Response>);

impl RefusedAdminCall {
    pub(super) fn new(status: StatusCode, message: &str) -> Self {
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

/// Checks the caller; the head of its request.
///
/// # Errors
/// Where the call is not the caller's to make.
pub(super) fn checked(access: &Access, request: Request) -> Result<Parts, RefusedAdminCall> {
    let (parts, _) = request.into_parts();
    check(access, &parts)?;
    Ok(parts)
}

fn check(access: &Access, parts: &Parts) -> Result<(), RefusedAdminCall> {
    access.check(parts).map_err(|(status, message)| RefusedAdminCall::new(status, message))
}

/// Checks the caller and reads a body of at most so many bytes.
///
/// # Errors
/// Where the call is not the caller's to make, and where the body is larger or broke off.
pub(super) async fn body_of(access: &Access, request: Request, most: usize) -> Result<Bytes, RefusedAdminCall> {
    let (parts, body) = request.into_parts();
    check(access, &parts)?;
    read_body(body, most).await.map_err(|error| RefusedAdminCall::wrong(error.message))
}

pub(super) fn shown(value: &Value) -> Response {
    json_page(StatusCode::OK, value.to_string(), HeaderMap::new())
}
