//! Options of a connection where HTTP leaves a server free, so that it can behave as another server does.

use std::time::Duration;

/// The options.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionOptions {
    /// Time that a client may take for the head of a request, and that it may be idle before its next one.
    pub header_timeout: Duration,
    /// Builds the whole response, with its head, to bytes that are not an HTTP/1 request; `None` for an empty 400. It should
    /// carry `connection: close`.
    pub bad_request: Option<fn() -> Vec<u8>>,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self { header_timeout: Duration::from_secs(30), bad_request: None }
    }
}
