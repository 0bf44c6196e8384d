//! Types that a caller brings: the body of a request, and options.

use std::{error::Error, sync::Arc, time::Duration};

use http_body::Body;

use super::connector::Authorities;

/// The body of a request.
pub trait OutgoingBody: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static {}

impl<B> OutgoingBody for B where B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static {}

/// Options of a client.
#[derive(Debug, Clone, Default)]
pub struct UpstreamOptions {
    /// Timeout of a connection attempt; `None` for the system's.
    pub connect_timeout: Option<Duration>,
    /// Timeout of the head of a response; `None` for no timeout.
    pub response_timeout: Option<Duration>,
    /// Trusted certificates of `https` servers; `None` for Mozilla's root certificates.
    pub authorities: Option<Arc<Authorities>>,
}
