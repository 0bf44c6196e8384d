//! One exchange as it went over the wire, before it is encoded for a file.

use std::time::Duration;

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{canonical::SharedBody, capture::Capture, trace::Outcome};
use net::server::BodyError;

/// A request with its response, timing and outcome.
#[derive(Debug)]
pub struct Exchange {
    /// The request.
    pub request: ExchangeRequest,
    /// The response.
    pub response: ExchangeResponse,
    /// When it was.
    pub timing: Timing,
    /// The token ids of every choice; none where they are not known.
    pub output_ids: Vec<Vec<u32>>,
    /// Outcome.
    pub outcome: Outcome,
}

/// The request of an exchange.
#[derive(Debug, Clone, Default)]
pub struct ExchangeRequest {
    /// Its method.
    pub method: String,
    /// Its path with its query.
    pub target: String,
    /// Headers that are recorded; names in lower case.
    pub headers: Vec<(String, String)>,
    /// Its body: JSON where it is, else text; null for none.
    pub body: SharedBody,
    /// Its body where it is neither.
    pub raw: Option<Vec<u8>>,
    /// Bytes of its body.
    pub size: usize,
    /// The client marked the request as a retry.
    pub is_retry: bool,
    /// Its session.
    pub session: String,
}

/// The response of an exchange.
#[derive(Debug)]
pub struct ExchangeResponse {
    /// Its status.
    pub status: u16,
    /// A copy of it.
    pub capture: Capture,
}

/// Times of an exchange.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Timing {
    /// From the request to the end of the response.
    pub e2e: Duration,
    /// When it ended, RFC 3339.
    pub recorded_at: Option<String>,
}

impl Timing {
    /// Timing of an exchange that ends now, so long after its request.
    #[must_use]
    pub fn ending_now(e2e: Duration) -> Self {
        Self { e2e, recorded_at: OffsetDateTime::now_utc().format(&Rfc3339).ok() }
    }
}

/// Returns the outcome of an exchange whose response ended early.
#[must_use]
pub fn outcome_of(error: &BodyError) -> Outcome {
    match error {
        BodyError::Connection(_) | BodyError::Aborted(_) | BodyError::Broken(_) => Outcome::UpstreamFailed,
        BodyError::Idle(_) => Outcome::TimedOut,
    }
}

impl Exchange {
    /// Bytes that it holds.
    #[must_use]
    pub fn size(&self) -> usize {
        let ids: usize = self.output_ids.iter().map(|ids| 4 * ids.len()).sum();
        self.request.size + self.response.capture.size() + ids
    }
}
