//! Options of a connection where HTTP leaves a server free, so that it can behave as another server does.

use std::time::Duration;

base::with_defaults! {
    /// The options.
    #[derive(Debug, Clone, Copy)]
    pub struct ConnectionOptions {
        /// Time that a client may take for the head of a request, and that it may be idle before its next one.
        pub header_timeout: Duration = Duration::from_secs(30),
        /// Builds the whole response, with its head, to bytes that are not an HTTP/1 request; `None` for an empty 400. It should
        /// carry `connection: close`.
        pub bad_request: Option<fn() -> Vec<u8>>,
    }
}
