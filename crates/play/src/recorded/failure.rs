//! An error of the engine that was recorded, as the response of a request.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use serde_json::Value;

use api::{ApiError, RecordedError};
use recording::trace::Record;
use replay::{player::stream_error, timing::Pacing};

/// An error that was recorded instead of an answer.
#[derive(Debug)]
pub(crate) struct RecordedFailure {
    /// When it was complete, from the request's arrival.
    pub(crate) due: Duration,
    error: ApiError,
}

impl RecordedFailure {
    /// The error that `record` is, unless it is an answer.
    pub(crate) fn of(record: &Record, pacing: Pacing) -> Option<Self> {
        let status = record.status.filter(|status| *status >= 400)?;
        let due = match pacing {
            Pacing::Recorded { scale } => scale.apply(record.e2e.unwrap_or(record.ttft_without_tokens)),
            Pacing::Fixed { ttft, .. } => ttft,
            Pacing::Instant => Duration::ZERO,
        };
        let recorded = record.error.clone().unwrap_or_default();
        let recorded = RecordedError { headers: recorded.headers.into_iter().collect(), body: recorded.body };
        let (message, kind) = (format!("Recorded error {status}; its message was not recorded."), kind(status));
        Some(Self { due, error: ApiError::recorded(status, message, kind, recorded) })
    }

    /// Makes it the client's error, with the headers about its origin.
    pub(crate) fn into_error(self, origin: &HeaderMap) -> ApiError {
        let mut error = self.error;
        if let Some(recorded) = &mut error.recorded {
            let named = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
                Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
            };
            recorded.headers.extend(origin.iter().filter_map(named));
        }
        error
    }
}

/// The error with which a stream ended, for a client that asked for none.
pub(crate) fn error_of_event(payload: &str) -> Option<ApiError> {
    let (status, body) = stream_error(payload)?;
    let body: Value = serde_json::from_str(&body).ok()?;
    let message = body.get("error")?.get("message")?.as_str()?.to_owned();
    Some(ApiError::recorded(status, message, kind(status), RecordedError::default()))
}

/// The engine's class of errors of a status.
fn kind(status: u16) -> &'static str {
    match status {
        400 => "BadRequestError",
        404 => "NotFoundError",
        500 => "InternalServerError",
        501 => "NotImplementedError",
        _ => StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("Error"),
    }
}
