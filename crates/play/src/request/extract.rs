//! Extractors: what handlers take from a request and from the server.

use std::{convert::Infallible, sync::Arc};

use ::http::{Extensions, HeaderMap, request::Parts};
use axum::extract::{FromRef, FromRequest, FromRequestParts, Request};
use bytes::Bytes;

use crate::{
    Player, ServerState,
    http::{self, ErrorResponse, header_text},
};
use api::{ApiError, Query};
use net::{server::media_type, wire::body_as_utf8};
use replay::delivery::Clock;

impl FromRef<Player> for Arc<ServerState> {
    fn from_ref(player: &Player) -> Self {
        Self::clone(&player.state)
    }
}

impl FromRequestParts<Player> for Query {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Player) -> Result<Self, Infallible> {
        Ok(Self::new(parts.uri.query()))
    }
}

/// A server with scale-out endpoints; one without refuses.
pub(crate) struct ScaleOutEnabled;

impl FromRequestParts<Player> for ScaleOutEnabled {
    type Rejection = ErrorResponse;

    async fn from_request_parts(_: &mut Parts, player: &Player) -> Result<Self, ErrorResponse> {
        let message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.";
        Ok(player.state.config.scale_out.then_some(Self).ok_or_else(|| ApiError::permission_denied(message))?)
    }
}

pub(crate) struct AnyBody(pub(crate) Bytes);

impl FromRequest<Player> for AnyBody {
    type Rejection = ErrorResponse;

    async fn from_request(request: Request, player: &Player) -> Result<Self, ErrorResponse> {
        Ok(Self(http::read_body(request.into_body(), player.state.config.body_limit).await?))
    }
}

/// A body that counts as empty unless it is announced as JSON.
pub(crate) struct OptionalJson(pub(crate) Bytes);

impl FromRequest<Player> for OptionalJson {
    type Rejection = ErrorResponse;

    async fn from_request(request: Request, player: &Player) -> Result<Self, ErrorResponse> {
        let is_json = is_json(request.headers());
        let AnyBody(body) = AnyBody::from_request(request, player).await?;
        Ok(Self(if is_json { body } else { Bytes::new() }))
    }
}

/// A body that has to be announced as JSON, and the headers it came with.
pub(crate) struct JsonBody {
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
}

impl FromRequest<Player> for JsonBody {
    type Rejection = ErrorResponse;

    async fn from_request(request: Request, player: &Player) -> Result<Self, ErrorResponse> {
        let (parts, body) = request.into_parts();
        let bytes = http::read_body(body, player.state.config.body_limit).await?;
        if !is_json(&parts.headers) {
            return Err(ApiError::unsupported_media_type().into());
        }
        Ok(Self { headers: parts.headers, bytes: body_as_utf8(&bytes) })
    }
}

/// The clock of the request's connection, which the server puts into every request.
/// Errors: none on such requests.
pub(crate) fn clock(extensions: &Extensions) -> Result<Clock, ApiError> {
    extensions.get().cloned().ok_or_else(|| ApiError::internal("Internal server error"))
}

/// The data parallel rank that a client names, read as Python's `int` does; one that is no number is none.
pub(crate) fn rank_of(headers: &HeaderMap) -> Option<i128> {
    let text = header_text(headers, "x-data-parallel-rank")?.trim();
    let has_digits_around = |text: &str| !text.starts_with('_') && !text.ends_with('_') && !text.contains("__");
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !has_digits_around(digits) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// Checks whether a body is announced as JSON.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    media_type(headers).eq_ignore_ascii_case("application/json")
}
