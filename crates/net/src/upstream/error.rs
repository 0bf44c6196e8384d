//! Requests without a response, and responses that broke.

use std::{error::Error, io, time::Duration};

use bytes::Bytes;
use http::{
    Response, StatusCode,
    header::{self, HeaderValue},
};
use serde_json::json;

use super::connector::ConnectTimeout;
use crate::server::BodyError;
use base::causes::causes;

/// Reasons for which the body of a response ended early.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamBodyError {
    /// hyper's error.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// The connection broke or was closed.
    #[error("the connection broke in the middle of a stream")]
    Broken(#[source] io::Error),
    /// The chunked encoding is malformed.
    #[error("malformed chunked encoding: {0}")]
    BadChunk(&'static str),
}

impl From<UpstreamBodyError> for BodyError {
    fn from(error: UpstreamBodyError) -> Self {
        Self::broken(error)
    }
}

/// A request that the upstream did not answer.
#[derive(Debug, thiserror::Error)]
#[error("no response from {upstream}")]
pub struct UpstreamError {
    pub(super) upstream: String,
    #[source]
    pub(super) source: UpstreamFailure,
}

/// Reasons for which there is no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpstreamFailure {
    /// The connection was refused or could not be opened.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// The connect timeout was exceeded.
    #[error("cannot connect")]
    Slow(#[from] ConnectTimeout),
    /// The connection broke, or the bytes received are not HTTP.
    #[error("the connection broke")]
    Http(#[source] hyper::Error),
    /// Any of these, over a connection of hyper's client.
    #[error(transparent)]
    Client(#[from] hyper_util::client::legacy::Error),
    /// The response timeout was exceeded.
    #[error("no response within {0:?}")]
    TimedOut(Duration),
}

impl UpstreamError {
    /// Returns whether no connection could be opened.
    #[must_use]
    pub fn is_connect(&self) -> bool {
        match &self.source {
            UpstreamFailure::Connect(_) | UpstreamFailure::Slow(_) => true,
            UpstreamFailure::Client(error) => error.is_connect(),
            UpstreamFailure::Http(_) | UpstreamFailure::TimedOut(_) => false,
        }
    }

    /// Returns the error of the request's own body, where that is the cause.
    #[must_use]
    pub fn caused_by<E: Error + 'static>(&self) -> Option<&E> {
        causes(&self.source).find_map(|cause| cause.downcast_ref::<E>())
    }

    /// Returns whether a timeout was exceeded.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self.source, UpstreamFailure::TimedOut(_))
            || causes(&self.source).any(|cause| cause.is::<ConnectTimeout>())
    }

    /// Returns the message of the innermost cause.
    #[must_use]
    pub fn cause(&self) -> String {
        causes(&self.source).last().map_or_else(String::new, ToString::to_string)
    }

    /// Builds the response to a request that the upstream did not answer: 504 after a timeout, else 502.
    #[must_use]
    pub fn response(&self) -> Response<Bytes> {
        let reason = if self.is_timeout() {
            "took too long"
        } else if self.is_connect() {
            "cannot be reached"
        } else {
            "closed the connection without a response"
        };
        let status = if self.is_timeout() { StatusCode::GATEWAY_TIMEOUT } else { StatusCode::BAD_GATEWAY };
        error_response(status, &format!("vllm-vcr: the upstream {reason}: {}", self.cause()))
    }
}

/// Reasons for which there is no whole response.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// There is no response.
    #[error(transparent)]
    Unanswered(#[from] UpstreamError),
    /// Its body broke off or is too long.
    #[error("{0}")]
    Incomplete(String),
}

/// Message of an [`error_response`], in its extensions, where no response of an upstream has one: a gateway answers with the same statuses.
#[derive(Debug, Clone)]
pub struct UpstreamErrorText(pub String);

/// Builds an error response in the form of the engine's errors, of type `UpstreamError`.
#[must_use]
pub fn error_response(status: StatusCode, message: &str) -> Response<Bytes> {
    let body = json!({"error": {"message": message, "type": "UpstreamError", "param": null, "code": status.as_u16()}});
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    let text = message.trim_start_matches("vllm-vcr: ");
    response.extensions_mut().insert(UpstreamErrorText(text.to_owned()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
