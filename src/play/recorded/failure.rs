//! A recorded error that is the whole answer, and the event that ends a stream which failed.

use std::time::Duration;

use bytes::BufMut;
use http::{HeaderMap, StatusCode};

use crate::{
    api::{ApiError, RecordedError},
    recording::trace::Record,
    replay::timing::Pacing,
};

/// The payload of the event by which the engine reports its failure: JSON with spaces, unlike everything else.
const FAILURE: &str = "{\"error\": {\"message\": \"Internal server error\", \"type\": \"InternalServerError\", \
    \"param\": null, \"code\": 500}}";

/// Appends the event that ends a stream which failed: the recorded one, else the engine's usual one.
pub(in super::super) fn put_failing_event(out: &mut impl BufMut, payload: Option<&str>) {
    for line in payload.unwrap_or(FAILURE).lines() {
        out.put_slice(b"data: ");
        out.put_slice(line.as_bytes());
        out.put_slice(b"\n");
    }
    out.put_slice(b"\n");
}

/// An error that was recorded instead of an answer.
#[derive(Debug)]
pub(in super::super) struct Failure {
    /// When it was complete, from the request's arrival.
    pub(in super::super) due: Duration,
    error: ApiError,
}

impl Failure {
    /// The error that `record` is, unless it is an answer.
    pub(in super::super) fn of(record: &Record, pacing: Pacing) -> Option<Self> {
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
    pub(in super::super) fn into_error(self, origin: &HeaderMap) -> ApiError {
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
