//! Whether a server answers in the shapes of vLLM: recorded exchanges of a real one, compared with any server.
//!
//! The exchanges in `exchanges.jsonl` are from the goldens of this project's tests (vLLM 0.32.0). Of an answer its status, its type, the
//! names and JSON types of its fields and the order of its events are compared, never a text or a number. A field that was null there may
//! have any value and may be left out, and further fields are allowed: both are reported, and count only where it is strict. The second
//! profile is what an endpoint picker reads: families and labels of `/metrics`, and KV events.
//!
//! Limits: answers are read up to 16 MiB; one request at a time.
//!
//! See docs/decisions/0141-shapes-not-values.md.

mod client;
mod events;
mod exchange;
mod kv_events;
mod picker;
mod shape;

use serde::Serialize;

pub use self::{
    client::{ConformClient, ConformError},
    exchange::{ConformExchange, exchanges},
    kv_events::check_kv_events,
    picker::check_metrics,
    shape::{ShapeDifference, ShapeDifferences, compare},
};

/// Result of one exchange, or one family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConformCheck {
    /// What was checked.
    pub name: String,
    /// Method and path, or an endpoint.
    pub request: String,
    /// What differs.
    #[serde(flatten)]
    pub found: ShapeDifferences,
}

impl ConformCheck {
    pub(super) fn new(name: impl Into<String>, request: impl Into<String>, found: ShapeDifferences) -> Self {
        Self { name: name.into(), request: request.into(), found }
    }

    /// Returns true where nothing differs; with `is_strict`, nothing at all.
    pub(crate) fn holds(&self, is_strict: bool) -> bool {
        self.found.differences.is_empty() && (!is_strict || self.found.notes.is_empty())
    }
}

/// Sends each exchange to the server, compares, and adds what was found.
///
/// # Errors
/// A server that cannot be reached.
pub async fn check_exchanges(
    client: &ConformClient,
    model: &str,
    checks: &mut Vec<ConformCheck>,
) -> Result<(), ConformError> {
    for exchange in exchanges() {
        let answer = match (&*exchange.method, &*exchange.path) {
            ("GET", client::MODELS) => client.models().await?.clone(),
            (method, path) => client.send(method, path, exchange.body(model)).await?,
        };
        let request = format!("{} {}", exchange.method, exchange.path);
        checks.push(ConformCheck::new(&exchange.name, request, exchange.compare(&answer)));
    }
    Ok(())
}
